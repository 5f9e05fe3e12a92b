"""Nodes with bodies: ONNX Runtime runs them, with this provider's nodes and memory."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.ep.harness import floats, model, node, scenario, session


def _body(name: str, nodes: list[onnx.NodeProto], inputs: dict[str, int], outputs: dict[str, int]) -> onnx.GraphProto:
    """Scalars where the type is not float32, else vectors of 8."""
    given, made = (
        [helper.make_tensor_value_info(n, t, [8] if t == TensorProto.FLOAT else []) for n, t in names.items()]
        for names in (inputs, outputs)
    )
    return helper.make_graph(nodes, name, given, made)


def _with(nodes: list[onnx.NodeProto], extra: dict[str, int], outputs: list[str]) -> bytes:
    """A model whose float32 input x [8] and the scalars in `extra` go into the nodes."""
    made = onnx.load_from_string(model(nodes, {"x": [8]}, outputs))
    for name, kind in extra.items():
        made.graph.input.append(helper.make_tensor_value_info(name, kind, []))
    return made.SerializeToString()


@scenario
def a_branch_runs_here() -> None:
    then = _body("then", [node("Twice", ["x"], "t")], {}, {"t": TensorProto.FLOAT})
    other = _body("else", [node("Plus", ["x", "x"], "p"), node("Twice", ["p"], "e")], {}, {"e": TensorProto.FLOAT})
    branch = helper.make_node("If", ["c"], ["r"], name="branch", then_branch=then, else_branch=other)
    sess = session(_with([branch, node("Twice", ["r"], "y")], {"c": TensorProto.BOOL}, ["y"]), optimize=False)
    for i, taken in enumerate([True, False, True]):
        x = floats(8, seed=i)
        (y,) = sess.run(None, {"x": x, "c": np.array(taken)})
        np.testing.assert_array_equal(y, (4 if taken else 8) * x)


@scenario
def a_loop_carries_and_stacks_here() -> None:
    kinds = {"i": TensorProto.INT64, "c": TensorProto.BOOL, "s": TensorProto.FLOAT}
    body = _body(
        "body",
        [node("Identity", ["c"], "c1"), node("Twice", ["s"], "s1"), node("Plus", ["s1", "x"], "q")],
        kinds,
        {"c1": TensorProto.BOOL, "s1": TensorProto.FLOAT, "q": TensorProto.FLOAT},
    )
    loop = helper.make_node("Loop", ["n", "", "x"], ["last", "all"], name="loop", body=body)
    sess = session(_with([loop], {"n": TensorProto.INT64}, ["last", "all"]), cpu=True, optimize=False)
    for trips in (3, 0, 1):
        x = floats(8, seed=trips)
        last, stacked = sess.run(None, {"x": x, "n": np.array(trips)})
        np.testing.assert_array_equal(last, 2**trips * x)
        np.testing.assert_array_equal(stacked, [2 ** (k + 1) * x + x for k in range(trips)] or np.zeros((0, 8)))


@scenario
def a_scan_carries_and_stacks_here() -> None:
    body = _body(
        "body",
        [node("Plus", ["s", "e"], "s1"), node("Twice", ["s1"], "o")],
        {"s": TensorProto.FLOAT, "e": TensorProto.FLOAT},
        {"s1": TensorProto.FLOAT, "o": TensorProto.FLOAT},
    )
    scan = helper.make_node("Scan", ["x", "xs"], ["last", "all"], name="scan", body=body, num_scan_inputs=1)
    sess = session(model([scan], {"x": [8], "xs": [5, 8]}, ["last", "all"]), optimize=False)
    x, xs = floats(8), floats(5, 8, seed=1)
    last, stacked = sess.run(None, {"x": x, "xs": xs})
    sums = x + np.cumsum(xs, axis=0)
    np.testing.assert_array_equal(last, sums[-1])
    np.testing.assert_array_equal(stacked, 2 * sums)
