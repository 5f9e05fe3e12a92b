"""Models on which optimize once went wrong, each kept small; compared with the original on ONNX Runtime's CPU."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import cuvil_onnx

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
END = 1 << 40


def model(nodes, inputs, outputs, opset=17, **weights):
    """`inputs` and `outputs`: name -> (type, dims or None)."""
    infos = [[helper.make_tensor_value_info(n, t, d) for n, (t, d) in side.items()] for side in (inputs, outputs)]
    constants = [numpy_helper.from_array(np.asarray(a), n) for n, a in weights.items()]
    graph = helper.make_graph(
        [helper.make_node(*n[:3], **(n[3] if n[3:] else {})) for n in nodes], "g", *infos, constants
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def agrees(made: onnx.ModelProto, feed, tolerance=1e-5, **options) -> None:
    optimized = cuvil_onnx.optimize(made, verify=False, **options).model
    want, got = (
        ort.InferenceSession(m.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feed)
        for m in (made, optimized)
    )
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


def rows(*shape, seed=0, dtype=np.float32):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("symbol", ["None", "none", "?", "-1"])
@pytest.mark.parametrize("op", ["Reshape", "Expand"])
def test_sizes_without_a_name_need_not_be_equal(op: str, symbol: str) -> None:
    nodes = [("Shape", ["z"], ["s"]), (op, ["x", "s"], ["y"])]
    made = model(nodes, {"x": (FLOAT, [symbol] * 2), "z": (FLOAT, [symbol] * 2)}, {"y": (FLOAT, None)})
    x = rows(2, 6) if op == "Reshape" else rows(1, 4)
    agrees(made, {"x": x, "z": rows(3, 4)})


@pytest.mark.parametrize(("axes", "steps"), [([1], [1]), ([0], [1]), ([1], [5])])
def test_slices_with_computed_axes_and_steps(axes: list[int], steps: list[int]) -> None:
    nodes = [("Slice", ["x", "k0", "k1", "axes", "steps"], ["s"]), ("Shape", ["s"], ["y"])]
    inputs = {"x": (FLOAT, [2, 5, 8]), "axes": (INT, [1]), "steps": (INT, [1])}
    made = model(nodes, inputs, {"y": (INT, None)}, k0=np.array([0]), k1=np.array([1]))
    agrees(made, {"x": rows(2, 5, 8), "axes": np.array(axes), "steps": np.array(steps)})


def test_a_slice_with_computed_steps_keeps_its_expand() -> None:
    nodes = [
        ("Slice", ["x", "start", "end", "axis", "steps"], ["s"]),
        ("Shape", ["x"], ["n"]),
        ("Expand", ["s", "n"], ["y"]),
    ]
    constants = {"start": np.array([0]), "end": np.array([END]), "axis": np.array([1])}
    made = model(nodes, {"x": (FLOAT, ["B", "S", 8]), "steps": (INT, [1])}, {"y": (FLOAT, None)}, **constants)
    agrees(made, {"x": rows(2, 5, 8), "steps": np.array([5])})


def test_a_shape_vector_sliced_by_computed_steps() -> None:
    nodes = [
        ("Shape", ["x"], ["n"]),
        ("Slice", ["n", "start", "end", "axis", "steps"], ["m"]),
        ("ConstantOfShape", ["m"], ["z"]),
        ("Shape", ["z"], ["y"]),
    ]
    constants = {"start": np.array([0]), "end": np.array([2]), "axis": np.array([0])}
    made = model(nodes, {"x": (FLOAT, [2, 5, 8]), "steps": (INT, [1])}, {"y": (INT, None)}, **constants)
    agrees(made, {"x": rows(2, 5, 8), "steps": np.array([2])})


def test_tables_of_sizes_keep_their_order() -> None:
    nodes = [
        ("Shape", ["x"], ["a"]),
        ("Shape", ["z"], ["b"]),
        ("Unsqueeze", ["a", "one"], ["a2"]),
        ("Unsqueeze", ["b", "one"], ["b2"]),
        ("Concat", ["a2", "b2"], ["c"], {"axis": 1}),
        ("Reshape", ["c", "flat"], ["d"]),
        ("Expand", ["value", "d"], ["y"]),
    ]
    constants = {"one": np.array([1]), "flat": np.array([-1]), "value": np.ones(1, np.float32)}
    made = model(nodes, {"x": (FLOAT, [2, 3]), "z": (FLOAT, [4, 5])}, {"y": (FLOAT, None)}, **constants)
    agrees(made, {"x": rows(2, 3), "z": rows(4, 5)})


def test_tables_of_sizes_joined_side_by_side() -> None:
    sizes = [node for k, v in enumerate("xw") for node in _each_size(v, 2 * k)]
    nodes = [
        *sizes,
        ("Concat", ["s0", "s1"], ["a"], {"axis": 0}),
        ("Concat", ["s2", "s3"], ["b"], {"axis": 0}),
        ("Concat", ["a", "b"], ["c"], {"axis": 1}),  # [[N, K], [M, L]]
        ("Reshape", ["c", "flat"], ["d"]),
        ("Expand", ["z", "d"], ["y"]),
    ]
    constants = {"i0": np.array([0]), "i1": np.array([1]), "one": np.array([1]), "flat": np.array([-1])}
    inputs = {"x": (FLOAT, ["N", "M"]), "w": (FLOAT, ["K", "L"]), "z": (FLOAT, ["N", "M", "K", "L"])}
    made = model(nodes, inputs, {"y": (FLOAT, None)}, **constants)
    agrees(made, {"x": rows(2, 1), "w": rows(4, 4), "z": rows(2, 1, 4, 4)})


def _each_size(value, first):
    shape = f"shape_{value}"
    yield ("Shape", [value], [shape])
    for k in (0, 1):
        yield ("Gather", [shape, f"i{k}"], [f"g{first + k}"])
        yield ("Unsqueeze", [f"g{first + k}", "one"], [f"s{first + k}"])


def test_arithmetic_with_an_empty_vector_of_sizes() -> None:
    nodes = [
        ("Shape", ["x"], ["n"], {"start": 2}),
        ("Mul", ["n", "two"], ["m"]),
        ("ConstantOfShape", ["m"], ["c"]),
        ("Add", ["x", "c"], ["y"]),
    ]
    made = model(nodes, {"x": (FLOAT, ["N", 3])}, {"y": (FLOAT, None)}, two=np.array([2]))
    agrees(made, {"x": rows(2, 3)}, tolerance=0)


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_two_rotary_embeddings_are_converted(precision: str) -> None:
    nodes = [
        ("MatMul", ["x", "w"], ["q"]),
        ("MatMul", ["x", "v"], ["k"]),
        ("RotaryEmbedding", ["q", "c", "s", "p"], ["qr"], {"num_heads": 2}),
        ("RotaryEmbedding", ["k", "c", "s", "p"], ["kr"], {"num_heads": 2}),
        ("Add", ["qr", "kr"], ["y"]),
    ]
    weights = {"w": rows(8, 8), "v": rows(8, 8, seed=1), "c": rows(9, 2), "s": rows(9, 2, seed=1)}
    inputs = {"x": (FLOAT, ["B", "S", 8]), "p": (INT, ["B", "S"])}
    made = model(nodes, inputs, {"y": (FLOAT, None)}, opset=23, **weights)
    feed = {"x": rows(2, 3, 8), "p": np.array([[0, 1, 2], [3, 4, 8]])}
    agrees(made, feed, tolerance=1e-5 if precision == "fp32" else 0.1, precision=precision)


@pytest.mark.parametrize(
    ("element", "dtype", "precision"),
    [(TensorProto.FLOAT16, np.float16, "fp16"), (TensorProto.DOUBLE, np.float64, "fp16")],
)
def test_other_types_keep_their_fused_nodes(element: int, dtype: type, precision: str) -> None:
    nodes = [("Add", ["x", "z"], ["t"]), ("LayerNormalization", ["t", "g"], ["y"])]
    inputs = {"x": (element, ["B", 8]), "z": (element, ["B", 8])}
    made = model(nodes, inputs, {"y": (element, None)}, g=np.ones(8, dtype))
    agrees(made, {"x": rows(3, 8, dtype=dtype), "z": rows(3, 8, seed=1, dtype=dtype)}, 2e-3, precision=precision)


def test_fp16_norms_asked_for_bf16_stay_fp16() -> None:
    nodes = [("Add", ["x", "z"], ["t"]), ("LayerNormalization", ["t", "g"], ["y"])]
    half = TensorProto.FLOAT16
    made = model(nodes, {"x": (half, ["B", 8]), "z": (half, ["B", 8])}, {"y": (half, None)}, g=np.ones(8, np.float16))
    agrees(made, {"x": rows(3, 8, dtype=np.float16), "z": rows(3, 8, seed=1, dtype=np.float16)}, 2e-3, precision="bf16")


@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_positions_cut_by_indices_of_either_type(kind: type) -> None:
    nodes = [
        ("Shape", ["tokens"], ["n"], {"start": 1, "end": 2}),
        ("Cast", ["n"], ["end"], {"to": INT if kind is np.int64 else TensorProto.INT32}),
        ("Slice", ["ids", "start", "end", "axis"], ["i"]),
        ("Gather", ["table", "i"], ["y"]),
    ]
    constants = {"ids": np.arange(10)[None], "start": np.array([0], kind), "axis": np.array([-1], kind)}
    made = model(nodes, {"tokens": (INT, ["B", "S"])}, {"y": (FLOAT, None)}, table=rows(12, 4), **constants)
    agrees(made, {"tokens": np.zeros((2, 5), np.int64)}, tolerance=0)


@pytest.mark.parametrize("wrong", [3, "x", [], [3]])
def test_inputs_that_are_no_feeds_are_one_error(wrong: object) -> None:
    made = model([("Relu", ["x"], ["y"])], {"x": (FLOAT, [2])}, {"y": (FLOAT, None)})
    with pytest.raises(cuvil_onnx.errors.OptionError, match="neither a dict"):
        cuvil_onnx.optimize(made, inputs=wrong)
