"""Tensors of every name and type pass between the processes of a comparison."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from cuvil_onnx.bench import compare, feeds
from cuvil_onnx.bench.accuracy import largest_difference
from cuvil_onnx.bench.arrays import load_arrays, save_arrays
from cuvil_onnx.bench.worker import Result
from cuvil_onnx.errors import CuvilError


@pytest.mark.parametrize("name", ["x", "file", "allow_pickle", "args", "a/b", "types.json", "x.npy"])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.array(3, np.int64),
        np.zeros((0, 4), np.float16),
        np.array([1.5, -2], ml_dtypes.bfloat16),
        np.array(2, ml_dtypes.float8_e4m3fn),
        np.array([[True, False]]),
    ],
    ids=lambda a: str(a.dtype),
)
def test_what_is_saved_comes_back(tmp_path, name, array):
    save_arrays(tmp_path / "f.npz", {name: array, "other": np.ones(2)})
    back = load_arrays(tmp_path / "f.npz")
    assert list(back) == [name, "other"]
    assert back[name].dtype == array.dtype
    np.testing.assert_array_equal(back[name], array)


def test_strings_come_back_equal(tmp_path):
    words = np.array([["a", "bcd"]], object)
    save_arrays(tmp_path / "f.npz", {"w": words})
    back = load_arrays(tmp_path / "f.npz")
    assert largest_difference(back, {"w": words}) == (0.0, 0.0)
    assert largest_difference({"w": np.array([["a", "bce"]])}, {"w": words}) == (float("inf"), float("inf"))


def test_numpys_own_files_are_read(tmp_path):
    np.savez(tmp_path / "f.npz", x=np.ones(3))
    np.testing.assert_array_equal(load_arrays(tmp_path / "f.npz")["x"], np.ones(3))


def test_a_given_bfloat16_input_has_its_type_again(tmp_path):
    info = helper.make_tensor_value_info("x", TensorProto.BFLOAT16, ["N"])
    model = helper.make_model(helper.make_graph([], "g", [info], []))
    np.savez(tmp_path / "f.npz", x=np.array([1, 2], ml_dtypes.bfloat16))
    feed = feeds.load_feed(tmp_path / "f.npz", model)
    assert feed["x"].dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(feed["x"], np.array([1, 2], ml_dtypes.bfloat16))


def test_a_sequence_output_cannot_be_compared():
    graph = helper.make_graph(
        [helper.make_node("SequenceConstruct", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", 1, [2])],
        [helper.make_tensor_sequence_value_info("y", 1, [2])],
    )
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    with pytest.raises(CuvilError, match="'y' is no tensor"):
        compare.compare(model, None, {"x": np.zeros(2, np.float32)}, name="m")


def test_infinite_differences_are_valid_json():
    row = compare.Row("cuvil", "cuvil", Result(), float("inf"), float("nan"))
    shown = compare.Comparison("m", "fp32", "CPU", {}, [row]).as_dict()["rows"][0]
    assert shown["max_abs_err"] is None
    assert shown["max_rel_err"] is None
