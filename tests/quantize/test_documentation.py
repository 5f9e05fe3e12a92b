"""The code in docs/quantization.md runs as written, and the page names every setting."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import onnx
import pytest

from cuvil_onnx.quantize.settings import Settings
from tests.quantize.quantize_testing import product, weight

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "quantization.md").read_text()


def test_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(product(weight(128, 64)), "model.onnx")
    code, *sources = re.findall(r"^```py\n(.*?)^```", PAGE, flags=re.S | re.M)
    assert all("from_gguf" in s for s in sources)  # read files that are not here; tests/quantize/sources has some
    exec(compile(code, "documentation", "exec"), {})
    assert "1 weights as rtn:w4a16:g32" in capsys.readouterr().out and Path("model.int4.onnx").is_file()


def test_every_setting_is_told() -> None:
    inner = {"scheme", "scale_dtype", "progress"}
    for field in dataclasses.fields(Settings):
        assert field.name in inner or f"`{field.name}" in PAGE, field.name
