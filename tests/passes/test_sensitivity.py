"""What 16 bits cost is measured before the conversion, and the nodes that spoil the result stay in float32."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from cuvil_onnx.api import Optimized, optimize
from cuvil_onnx.errors import OptionError
from cuvil_onnx.passes.sensitivity import guard
from cuvil_onnx.passes.sensitivity.simulation import Simulation
from tests.passes.pass_testing import made, normal, ops, run

# Adding 400 costs the last bits of fp16 (its numbers are 0.25 apart there), taking it away again shows that.
PLANTED = "a = MatMul(x, w) b = Add(a, big) c = Sub(b, big) d = Tanh(c) e = MatMul(d, v) f = Tanh(e) y = MatMul(f, u)"
WIDE = "a = MatMul(x, w) d = Tanh(a) e = MatMul(d, v) f = Tanh(e) y = MatMul(f, u)"
WEIGHTS = {
    "w": normal(32, 48, seed=1, scale=32**-0.5),
    "v": normal(48, 48, seed=2, scale=48**-0.5),
    "u": normal(48, 16, seed=3, scale=48**-0.5),
}


@pytest.fixture(autouse=True)
def nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The models of these tests are, and would stay in float32 as a whole."""
    monkeypatch.setattr(guard, "SMALL_WORK", 0.0)


def model(body: str, **more: np.ndarray) -> onnx.ModelProto:
    return made(f"(float[N,32] x) => (float[N,16] y) {{ {body} }}", **WEIGHTS, **more)


def planted() -> onnx.ModelProto:
    return model(PLANTED, big=np.float32(400))


def half(proto: onnx.ModelProto, **options: object) -> Optimized:
    return optimize(proto, precision="fp16", **{"level": "basic", **options})


def kept_ops(result: Optimized) -> list[str]:
    """Operators whose results stay in float32, the casts of the border excepted."""
    proto = onnx.shape_inference.infer_shapes(result.model)
    values = (*proto.graph.value_info, *proto.graph.output)
    floats = {i.name for i in values if i.type.tensor_type.elem_type == onnx.TensorProto.FLOAT}
    return [n.op_type for n in proto.graph.node if n.op_type != "Cast" and floats.intersection(n.output)]


def test_the_planted_node_is_found_and_little_else_is_kept() -> None:
    result = half(planted())
    kept = kept_ops(result)
    assert {"Add", "Sub"} <= set(kept)
    assert "MatMul" not in kept, "the weights are not to blame"
    assert len(result.report.trace.kept) <= 3
    x = normal(64, 32, seed=9)
    (want,), (got,) = (run(m, x=x) for m in (planted(), result.model))
    allowed = guard.TARGET[ir.DataType.FLOAT16] * np.abs(want).max()
    assert np.abs(got - want).max() < allowed
    # ONNX Runtime's CPU adds and subtracts in float32 even when asked for fp16; a GPU rounds the sum:
    c = (x @ WEIGHTS["w"] + 400).astype(np.float16).astype(np.float32) - 400
    rounded = np.tanh(np.tanh(c) @ WEIGHTS["v"]) @ WEIGHTS["u"]
    assert np.abs(rounded - want).max() > allowed, "otherwise there would be nothing to find"


def test_the_report_tells_what_was_kept_and_why() -> None:
    report = half(planted()).report
    line = next(line for line in report.table().splitlines() if line.startswith("accuracy: "))
    assert "nodes kept in float32" in line
    assert "% of the operations" in line
    assert "of the squared error" in report.explain()
    facts = report.as_dict()
    assert facts["kept_in_float32"] == sorted(report.trace.kept)
    assert facts["accuracy"] == report.trace.accuracy
    assert "sensitivity" in facts["seconds"]
    assert report.trace.warnings == []


def test_an_accurate_model_is_converted_as_without_measuring() -> None:
    measured, plain = half(model(WIDE)), half(model(WIDE), verify=False)
    assert measured.report.trace.accuracy
    assert not measured.report.trace.kept
    assert measured.model == plain.model, "not even a name differs"


@pytest.mark.parametrize("options", [{"verify": False}, {"skip": ["sensitivity"]}, {"skip": ["precision"]}])
def test_it_can_be_switched_off(options: dict[str, object]) -> None:
    report = half(planted(), **options).report
    assert report.trace.accuracy == ""
    assert "sensitivity" not in report.trace.seconds


def test_nothing_is_measured_above_the_size_that_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cuvil_onnx.api.AUTO_VERIFY_BYTES", 100)
    accuracy = half(planted()).report.trace.accuracy
    assert accuracy == "not measured: the weights have more than 0 MB; verify=True measures it"
    assert half(planted(), verify=True).report.trace.kept


def test_bf16_has_a_target_of_its_own() -> None:
    assert not optimize(model(WIDE), precision="bf16", level="basic").report.trace.kept
    assert optimize(planted(), precision="bf16", level="basic").report.trace.kept


def test_two_runs_are_alike() -> None:
    first, second = half(planted()), half(planted())
    assert first.model == second.model
    assert first.report.trace.accuracy == second.report.trace.accuracy


def test_fused_kernels_round_once() -> None:
    """Matrix product, sum and activation become one kernel: 400 never leaves it in 16 bits."""
    proto = model(
        "a = MatMul(x, w) b = Add(a, big) c = Relu(b) d = Tanh(c) e = MatMul(d, v) y = MatMul(e, u)", big=WIDE_BIAS
    )
    result = optimize(proto, precision="fp16")
    assert ops(result.model)["FusedMatMul"] == 1
    assert not result.report.trace.kept


WIDE_BIAS = normal(48, seed=5)


def test_given_inputs_decide() -> None:
    """Only with inputs of a thousand does the product leave the range of fp16."""
    body = "a = MatMul(x, w) b = Mul(a, hundred) c = Mul(b, small) d = Tanh(c) e = MatMul(d, v) y = MatMul(e, u)"
    proto = model(body, hundred=np.float32(100), small=np.float32(1e-5))
    assert not half(proto).report.trace.kept
    x = {"x": normal(4, 32, seed=7, scale=1000.0)}
    result = half(proto, inputs=x)
    assert result.report.trace.kept
    assert "accuracy: " in str(result)
    assert "Mul" in kept_ops(result)
    (want,), (got,) = run(proto, **x), run(result.model, **x)
    assert np.abs(got - want).max() < 5e-3 * np.abs(want).max()


def test_inputs_that_do_not_fit_are_told() -> None:
    with pytest.raises(OptionError, match="'x'"):
        half(model(WIDE), inputs={"z": normal(2, 32)})


def hopeless(rest: float) -> onnx.ModelProto:
    """One product makes up nearly all of the work and, as halves cancel, of the error: to keep it would be fp32."""
    w = normal(256, 256, seed=1)
    opposite = np.concatenate([w, -w + normal(256, 256, seed=2, scale=rest)], axis=1)
    body = "a = MatMul(x, w) l, r = Split<axis=1, num_outputs=2>(a) y = Add(l, r)"
    return made(f"(float[N,256] x) => (float[N,256] y) {{ {body} }}", opset=18, w=opposite)


def test_a_small_model_stays_in_float_at_any_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "SMALL_WORK", 1e8)
    assert not half(model(WIDE)).report.trace.kept
    monkeypatch.setattr(guard, "CAREFUL", 0.01)
    result = half(model(WIDE))
    assert kept_ops(result) == ["MatMul", "Tanh", "MatMul", "Tanh", "MatMul"]
    assert "0.0e+00 of the largest output with 5 nodes kept in float32 (100.0 % of" in result.report.trace.accuracy


def test_a_hopeless_model_is_told_with_the_figure() -> None:
    result = half(hopeless(5e-2))
    assert not result.report.trace.kept
    (warning,) = result.report.trace.warnings
    assert "precision='fp16': expected error" in warning
    assert "more than 0.005" in warning


def test_what_the_verification_would_refuse_stays_in_float() -> None:
    """Halves that cancel further: 16 bits would be off by more than any comparison allows."""
    result = half(hopeless(1e-2))
    assert "MatMul" in kept_ops(result)
    (warning,) = result.report.trace.warnings
    assert "100.0 % of the operations stay in float32, without which the error is" in warning


def test_flipped_indices_are_no_error() -> None:
    """Two columns are equal but for the last bits: which one is larger, and so which row is taken, is no accuracy."""
    w = normal(32, 2, seed=4)
    w[:, 1] = w[:, 0] * np.float32(1 + 1e-6)
    row = np.abs(normal(1, 4, seed=6)) + 1
    rows = np.concatenate([row, row * np.float32(1.02)])  # beyond the target, within what the verification allows
    body = f"s = MatMul(x, w2) i = ArgMax<axis=1, keepdims=0>(s) r = Gather<axis=0>(rows, i) {WIDE}"
    proto = made(f"(float[N,32] x) => (float[N,4] r, float[N,16] y) {{ {body} }}", **WEIGHTS, w2=w, rows=rows)
    report = half(proto).report
    assert not report.trace.kept
    assert report.trace.warnings == []


def test_models_with_subgraphs_are_measured() -> None:
    branches = (
        "then_branch = t () => (float[N,16] r) { r = Exp(y0) }, else_branch = e () => (float[N,16] s) { s = Neg(y0) }"
    )
    body = PLANTED.replace("y = MatMul(f, u)", f"y0 = MatMul(f, u) y = If(k) <{branches}>")
    proto = made(
        f"(float[N,32] x, bool k) => (float[N,16] y, float[N,48] c) {{ {body} }}", **WEIGHTS, big=np.float32(400)
    )
    result = half(proto)
    onnx.checker.check_model(result.model)
    assert {"Add", "Sub"} <= set(kept_ops(result))


def test_masks_of_the_lowest_float_do_not_confuse_it() -> None:
    lowest = np.float32(np.finfo(np.float32).min)
    body = "n = Sub(one, mask) b = Mul(n, low) s = MatMul(x, k) t = Add(s, b) p = Softmax<axis=-1>(t) y = MatMul(p, v)"
    proto = made(
        f"(float[2,8] x, float[2,6] mask) => (float[2,4] y) {{ {body} }}",
        one=np.float32(1),
        low=lowest,
        k=normal(8, 6),
        v=normal(6, 4),
    )
    report = half(proto).report
    assert not report.trace.kept
    assert report.trace.warnings == []


def test_a_softmax_that_is_always_sure_hides_nothing() -> None:
    body = PLANTED.replace("y = MatMul(f, u)", "g = MatMul(f, u) h = Add(g, sure) y = Softmax<axis=-1>(h)")
    sure = np.zeros(16, np.float32)
    sure[3] = 12
    result = half(model(body, big=np.float32(400), sure=sure))
    assert {"Add", "Sub"} <= set(kept_ops(result))
    assert "between two equal classes" in result.report.trace.accuracy


def test_the_search_keeps_to_its_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = []
    original = Simulation.run
    monkeypatch.setattr(Simulation, "run", lambda self, *args: runs.append(1) or original(self, *args))
    half(model(WIDE))
    assert len(runs) == 3, "one for each set when the target is met"
    runs.clear()
    half(planted())
    assert len(runs) < 100
    runs.clear()
    monkeypatch.setattr(guard, "SEARCH_WORK", 1.0)
    assert not half(planted()).report.trace.kept
    assert len(runs) < 10


def test_a_model_that_does_not_run_is_told() -> None:
    proto = made("(float[N,32] x, int64[2] s) => (float[A,B] y) { a = MatMul(x, w) y = Reshape(a, s) }", w=WEIGHTS["w"])
    report = half(proto).report
    assert report.trace.accuracy.startswith("not measured: ")
    assert not report.trace.kept


def test_models_of_very_many_nodes_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "MAX_SITES", 5)
    assert half(planted()).report.trace.accuracy == "not measured: 11 roundings, 5 at most"


def test_an_impatient_search_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "PATIENCE", -1.0)
    report = half(planted()).report
    assert not report.trace.kept
    assert "the search took too long" in report.trace.warnings[0]


def test_a_model_that_fails_when_rounded_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when an index computed from rounded numbers is out of range: the worst error, but no exception."""

    def fail(self: Simulation, feeds: object, active: object) -> list[np.ndarray]:
        raise RuntimeError("index out of range")

    monkeypatch.setattr(Simulation, "run", fail)
    monkeypatch.setattr(Simulation, "reference", lambda self, feeds: ([np.zeros((1, 16), np.float32)], {}))
    report = half(planted()).report
    assert not report.trace.kept
    assert "expected error 1.0e+04" in report.trace.warnings[0]
