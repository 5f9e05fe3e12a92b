"""skip_layer_norm: the residual sum goes into the norm, and comes out where it is needed."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.rules.rule_testing import Case, contract, fires, graph, node_of, ops, refused, weight

HEAD = "(float[B,S,16] x, float[B,S,16] z) => (float[B,S,16] y)"
NORM = " y = LayerNormalization<axis=-1>(s, scale, bias)"


def made(body: str, head: str = HEAD, opset: int = 17, **changes: np.ndarray) -> onnx.ModelProto:
    weights = {"scale": weight(16) + 1, "bias": weight(16, seed=1), "b": weight(16, seed=2), **changes}
    used = {k: v for k, v in weights.items() if f" {k})" in body or f"({k}," in body or f" {k}," in body}
    return graph(f"{head} {{ {body} }}", opset, **used)


# The sum may be read elsewhere: it becomes an output of the fused node.
test_contract = contract(Case("skip_layer_norm", lambda: made("s = Add(x, z)" + NORM), "s", kept=1))


def inputs_of(model: onnx.ModelProto) -> list[str]:
    return list(node_of(model, "LayerNorm").input)


def test_the_sum_is_an_output_only_where_it_is_read() -> None:
    assert list(node_of(fires(made("s = Add(x, z)" + NORM), "skip_layer_norm"), "LayerNorm").output) == ["y"]
    head = HEAD.replace("y)", "y, float[B,S,16] s)")
    assert list(node_of(fires(made("s = Add(x, z)" + NORM, head), "skip_layer_norm"), "LayerNorm").output) == ["y", "s"]


def test_bias_before_the_residual() -> None:
    result = fires(made("c = Add(x, b) s = Add(c, z)" + NORM), "skip_layer_norm")
    assert ops(result) == {"cuvil::LayerNorm": 1} and inputs_of(result) == ["x", "scale", "bias", "z", "b"]


def test_bias_of_a_product_is_left_to_the_product() -> None:
    result = fires(made("p = MatMul(x, w) c = Add(p, b) s = Add(c, z)" + NORM, w=weight(16, 16)), "skip_layer_norm")
    assert ops(result) == {"MatMul": 1, "Add": 1, "cuvil::LayerNorm": 1}


def test_bias_alone() -> None:
    head = "(float[B,S,16] x) => (float[B,S,16] y)"
    result = fires(made("s = Add(x, b)" + NORM, head), "skip_layer_norm")
    assert inputs_of(result) == ["x", "scale", "bias", "", "b"]


def test_position_embedding_that_broadcasts_over_the_batch() -> None:
    head = HEAD.replace("float[B,S,16] z", "float[1,S,16] z")
    for body in ("s = Add(x, z)", "s = Add(z, x)"):
        assert inputs_of(fires(made(body + NORM, head), "skip_layer_norm")) == ["x", "scale", "bias", "z"]


def test_rms_norm_and_the_custom_op_of_older_opsets() -> None:
    result = fires(made("s = Add(x, z) y = RMSNormalization<axis=-1>(s, scale)", opset=23), "skip_layer_norm")
    assert ops(result) == {"cuvil::LayerNorm": 1}
    old = (
        "s = Add(x, z) m = ReduceMean<axes=[-1]>(s) d = Sub(s, m) q = Mul(d, d) v = ReduceMean<axes=[-1]>(q) "
        "ve = Add(v, eps) r = Sqrt(ve) n = Div(d, r) y = Mul(n, scale)"
    )
    result = fires(made(old, opset=13, eps=np.float32(1e-5)), "skip_layer_norm", "layer_norm")
    assert ops(result) == {"cuvil::LayerNorm": 1}


def test_half_sum_is_not_rounded_before_the_norm() -> None:
    head = HEAD.replace("float[", "float16[")
    halves = {"scale": weight(16, dtype=np.float16), "bias": weight(16, seed=1, dtype=np.float16)}
    fires(made("s = Add(x, z)" + NORM, head, **halves), "skip_layer_norm", rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize(
    ("head", "norm", "reason"),
    [
        (HEAD.replace("[B,S,16] z", "[C,S,16] z"), NORM, "neither operand of the sum"),
        (HEAD.replace("[B,S,16] z", "[?,S,16] z"), NORM, "neither operand of the sum"),
        (HEAD.replace("[B,S,16] z", "[B,1,16] z"), NORM, "neither operand of the sum"),
        ("(float[B,1,16] x, float[1,S,16] z) => (float[B,S,16] y)", NORM, "neither operand of the sum"),
        (HEAD, NORM.replace("axis=-1", "axis=1"), "only the last"),
        (HEAD, NORM.replace("axis=-1", "axis=-1, stash_type=11"), "stash_type"),
        (HEAD.replace("y)", "y, float[B,S,1] m)"), NORM.replace("y =", "y, m ="), "the mean or the deviation"),
    ],
)
def test_refusals(head: str, norm: str, reason: str) -> None:
    big = {"scale": weight(3, 16)[0] if "axis=-1" in norm else weight(16)}
    if "axis=1" in norm:
        big = {"scale": weight(4, 16), "bias": weight(4, 16)}
        head = head.replace("S,", "4,")
    refused(made("s = Add(x, z)" + norm, head, **big), "skip_layer_norm", reason)


def test_scale_of_another_type_is_refused() -> None:
    head = HEAD.replace("float[", "float16[")
    model = made("s = Add(x, z) y = LayerNormalization<axis=-1>(s, scale)", head, scale=weight(16, dtype=np.float16))
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(weight(16), "scale"))
    refused(model, "skip_layer_norm", "another element type")


def test_scale_of_unknown_size_is_refused() -> None:
    head = HEAD.replace("z)", "z, float[K] scale)")
    refused(made("s = Add(x, z) y = LayerNormalization<axis=-1>(s, scale)", head), "skip_layer_norm", "the scale")


@pytest.mark.parametrize("shape", [(1,), (5, 16)])
def test_bias_of_another_size_is_refused(shape: tuple[int, ...]) -> None:
    head = HEAD.replace("S", "5")
    refused(made("s = Add(x, z)" + NORM, head, bias=weight(*shape)), "skip_layer_norm", "the bias")


def test_positions_cut_to_the_length_are_a_residual() -> None:
    body = "n = Shape<start=1,end=2>(x) p = Slice(places, zero, n, axis) c = Add(x, kind) s = Add(c, p)" + NORM
    head = "(float[B,S,16] x) => (float[B,S,16] y)"
    weights = {"places": weight(1, 20, 16), "kind": weight(1, 1, 16), "zero": np.array([0]), "axis": np.array([1])}
    result = fires(made(body, head, **weights), "skip_layer_norm")
    assert ops(result) == {"Shape": 1, "Slice": 1, "cuvil::LayerNorm": 1}


def test_one_position_may_be_broadcast_and_is_refused() -> None:
    body = "n = Shape<start=1,end=2>(x) p = Slice(places, zero, n, axis) s = Add(x, p)" + NORM
    head = "(float[B,S,16] x) => (float[B,S,16] y)"
    weights = {"places": weight(1, 1, 16), "zero": np.array([0]), "axis": np.array([1])}
    result = fires(made(body, head, **weights), "skip_layer_norm", times=0)
    assert "cuvil::LayerNorm" not in ops(result)
