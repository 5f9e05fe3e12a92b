"""``cuvil inspect``: counts, costs worked out by hand, and models that cannot be run here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from cuvil_onnx import cli
from cuvil_onnx.tools.inspect import inspect


def save(path: Path, text: str, opset: int = 18, **weights: np.ndarray) -> Path:
    graph = onnx.parser.parse_graph(f"g {text}")
    graph.initializer.extend(numpy_helper.from_array(a, name) for name, a in weights.items())
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    model.producer_name, model.producer_version = "by hand", "1"
    onnx.save(model, path)
    return path


@pytest.fixture
def conv(tmp_path: Path) -> Path:
    weight = np.ones((8, 3, 3, 3), np.float32)
    text = "(float[N,3,16,16] x) => (float[N,8,14,14] y) { c = Conv(x, w) y = Relu(c) }"
    return save(tmp_path / "conv.onnx", text, w=weight)


def test_what_the_file_says(conv: Path) -> None:
    facts = inspect(conv)
    assert facts.ir_version == 9 and facts.opsets == {"ai.onnx": 18} and facts.producer == "by hand 1"
    assert facts.inputs == {"x": "float[N, 3, 16, 16]"} and facts.outputs == {"y": "float[N, 8, 14, 14]"}
    assert facts.nodes == 2 and facts.ops == {"Conv": 1, "Relu": 1}
    assert facts.parameters == {"float": {"tensors": 1, "elements": 216, "bytes": 864}}
    assert facts.unknown_cost == 2 and facts.flops == 0  # N is free


@pytest.mark.parametrize("dims", [{"N": 2}, {"x:0": 2}])
def test_costs_with_sizes_given(conv: Path, dims: dict[str, int]) -> None:
    facts = inspect(conv, dims)
    out = 2 * 8 * 14 * 14
    assert facts.unknown_cost == 0
    assert facts.flops == 2 * out * 3 * 3 * 3 + out
    assert facts.bytes_moved == 4 * (2 * 3 * 16 * 16 + 216 + out) + 4 * (out + out)


def test_costs_of_products_and_lookups(tmp_path: Path) -> None:
    table = np.ones((1000, 8), np.float32)
    text = "(int64[4] i, float[8,5] b) => (float[4,5] y) { e = Gather(t, i) y = MatMul(e, b) }"
    facts = inspect(save(tmp_path / "m.onnx", text, t=table))
    assert facts.flops == 2 * 4 * 5 * 8
    # Gather reads only the rows that it returns, not the table.
    assert facts.bytes_moved == 2 * 4 * (4 * 8) + 4 * (4 * 8 + 8 * 5 + 4 * 5)


def test_subgraphs_and_unknown_operators(tmp_path: Path) -> None:
    text = """(bool c, float[3] x) => (float[3] y) {
        y = If (c) <
            then_branch = t () => (float[3] a) { a = Frobnicate(x) },
            else_branch = e () => (float[3] b) { b = Neg(x) }
        >
    }"""
    facts = inspect(save(tmp_path / "m.onnx", text))
    assert [(s["op"], s["nodes"]) for s in facts.subgraphs] == [("If", 1), ("If", 1)]
    assert facts.ops == {"Frobnicate": 1, "If": 1, "Neg": 1} and facts.nodes == 1
    assert facts.unknown_ops == ["ai.onnx::Frobnicate (unnamed)"]


def test_a_model_newer_than_the_installed_runtime(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", "(float[3] x) => (float[3] y) { y = Neg(x) }", opset=99)
    assert inspect(path).opsets == {"ai.onnx": 99}


def test_external_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weight = np.ones((64, 64), np.float32)
    path = save(tmp_path / "a.onnx", "(float[2,64] x) => (float[2,64] y) { y = MatMul(x, w) }", w=weight)
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    assert inspect(path).external == {"w.bin": {"bytes": 64 * 64 * 4, "exists": True}}
    (tmp_path / "w.bin").unlink()
    assert cli.main(["inspect", str(path)]) == 0
    assert "w.bin: 16384 bytes, file is missing" in capsys.readouterr().out


def test_a_small_weight_in_a_missing_file(tmp_path: Path) -> None:
    path = save(tmp_path / "a.onnx", "(float[4] x) => (float[2,2] y) { y = Reshape(x, s) }", s=np.array([2, 2]))
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "w.bin").unlink()
    assert inspect(path).external["w.bin"]["exists"] is False


def test_the_command(conv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["inspect", str(conv), "--dim", "N=2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ops"] == {"Conv": 1, "Relu": 1}
    assert cli.main(["inspect", str(conv)]) == 0
    assert "parameters float: 216 in 1 tensors" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("extra", "message"), [(["--dim", "M=2"], "dimension 'M'"), (["--dim", "N"], "NAME=SIZE is expected")]
)
def test_bad_dimensions(conv: Path, capsys: pytest.CaptureFixture[str], extra: list[str], message: str) -> None:
    assert cli.main(["inspect", str(conv), *extra]) == 2
    out, err = capsys.readouterr()
    assert message in err and err.count("\n") == 1 and not out


def test_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model\n" * 30)
    for name in ("bad.onnx", "missing.onnx"):
        assert cli.main(["inspect", str(tmp_path / name)]) == 2
        err = capsys.readouterr().err
        assert err.startswith("cuvil: ") and err.count("\n") == 1 and "internal" not in err


def test_float8_and_strings(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", "(float[3] x) => (float[3] y) { y = Neg(x) }", s=np.array(["a", "b"], object))
    model = onnx.load(path)
    model.graph.initializer.append(helper.make_tensor("f", TensorProto.FLOAT8E4M3FN, [2], [1.0, 2.0]))
    onnx.save(model, path)
    assert inspect(path).parameters["float8e4m3fn"]["bytes"] == 2
    assert inspect(path).parameters["string"]["elements"] == 2


def test_computed_sizes_are_followed(tmp_path: Path) -> None:
    text = """(float[N,4,6] x, float[6,5] w) => (float[a,b] y) {
        s = Shape(x)
        n = Gather(s, zero)
        m = Mul(n, four)
        one = Unsqueeze(m, axes)
        to = Concat <axis = 0> (one, rest)
        r = Reshape(x, to)
        y = MatMul(r, w)
    }"""
    sizes = {"zero": np.int64(0), "four": np.int64(4), "axes": np.array([0]), "rest": np.array([6])}
    facts = inspect(save(tmp_path / "m.onnx", text, **{k: np.asarray(v) for k, v in sizes.items()}), {"N": 2})
    assert facts.unknown_cost == 0
    assert facts.flops == 2 * 8 * 5 * 6 + 1  # the product, and the product of two scalars


def outside(path: Path) -> tuple[onnx.ModelProto, onnx.TensorProto]:
    """A model in ``path`` whose one small weight lies in ``w.bin``."""
    save(path, "(float[4] x) => (float[4] y) { y = Add(x, w) }", w=np.ones(4, np.float32))
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    model = onnx.load(path, load_external_data=False)
    return model, model.graph.initializer[0]


def test_weights_that_are_not_there_do_not_matter(tmp_path: Path) -> None:
    """A file that is gone, too short, empty, a folder, a pipe (which would never end), or another folder's."""
    path, data = tmp_path / "m" / "m.onnx", tmp_path / "m" / "w.bin"
    path.parent.mkdir()
    model, weight = outside(path)
    assert inspect(path).flops == 4
    for spoil in (lambda: data.write_bytes(b"123"), lambda: data.write_bytes(b""), data.unlink, data.mkdir):
        spoil()
        assert inspect(path).parameters["float"]["elements"] == 4
    data.rmdir()
    os.mkfifo(data)
    assert inspect(path).parameters["float"]["elements"] == 4
    for entry in weight.external_data:
        if entry.key == "location":
            entry.value = "../w.bin"
    (tmp_path / "w.bin").write_bytes(b"0" * 16)
    path.write_bytes(model.SerializeToString())
    assert inspect(path).parameters["float"]["elements"] == 4


@pytest.mark.parametrize("command", ["inspect", "diff", "optimize"])
@pytest.mark.parametrize(
    ("key", "value"),
    [("offset", "-4"), ("offset", "text"), ("length", "8"), ("location", ""), ("location", "a\0b")],
)
def test_external_data_that_makes_no_sense(command: str, key: str, value: str, tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "m.onnx"
    model, weight = outside(path)
    kept = [entry for entry in weight.external_data if entry.key != key]
    del weight.external_data[:]
    weight.external_data.extend([*kept, onnx.StringStringEntryProto(key=key, value=value)])
    path.write_bytes(model.SerializeToString())
    assert cli.main([command, *[str(path)] * (2 if command == "diff" else 1)]) == 2
    assert "weight 'w': malformed external data" in capsys.readouterr().err
