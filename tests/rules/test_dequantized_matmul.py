"""DequantizeLinear + product -> cuvil::MatMulInt4: axes, transposes, Gemm, types, sharing, and what must stay."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from cuvil_onnx.api import optimize
from tests.rules.rule_testing import Case, apply, attributes, contract, count, fires, node_of, ops, refused, run, weight

RULE = "dequantized_matmul"
K, N = 48, 20
ONE = f"(float[M,{K}] x) => (float[M,{N}] y)"
TWO = f"(float[M,{K}] x, float[M,{N}] r) => (float[M,{N}] y)"
GROUPED = "w = DequantizeLinear<axis=0, block_size=16>(q, s)"
TYPES = {"i4": ml_dtypes.int4, "u4": ml_dtypes.uint4, "i8": np.int8, "u8": np.uint8}


def codes(kind: str, *shape: int, seed: int = 0, narrow: bool = False) -> np.ndarray:
    bits = 4 if narrow else int(kind[1])
    low = -(1 << (bits - 1)) if kind[0] == "i" else 0
    values = np.random.default_rng([seed, *shape]).integers(low, low + (1 << bits), shape)
    if not narrow:
        values.flat[:2] = low, low + (1 << bits) - 1  # the whole range, so that 8 bits are needed
    return values.astype(TYPES[kind])


def steps(*shape: int, dtype=np.float32) -> np.ndarray:
    return np.random.default_rng([1, *shape]).uniform(0.01, 0.1, shape).astype(dtype)


def model(text: str, opset: int = 21, **weights: np.ndarray) -> onnx.ModelProto:
    parsed = onnx.parser.parse_graph(f"g {text}")
    for name, array in weights.items():
        parsed.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    made = helper.make_model(parsed, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.checker.check_model(made)
    return made


def plain(kind: str = "i4", group: int = 16, k: int = K, zeros: bool = True) -> onnx.ModelProto:
    """The one form that needs no new initializer."""
    groups = -(-k // group)
    more = {"z": codes(kind, groups, N, seed=3)} if zeros else {}
    text = (
        f"(float[M,{k}] x) => (float[M,{N}] y) {{ w = DequantizeLinear<axis=0, block_size={group}>(q, "
        f"s{', z' * zeros}) y = MatMul(x, w) }}"
    )
    return model(text, q=codes(kind, k, N), s=steps(groups, N), **more)


# ONNX Runtime fails to load 4-bit weights of products in subgraphs that lie outside of them, before and after.
test_contract = contract(Case(RULE, plain, "w", kept=1, plain=True))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("zeros", [True, False])
def test_every_type_keeps_its_initializers(kind, zeros):
    made = plain(kind, zeros=zeros)
    result = fires(made, RULE)
    node = node_of(result, "MatMulInt4")
    assert list(node.input[:4]) == (["x", "q", "s", "z"] if zeros else ["x", "q", "s"])
    assert attributes(node)["block_size"] == 16
    assert ops(result) == {"cuvil::MatMulInt4": 1}
    kept = {i.name: i for i in result.graph.initializer}
    assert all(kept[i.name] == i for i in made.graph.initializer)


@pytest.mark.parametrize("k", [50, 1, 31])
@pytest.mark.parametrize("group", [8, 32])
def test_short_groups(k, group):
    fires(plain("u4", group, k), RULE)


@pytest.mark.parametrize("kind", ["i4", "u4", "u8"])
@pytest.mark.parametrize("form", ["MatMul", "Gemm", "left"])
def test_weights_that_lie_the_other_way_round(kind, form):
    """[N, K] with groups along the rows, behind a Transpose or read by a Gemm with transB."""
    product = {
        "MatMul": "t = Transpose<perm=[1,0]>(w) y = MatMul(x, t)",
        "Gemm": "y = Gemm<transB=1>(x, w)",
        "left": "t = Transpose(w) i = Identity(t) y = Gemm(x, i)",
    }[form]
    text = f"{ONE} {{ w = DequantizeLinear<axis=-1, block_size=16>(q, s, z) {product} }}"
    made = model(text, q=codes(kind, N, K), s=steps(N, 3), z=codes(kind, N, 3, seed=4))
    result = fires(made, RULE)
    node = node_of(result, "MatMulInt4")
    shapes = {i.name: list(i.dims) for i in result.graph.initializer}
    assert [shapes[name] for name in node.input[1:4]] == [[K, N], [3, N], [3, N]]


@pytest.mark.parametrize("kind", ["i4", "u8"])
@pytest.mark.parametrize("shape", [(), (1,), (N,)])
@pytest.mark.parametrize("swapped", [False, True])
def test_one_scale_for_all_or_for_each_column(kind, shape, swapped):
    axis = 0 if swapped else 1
    product = "Gemm<transB=1>(x, w)" if swapped else "MatMul(x, w)"
    text = f"{ONE} {{ w = DequantizeLinear<axis={axis}>(q, s, z) y = {product} }}"
    made = model(
        text,
        q=codes(kind, *((N, K) if swapped else (K, N))),
        s=steps(*shape),
        z=codes(kind, *shape, seed=5) if shape else codes(kind, 4)[3],
    )
    result = fires(made, RULE)
    node = node_of(result, "MatMulInt4")
    assert attributes(node)["block_size"] == 0
    assert [list(i.dims) for i in result.graph.initializer if i.name == node.input[2]] == [[N]]


def test_odd_numbers_of_codes_across_rows():
    """15 codes in 8 bytes: rows of 5 are not made of whole bytes, in either order of the axes."""
    first = "w = DequantizeLinear<axis=0>(q, s, z) y = Gemm<transB=1>(x, w)"
    second = "d = DequantizeLinear<axis=1>(q, c) v = MatMul(u, d)"
    text = f"(float[M,5] x, float[M,3] u) => (float[M,3] y, float[M,5] v) {{ {first} {second} }}"
    fires(model(text, q=codes("u4", 3, 5), s=steps(3), z=codes("u4", 3), c=steps(5)), RULE, times=2)


@pytest.mark.parametrize("kind", ["i8", "u8"])
def test_codes_of_8_bits_that_fit_4_become_4(kind):
    """QAT tools without a 4-bit type store 4-bit codes in bytes."""
    text = f"{ONE} {{ w = DequantizeLinear<axis=1>(q, s, z) y = MatMul(x, w) }}"
    made = model(text, q=codes(kind, K, N, narrow=True), s=steps(N), z=codes(kind, N, narrow=True))
    result = fires(made, RULE, "dead_code")
    wanted = {"i8": TensorProto.INT4, "u8": TensorProto.UINT4}[kind]
    assert sorted(i.data_type for i in result.graph.initializer) == sorted([wanted, wanted, TensorProto.FLOAT])
    # A zero point beyond 4 bits: the bytes stay.
    made = model(text, q=codes(kind, K, N, narrow=True), s=steps(N), z=np.full(N, 100, TYPES[kind]))
    assert wanted not in [i.data_type for i in fires(made, RULE, "dead_code").graph.initializer]


def test_zero_points_of_zero_are_dropped():
    text = f"{ONE} {{ w = DequantizeLinear<axis=0, block_size=16>(q, s, z) y = MatMul(x, w) }}"
    made = model(text, q=codes("i4", K, N), s=steps(3, N), z=np.zeros((3, N), ml_dtypes.int4))
    assert list(node_of(fires(made, RULE), "MatMulInt4").input) == ["x", "q", "s"]


def test_an_epilogue_comes_along():
    text = f"{TWO} {{ {GROUPED} p = MatMul(x, w) a = Add(p, b) c = Add(r, a) y = Relu(c) }}"
    made = model(text, q=codes("i4", K, N), s=steps(3, N), b=weight(N))
    result = fires(made, RULE, "int4_epilogue")
    node = node_of(result, "MatMulInt4")
    assert ops(result) == {"cuvil::MatMulInt4": 1}
    assert list(node.input) == ["x", "q", "s", "", "", "b", "r"] and attributes(node)["activation"] == "Relu"


@pytest.mark.parametrize("c", ["bias", "residual"])
def test_a_gemms_addend_comes_along(c):
    text = f"{TWO} {{ {GROUPED} y = Gemm(x, w, {c[0]}) n = Neg(r) }}"
    result = fires(model(text, q=codes("i4", K, N), s=steps(3, N), b=weight(N)), RULE)
    assert list(node_of(result, "MatMulInt4").input)[5:] == (["b"] if c == "bias" else ["", "r"])


def test_gate_and_up_become_one_product():
    """In a gated unit, as trained with quantized weights; the joined codes are those of the file."""
    one, two = (f"w{i} = DequantizeLinear<axis=0, block_size=16>(q{i}, s{i}, z{i})" for i in (1, 2))
    rest = "g = MatMul(x, w1) u = MatMul(x, w2) e = Sigmoid(g) h = Mul(g, e) y = Mul(h, u)"
    parts = {f"{name}{i}": codes("u4", rows, N, seed=i) for i in (1, 2) for name, rows in (("q", K), ("z", 3))}
    parts |= {"s1": steps(3, N), "s2": steps(3, N) * 2}
    made = model(f"{ONE} {{ {one} {two} {rest} }}", **parts)
    result = fires(made, RULE, "gated_unit", "dead_code", times=2)
    assert ops(result) == {"cuvil::MatMulInt4": 1, "cuvil::GatedUnit": 1}
    held = {i.name: numpy_helper.to_array(i) for i in result.graph.initializer}
    node = node_of(result, "MatMulInt4")
    np.testing.assert_array_equal(held[node.input[1]], np.concatenate([parts["q1"], parts["q2"]], 1))
    np.testing.assert_array_equal(held[node.input[3]], np.concatenate([parts["z1"], parts["z2"]], 1))
    # Groups of another size, or no zero points: two products stay.
    for changed in (one.replace("16", "48"), one.replace(", z1", "")):
        other = dict(parts) | ({"s1": steps(1, N), "z1": parts["z1"][:1]} if "48" in changed else {})
        result = fires(model(f"{ONE} {{ {changed} {two} {rest} }}", **other), RULE, "gated_unit", "dead_code", times=2)
        assert ops(result)["cuvil::MatMulInt4"] == 2


def test_experts():
    text = (
        f"(float[E,M,{K}] x) => (float[E,M,{N}] y) {{ w = DequantizeLinear<axis=1, block_size=16>(q, s) y "
        f"= MatMul(x, w) }}"
    )
    fires(model(text, q=codes("i4", 3, K, N), s=steps(3, 3, N)), RULE)


def test_two_nodes_and_two_products_of_one_weight():
    """Case c24, and one DequantizeLinear with two readers; what is laid out anew is laid out once."""
    text = (
        f"(float[M,{K}] a, float[M,{K}] b) => (float[M,{N}] y, float[M,{N}] v, float[M,{N}] u, "
        f"float[M,{N}] t) {{ w = DequantizeLinear<axis=1, block_size=16>(q, s, z) wt = Transpose(w) y = "
        f"MatMul(a, wt) v = MatMul(b, wt) w1 = DequantizeLinear<axis=1, block_size=16>(q, s, z) u = "
        f"Gemm<transB=1>(b, w1) w2 = DequantizeLinear<axis=1, block_size=16>(q, s) t = Gemm<transB=1>(a, "
        f"w2) }}"
    )
    result = fires(model(text, q=codes("u4", N, K), s=steps(N, 3), z=codes("u4", N, 3)), RULE, "dead_code", times=4)
    assert ops(result) == {"cuvil::MatMulInt4": 4}
    assert sorted(i.data_type for i in result.graph.initializer).count(TensorProto.UINT4) == 2


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_whole_model_in_other_precisions(precision):
    text = (
        f"{ONE} {{ w = DequantizeLinear<axis=0, block_size=16>(q, s, z) p = MatMul(x, w) a = Add(p, b) y = Relu(a) }}"
    )
    made = model(text, q=codes("u4", K, N), s=steps(3, N), z=codes("u4", 3, N), b=weight(N))
    result = optimize(made, precision=precision, verify=False).model
    onnx.checker.check_model(result, full_check=True)
    found = ops(result)
    assert found["cuvil::MatMulInt4"] == 1 and "DequantizeLinear" not in found
    x = {"x": weight(5, K, seed=7)}
    # Half: x, scales and result are rounded to 11 bits, of sums of 48 terms of order 1.
    tolerance = 1e-5 if precision == "fp32" else 0.05
    np.testing.assert_allclose(run(result, x)[0], run(made, x, plain=True)[0], rtol=tolerance, atol=tolerance)


def test_weights_of_a_subgraph_stay_in_it():
    """Laid out anew, and loaded by ONNX Runtime with its own fusions."""
    text = f"{ONE} {{ w = DequantizeLinear<axis=-1, block_size=16>(q, s) y = Gemm<transB=1>(x, w) }}"
    inner = model(text, q=codes("i4", N, K), s=steps(N, 3)).graph
    branch = helper.make_graph(list(inner.node), "b", [], list(inner.output), list(inner.initializer))
    other = onnx.parser.parse_graph(f"e () => (float[M,{N}] e) {{ z = MatMul(x, o) e = Neg(z) }}")
    outer = helper.make_graph(
        [helper.make_node("If", ["c"], ["r"], then_branch=branch, else_branch=other)],
        "g",
        [*inner.input, helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
        [helper.make_tensor_value_info("r", TensorProto.FLOAT, ["M", N])],
        [numpy_helper.from_array(weight(K, N), "o")],
    )
    made = helper.make_model(outer, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    result = apply(made, RULE).model
    assert ops(result)["cuvil::MatMulInt4"] == 1
    x = {"x": weight(5, K), "c": np.array(True)}
    np.testing.assert_allclose(run(result, x)[0], run(made, x, plain=True)[0], rtol=1e-5, atol=1e-5)


REFUSED = {
    "columns": ("DequantizeLinear<axis=1, block_size=10>(q, s)", {"s": (K, 2)}, "along the columns"),
    "rows": ("DequantizeLinear<axis=0>(q, s)", {"s": (K,)}, "a scale of its own"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_groups_that_the_op_cannot_express(case):
    made, shapes, reason = REFUSED[case]
    text = f"{ONE} {{ w = {made} y = MatMul(x, w) }}"
    refused(model(text, q=codes("i4", K, N), s=steps(*shapes["s"])), RULE, reason)


def test_a_transpose_turns_groups_the_wrong_way():
    text = f"(float[M,{N}] x) => (float[M,{K}] y) {{ {GROUPED} y = Gemm<transB=1>(x, w) }}"
    refused(model(text, q=codes("i4", K, N), s=steps(3, N)), RULE, "along the columns")


def test_weights_that_may_change():
    text = f"(float[M,{K}] x, float[3,{N}] s) => (float[M,{N}] y) {{ {GROUPED} y = MatMul(x, w) }}"
    refused(model(text, q=codes("i4", K, N)), RULE, "scales or zero points are computed")
    overridable = plain()
    overridable.graph.input.append(helper.make_tensor_value_info("q", TensorProto.INT4, [K, N]))
    refused(overridable, RULE, "may be overridden")


def test_gemms_that_do_more():
    for attribute, reason in (("alpha=0.5", "alpha is not 1"), ("beta=0.5", "beta is not 1")):
        text = f"{ONE} {{ {GROUPED} y = Gemm<{attribute}>(x, w, b) }}"
        refused(model(text, q=codes("i4", K, N), s=steps(3, N), b=weight(N)), RULE, reason)


def test_vectors_are_not_taken():
    text = f"(float[{K}] x) => (float[{N}] y) {{ {GROUPED} y = MatMul(x, w) }}"
    refused(model(text, q=codes("i4", K, N), s=steps(3, N)), RULE, "rank of A")


def test_products_of_quantized_activations_stay():
    text = (
        f"{ONE} {{ i = QuantizeLinear(x, c, o) a = DequantizeLinear(i, c, o) w = "
        f"DequantizeLinear<axis=1>(q, s) y = MatMul(a, w) }}"
    )
    made = model(text, q=codes("i8", K, N), s=steps(N), c=np.float32(0.05), o=np.uint8(128))
    assert count(made, RULE) == 0
    made = model(text, q=codes("i4", K, N), s=steps(N), c=np.float32(0.05), o=np.uint8(128))
    assert count(made, RULE) == 1  # no integer product takes 4 bits


def test_older_models_are_left_alone():
    text = f"{ONE} {{ w = DequantizeLinear<axis=1>(q, s) y = MatMul(x, w) }}"
    made = model(text, 19, q=codes("i8", K, N), s=steps(N))
    assert count(made, RULE) == 0


def test_scales_that_half_cannot_hold():
    text = f"(float16[M,{K}] x) => (float16[M,{N}] y) {{ {GROUPED} h = Cast<to=10>(w) y = MatMul(x, h) }}"
    assert count(model(text, q=codes("i4", K, N), s=steps(3, N)), RULE) == 1
    tiny = steps(3, N)
    tiny[1, 1] = 1e-6
    refused(model(text, q=codes("i4", K, N), s=tiny), RULE, "too small or too large for FLOAT16")


def test_models_of_other_tools_pass_through():
    """com.microsoft's quantized operators are left as they are."""
    rng = np.random.default_rng(0)
    packed, scales = rng.integers(0, 256, (N, 2, 16), np.uint8), steps(N * 2)
    nodes = [
        helper.make_node(
            "GatherBlockQuantized",
            ["table", "ids", "ts"],
            ["x"],
            domain="com.microsoft",
            gather_axis=0,
            quantize_axis=1,
            block_size=32,
            bits=4,
        ),
        helper.make_node(
            "MatMulNBits", ["x", "q", "s"], ["y"], domain="com.microsoft", K=64, N=N, bits=4, block_size=32
        ),
    ]
    table = rng.integers(0, 256, (7, 32), np.uint8)
    constants = {"q": packed, "s": scales, "table": table, "ts": steps(7, 2)}
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["B"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["B", N])],
        [numpy_helper.from_array(v, k) for k, v in constants.items()],
    )
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)], ir_version=10
    )
    result = optimize(made, verify=False).model
    assert [n.SerializeToString() for n in result.graph.node if n.ClearField("metadata_props") is None] == [
        n.SerializeToString() for n in made.graph.node
    ]
    assert {i.name: i.raw_data for i in result.graph.initializer} == {
        i.name: i.raw_data for i in made.graph.initializer
    }
    assert apply(made, RULE).report.trace.counts.get(RULE, 0) == 0
