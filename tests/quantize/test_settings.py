"""What may be asked for, and what is said of the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import cuvil_onnx
from cuvil_onnx.errors import OptionError
from cuvil_onnx.quantize.scheme import make_scheme, scheme_types
from cuvil_onnx.quantize.settings import settings
from tests.quantize.quantize_testing import product, weight


def test_text_and_arguments_say_the_same() -> None:
    text = settings("rtn:w8a16:g32:sym:clip=1:steps=7")
    made = settings("rtn", bits=8, group_size=32, symmetric=True, options={"clip": True, "steps": 7})
    assert (text.bits, text.group_size, text.symmetric) == (made.bits, made.group_size, made.symmetric) == (8, 32, True)
    assert text.scheme.options == made.scheme.options == {"clip": True, "steps": 7, "narrowest": 0.6}
    assert settings(text.label()).label() == text.label() == "rtn:w8a16:g32:sym:clip=True:steps=7"
    assert settings("rtn:channel").group_size == -1 and settings("rtn:asym").symmetric is False


def test_arguments_win_over_text() -> None:
    made = settings("rtn:g32:sym", group_size=64, symmetric=False)
    assert made.group_size == 64 and made.symmetric is False


def test_zero_points_by_default_at_4_bits_only() -> None:
    made = settings("rtn")
    assert not made.grid(4, ir.DataType.FLOAT).symmetric and made.grid(8, ir.DataType.FLOAT).symmetric


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("nix", {}, "no quantization scheme is called 'nix'; there are .*rtn"),
        ("rtn:w3a16", {}, "'w3a16' is none of"),
        ("rtn:g33", {}, "group_size=33"),
        ("rtn", {"group_size": 8}, "group_size=8"),
        ("rtn", {"group_size": "32"}, "group_size='32'"),
        ("rtn", {"bits": 5}, "bits=5 is not one of 4, 8"),
        ("rtn", {"format": "gguf"}, "format='gguf'"),
        ("rtn:nix=1", {}, "has no option 'nix'; it has: clip"),
        ("rtn:clip=maybe", {}, "neither true nor false"),
        ("rtn:steps=few", {}, "option 'steps'"),
        ("rtn", {"include": "w"}, "include takes a list"),
        ("rtn", {"overrides": {"w": 3}}, r"overrides\['w'\]=3"),
        ({"group": 3}, {}, "'group' must be a dict"),
    ],
)
def test_mistakes_are_named(text: Any, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        settings(text, **arguments)


def test_schemes_that_look_at_activations_need_some() -> None:
    names = [name for name, kind in scheme_types().items() if kind.calibrated]
    for name in names:
        with pytest.raises(OptionError, match="needs calibration="):
            settings(name)
    assert names


def test_every_scheme_documents_itself() -> None:
    assert "rtn" in scheme_types()
    for name, kind in scheme_types().items():
        assert kind.name == name and kind.summary
        assert set(make_scheme(name, {}).options) == set(kind.defaults)


def test_package_and_function_share_a_name() -> None:
    import cuvil_onnx.quantize.grid

    assert callable(cuvil_onnx.quantize) and cuvil_onnx.quantize.grid.Grid().bits == 4
    assert "quantize" in dir(cuvil_onnx)


def test_optimize_takes_text_dict_and_settings() -> None:
    model = product(weight(128, 64))
    for how in ("rtn:g32", cuvil_onnx.quantize_settings("rtn", group_size=32)):
        report = cuvil_onnx.optimize(model, quantize=how).report.quantization
        assert report is not None and report.layers[0].group_size == 32
    with pytest.raises(OptionError, match="no quantization scheme"):
        cuvil_onnx.optimize(model, quantize="nix")
    assert cuvil_onnx.optimize(model).report.quantization is None


def test_progress_ends_with_all() -> None:
    seen: list[tuple[int, int, str]] = []
    cuvil_onnx.quantize(product(weight(128, 64)), progress=lambda *step: seen.append(step))
    assert seen == [(1, 1, "y")]
    assert np.isfinite(seen[0][0])


def test_a_scheme_of_another_type_is_refused() -> None:
    with pytest.raises(OptionError, match="scheme is int; a text"):
        cuvil_onnx.quantize(product(weight(64, 64)), 5)  # type: ignore[arg-type]
