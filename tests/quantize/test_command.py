"""cuvil quantize and cuvil optimize --quantize."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

from cuvil_onnx.cli import main
from tests.quantize.quantize_testing import graph, ops, weight


@pytest.fixture
def file(tmp_path: Path) -> Path:
    body = "a = MatMul(x, u) b = Relu(a) y = MatMul(b, v)"
    text = f"(float[M,128] x) => (float[M,64] y) {{ {body} }}"
    path = tmp_path / "model.onnx"
    onnx.save(graph(text, u=weight(128, 96), v=weight(96, 64, seed=1)), path)
    return path


def test_table(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    chart = file.with_suffix(".svg")
    assert main(["quantize", str(file), "--scheme", "rtn:g32", "--verify", "--chart", str(chart)]) == 0
    assert chart.read_text().count("<rect") == 3 and "relative errors of weights" in chart.read_text()
    out, err = capsys.readouterr()
    written = file.with_suffix(".int4.onnx")
    assert (
        "quantized: 2 weights as rtn:w4a16:g32" in out and f"written: {written}" in out and "verified: 1 outputs" in out
    )
    assert "[1/2] a" in err and "[2/2] y" in err
    assert ops(onnx.load(written)) == {"cuvil::MatMulInt4": 2, "Relu": 1}


def test_json_and_options(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out.onnx"
    options = ["--override", "u=8", "--exclude", "v", "--group-size", "-1", "--no-symmetric", "--format", "matmulnbits"]
    assert main(["quantize", str(file), "-o", str(target), *options, "--json", "--quiet"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)["quantization"]
    (layer,) = found["layers"]
    assert err == "" and layer["bits"] == 8 and layer["group_size"] == -1 and not layer["symmetric"]
    assert found["bytes_saved"] == layer["bytes_before"] - layer["bytes_after"] > 0
    assert {"name": "y", "reason": "excluded"} in found["skipped"]
    assert ops(onnx.load(target))["com.microsoft::MatMulNBits"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--scheme", "nix"], "no quantization scheme is called 'nix'"),
        (["--override", "u"], "PATTERN=BITS is required"),
        (["--include", "nix"], "'nix' names no product"),
        (["--scheme", "gptq"], "needs calibration="),
    ],
)
def test_mistakes(file: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", str(file), *options]) == 2
    assert message in capsys.readouterr().err
    assert not file.with_suffix(".int4.onnx").exists()


def test_input_is_not_overwritten(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = file.read_bytes()
    assert main(["quantize", str(file), "-o", str(file)]) == 2
    assert "is the input model" in capsys.readouterr().err and file.read_bytes() == before


def test_schemes_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["quantize", "--list"])
    out = capsys.readouterr().out
    assert "rtn: round to nearest" in out and "options: clip=False" in out


def test_optimize_takes_the_same_text(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["optimize", str(file), "--quantize", "rtn:g32:sym", "--quiet"]) == 0
    assert "quantized: 2 weights as rtn:w4a16:g32:sym" in capsys.readouterr().out
    assert ops(onnx.load(file.with_suffix(".cuvil.onnx"))) == {"cuvil::MatMulInt4": 2}


def test_page_shows_the_weights(file: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    assert main(["optimize", str(file), "--quantize", "rtn:g32", "--quiet", "--html", str(page)]) == 0
    text = page.read_text()
    assert "Quantized weights" in text and "rtn:w4a16:g32" in text and "128 x 96" in text
    assert "Verified against the weights that the codes stand for" in text
