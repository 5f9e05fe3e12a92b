"""Models that are larger than what may be in memory: one weight at a time, codes in a temporary file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import cuvil_onnx
from cuvil_onnx.quantize import store
from tests.quantize.quantize_testing import ops, rows, run, session, weights_of

SIZE, LAYERS = 1024, 24


def external(folder: Path, size: int = SIZE, layers: int = LAYERS) -> Path:
    """A chain of float16 products with the weights in one file."""
    nodes, tensors, x = [], [], "x"
    with (folder / "m.data").open("wb") as file:
        for i in range(layers):
            data = np.random.default_rng(i).standard_normal((size, size), np.float32) / size**0.5
            tensor = TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT16, dims=[size, size])
            tensor.data_location = TensorProto.EXTERNAL
            place = {"location": "m.data", "offset": str(file.tell()), "length": str(2 * size * size)}
            for key, value in place.items():
                tensor.external_data.add(key=key, value=value)
            file.write(data.astype(np.float16).tobytes())
            tensors.append(tensor)
            nodes.append(helper.make_node("MatMul", [x, f"w{i}"], [f"y{i}"], name=f"m{i}"))
            x = f"y{i}"
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT16, ["M", size]) for n in ("x", x)]
    graph = helper.make_graph(nodes, "g", info[:1], info[1:], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), folder / "m.onnx")
    return folder / "m.onnx"


def test_codes_in_a_temporary_file_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = external(tmp_path, 256, 3)
    inside = {t.name: t.raw_data for t in cuvil_onnx.quantize(path).model.graph.initializer}
    monkeypatch.setattr(store, "MEMORY_BYTES", 0)
    result = cuvil_onnx.quantize(path)
    assert {t.name: t.raw_data for t in result.model.graph.initializer} == inside
    target = result.save(tmp_path / "out.onnx")
    assert ops(onnx.load(target)) == {"cuvil::MatMulInt4": 3}
    x = rows(2, 256, dtype=np.float16)
    expected = x.astype(np.float64)
    for rounded in weights_of(result.model):
        expected = expected @ rounded
    # float16 results of order 1, rounded after each of three products.
    np.testing.assert_allclose(run(onnx.load(target), x=x)[0], expected, rtol=1e-2, atol=1e-2)
    assert session(onnx.load(target)).get_inputs()[0].shape == ["M", 256]


PROGRAM = """
import resource, sys
import cuvil_onnx.api
from cuvil_onnx.quantize import store
store.MEMORY_BYTES = 1 << 20
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
cuvil_onnx.quantize(sys.argv[1], verify=False, output=sys.argv[2])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_peak_memory_is_near_one_weight(tmp_path: Path) -> None:
    path = external(tmp_path)
    program = [sys.executable, "-c", PROGRAM, str(path), str(tmp_path / "out.onnx")]
    done = subprocess.run(program, check=True, capture_output=True, text=True, timeout=300)
    # The weights are 50 MB, one of them 2; the codes 13. What is imported on the way and one weight's work take 25.
    assert int(done.stdout) / 1024 < 40, done.stdout
    assert (tmp_path / "out.onnx").stat().st_size < 16e6
