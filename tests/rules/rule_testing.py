"""What the tests of all rules share: models from text, the comparison before and after, and the contract of a rule."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from cuvil_onnx.api import Optimized, optimize

# Rounding rewrites of float32 models with sums of at most a few hundred terms of order 1.
RTOL = 2e-5


def graph(text: str, opset: int = 17, **weights: Any) -> onnx.ModelProto:
    """A model from a graph in ONNX's text form, `(inputs) => (outputs) { nodes }`, and its weights."""
    parsed = onnx.parser.parse_graph(f"g {text}")
    for name, array in weights.items():
        parsed.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    model = helper.make_model(parsed, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    onnx.checker.check_model(model)
    return model


def weight(*shape: int, seed: int = 0, scale: float = 0.5, dtype: Any = np.float32) -> np.ndarray:
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) * scale).astype(dtype)


def feeds(model: onnx.ModelProto, symbols: dict[str, int] | None = None) -> dict[str, np.ndarray]:
    """Random inputs; symbolic sizes are taken from `symbols`, 3 when absent."""
    result = {}
    for index, info in enumerate(model.graph.input):
        if info.name in {i.name for i in model.graph.initializer}:
            continue
        tensor = info.type.tensor_type
        shape = [d.dim_value or (symbols or {}).get(d.dim_param, 3) for d in tensor.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        values = np.random.default_rng(index).standard_normal(shape) * 2
        result[info.name] = np.asarray(values > 0 if dtype.kind == "b" else values, dtype)
    return result


def run(model: onnx.ModelProto, inputs: dict[str, np.ndarray], plain: bool = False) -> list[np.ndarray]:
    """The outputs on ONNX Runtime's CPU provider; `plain` without its own optimizations."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    # By default products with 4-bit weights round their activations to 8 bits.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if plain:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def apply(model: onnx.ModelProto, *rules: str) -> Optimized:
    """Runs only the named rules (and what always runs); a defect of a rule raises."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUVIL_STRICT", "1")
        return optimize(model, only=list(rules), verify=False)


def count(model: onnx.ModelProto, rule: str, *others: str) -> int:
    """How often a rule fires."""
    return apply(model, rule, *others).report.trace.counts.get(rule, 0)


def ops(model: onnx.ModelProto) -> Counter[str]:
    """How many nodes of each operator, subgraphs included."""
    found: Counter[str] = Counter()
    pending = [model.graph]
    while pending:
        for node in pending.pop().node:
            found[f"{node.domain}::{node.op_type}" if node.domain else node.op_type] += 1
            pending.extend(a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH)
    return found


def node_of(model: onnx.ModelProto, op_type: str) -> onnx.NodeProto:
    (node,) = (n for n in model.graph.node if n.op_type == op_type)
    return node


def attributes(node: onnx.NodeProto) -> dict[str, Any]:
    found = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    return {k: v.decode() if isinstance(v, bytes) else v for k, v in found.items()}


def fires(
    model: onnx.ModelProto,
    rule: str,
    *others: str,
    times: int = 1,
    rtol: float = RTOL,
    atol: float = RTOL,
    symbols: dict[str, int] | None = None,
    exact: bool = False,
    plain: bool = False,
) -> onnx.ModelProto:
    """Asserts that a rule fires so often and that the result computes the same; returns the new model."""
    before = model.SerializeToString()
    result = apply(model, rule, *others)
    assert model.SerializeToString() == before, "the caller's model was changed"
    trace = result.report.trace
    assert trace.counts.get(rule, 0) == times, (trace.counts, [r.reason for r in trace.refused])
    onnx.checker.check_model(result.model, full_check=True)
    inputs = feeds(model, symbols)
    for old, new in zip(run(model, inputs, plain=True), run(result.model, inputs, plain), strict=True):
        assert old.dtype == new.dtype and old.shape == new.shape
        if exact:
            np.testing.assert_array_equal(new, old)
        else:
            np.testing.assert_allclose(new, old, rtol=rtol, atol=atol)
    return result.model


def refused(model: onnx.ModelProto, rule: str, reason: str, *others: str) -> None:
    """Asserts that a rule does not fire and says why; an empty reason: that it says nothing."""
    trace = apply(model, rule, *others).report.trace
    assert trace.counts.get(rule, 0) == 0
    reasons = [r.reason for r in trace.refused if r.rule == rule]
    if reason:
        assert any(reason in r for r in reasons), reasons
    else:
        assert not reasons


@dataclasses.dataclass(frozen=True)
class Case:
    """What the contract of a rule is checked on.

    Attributes:
        model: a model on which the rule fires `times` times.
        inner: a float value that the rewrite removes.
        needs: further rules that must run for this one to match.
        kept: how often the rule still fires when `inner` is needed elsewhere.
        plain: run the result without ONNX Runtime's optimizations, too.
    """

    rule: str
    model: Callable[[], onnx.ModelProto]
    inner: str
    needs: Sequence[str] = ()
    times: int = 1
    kept: int = 0
    exact: bool = False
    plain: bool = False


def _typed(model: onnx.ModelProto, name: str) -> onnx.ValueInfoProto:
    inferred = onnx.shape_inference.infer_shapes(model)
    return next(v for v in inferred.graph.value_info if v.name == name)


def _second_consumer(case: Case) -> onnx.ModelProto:
    model = case.model()
    info = _typed(model, case.inner)
    model.graph.node.append(helper.make_node("Neg", [case.inner], ["extra"]))
    model.graph.output.append(onnx.ValueInfoProto(name="extra", type=info.type))
    return model


def _graph_output(case: Case) -> onnx.ModelProto:
    model = case.model()
    model.graph.output.append(_typed(model, case.inner))
    return model


def _captured(case: Case) -> onnx.ModelProto:
    """An If whose branch reads the inner value."""
    model = case.model()
    info = _typed(model, case.inner)
    branches = []
    for name, op in (("then", "Neg"), ("else", "Abs")):
        out = onnx.ValueInfoProto(name=f"{name}_out", type=info.type)
        branches.append(helper.make_graph([helper.make_node(op, [case.inner], [f"{name}_out"])], name, [], [out]))
    model.graph.input.append(helper.make_tensor_value_info("cond", onnx.TensorProto.BOOL, []))
    node = helper.make_node("If", ["cond"], ["extra"], then_branch=branches[0], else_branch=branches[1])
    model.graph.node.append(node)
    model.graph.output.append(onnx.ValueInfoProto(name="extra", type=info.type))
    return model


def _in_subgraph(case: Case) -> onnx.ModelProto:
    """The whole model in both branches of an If; inputs and weights are captured."""
    model = case.model()
    old = onnx.GraphProto.FromString(model.graph.SerializeToString())
    branches = []
    for prefix in ("a_", "b_"):
        made = {name: prefix + name for node in old.node for name in node.output if name}
        nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in old.node]
        for node in nodes:
            node.name = ""
            node.input[:] = [made.get(n, n) for n in node.input]
            node.output[:] = [made.get(n, n) for n in node.output]
        outputs = [onnx.ValueInfoProto(name=made[o.name], type=o.type) for o in old.output]
        branches.append(helper.make_graph(nodes, f"{prefix}branch", [], outputs))
    outer = helper.make_node(
        "If", ["cond"], [o.name for o in old.output], then_branch=branches[0], else_branch=branches[1]
    )
    cond = helper.make_tensor_value_info("cond", onnx.TensorProto.BOOL, [])
    whole = helper.make_graph([outer], "outer", [*old.input, cond], list(old.output), list(old.initializer))
    imports, functions = list(model.opset_import), list(model.functions)
    wrapped = helper.make_model(whole, opset_imports=imports, ir_version=model.ir_version, functions=functions)
    onnx.checker.check_model(wrapped)
    return wrapped


def contract(case: Case) -> Callable[[str], None]:
    """The test that every rule must pass; assign it to a name that starts with `test_`."""

    @pytest.mark.parametrize("part", ["fires", "idempotent", "second_consumer", "graph_output", "captured", "subgraph"])
    def test(part: str) -> None:
        kept = {"times": case.kept, "exact": case.exact, "plain": case.plain}
        if part == "fires":
            fires(case.model(), case.rule, *case.needs, times=case.times, exact=case.exact, plain=case.plain)
        elif part == "idempotent":
            once = apply(case.model(), case.rule, *case.needs).model
            assert count(once, case.rule) == 0
        elif part == "second_consumer":
            fires(_second_consumer(case), case.rule, *case.needs, **kept)
        elif part == "graph_output":
            fires(_graph_output(case), case.rule, *case.needs, **kept)
        elif part == "captured":
            fires(_captured(case), case.rule, *case.needs, **kept)
        else:
            fires(_in_subgraph(case), case.rule, *case.needs, times=2 * case.times, exact=case.exact, plain=case.plain)

    return test
