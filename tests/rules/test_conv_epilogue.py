"""conv_epilogue: bias, residual and activation go into the convolution."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import custom_ops
from custom_ops import testing
from tests.rules.rule_testing import Case, attributes, contract, fires, graph, node_of, ops, refused, weight

HEAD = "(float[N,4,9,8] x, float[N,6,9,8] z) => (float[N,6,9,8] y)"
CONV = "c = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w)"
CONSTANTS = {
    "w": weight(6, 4, 3, 3, scale=0.3),
    "b": weight(6, seed=1),
    "channel": weight(1, 6, 1, 1, seed=2),
    "three": np.float32(3),
    "zero": np.float32(0),
    "six": np.float32(6),
    "sixth": np.float32(1 / 6),
    "slope": np.float32(0.1),
}


def made(body: str, head: str = HEAD, opset: int = 17, **changes: np.ndarray) -> onnx.ModelProto:
    weights = {**CONSTANTS, **changes}
    used = {k: v for k, v in weights.items() if f" {k})" in body or f"({k}," in body or f" {k}," in body}
    return graph(f"{head} {{ {body} }}", opset, **used)


def fused(body: str, **more: object) -> tuple[onnx.NodeProto, dict[str, object]]:
    result = fires(made(CONV + " " + body, **more), "conv_epilogue", atol=5e-5)
    node = node_of(result, "FusedConv")
    assert ops(result)["cuvil::FusedConv"] == 1
    return node, attributes(node)


test_contract = contract(Case("conv_epilogue", lambda: made(CONV + " y = Relu(c)"), "c"))


@pytest.mark.parametrize(
    ("body", "name", "params"),
    [
        ("y = Relu(c)", "Relu", []),
        ("y = Sigmoid(c)", "Sigmoid", []),
        ("y = Tanh(c)", "Tanh", []),
        ("y = LeakyRelu<alpha=0.2>(c)", "LeakyRelu", [0.2]),
        ("y = Elu(c)", "Elu", [1.0]),
        ("y = Clip(c, zero, six)", "Clip", [0.0, 6.0]),
        ("y = Clip(c, zero)", "Clip", [0.0, np.inf]),
        ("y = HardSigmoid(c)", "HardSigmoid", [0.2, 0.5]),
        ("y = HardSwish(c)", "HardSwish", []),
        ("y = Softplus(c)", "Softplus", []),
        ("s = Sigmoid(c) y = Mul(c, s)", "Swish", []),
        ("s = Sigmoid(c) y = Mul(s, c)", "Swish", []),
        ("s = Softplus(c) t = Tanh(s) y = Mul(c, t)", "Mish", []),
        ("s = HardSigmoid<alpha=0.16666667>(c) y = Mul(c, s)", "HardSwish", []),
        ("a = Add(c, three) s = Clip(a, zero, six) m = Mul(c, s) y = Div(m, six)", "HardSwish", []),
        ("a = Add(three, c) s = Clip(a, zero, six) m = Mul(s, c) y = Mul(m, sixth)", "HardSwish", []),
        ("a = Add(c, three) s = Clip(a, zero, six) d = Div(s, six) y = Mul(c, d)", "HardSwish", []),
    ],
)
def test_activations(body: str, name: str, params: list[float]) -> None:
    _, found = fused(body)
    assert found["activation"] == name
    assert found["activation_params"] == pytest.approx(params)


def test_a_sixth_of_four_digits_is_another_number() -> None:
    body = "a = Add(three, c) s = Clip(a, zero, six) m = Mul(s, c) y = Mul(m, sixth)"
    refused(made(CONV + body, sixth=np.float32(0.1667)), "conv_epilogue", "")


def test_bias_residual_and_activation_in_any_order() -> None:
    for body in ("d = Add(c, channel) e = Add(d, z) y = Relu(e)", "d = Sum(z, c) e = Add(channel, d) y = Relu(e)"):
        node, found = fused(body)
        assert node.input[3] == "z" and node.input[2] and found["activation"] == "Relu"


def test_second_bias_is_added_to_the_first() -> None:
    body = CONV.replace("(x, w)", "(x, w, b)") + " d = Add(c, channel) y = Relu(d)"
    result = fires(made(body), "conv_epilogue")
    assert ops(result) == {"cuvil::FusedConv": 1}


def test_two_residuals_leave_the_second_outside() -> None:
    head = HEAD.replace("z)", "z, float[N,6,9,8] u)")
    result = fires(made(CONV + " d = Add(c, z) e = Add(d, u) y = Relu(e)", head), "conv_epilogue")
    assert ops(result) == {"cuvil::FusedConv": 1, "Add": 1, "Relu": 1}


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("kernel", [2, 3])
def test_auto_pad(mode: str, kernel: int) -> None:
    head = "(float[2,4,9,8] x) => (float[2,6,5,4] y)"
    body = f'c = Conv<auto_pad="{mode}", strides=[2,2]>(x, w) y = Relu(c)'
    fires(made(body, head, w=weight(6, 4, kernel, kernel)), "conv_epilogue")


def test_auto_pad_valid_and_one_dimension() -> None:
    head = "(float[2,4,9] x) => (float[2,6,7] y)"
    fires(made('c = Conv<auto_pad="VALID">(x, w) y = Relu(c)', head, w=weight(6, 4, 3)), "conv_epilogue")


def test_a_fused_conv_in_nhwc_as_the_layout_pass_leaves_it() -> None:
    spec = custom_ops.get("FusedConv")
    example = next(e for e in spec.examples() if e.name == "nhwc_plain")
    model = testing.build(spec, example, opset=17, dtype=ir.DataType.FLOAT).model
    shape = [d.dim_value for d in model.graph.output[0].type.tensor_type.shape.dim]
    model.graph.node.append(onnx.helper.make_node("Add", ["output0", "bias"], ["sum"]))
    model.graph.node.append(onnx.helper.make_node("Relu", ["sum"], ["y"]))
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight(shape[-1]), "bias"))
    del model.graph.output[:]
    model.graph.output.append(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape))
    result = fires(model, "conv_epilogue")
    assert ops(result) == {"cuvil::FusedConv": 1}
    found = attributes(node_of(result, "FusedConv"))
    assert found["layout"] == "NHWC" and found["activation"] == "Relu"


@pytest.mark.parametrize(
    ("head", "body", "reason"),
    [
        (HEAD.replace("[N,6,9,8] z", "[M,6,9,8] z"), CONV + " y = Add(c, z)", "addend"),
        (HEAD.replace("[N,6,9,8] z", "[?,6,9,8] z"), CONV + " y = Add(c, z)", "addend"),
        (
            "(float[N,4,H,W] x) => (float[N,6,P,Q] y)",
            'c = Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x, w) y = Relu(c)',
            "auto_pad",
        ),
    ],
)
def test_refusals(head: str, body: str, reason: str) -> None:
    refused(made(body, head), "conv_epilogue", reason)


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (HEAD.replace("z)", "z, float low)"), CONV + " y = Clip(c, low)"),  # a bound computed at run time
        (HEAD, CONV + " y = Clip(c, nan)"),
        (HEAD.replace("[N,6,9,8] z", "[1,6,1,1] z"), CONV + " y = Add(c, z)"),  # fits, but is no residual
        ("(double[N,4,9,8] x) => (double[N,6,9,8] y)", CONV + " y = Relu(c)"),
    ],
)
def test_what_is_not_the_pattern(head: str, body: str) -> None:
    changes = {"w": CONSTANTS["w"].astype(np.float64)} if "double" in head else {}
    refused(made(body, head, nan=np.float32(np.nan), **changes), "conv_epilogue", "")


def test_a_bias_that_enlarges_the_result_is_not_taken() -> None:
    head = "(float[1,4,9,8] x) => (float[2,6,9,8] y)"
    refused(made(CONV + " y = Add(c, wide)", head, wide=weight(2, 6, 1, 1)), "conv_epilogue", "")


def test_half() -> None:
    head = HEAD.replace("float[", "float16[")
    weights = {k: v.astype(np.float16) for k, v in CONSTANTS.items()}
    model = made(CONV + " d = Add(c, channel) e = Add(d, z) y = Relu(e)", head, **weights)
    # The chain rounds after the convolution and after each sum: a few units of 2^-11 of values up to 8.
    fires(model, "conv_epilogue", rtol=4e-3, atol=1e-2)
