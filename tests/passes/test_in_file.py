"""Weights of a large file stay there: same results, little memory, and no wrong answer when the file changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from cuvil_onnx import optimize
from cuvil_onnx.errors import ModelLoadError
from cuvil_onnx.passes import in_file

ROOT = Path(__file__).resolve().parents[2]


def chain(folder: Path, size: int, layers: int) -> Path:
    """Products with matrices of ``size`` x ``size``, the odd ones transposed, written with the usual writer."""
    rng = np.random.default_rng(0)
    weights, nodes, x = [], [], "x"
    for layer in range(layers):
        array = rng.standard_normal((size, size), np.float32)
        weights.append(numpy_helper.from_array(array, f"w{layer}"))
        weight = f"w{layer}"
        if layer % 2:
            nodes.append(helper.make_node("Transpose", [weight], [f"t{layer}"], perm=[1, 0]))
            weight = f"t{layer}"
        nodes.append(helper.make_node("MatMul", [x, weight], [f"y{layer}"]))
        x = f"y{layer}"
    weights[0].doc_string = "the first"
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", size]) for n in ("x", x)]
    graph = helper.make_graph(nodes, "g", infos[:1], infos[1:], weights, doc_string="of the graph")
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10, producer_name="test")
    path = folder / "m.onnx"
    onnx.save(made, path)
    return path


@pytest.fixture
def small_files_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_file, "MIN_FILE_BYTES", 0)


@pytest.mark.usefixtures("small_files_too")
def test_nothing_but_the_data_is_left_out(tmp_path: Path) -> None:
    path = chain(tmp_path, 130, 4)
    found = in_file.without_weights(path)
    assert found is not None
    proto, offsets = found
    assert list(offsets) == ["w0", "w1", "w2", "w3"]
    assert proto.ByteSize() < 2000
    for tensor in proto.graph.initializer:
        with path.open("rb") as file:
            file.seek(offsets[tensor.name])
            tensor.raw_data = file.read(4 * 130 * 130)
    assert proto == onnx.load(path)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_same_model_comes_out(tmp_path: Path, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = chain(tmp_path, 130, 4)
    files, protos = [], []
    for least in (1 << 60, 0):
        monkeypatch.setattr(in_file, "MIN_FILE_BYTES", least)
        result = optimize(path, tmp_path / f"{least}.onnx", precision=precision)
        assert result.report.verification.startswith("1 outputs")
        files.append((tmp_path / f"{least}.onnx").read_bytes())
        protos.append(result.model)
    assert files[0] == files[1]
    assert protos[0] == protos[1] == onnx.load_model_from_string(files[0])
    assert not list(tmp_path.glob("*.data"))


@pytest.mark.usefixtures("small_files_too")
def test_a_file_that_is_written_again_is_an_error(tmp_path: Path) -> None:
    path = chain(tmp_path, 130, 2)
    result = optimize(path, verify=False)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ModelLoadError, match="'w0'"):
        result.save(tmp_path / "out.onnx")
    with pytest.raises(ModelLoadError, match="'w0'"):
        _ = result.model


@pytest.mark.usefixtures("small_files_too")
@pytest.mark.parametrize("cut", [3, 70_000, 130_000])
def test_a_damaged_file_is_refused_as_before(tmp_path: Path, cut: int) -> None:
    path = chain(tmp_path, 130, 2)
    path.write_bytes(path.read_bytes()[:-cut])
    with pytest.raises(ModelLoadError, match="truncated"):
        optimize(path)


@pytest.mark.usefixtures("small_files_too")
def test_what_is_written_otherwise_is_read(tmp_path: Path) -> None:
    """Elements as numbers, too few of them, and elements smaller than a byte."""
    path = chain(tmp_path, 130, 2)
    proto = onnx.load(path)
    array = numpy_helper.to_array(proto.graph.initializer[0])
    proto.graph.initializer[0].ClearField("raw_data")
    proto.graph.initializer[0].float_data.extend(array.reshape(-1))
    proto.graph.initializer[1].dims[0] = 131
    proto.graph.initializer.add(name="i4", dims=[1 << 18], data_type=TensorProto.INT4, raw_data=b"\0" * (1 << 17))
    onnx.save(proto, path)
    assert in_file.without_weights(path) is None


SCRIPT = """
import resource, sys
import cuvil_onnx
from benchmarks.scale_models import GENERATORS
cuvil_onnx.optimize(GENERATORS["regions"](50), verify=False)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
cuvil_onnx.optimize(sys.argv[1], sys.argv[2], precision=sys.argv[3], verify=False)
print(peak() - before)
"""


@pytest.mark.parametrize("outside", [False, True], ids=["inside", "external data"])
@pytest.mark.parametrize(("precision", "megabytes"), [("fp32", 40), ("fp16", 60)])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, precision: str, megabytes: int, outside: bool) -> None:
    """The file has 160 MB in weights of 4 MiB. One at a time is in memory, with the results of its conversion.

    What is needed follows from the largest weight: 2.5 GB in weights of 64 MiB take 100 MiB, see ``optimize_scale``.
    """
    path = chain(tmp_path, 1024, 40)
    if outside:
        onnx.save(onnx.load(path), path, save_as_external_data=True, location="m.weights")
    else:
        assert path.stat().st_size > in_file.MIN_FILE_BYTES
    command = [sys.executable, "-c", SCRIPT, str(path), str(tmp_path / "out.onnx"), precision]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert float(done.stdout) < megabytes, done.stdout
