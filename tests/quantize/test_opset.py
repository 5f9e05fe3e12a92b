"""Models below opset 21 are converted first, with weights, names and interface as they were."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import cuvil_onnx
from cuvil_onnx.errors import UnsupportedModelError
from cuvil_onnx.quantize.opset import raised
from tests.quantize.quantize_testing import graph, ops, product, rows, run, weight

BODY = "p = MatMul(x, w) s = Softmax<axis=1>(p) u = Unsqueeze<axes=[0]>(s) y = Squeeze<axes=[0]>(u)"
TEXT = f"(float[M,64] x) => (float[M,96] y) {{ {BODY} }}"


@pytest.mark.parametrize("opset", [7, 11, 12])
def test_forms_that_changed_are_converted(opset: int) -> None:
    model = graph(TEXT, opset, w=weight(64, 96))
    before = model.SerializeToString(deterministic=True)
    result = cuvil_onnx.quantize(model, "rtn:w8a16:g16", verify=True)
    assert model.SerializeToString(deterministic=True) == before
    assert {o.domain: o.version for o in result.model.opset_import}[""] == 21
    assert ops(result.model)["cuvil::MatMulInt4"] == 1
    x = rows(3, 64)
    # 8 bits change logits of 64 terms by some 4e-3, and the largest probability, of 0.05, by as much of itself.
    np.testing.assert_allclose(run(result.model, x=x)[0], run(model, x=x)[0], atol=1e-3)
    assert [o.name for o in result.model.graph.output] == ["y"] and [i.name for i in result.model.graph.input] == ["x"]


@pytest.mark.parametrize("opset", [21, 23, 26])
def test_newer_models_stay_at_theirs(opset: int) -> None:
    model = product(weight(64, 96), opset)
    result = cuvil_onnx.quantize(model, verify=True)
    assert {o.domain: o.version for o in result.model.opset_import}[""] == opset


def test_local_functions_are_inlined() -> None:
    text = (
        "<ir_version: 8, opset_import: ['': 17, 'own': 1]> g (float[M,64] x) => (float[M,96] y) { y = own.Twice(x, w) }"
    )
    text += "<domain: 'own', opset_import: ['': 17]> Twice (a, b) => (c) { d = MatMul(a, b) c = Add(d, d) }"
    model = onnx.parser.parse_model(text.replace("'", '"'))
    w = weight(64, 96)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    result = cuvil_onnx.quantize(model, "rtn:w8a16:g16")
    assert ops(result.model) == {"cuvil::MatMulInt4": 1, "Add": 1}
    x = rows(3, 64)
    np.testing.assert_allclose(run(result.model, x=x)[0], 2 * x @ w, atol=0.05)


def test_overridable_weights_and_metadata_survive() -> None:
    model = graph(TEXT, 12, w=weight(64, 96))
    model.graph.input.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [64, 96]))
    model.metadata_props.add(key="author", value="somebody")
    made = raised(ir.from_proto(model))
    assert [v.name for v in made.graph.inputs] == ["x", "w"] and "w" in made.graph.initializers
    assert made.metadata_props["author"] == "somebody"
    assert not cuvil_onnx.quantize(model).report.quantization.layers  # type: ignore[union-attr]


def test_what_cannot_be_converted_is_an_error() -> None:
    model = product(weight(64, 96))
    model.opset_import[0].version = 6
    with pytest.raises(UnsupportedModelError, match="4-bit weights need opset 21, the model has 6"):
        cuvil_onnx.quantize(model)
