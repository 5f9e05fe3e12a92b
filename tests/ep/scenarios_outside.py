"""Runs that ONNX Runtime does not capture, recorded around it by ``cuvil_onnx.InferenceSession``."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, helper

from tests.ep.harness import fake_scenario, floats, model, node
from tests.ep.scenarios_control_flow import _body, _with
from tests.ep.scenarios_session import session


@fake_scenario
def session_records_branches_by_their_condition() -> None:
    """The branch's result is the model's output: its copy into the session's buffer must be part of the graph."""
    then = _body("then", [node("Twice", ["x"], "t")], {}, {"t": TensorProto.FLOAT})
    other = _body("else", [node("Plus", ["x", "x"], "p"), node("Twice", ["p"], "e")], {}, {"e": TensorProto.FLOAT})
    branch = helper.make_node("If", ["c"], ["y"], name="branch", then_branch=then, else_branch=other)
    data = _with([branch], {"c": TensorProto.BOOL}, ["y"])
    for policy in ("auto", "always"):
        with session(data, cuda_graph=policy) as sess:
            for i in range(12):
                x, taken = floats(8, seed=i), i % 3 != 0
                (y,) = sess.run(None, {"x": x, "c": np.array(taken)})
                np.testing.assert_array_equal(y, (2 if taken else 4) * x)
            assert sess.captured_graphs == 2, sess.placement().cuda_graph


@fake_scenario
def session_records_a_branch_that_hands_its_input_on() -> None:
    """Neither end of that copy belongs to the session's arena."""
    then = _body("then", [node("Identity", ["x"], "t")], {}, {"t": TensorProto.FLOAT})
    other = _body("else", [node("Twice", ["x"], "e")], {}, {"e": TensorProto.FLOAT})
    branch = helper.make_node("If", ["c"], ["y"], name="branch", then_branch=then, else_branch=other)
    with session(_with([branch], {"c": TensorProto.BOOL}, ["y"]), cuda_graph="auto") as sess:
        for i in range(8):
            x, taken = floats(8, seed=i), i % 2 == 0
            (y,) = sess.run(None, {"x": x, "c": np.array(taken)})
            np.testing.assert_array_equal(y, (1 if taken else 2) * x)


@fake_scenario
def session_leaves_what_the_cpu_computes_from_the_gpu_eager() -> None:
    nodes = [node("Twice", ["x"], "a"), node("Abs", ["a"], "b"), node("Twice", ["b"], "y")]
    with session(model(nodes, {"x": ["n", 8]})) as sess:
        for i in range(6):
            x = floats(3, 8, seed=i)
            np.testing.assert_array_equal(sess.run(None, {"x": x})[0], 4 * np.abs(x))
        assert sess.captured_graphs == 0
        assert "between host and GPU" in sess.placement().cuda_graph, sess.placement().cuda_graph
