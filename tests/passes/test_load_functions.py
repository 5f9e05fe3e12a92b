"""Functions in this package's domain: its own are loaded again, somebody else's of the same name are refused."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from onnx import helper

import custom_ops
from custom_ops import testing
from cuvil_onnx import optimize
from cuvil_onnx.errors import UnsupportedModelError


def calling(name: str, overload: str = "") -> onnx.ModelProto:
    """y = cuvil::name(x), a function that doubles."""
    opset = [helper.make_opsetid("", 17)]
    body = [helper.make_node("Add", ["a", "a"], ["b"])]
    function = helper.make_function("cuvil", name, ["a"], ["b"], body, opset, overload=overload)
    infos = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [4]) for n in ("x", "y")]
    node = helper.make_node(name, ["x"], ["y"], domain="cuvil", overload=overload)
    graph = helper.make_graph([node], "g", infos[:1], infos[1:])
    imports = [*opset, helper.make_opsetid("cuvil", 1)]
    return helper.make_model(graph, functions=[function], opset_imports=imports, ir_version=10)


@pytest.mark.parametrize("overload", ["", "v2", "0123456789abcdef", "0123456789"])
def test_a_function_by_the_name_of_ours_is_refused(overload: str) -> None:
    with pytest.raises(UnsupportedModelError, match=r"cuvil::Gelu .* rename its domain"):
        optimize(calling("Gelu", overload))


def test_another_name_is_left_alone() -> None:
    assert [n.op_type for n in optimize(calling("Double")).model.graph.node] == ["Double"]


def test_our_own_are_loaded_again() -> None:
    text = "g (float[N,4] x) => (float[N,4] y) { a = Add(x, x) y = Relu(a) }"
    source = helper.make_model(onnx.parser.parse_graph(text), opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    once = optimize(source).model
    assert [n.op_type for n in once.graph.node] == ["Pointwise"]
    assert optimize(once).model == once


def test_a_changed_body_is_no_longer_ours() -> None:
    text = "g (float[N,4] x, float[N,4] y, float[4] s) => (float[N,4] z) { a = Add(x, y) z = LayerNormalization(a, s) }"
    source = helper.make_model(onnx.parser.parse_graph(text), opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    made = optimize(source).model
    (function,) = made.functions
    for described in (function, *function.node):
        described.doc_string = "what tools add does not matter"
    assert optimize(made).model.functions[0].node == function.node
    next(n for n in function.node if n.op_type == "Add").op_type = "Mul"
    with pytest.raises(UnsupportedModelError, match=r"cuvil::LayerNorm .* was changed since"):
        optimize(made)


@pytest.mark.parametrize("spec", custom_ops.specs().values(), ids=lambda spec: spec.name)
def test_functions_keep_their_name_in_files(spec: custom_ops.OpSpec) -> None:
    for example in spec.examples():
        for opset, dtype in ((max(11, example.opset), ir.DataType.FLOAT), (23, ir.DataType.FLOAT16)):
            if dtype == ir.DataType.FLOAT or example.half:
                made = testing.build(spec, example, opset=opset, dtype=dtype).model
                (function,) = ir.from_proto(onnx.ModelProto.FromString(made.SerializeToString())).functions.values()
                assert custom_ops.fingerprint(function) == made.functions[0].overload
