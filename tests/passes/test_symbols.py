"""name_dimensions: what is computed alike has one name, and nothing that may differ shares one."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper, numpy_helper

from cuvil_onnx.passes.shapes import infer_shapes
from cuvil_onnx.passes.symbols import name_dimensions
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.trace import Trace


def shapes(text: str, opset: int = 17, **constants: np.ndarray) -> dict[str, tuple[int | str | None, ...] | None]:
    """The shapes of all values of a graph in ONNX's text form, after inference and naming."""
    parsed = onnx.parser.parse_graph(f"g {text}")
    for name, array in constants.items():
        parsed.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    model = helper.make_model(parsed, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    ctx = GraphContext(ir.from_proto(model))
    infer_shapes(ctx, Trace())
    name_dimensions(ctx, Trace())
    found = {v.name or "": ctx.shape(v) for node in ctx.model.graph for v in node.outputs}
    assert name_dimensions(ctx, Trace()) == 0, "a second sweep changes names"
    return found


def test_sum_of_tensors_of_one_symbolic_shape() -> None:
    assert shapes("(float[B,S,8] x, float[B,S,8] z) => (float[B,S,8] y) { y = Add(x, z) }")["y"] == ("B", "S", 8)


def test_sum_of_unrelated_sizes_is_neither() -> None:
    found = shapes("(float[A,8] x, float[B,8] z) => (float[C,8] y, float[C,8] w) { y = Add(x, z) w = Mul(z, x) }")
    assert found["y"] == found["w"] and found["y"][0] not in ("A", "B", None)


def test_a_number_beats_a_symbol_in_broadcasting() -> None:
    assert shapes("(float[A,8] x, float[4,1] z) => (float[4,8] y) { y = Add(x, z) }")["y"] == (4, 8)


@pytest.mark.parametrize("vague", ["?", ""])
def test_sizes_without_a_name_are_all_different(vague: str) -> None:
    dims = f"{vague},{vague}" if vague else "?,?"
    found = shapes(f"(float[{dims}] x, float[{dims}] z) => (float[?,?] y, float[?,?] w) {{ y = Neg(x) w = Neg(z) }}")
    assert len({*found["y"], *found["w"]}) == 4


RESHAPE = (
    "s = Shape(x) b = Gather(s, i0) n = Gather(s, i1) b1 = Unsqueeze(b, a0) n1 = Unsqueeze(n, a0) "
    "t = Concat<axis=0>(b1, n1, h) y = Reshape(x, t)"
)
INDICES = {"i0": np.array(0), "i1": np.array(1), "a0": np.array([0]), "h": np.array([2, 4])}


def test_reshape_to_a_computed_shape() -> None:
    text = f"(float[B,S,8] x) => (float[B,S,2,4] y, float[B,S,8] w) {{ {RESHAPE} w = Reshape(y, back) }}"
    found = shapes(text, **INDICES, back=np.array([0, 0, -1]))
    assert found["y"] == ("B", "S", 2, 4) and found["w"] == ("B", "S", 8)


def test_minus_one_is_what_is_left() -> None:
    text = "(float[B,S,8] x) => (float[M,8] y, float[B,K] w) { y = Reshape(x, t) w = Reshape(x, u) }"
    found = shapes(text, t=np.array([-1, 8]), u=np.array([0, -1]))
    assert found["y"][1] == 8 and found["w"][0] == "B"
    again = "(float[B,S,8] x) => (float[M,8] y, float[M,8] w) { y = Reshape(x, t) w = Reshape(x, t) }"
    found = shapes(again, t=np.array([-1, 8]))
    assert found["y"] == found["w"]


def test_windows_and_back() -> None:
    # Swin: 16 windows a picture become rows of the batch; -1 brings the batch back.
    text = (
        "(float[B,16,16,8] x) => (float[B,16,16,8] y) { w = Reshape(x, windows) t = Transpose<perm=[0,1,3,2,4,5]>(w) "
        "r = Reshape(t, rows) n = Relu(r) u = Reshape(n, windows) y = Reshape(u, whole) }"
    )
    sizes = {"windows": [-1, 4, 4, 4, 4, 8], "rows": [-1, 16, 8], "whole": [-1, 16, 16, 8]}
    found = shapes(text, **{name: np.array(value) for name, value in sizes.items()})
    assert found["w"] == ("B", 4, 4, 4, 4, 8) and found["r"] == ("(16*B)", 16, 8)
    assert found["u"] == found["w"] and found["y"] == ("B", 16, 16, 8)


def test_quotient_of_a_product() -> None:
    # Swin reads the batch from the rows of windows: 16 * B // 16.
    text = (
        "(float[B,32,8] x, float[1,1] one) => (float[B,1] y, float[K,1] z) { r = Reshape(x, rows) s = Shape(r) "
        "n = Gather(s, i0) b = Div(n, c16) b1 = Unsqueeze(b, a0) t = Concat<axis=0>(b1, c1) y = Expand(one, t) "
        "d = Div(n, c3) d1 = Unsqueeze(d, a0) u = Concat<axis=0>(d1, c1) z = Expand(one, u) }"
    )
    sizes = {"rows": [-1, 2, 8], "i0": 0, "c16": 16, "c3": 3, "a0": [0], "c1": [1]}
    found = shapes(text, **{name: np.array(value) for name, value in sizes.items()})
    assert found["r"][0] == "(16*B)" and found["y"] == ("B", 1) and found["z"][0] not in ("B", None)


def test_minus_one_that_does_not_divide_is_no_known_size() -> None:
    found = shapes("(float[B,6] x) => (float[K,4] y) { y = Reshape(x, t) z = Relu(y) }", t=np.array([-1, 4]))
    assert found["y"][0] not in ("B", None) and found["z"] == found["y"]


@pytest.mark.parametrize(
    ("start", "end", "step", "size"), [(0, 9, 2, 5), (1, 9, 2, 4), (1, 1 << 40, 3, 3), (-4, -1, 2, 2), (7, 2, 2, 0)]
)
def test_slice_with_a_step(start: int, end: int, step: int, size: int) -> None:
    constants = {"s": start, "e": end, "a": 1, "p": step}
    found = shapes(
        "(float[B,9] x) => (float[B,K] y) { y = Slice(x, s, e, a, p) }",
        **{k: np.array([v]) for k, v in constants.items()},
    )
    assert found["y"] == ("B", size) and len(range(9)[start:end:step]) == size


def test_attention_scores_and_context() -> None:
    text = (
        "(float[B,S,2,4] q, float[B,T,2,4] k, float[B,1,1,T] m) => (float[B,S,2,4] y) { "
        "qt = Transpose<perm=[0,2,1,3]>(q) kt = Transpose<perm=[0,2,3,1]>(k) vt = Transpose<perm=[0,2,1,3]>(k) "
        "s = MatMul(qt, kt) a = Add(s, m) p = Softmax(a) c = MatMul(p, vt) y = Transpose<perm=[0,2,1,3]>(c) }"
    )
    found = shapes(text)
    assert found["p"] == ("B", 2, "S", "T") and found["y"] == ("B", "S", 2, 4)


def test_position_ids_cut_from_a_table() -> None:
    # x + table[:S] runs only where min(S, 16) is S: the sum is S long. The table's part itself is not known to be.
    text = (
        "(float[B,S,8] x) => (float[B,S,8] y) { s = Shape(x) n = Gather(s, a1) "
        "part = Slice(table, a0, n, a1, a1) y = Add(x, part) }"
    )
    found = shapes(text, table=np.zeros((1, 16, 8), np.float32), a0=np.array([0]), a1=np.array([1]))
    assert found["part"] == (1, "min(S,16)", 8) and found["y"] == ("B", "S", 8)


def test_gathers_have_the_shape_of_their_indices() -> None:
    text = (
        "(float[A,C,8] x, int64[S,T,3] i, int64[B,D,2] j) => (float[S,T,3] y, float[B,D,8] z, float[B,8] w) "
        "{ y = GatherElements<axis=1>(x, i) z = GatherND(x, j) w = GatherND<batch_dims=1>(x, k) }"
    )
    found = shapes(text, k=np.zeros((2, 1), np.int64))
    assert found["y"] == ("S", "T", 3) and found["z"] == ("B", "D", 8) and found["w"] == (2, 8)


def test_onnx_attention_has_the_queries_shape_and_the_values_size() -> None:
    text = (
        "(float[B,2,S,4] q, float[B,2,T,4] k, float[B,2,T,6] v) => (float[B,2,S,6] y) "
        "{ a = Attention(q, k, v) y = Relu(a) }"
    )
    assert shapes(text, opset=23)["a"] == ("B", 2, "S", 6)
    merged = (
        "(float[B,S,16] q, float[B,T,8] k, float[B,T,12] v) => (float[B,S,24] y) "
        "{ a = Attention<q_num_heads=4, kv_num_heads=2>(q, k, v) y = Relu(a) }"
    )
    assert shapes(merged, opset=23)["a"] == ("B", "S", 24)


def test_expand_to_a_guarded_shape() -> None:
    # What torch writes for expand: -1 in the target would mean "keep", which a size never is.
    text = (
        "(float[B,S] x, float[1,1] one) => (float[B,S] y) { s = Shape(x) k = Shape(s) "
        "f = ConstantOfShape<value=int64[1] {1}>(k) m = Mul(f, minus) e = Equal(s, m) w = Where(e, f, s) "
        "y = Expand(one, w) }"
    )
    assert shapes(text, minus=np.array(-1))["y"] == ("B", "S")


@pytest.mark.parametrize(
    ("attributes", "same"),
    [("pads=[1,1,1,1]", True), ("pads=[0,0,0,0]", False), ("pads=[1,1,1,1], strides=[2,2]", False)],
)
def test_convolution_that_keeps_or_changes_the_size(attributes: str, same: bool) -> None:
    body = f"y = Conv<{attributes}>(x, w) z = Conv<{attributes}>(x, w)"
    text = f"(float[N,4,H,W] x) => (float[N,6,P,Q] y, float[N,6,P,Q] z) {{ {body} }}"
    found = shapes(text, w=np.zeros((6, 4, 3, 3), np.float32))
    assert found["y"] == found["z"] and (found["y"][2:] == ("H", "W")) == same


def test_values_in_a_subgraph_know_the_outer_names() -> None:
    text = (
        "(float[B,8] x, bool c) => (float[B,8] y) { a = Relu(x) "
        "y = If<then_branch=t () => (float[B,8] p) { p = Add(a, x) }, "
        "else_branch=e () => (float[B,8] q) { q = Neg(a) }>(c) }"
    )
    parsed = onnx.parser.parse_graph(f"g {text}")
    model = helper.make_model(parsed, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    ctx = GraphContext(ir.from_proto(model))
    infer_shapes(ctx, Trace())
    name_dimensions(ctx, Trace())
    inner = [v for graph in ctx.graphs[1:] for node in graph for v in node.outputs]
    assert [ctx.shape(v) for v in inner] == [("B", 8), ("B", 8)]


def test_expand_by_a_size_that_is_not_known_keeps_the_others() -> None:
    # torch's exporter computes a size of masks in a way that nothing is known of.
    text = (
        "(float[B,1,S,1] x, int64[1] k) => (float[B,1,S,K] y, float[B,1,S,K] w) "
        "{ s = Shape(x) bs = Slice(s, a0, a1) ss = Slice(s, a2, a3) t = Concat<axis=0>(bs, a1, ss, k) "
        "y = Expand(x, t) w = Neg(y) }"
    )
    found = shapes(text, **{f"a{i}": np.array([i]) for i in range(4)})
    assert found["y"][:3] == ("B", 1, "S") and found["y"][3] not in ("B", "S", 1, None)


def test_tile_keeps_what_it_does_not_repeat() -> None:
    text = "(float[B,S,4,1] x) => (float[B,S,4,2] y) { y = Tile(x, r) }"
    assert shapes(text, r=np.array([1, 1, 1, 2]))["y"] == ("B", "S", 4, 2)
    # A symbol that is repeated is another size.
    found = shapes("(float[B,S,4] x) => (float[B,T,4] y) { y = Tile(x, r) }", r=np.array([1, 2, 1]))
    assert found["y"][1] != "S"


def test_attention_with_fewer_heads_of_keys() -> None:
    text = (
        "(float[B,S,64] x, float[B,S,32] q, float[B,T,16] k, float[B,2,T,8] c) "
        "=> (float[?,?,?] y, float[?,?,?] z, float[?,?,?] w) "
        '{{ y = cuvil.Attention<num_heads=4, kv_num_heads=2, layout="packed">(x) '
        'z = cuvil.Attention<num_heads=4, kv_num_heads=2, layout="separate">(q, k, k) '
        'w = cuvil.Attention<num_heads=4, kv_num_heads=2, layout="separate">(q, c, c) }}'
    )
    found = shapes(text.replace("{{", "{").replace("}}", "}"))
    assert found["y"] == found["z"] == found["w"] == ("B", "S", 32)
