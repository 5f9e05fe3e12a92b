"""`make` and `retype`: complete attributes, shapes, stable names, and errors that say what is wrong."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import custom_ops
from custom_ops.program import Program, UnsupportedError, compile_node

FLOAT, HALF = ir.DataType.FLOAT, ir.DataType.FLOAT16


def value(name: str, *dims: int | str, dtype: ir.DataType = FLOAT) -> ir.Value:
    return ir.val(name, dtype, ir.Shape(dims))


def layer_norm(dtype: ir.DataType = FLOAT, **attrs: object) -> tuple[ir.Node, ir.Function]:
    inputs = [value("x", "n", 8, dtype=dtype), value("s", 8, dtype=dtype), value("b", 8, dtype=dtype)]
    return custom_ops.make("LayerNorm", inputs, 1, attrs, opset=17, dtype=dtype)


def test_every_attribute_is_written() -> None:
    node, function = layer_norm()
    assert {a: v.value for a, v in node.attributes.items()} == {"epsilon": 1e-5, "rms": 0}
    assert set(function.attributes) == {"epsilon", "rms"}


def test_equal_bodies_share_a_name_and_different_ones_do_not() -> None:
    same = [layer_norm()[1].overload for _ in range(2)]
    assert same[0] == same[1] != ""
    assert len({same[0], layer_norm(epsilon=1e-6)[1].overload, layer_norm(HALF)[1].overload}) == 3


def test_output_types_and_symbolic_shapes() -> None:
    (y,) = layer_norm()[0].outputs
    assert y.dtype == FLOAT and str(y.shape) == "[n,8]"
    conv, _ = custom_ops.make(
        "FusedConv",
        [value("x", "n", 9, 7, 8), value("w", 16, 8, 3, 3)],
        1,
        {"kernel_shape": [3, 3], "strides": [2, 1], "pads": [1, 1, 1, 1], "dilations": [1, 1], "layout": "NHWC"},
        opset=17,
        dtype=FLOAT,
    )
    assert str(conv.outputs[0].shape) == "[n,5,7,16]"


def test_retype_changes_type_and_attributes() -> None:
    node, _ = layer_norm(epsilon=1e-6)
    other, function = custom_ops.retype(node, {"rms": 1}, opset=17, dtype=HALF)
    assert other.attributes["epsilon"].as_float() == pytest.approx(1e-6)
    assert other.attributes["rms"].as_int() == 1
    assert other.outputs[0].dtype == HALF and function.overload == other.overload
    assert list(other.inputs) == list(node.inputs)


@pytest.mark.parametrize(
    ("op", "inputs", "attrs", "message"),
    [
        ("Nothing", 1, {}, "no op cuvil::Nothing"),
        ("LayerNorm", 2, {"eps": 1.0}, "no attribute 'eps'"),
        ("LayerNorm", 1, {}, "needs input scale"),
        ("LayerNorm", 2, {"rms": 2}, "rms must be one of"),
        ("Gelu", 2, {}, "at most 1 inputs"),
        ("Attention", 1, {"scale": 1.0}, "needs attribute 'num_heads'"),
        ("Attention", 1, {"scale": 1.0, "num_heads": 2}, "layout 'separate' needs input K"),
        ("FusedMatMul", 2, {"activation": "Clip", "activation_params": [0.0]}, r"takes 2 activation_params"),
        ("FusedMatMul", 2, {"activation": "Rlu"}, "activation must be one of"),
        ("Pointwise", 1, {"program": ["load.f32 0"], "outputs": [0]}, "needs `body`"),
    ],
)
def test_errors_name_op_and_problem(op: str, inputs: int, attrs: dict[str, object], message: str) -> None:
    with pytest.raises(custom_ops.OpError, match=message):
        custom_ops.make(op, [value(f"v{i}", 2, 8) for i in range(inputs)], 1, attrs, opset=17, dtype=FLOAT)


def test_absent_middle_input_and_two_overloads_in_one_model() -> None:
    x, w, z = value("x", 2, 4), value("w", 4, 4), value("z", 2, 4)
    first, f1 = custom_ops.make("FusedMatMul", [x, w, None, z], 1, {}, opset=17, dtype=FLOAT)
    attrs = {"activation": "Relu"}
    second, f2 = custom_ops.make("FusedMatMul", [first.outputs[0], w], 1, attrs, opset=17, dtype=FLOAT)
    graph = ir.Graph([x, w, z], second.outputs, nodes=[first, second], opset_imports={"": 17}, name="g")
    model = ir.Model(graph, ir_version=8)
    custom_ops.install(model, [f1, f2])
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto, full_check=True)
    assert proto.ir_version == 10 and len(proto.functions) == 2
    feeds = {
        n: np.random.default_rng(0).standard_normal(s).astype(np.float32)
        for n, s in (("x", (2, 4)), ("w", (4, 4)), ("z", (2, 4)))
    }
    (y,) = ort.InferenceSession(proto.SerializeToString()).run(None, feeds)
    np.testing.assert_allclose(y, np.maximum((feeds["x"] @ feeds["w"] + feeds["z"]) @ feeds["w"], 0), atol=1e-5)


def compiled(op: str, *dtypes: ir.DataType, **attrs: object) -> list[str]:
    program = Program()
    node = ir.node(op, [value(f"v{i}", 2, dtype=d) for i, d in enumerate(dtypes)], attrs)
    compile_node(program, node, [program.load(i, d) for i, d in enumerate(dtypes)])
    return program.instructions


def test_program_text() -> None:
    assert compiled("Add", HALF, HALF) == ["load.f16 0", "load.f16 1", "add.f16 0 1"]
    assert compiled("Cast", HALF, to=1) == ["load.f16 0", "cast.f32 0"]
    assert compiled("LeakyRelu", FLOAT, alpha=0.5) == ["load.f32 0", "const.f32 0x3f000000", "leaky_relu.f32 0 1"]
    assert compiled("Less", FLOAT, FLOAT)[-1] == "less.bool 0 1"
    assert compiled("Max", FLOAT, FLOAT, FLOAT)[-2:] == ["max.f32 0 1", "max.f32 3 2"]
    assert compiled("IsInf", FLOAT, detect_negative=0)[-1] == "equal.bool 0 1"
    assert compiled("Clip", FLOAT) == ["load.f32 0", "identity.f32 0"]
    assert compiled("Clip", FLOAT, min=0.0)[1:] == ["const.f32 0x00000000", "const.f32 0x7f800000", "clip.f32 0 1 2"]


@pytest.mark.parametrize(
    ("op", "dtypes", "attrs", "message"),
    [
        ("MatMul", (FLOAT, FLOAT), {}, "not elementwise"),
        ("Pow", (FLOAT, ir.DataType.INT64), {}, "exponent of another type"),
        ("Pow", (ir.DataType.INT64, ir.DataType.INT64), {}, "base of int64"),
        ("Swish", (FLOAT,), {"alpha": 2.0}, "alpha other than 1"),
        ("Cast", (FLOAT,), {"to": int(ir.DataType.STRING)}, "elements of type string"),
        ("Sum", (HALF, HALF, HALF), {}, "partial sums"),
        ("Where", (FLOAT, FLOAT, FLOAT), {}, "not bool"),
    ],
)
def test_what_a_program_cannot_say(
    op: str, dtypes: tuple[ir.DataType, ...], attrs: dict[str, object], message: str
) -> None:
    with pytest.raises(UnsupportedError, match=message):
        compiled(op, *dtypes, **attrs)
