"""``optimize``: what it takes and gives, and that it never changes the caller's model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

import cuvil_onnx
from cuvil_onnx import api
from cuvil_onnx.errors import OptionError
from tests.api_testing import W, X, expected, made, run, saved


@pytest.mark.parametrize("kind", ["path", "str", "bytes", "proto", "ir", "graphsurgeon"])
def test_takes_every_form(kind: str, tmp_path: Path) -> None:
    model: Any = {
        "path": lambda: saved(tmp_path),
        "str": lambda: str(saved(tmp_path)),
        "bytes": lambda: made().SerializeToString(),
        "proto": made,
        "ir": lambda: ir.from_proto(made()),
        "graphsurgeon": lambda: pytest.importorskip("onnx_graphsurgeon").import_onnx(made()),
    }[kind]()
    result = cuvil_onnx.optimize(model)
    np.testing.assert_allclose(run(result.model)[0], expected(), rtol=1e-5, atol=1e-6)
    assert "bit for bit" in result.report.verification or "within" in result.report.verification


def test_gives_a_graphsurgeon_graph() -> None:
    gs = pytest.importorskip("onnx_graphsurgeon")
    graph = cuvil_onnx.optimize(gs.import_onnx(made()), level="basic").graph()
    assert isinstance(graph, gs.Graph)
    assert [n.op for n in graph.nodes] == ["MatMul", "Add", "Relu"]


def test_the_caller_s_model_is_not_touched() -> None:
    model = made()
    before = model.SerializeToString(deterministic=True)
    private = ir.from_proto(made())
    text = ir.to_proto(private).SerializeToString(deterministic=True)
    cuvil_onnx.optimize(model, precision="fp16", layout="nhwc")
    cuvil_onnx.optimize(private, precision="fp16")
    assert model.SerializeToString(deterministic=True) == before
    assert ir.to_proto(private).SerializeToString(deterministic=True) == text


def test_twice_gives_the_same() -> None:
    once = cuvil_onnx.optimize(made())
    twice = cuvil_onnx.optimize(once.model)
    assert twice.report.before.ops == twice.report.after.ops
    np.testing.assert_array_equal(run(once.model)[0], run(twice.model)[0])
    assert cuvil_onnx.optimize(made()).model.SerializeToString(deterministic=True) == once.model.SerializeToString(
        deterministic=True
    )


def test_interface_stays() -> None:
    model = made()
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "M"
    result = cuvil_onnx.optimize(model).model
    assert list(result.graph.input) == list(model.graph.input)
    assert list(result.graph.output) == list(model.graph.output)


def test_unknown_operators_are_left_alone() -> None:
    graph = onnx.parser.parse_graph("g (float[4] x) => (float[4] y) { i = Identity(x) y = my.own.Thing(i) }")
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("my.own", 1)]
    result = cuvil_onnx.optimize(helper.make_model(graph, opset_imports=imports, ir_version=9))
    assert [(n.domain, n.op_type) for n in result.model.graph.node] == [("my.own", "Thing")]
    assert "cannot load the original" in result.report.verification


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "fp8"},
        {"level": "most"},
        {"layout": "nwhc"},
        {"skip": ["no_such_rule"]},
        {"only": ["no_such_rule"]},
        {"skip": "identity"},
        {"quantize": "no_such_scheme"},
        {"quantize": 4},
    ],
)
def test_meaningless_options(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        cuvil_onnx.optimize(made(), **options)


def test_skip_and_only() -> None:
    assert "Identity" in cuvil_onnx.optimize(made(), skip=["identity"], level="basic").report.after.ops
    assert set(cuvil_onnx.optimize(made(), only=["identity"]).report.trace.counts) == {"identity"}
    assert cuvil_onnx.optimize(made(), level="none").report.after.ops == {
        "Add": 1,
        "Identity": 1,
        "MatMul": 1,
        "Relu": 1,
    }


def test_report() -> None:
    result = cuvil_onnx.optimize(made())
    text = str(result)
    assert "before" in text and "all nodes" in text and "parameters MB" in text
    assert "identity" in result.report.explain()
    assert result.report.as_dict()["counts"]["identity"] == 1


@pytest.mark.parametrize("nodes", ["", "ai.onnx"])
@pytest.mark.parametrize("imports", [[""], ["ai.onnx"], ["", "ai.onnx"]])
def test_both_names_of_the_standard_domain(nodes: str, imports: list[str]) -> None:
    model = made()
    del model.opset_import[:]
    model.opset_import.extend(helper.make_opsetid(name, 17) for name in imports)
    for node in model.graph.node:
        node.domain = nodes
    result = cuvil_onnx.optimize(model, verify=True)
    assert [n.op_type for n in result.model.graph.node] == ["FusedMatMul"]
    np.testing.assert_allclose(run(result.model)[0], expected(), rtol=1e-5, atol=1e-6)


def test_functions_written_for_another_opset_are_kept() -> None:
    body = [helper.make_node("Relu", ["a"], ["t"]), helper.make_node("Neg", ["t"], ["b"])]
    function = helper.make_function("my", "F", ["a"], ["b"], body, [helper.make_opsetid("", 13)])
    model = made("(float[N,8] x) => (float[N,8] y) { a = my.F(x) b = Abs(a) y = Neg(b) }", w=W)
    model.opset_import.append(helper.make_opsetid("my", 1))
    model.functions.append(function)
    result = cuvil_onnx.optimize(model, verify=True)
    np.testing.assert_array_equal(run(result.model)[0], -np.maximum(X, 0))


def test_every_public_name_is_documented() -> None:
    for name in ("optimize", "Optimized"):
        assert getattr(api, name).__doc__


@pytest.mark.parametrize(("argument", "value"), [("verify", "yes"), ("verify", 1), ("output", 3)])
def test_arguments_of_other_types_are_refused(argument: str, value: Any) -> None:
    with pytest.raises(OptionError, match=f"{argument}={value!r}: .* required"):
        cuvil_onnx.optimize(made(), **{argument: value})
