"""External data anywhere in a model: found beside it whatever the working folder, complete, and never outside."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from cuvil_onnx import optimize
from cuvil_onnx.errors import ModelLoadError, OutputError

W = np.arange(4, dtype=np.float32)
X = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])
Y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])
ADD = helper.make_node("Add", ["x", "w"], ["y"])


def outside(**entries: Any) -> onnx.TensorProto:
    """A tensor of four floats whose data is in a file."""
    tensor = onnx.TensorProto(name="w", dims=[4], data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "w.bin", **entries}.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def model(nodes: list[onnx.NodeProto], *weights: onnx.TensorProto, **options: Any) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", [X], [Y], weights)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=9, **options)


def initializer(tensor: onnx.TensorProto) -> onnx.ModelProto:
    return model([ADD], tensor)


def constant(tensor: onnx.TensorProto) -> onnx.ModelProto:
    return model([helper.make_node("Constant", [], ["w"], value=tensor), ADD])


def function(tensor: onnx.TensorProto) -> onnx.ModelProto:
    body = [helper.make_node("Constant", [], ["w"], value=tensor), ADD]
    made = helper.make_function("my", "F", ["x"], ["y"], body, [helper.make_opsetid("", 17)])
    return model([helper.make_node("F", ["x"], ["y"], domain="my")], functions=[made])


def subgraph(tensor: onnx.TensorProto) -> onnx.ModelProto:
    result = helper.make_tensor_value_info("r", TensorProto.FLOAT, ["N", 4])
    then = helper.make_graph([helper.make_node("Add", ["x", "w"], ["r"])], "then", [], [result], [tensor])
    other = helper.make_graph([helper.make_node("Add", ["x", "w"], ["r"])], "else", [], [result], [tensor])
    size = helper.make_node("Size", ["x"], ["s"])
    flag = helper.make_node("Cast", ["s"], ["c"], to=TensorProto.BOOL)
    return model([size, flag, helper.make_node("If", ["c"], ["y"], then_branch=then, else_branch=other)])


PLACES = [initializer, constant, function, subgraph]


@pytest.mark.parametrize("location", ["w.bin", "sub/w.bin"])
@pytest.mark.parametrize("place", PLACES)
def test_found_beside_the_model(place: Any, location: str, tmp_path: Path) -> None:
    """Another file of that name in the working folder must not be taken; the result must not need the first one."""
    (tmp_path / "in" / "sub").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "in" / location).write_bytes(W.tobytes())
    (tmp_path / "in" / "m.onnx").write_bytes(place(outside(location=location)).SerializeToString())
    optimize(tmp_path / "in" / "m.onnx", tmp_path / "out" / "m.onnx", verify=True)
    session = ort.InferenceSession(tmp_path / "out" / "m.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"x": np.ones((2, 4), np.float32)})[0], np.tile(W + 1, (2, 1)))


@pytest.mark.parametrize("place", PLACES)
def test_its_file_is_never_overwritten(place: Any, tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(W.tobytes())
    (tmp_path / "m.onnx").write_bytes(place(outside()).SerializeToString())
    with pytest.raises(OutputError, match="input model"):
        optimize(tmp_path / "m.onnx", tmp_path / "w.bin")
    assert (tmp_path / "w.bin").read_bytes() == W.tobytes()


BAD = {
    "outside": ({"location": "../w.bin"}, "leads out of the model's folder"),
    "absolute": ({"location": "/etc/hostname"}, "leads out of the model's folder"),
    "through a link": ({"location": "link.bin"}, "leads out of the model's folder"),
    "missing": ({"location": "absent.bin"}, "does not exist"),
    "nowhere": ({"location": ""}, "malformed external data"),
    "negative offset": ({"offset": -8}, "malformed external data"),
    "no number": ({"offset": "x"}, "malformed external data"),
    "too short": ({"offset": 8}, "has 16 bytes, 24 required"),
    "other length": ({"length": 4}, "require 16 bytes"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", BAD)
def test_bad_external_data_is_refused(place: Any, kind: str, tmp_path: Path) -> None:
    entries, message = BAD[kind]
    folder = tmp_path / "in"
    folder.mkdir()
    for file in (tmp_path / "w.bin", folder / "w.bin"):
        file.write_bytes(W.tobytes())
    (folder / "link.bin").symlink_to("../w.bin")
    (folder / "m.onnx").write_bytes(place(outside(**entries)).SerializeToString())
    with pytest.raises(ModelLoadError, match=message):
        optimize(folder / "m.onnx")


def saved_with_data(folder: Path) -> Path:
    (folder / "w.bin").write_bytes(W.tobytes())
    onnx.save(initializer(outside()), folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda file: file.write_bytes(W.tobytes()[:8]), "has 8 bytes, 16 when the model was loaded"),
        (lambda file: file.unlink(), "cannot be read any more"),
        (lambda file: os.utime(file, (1, 1)), "was written again after the model was loaded"),
    ],
)
def test_data_that_changes_between_optimize_and_save(tmp_path: Path, damage: Any, reason: str) -> None:
    result = optimize(saved_with_data(tmp_path), verify=False)
    damage(tmp_path / "w.bin")
    with pytest.raises(ModelLoadError, match=rf"weight 'w': .*w\.bin {reason}"):
        result.save(tmp_path / "out.onnx")
    with pytest.raises(ModelLoadError, match=reason):
        _ = result.model
    assert not list(tmp_path.glob("*out*"))
