"""Interrupted quantization goes on where it stopped, and gives the same model."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import cuvil_onnx
from cuvil_onnx.errors import CuvilError
from cuvil_onnx.quantize import calibrate, calibrate_data
from cuvil_onnx.quantize.calibrate_data import Samples
from cuvil_onnx.quantize.schemes.awq import Awq
from cuvil_onnx.quantize.schemes.gptq import Gptq
from tests.quantize.quantize_testing import weights_of
from tests.quantize.test_awq import decoder_layer, feeds

ARGUMENTS = {"group_size": 32, "include": ["*"]}


class Interrupted(Exception):
    pass


@pytest.mark.parametrize(("scheme", "kind"), [("gptq", Gptq), ("awq", Awq)])
def test_the_rest_is_done_and_equals_a_whole_run(
    scheme: str, kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "SAVE_SECONDS", 0.0)
    whole = cuvil_onnx.quantize(decoder_layer(), scheme, calibration=feeds(), **ARGUMENTS)
    asked: list[str] = []
    original = kind.quantize

    def quantize(self, layer, grid, context):  # type: ignore[no-untyped-def]
        if len(asked) == 4:
            raise Interrupted
        asked.append(layer.name)
        return original(self, layer, grid, context)

    with monkeypatch.context() as patch:
        patch.setattr(kind, "quantize", quantize)
        with pytest.raises(Interrupted):
            cuvil_onnx.quantize(decoder_layer(), scheme, calibration=Samples(feeds(), folder=tmp_path), **ARGUMENTS)
        first, asked[:] = list(asked), []
        ran: list[str] = []
        advance = calibrate.Observation._advance
        patch.setattr(
            calibrate.Observation, "_advance", lambda self, s: (ran.append(s.site.name or ""), advance(self, s))[1]
        )
        again = cuvil_onnx.quantize(decoder_layer(), scheme, calibration=Samples(feeds(), folder=tmp_path), **ARGUMENTS)
    assert len(first) == 4 and len(asked) == 1, "five weights, none of them twice"
    assert ran == ["h"], "the pieces before the last input did not run again"
    for one, two in zip(weights_of(whole.model), weights_of(again.model), strict=True):
        np.testing.assert_array_equal(one, two)
    tensors = [{t.name: t.SerializeToString() for t in m.model.graph.initializer} for m in (whole, again)]
    assert tensors[0] == tensors[1], "folded scales included"


def test_other_samples_start_from_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "SAVE_SECONDS", 0.0)
    cuvil_onnx.quantize(decoder_layer(), "gptq", calibration=Samples(feeds(), folder=tmp_path), **ARGUMENTS)
    other = feeds()[1:]
    made = cuvil_onnx.quantize(decoder_layer(), "gptq", calibration=Samples(other, folder=tmp_path), **ARGUMENTS)
    want = cuvil_onnx.quantize(decoder_layer(), "gptq", calibration=other, **ARGUMENTS)
    for one, two in zip(weights_of(made.model), weights_of(want.model), strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_lost_result_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "SAVE_SECONDS", 0.0)
    calibration = calibrate_data.as_calibration(Samples(feeds(), folder=tmp_path))
    cuvil_onnx.quantize(decoder_layer(), "gptq", calibration=calibration, **ARGUMENTS)
    for file in tmp_path.glob("*.npz"):
        file.unlink()
    with pytest.raises(CuvilError, match="lacks the result of an earlier run"):
        cuvil_onnx.quantize(decoder_layer(), "gptq", calibration=Samples(feeds(), folder=tmp_path), **ARGUMENTS)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=np.ones(3))
    with pytest.raises(CuvilError, match="holds files of something else: give a folder that is new or empty"):
        cuvil_onnx.quantize(decoder_layer(), "gptq", calibration=Samples(feeds(), folder=tmp_path), **ARGUMENTS)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.npz"]


def test_rows_that_were_left_out_are_reported_after_an_interruption_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibrate, "SAVE_SECONDS", 0.0)
    samples = feeds()
    name = next(key for key, array in samples[0].items() if array.dtype == np.float32)
    samples[0] = {**samples[0], name: np.full_like(samples[0][name], np.nan)}
    for _ in range(2):
        made = cuvil_onnx.quantize(decoder_layer(), "gptq", calibration=Samples(samples, folder=tmp_path), **ARGUMENTS)
        (warning,) = [w for w in made.report.quantization.warnings if "calibration" in w]
        assert re.match(r"calibration: \d+ of \d+ rows \(tokens\) at '.*' hold NaN, Inf .* left out", warning)
