"""Graphs are written byte for byte as onnx-ir writes them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import cuvil_onnx
from benchmarks.scale_models import GENERATORS
from cuvil_onnx.passes import shapes
from cuvil_onnx.passes.serialize import Serializer, attribute_key, tensor
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.trace import Trace


def written(model: ir.Model) -> bytes:
    def whole(value: ir.Value) -> bytes:
        assert value.const_value is not None
        return tensor(value.const_value, value.name or "")

    return Serializer(model.ir_version, whole).graph(model.graph)


def expected(model: ir.Model) -> bytes:
    return ir.to_proto(model).graph.SerializeToString(deterministic=True)


@pytest.mark.parametrize("name", GENERATORS)
def test_as_onnx_ir_writes_it(name: str) -> None:
    made = GENERATORS[name](150)
    plain = ir.from_proto(made)
    assert written(plain) == expected(plain)
    optimized = cuvil_onnx.optimize(made, verify=False).ir_model
    assert written(optimized) == expected(optimized)
    infer = GraphContext(ir.from_proto(made))
    shapes.infer_shapes(infer, Trace())  # types and shapes of all values
    assert written(infer.model) == expected(infer.model)


def test_everything_rare() -> None:
    inner = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["b"])],
        "arm",
        [],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.ones((3, 3), np.float32), "w")],
        doc_string="of the arm",
    )
    nodes = [
        helper.make_node("If", ["c"], ["i"], "chosen", "of the node", then_branch=inner, else_branch=inner),
        helper.make_node("Dropout", ["i"], ["d", ""]),
        helper.make_node("Clip", ["d", "", "m"], ["k"]),
        helper.make_node(
            "Strange", ["k", "x"], ["y"], domain="other", f=-0.0, fs=[0.0, -0.0, 1e-30], i=-1, s="ä" * 200,
            strings=["", "b"], t=numpy_helper.from_array(np.arange(3)), overload="o",
        ),
        helper.make_node("Strange", ["k"], ["z"], domain="other", f=0.0, tp=helper.make_tensor_type_proto(1, ["N", 2])),
        helper.make_node("SequenceConstruct", ["z"], ["q"]),
    ]  # fmt: skip
    nodes[0].metadata_props.add(key="k", value="")
    nodes[3].attribute.append(helper.make_attribute("none", [], attr_type=onnx.AttributeProto.INTS))
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", None, 3])]
    outputs.append(helper.make_tensor_sequence_value_info("q", TensorProto.FLOAT, None))
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", ["N", 3]), ("m", []))]
    inputs[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    inputs.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    graph = helper.make_graph(
        nodes, "g", inputs, outputs, [numpy_helper.from_array(np.float32(1), "m")], "of the graph"
    )
    for name, dims in (("k", ["N", 3]), ("d", ["M", 3]), ("i", None), ("z", [0, -1])):
        graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims, "of a value"))
    graph.value_info[1].type.tensor_type.shape.dim[1].denotation = "DATA_FEATURE"
    graph.value_info[3].doc_string = ""
    graph.value_info[3].metadata_props.add(key="b", value="2")
    graph.metadata_props.add(key="g", value="1")
    graph.quantization_annotation.add(tensor_name="k").quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="m")
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    assert written(model) == expected(model)


def test_attributes_with_equal_keys_are_equal() -> None:
    def attr(value: object) -> ir.Attr:
        return ir.convenience.convert_attribute("a", value)

    assert attribute_key(attr(0.0)) != attribute_key(attr(-0.0))
    assert attribute_key(attr([0.0])) != attribute_key(attr([-0.0]))
    assert attribute_key(attr(1)) != attribute_key(attr(1.0))
    assert attribute_key(attr([1, 2])) == attribute_key(attr((1, 2)))
    assert attribute_key(attr(ir.tensor(np.ones(2)))) is None


def test_a_model_with_many_subgraphs_is_inferred_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is in one; what inference makes up in one part is no size of another."""
    nodes, infos = [], []
    for k in range(5):
        arms = {}
        for arm, kind in (("then_branch", "Neg"), ("else_branch", "Abs")):
            info = helper.make_tensor_value_info(f"o{k}", TensorProto.FLOAT, None)
            arms[arm] = helper.make_graph([helper.make_node(kind, [f"n{k}"], [f"o{k}"])], arm, [], [info])
        nodes += [helper.make_node("NonZero", ["x"], [f"z{k}"]), helper.make_node("Cast", [f"z{k}"], [f"n{k}"], to=1)]
        nodes += [helper.make_node("If", ["c"], [f"y{k}"], **arms)]
        infos.append(helper.make_tensor_value_info(f"y{k}", TensorProto.FLOAT, None))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3])]
    inputs.append(helper.make_tensor_value_info("c", TensorProto.BOOL, []))
    proto = helper.make_model(
        helper.make_graph(nodes, "g", inputs, infos), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    found: list[onnx.ModelProto] = []
    for most in (shapes.MAX_SCOPES, 0):
        monkeypatch.setattr(shapes, "MAX_SCOPES", most)
        monkeypatch.setattr(shapes, "PART", 4)
        ctx = GraphContext(ir.from_proto(proto))
        assert shapes.infer_shapes(ctx, Trace()) == 5 + 5 + 10 + 5
        dims = [[ctx.shape(v) for n in graph for v in n.outputs] for graph in ctx.graphs]
        unknown = [d[1] for d in dims[0] if d is not None]
        assert all(unknown) and len(set(unknown)) == 5, unknown
        found.append([[None if d is None else d[0] for d in level] for level in dims])
    assert found[0] == found[1]
