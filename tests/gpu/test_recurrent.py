"""LSTM, GRU and RNN against NumPy in float64, and in float32 against ONNX Runtime's CPU provider as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.gpu.single_op import MakeSession, quick, reference

Array = np.ndarray
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
TYPES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
TYPES["float64"] = TensorProto.DOUBLE
# float32: sums of up to 100 products of numbers near 1/3, each step's error fed into the next one. 16 bits: H and the
# products are rounded at every step, to numbers below about 4.
ERROR = {"float32": 2e-5, "float64": 1e-12, "float16": 1e-2, "bfloat16": 8e-2}


@pytest.fixture(autouse=True)
def first_suggestion(monkeypatch: pytest.MonkeyPatch) -> None:
    """No measuring of every small product."""
    monkeypatch.setenv("CUVIL_TUNING", "off")


def rounded(x: Array, dtype: str) -> Array:
    return x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)).astype(np.float64)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


FUNCTIONS: dict[str, Callable[[Array, float, float], Array]] = {
    "Sigmoid": lambda x, a, b: sigmoid(x),
    "Tanh": lambda x, a, b: np.tanh(x),
    "Relu": lambda x, a, b: np.maximum(x, 0),
    "LeakyRelu": lambda x, a, b: np.where(x < 0, a * x, x),
    "HardSigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "Elu": lambda x, a, b: np.where(x < 0, a * np.expm1(x), x),
    "Softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "Softplus": lambda x, a, b: np.log1p(np.exp(x)),
    "ScaledTanh": lambda x, a, b: a * np.tanh(b * x),
    "Affine": lambda x, a, b: a * x + b,
    "ThresholdedRelu": lambda x, a, b: np.where(x > a, x, 0),
}
DEFAULTS = {"LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"], "RNN": ["Tanh"]}
PARAMETERS = {"LeakyRelu": (0.01, 0), "HardSigmoid": (0.2, 0.5), "Elu": (1, 0), "Affine": (1, 0), "ScaledTanh": (1, 1)}


def step(op: str, x: Array, h: Array, c: Array, part: dict[str, Array], attrs: dict[str, Any], f: list[Any]) -> Any:
    """One step of one sequence in one direction, x and h vectors; `part`: W, R, B, P of the direction."""
    n = h.size
    w, r, b = (part[k].reshape(-1, n, *part[k].shape[1:]) for k in ("W", "R", "B"))
    gates = len(w)
    limit = attrs.get("clip", np.inf)
    clip = lambda v: np.clip(v, -limit, limit)  # noqa: E731
    s = [w[k] @ x + b[k] for k in range(gates)]
    if op == "RNN":
        return f[0](clip(s[0] + r[0] @ h + b[1])), c
    if op == "GRU":
        z, reset = (f[0](clip(s[k] + r[k] @ h + b[3 + k])) for k in (0, 1))
        if attrs.get("linear_before_reset"):
            hidden = f[1](clip(s[2] + reset * (r[2] @ h + b[5])))
        else:
            hidden = f[1](clip(s[2] + r[2] @ (reset * h) + b[5]))
        return (1 - z) * hidden + z * h, c
    s = [s[k] + r[k] @ h + b[4 + k] for k in range(4)]
    p = part["P"].reshape(3, n)
    i = f[0](clip(s[0] + p[0] * c))
    forget = 1 - i if attrs.get("input_forget") else f[0](clip(s[2] + p[2] * c))
    c = forget * c + i * f[1](clip(s[3]))
    return f[0](clip(s[1] + p[1] * c)) * f[2](c), c


def functions_of(op: str, directions: int, attrs: dict[str, Any]) -> list[list[Any]]:
    names = attrs.get("activations", DEFAULTS[op] * directions)
    alphas, betas = (list(attrs.get(k, [])) for k in ("activation_alpha", "activation_beta"))
    made = []
    for name in names:
        a, b = PARAMETERS.get(name, (0, 0))
        if name in PARAMETERS and alphas:
            a = alphas.pop(0)
        if name in ("HardSigmoid", "Affine", "ScaledTanh") and betas:
            b = betas.pop(0)
        made.append(lambda v, fn=FUNCTIONS[name], a=a, b=b: fn(v, a, b))
    count = len(DEFAULTS[op])
    return [made[d * count : (d + 1) * count] for d in range(directions)]


def expected(op: str, t: dict[str, Array], attrs: dict[str, Any]) -> list[Array]:
    """Y, Y_h and Y_c of tensors in the layout of time first."""
    seq, batch, _ = t["X"].shape
    directions, n = t["R"].shape[0], t["R"].shape[2]
    functions = functions_of(op, directions, attrs)
    y = np.zeros((seq, directions, batch, n))
    last_h, last_c = t["h"].copy(), t["c"].copy()
    for d in range(directions):
        reverse = d == 1 or attrs.get("direction") == "reverse"
        part = {k: t[k][d] for k in ("W", "R", "B", "P")}
        for i in range(batch):
            h, c = t["h"][d, i], t["c"][d, i]
            for s in range(t["lengths"][i]):
                at = t["lengths"][i] - 1 - s if reverse else s
                h, c = step(op, t["X"][at, i], h, c, part, attrs, functions[d])
                y[at, d, i] = h
            last_h[d, i], last_c[d, i] = h, c
    return [y, last_h, last_c]


def node_model(op: str, tensors: dict[str, Array | None], attrs: dict[str, Any], dtype: str, outputs: list[str]) -> Any:
    """float64 inputs are cast to `dtype` before the node, outputs to float64 after it."""
    nodes, names = [], []
    for name, a in tensors.items():
        cast = a is not None and a.dtype == np.float64 and dtype != "float64"
        if cast:
            nodes.append(helper.make_node("Cast", [name], [name + "t"], to=TYPES[dtype]))
        names.append("" if a is None else name + "t" if cast else name)
    while not names[-1]:  # ONNX Runtime 1.31.1 crashes on a trailing empty name
        names.pop()
    inner = [o + "t" if o and dtype != "float64" else o for o in outputs]
    nodes.append(helper.make_node(op, names, inner, name="node", **attrs))
    if dtype != "float64":
        nodes += [helper.make_node("Cast", [o + "t"], [o], to=TensorProto.DOUBLE) for o in outputs if o]
    info = helper.make_tensor_value_info
    values = [info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in tensors.items() if a is not None]
    results = [info(o, TensorProto.DOUBLE, None) for o in outputs if o]
    graph = helper.make_graph(nodes, "g", values, results)
    opset = 22 if dtype == "bfloat16" else 14
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def check_recurrent(
    make: MakeSession,
    op: str,
    dtype: str = "float32",
    *,
    seq: int = 5,
    batch: int = 3,
    width: int = 6,
    hidden: int = 4,
    direction: str = "forward",
    given: tuple[str, ...] = ("B", "lengths", "h", "c", "P"),
    outputs: tuple[int, ...] = (0, 1, 2),
    layout: int = 0,
    stock: bool = True,
    **attrs: Any,
) -> None:
    rng = np.random.default_rng(seq * 100 + batch)
    directions, gates = 2 if direction == "bidirectional" else 1, GATES[op]
    rows = gates * hidden
    shapes = {"X": (seq, batch, width), "W": (directions, rows, width), "R": (directions, rows, hidden)}
    shapes |= {"B": (directions, 2 * rows), "h": (directions, batch, hidden), "c": (directions, batch, hidden)}
    shapes["P"] = (directions, 3 * hidden)
    full = {k: rounded(rng.normal(0, 1 if k == "X" else 0.4, s), dtype) for k, s in shapes.items()}
    full["lengths"] = rng.integers(0 if seq == 0 else 1, seq + 1, batch).astype(np.int32)
    if op != "LSTM":
        given, outputs = tuple(g for g in given if g not in ("c", "P")), tuple(o for o in outputs if o < 2)
    for k in ("B", "h", "c", "P"):
        if k not in given:
            full[k] = np.zeros_like(full[k])
    if "lengths" not in given:
        full["lengths"] = np.full(batch, seq, np.int32)
    attrs |= {"direction": direction, "hidden_size": hidden}
    if op != "GRU":
        attrs.pop("linear_before_reset", None)
    exact = expected(op, full, attrs)
    order = ["X", "W", "R", "B", "lengths", "h", *(["c", "P"] if op == "LSTM" else [])]
    tensors = {k: full[k] if k in ("X", "W", "R", *given) else None for k in order}
    if layout:
        attrs["layout"] = 1
        tensors |= {k: a.swapaxes(0, 1).copy() for k, a in tensors.items() if k in ("X", "h", "c") and a is not None}
        exact = [exact[0].transpose(2, 0, 1, 3), *(e.swapaxes(0, 1) for e in exact[1:])]
    names = [f"y{i}" if i in outputs else "" for i in range(max(outputs) + 1)]
    m = node_model(op, tensors, attrs, dtype, names)
    feeds = {k: a for k, a in tensors.items() if a is not None}
    session = make(m)
    found, again = session.run(None, feeds), session.run(None, feeds)
    for i, (a, b) in enumerate(zip(found, again, strict=True)):
        np.testing.assert_array_equal(a, b)
        want = exact[outputs[i]]
        assert a.shape == want.shape, f"{a.shape} instead of {want.shape}"
        np.testing.assert_allclose(a, want, rtol=0, atol=ERROR[dtype])
    if stock and dtype == "float32" and not layout:
        for a, b in zip(found, reference(m, feeds), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=ERROR[dtype])


DIRECTIONS = ["forward", "reverse", "bidirectional"]


@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("op", list(GATES))
def test_directions_and_types(ep_session: MakeSession, op: str, direction: str, dtype: str) -> None:
    check_recurrent(ep_session, op, dtype, direction=direction)
    check_recurrent(ep_session, op, dtype, direction=direction, given=())
    # More sequences than one kernel a step takes, and rows of whole vectors.
    check_recurrent(ep_session, op, dtype, direction=direction, batch=7)
    check_recurrent(ep_session, op, dtype, direction=direction, hidden=40, batch=2, linear_before_reset=1)
    check_recurrent(ep_session, op, dtype, direction=direction, layout=1)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("linear_before_reset", [0, 1])
def test_gru_forms(ep_session: MakeSession, linear_before_reset: int, direction: str) -> None:
    check_recurrent(ep_session, "GRU", direction=direction, linear_before_reset=linear_before_reset)
    check_recurrent(ep_session, "GRU", "float16", direction=direction, linear_before_reset=linear_before_reset)


@pytest.mark.parametrize("op", list(GATES))
def test_clip(ep_session: MakeSession, op: str) -> None:
    check_recurrent(ep_session, op, clip=0.3)


@pytest.mark.parametrize("given", [("P",), ("c",), ("h",), ("lengths",), ("B",), ("h", "c")])
def test_each_operand_of_lstm(ep_session: MakeSession, given: tuple[str, ...]) -> None:
    check_recurrent(ep_session, "LSTM", given=given, direction="bidirectional")


@pytest.mark.parametrize("outputs", [(0,), (1,), (2,), (1, 2)])
def test_each_output_of_lstm(ep_session: MakeSession, outputs: tuple[int, ...]) -> None:
    check_recurrent(ep_session, "LSTM", outputs=outputs)


def test_coupled_forget_gate(ep_session: MakeSession) -> None:
    check_recurrent(ep_session, "LSTM", input_forget=1)


ACTIVATIONS: list[tuple[str, list[str], dict[str, Any]]] = [
    ("LSTM", ["HardSigmoid", "LeakyRelu", "Softsign"], {"activation_alpha": [0.3, 0.1], "activation_beta": [0.4]}),
    ("LSTM", ["Sigmoid", "Relu", "Tanh"], {}),
    ("GRU", ["Sigmoid", "Elu"], {"activation_alpha": [0.7]}),
    ("GRU", ["HardSigmoid", "Softplus"], {}),
    ("RNN", ["Relu"], {}),
    ("RNN", ["ScaledTanh"], {"activation_alpha": [0.8], "activation_beta": [0.5]}),
    ("RNN", ["Affine"], {"activation_alpha": [0.5], "activation_beta": [0.1]}),
]


@pytest.mark.parametrize(("op", "activations", "parameters"), ACTIVATIONS, ids=str)
def test_activations(ep_session: MakeSession, op: str, activations: list[str], parameters: dict[str, Any]) -> None:
    check_recurrent(ep_session, op, activations=activations, **parameters)


def test_activations_of_each_direction(ep_session: MakeSession) -> None:
    names = ["Sigmoid", "Tanh", "Tanh", "HardSigmoid", "Softsign", "Relu"]
    check_recurrent(ep_session, "LSTM", direction="bidirectional", activations=names)


@given(data=st.data())
@quick
def test_any_shape(ep_session: MakeSession, data: st.DataObject) -> None:
    check_recurrent(
        ep_session,
        data.draw(st.sampled_from(list(GATES))),
        seq=data.draw(st.integers(1, 12)),
        batch=data.draw(st.integers(1, 8)),
        width=data.draw(st.integers(1, 40)),
        hidden=data.draw(st.integers(1, 60)),
        direction=data.draw(st.sampled_from(DIRECTIONS)),
        given=data.draw(st.sampled_from([(), ("B",), ("B", "lengths", "h", "c", "P"), ("lengths",)])),
        layout=data.draw(st.integers(0, 1)),
    )


@pytest.mark.parametrize("op", list(GATES))
def test_without_steps_or_sequences(ep_session: MakeSession, op: str) -> None:
    check_recurrent(ep_session, op, seq=0, given=("h", "c"), stock=False)
    check_recurrent(ep_session, op, batch=0, given=("B",), stock=False)


def test_shapes_that_do_not_fit_are_named(ep_session: MakeSession) -> None:
    tensors = {"X": np.ones((2, 1, 3)), "W": np.ones((1, 8, 5)), "R": np.ones((1, 8, 2))}
    m = node_model("LSTM", tensors, {"hidden_size": 2}, "float32", ["y0"])
    for value in m.graph.input:  # unknown to shape inference, so that the kernel meets them
        value.type.tensor_type.ClearField("shape")
    with pytest.raises(Exception, match=r"W has shape \[1,8,5\]; \[1,8,3\] is required"):
        ep_session(m).run(None, tensors)


def test_a_length_beyond_the_sequence_fails_in_the_next_run(ep_session: MakeSession) -> None:
    rng = np.random.default_rng(0)
    tensors: dict[str, Array | None] = {"X": rng.normal(0, 1, (3, 2, 4)), "W": rng.normal(0, 1, (1, 2, 4))}
    tensors |= {"R": rng.normal(0, 1, (1, 2, 2)), "B": None, "lengths": np.array([2, 9], np.int32)}
    attrs = {"hidden_size": 2, "direction": "reverse"}
    session = ep_session(node_model("RNN", tensors, attrs, "float32", ["y0"]))
    feeds = {k: a for k, a in tensors.items() if a is not None}
    (clamped,) = session.run(None, feeds)
    with pytest.raises(Exception, match="sequence_lens was out of range"):
        session.run(None, feeds)
    (exact,) = session.run(None, feeds | {"lengths": np.array([2, 3], np.int32)})
    np.testing.assert_array_equal(clamped, exact)
