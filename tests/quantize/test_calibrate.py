"""Statistics are those of the whole model, whatever the pieces are that it runs in."""

from __future__ import annotations

import pickle
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from cuvil_onnx.errors import CuvilError, OptionError, UnsupportedModelError
from cuvil_onnx.quantize import calibrate, calibrate_segments
from cuvil_onnx.quantize.calibrate import Observation
from cuvil_onnx.quantize.calibrate_statistics import Statistics
from tests.quantize.quantize_testing import graph, rows, session, weight

K = 16


def chain() -> onnx.ModelProto:
    """Three products, the first two of one tensor; a residual that all pieces but the last carry on; a branch."""
    return graph(
        f"""(float[M,{K}] x, bool flag) => (float[M,{K}] y) {{
            a = MatMul(x, wa)
            b = MatMul(x, wb)
            h = Mul(a, b)
            chosen = If(flag) <then_branch = g1 () => (float[M,{K}] t) {{ t = Add(h, x) }},
                               else_branch = g2 () => (float[M,{K}] e) {{ e = Identity(h) }}>
            c = MatMul(chosen, wc)
            s = Add(c, x)
            d = Relu(s)
            y = MatMul(d, wd)
        }}""",
        opset=17,
        **{f"w{name}": weight(K, K, seed=i) for i, name in enumerate("abcd")},
    )


def feeds(count: int = 3) -> list[dict[str, np.ndarray]]:
    return [{"x": rows(4 + i, K, seed=i), "flag": np.array(i % 2 == 0)} for i in range(count)]


def sites(model: ir.Model, *names: str) -> list[ir.Value]:
    values = {v.name: v for v in [*model.graph.inputs, *(v for n in model.graph for v in n.outputs)]}
    return [values[name] for name in names]


def expected(model: onnx.ModelProto, name: str, samples: list[dict[str, np.ndarray]]) -> Statistics:
    """From the whole model with the value as an output."""
    if name == "x":
        values = [f["x"] for f in samples]
    else:
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        copy.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
        values = [session(copy).run([name], f)[0] for f in samples]
    found = Statistics.empty(K)
    for value in values:
        found.add(value)
    return found


def same(one: Statistics, two: Statistics) -> bool:
    return (
        one.rows == two.rows
        and np.allclose(one.gram, two.gram, rtol=1e-5, atol=1e-5)
        and np.allclose(one.magnitude, two.magnitude, rtol=1e-5)
    )


def test_each_site_sees_what_the_whole_model_computes() -> None:
    model, samples = chain(), feeds()
    private = ir.from_proto(model)
    found = {s.name: seen for s, seen in Observation(private, sites(private, "d", "x", "chosen"), samples)}
    assert list(found) == ["x", "chosen", "d"], "in the order of the graph"
    for name, seen in found.items():
        assert same(seen, expected(model, name or "", samples)), name
    assert found["x"].rows == 4 + 5 + 6


def test_a_weight_that_changes_meanwhile_is_seen_by_later_sites() -> None:
    model, samples = chain(), feeds()
    private = ir.from_proto(model)
    new = weight(K, K, seed=77)
    for site, seen in Observation(private, sites(private, "x", "chosen", "d"), samples):
        if site.name == "x":
            private.graph.initializers["wa"].const_value = ir.tensor(new, name="wa")
        elif site.name == "d":
            changed = onnx.ModelProto()
            changed.CopyFrom(model)
            place = next(i for i, t in enumerate(changed.graph.initializer) if t.name == "wa")
            changed.graph.initializer[place].CopyFrom(onnx.numpy_helper.from_array(new, "wa"))
            assert same(seen, expected(changed, "d", samples))
            assert not same(seen, expected(model, "d", samples))


def test_a_piece_holds_its_own_weights_and_values_only() -> None:
    private = ir.from_proto(chain())
    first, second, third = calibrate_segments.plan(private.graph, sites(private, "x", "chosen", "d"))
    assert first.nodes == [] and [v.name for v in first.last_used] == []
    assert [n.op_type for n in second.nodes] == ["MatMul", "MatMul", "Mul", "If"]
    assert {v.name for v in second.inputs} == {"x", "flag"}, "the branch reads x from outside"
    assert {v.name for v in third.inputs} == {"chosen", "x"}
    assert {v.name for v in second.last_used} == {"flag"}
    proto, _ = calibrate_segments.model_of(third, private, dict.fromkeys(third.inputs, "tensor(float)"))
    assert {t.name for t in proto.graph.initializer} == {"wc"}


def test_large_weights_are_fed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate_segments, "FED_BYTES", 1)
    model, samples = chain(), feeds()
    private = ir.from_proto(model)
    for site, seen in Observation(private, sites(private, "chosen", "d"), samples):
        assert same(seen, expected(model, site.name or "", samples))


@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16])
def test_large_weights_of_16_bits_are_fed(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate_segments, "FED_BYTES", 1)
    w = weight(K).astype(kind)
    private = ir.from_proto(
        graph(f"(float[M,{K}] x) => (float[M,{K}] y) {{ c = Cast<to=1>(w) m = Mul(x, c) y = Relu(m) }}", 17, w=w)
    )
    x = rows(5, K)
    ((_, seen),) = Observation(private, sites(private, "m"), [{"x": x}])
    want = Statistics.empty(K)
    want.add(x * w.astype(np.float32))
    assert same(seen, want)


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_values_of_16_bits_between_pieces(kind: int) -> None:
    # ONNX Runtime's CPU provider computes next to nothing in bfloat16; what matters here is that values are carried.
    text = f"(float[M,{K}] x) => (float[M,{K}] y) {{ a = Cast<to={kind}>(x) c = Cast<to=1>(a) y = Relu(c) }}"
    private = ir.from_proto(graph(text, opset=17))
    samples = [{"x": rows(5, K)}]
    wide = np.float16 if kind == TensorProto.FLOAT16 else ml_dtypes.bfloat16
    for _, seen in Observation(private, sites(private, "a", "c"), samples):
        want = Statistics.empty(K)
        want.add(samples[0]["x"].astype(wide))
        assert same(seen, want)


def test_work_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "SAVE_SECONDS", 0.0)
    model, samples = chain(), feeds()
    names = ("x", "chosen", "d")
    private = ir.from_proto(model)
    first = Observation(private, sites(private, *names), samples, folder=tmp_path, key="one")
    for site, _ in first:
        if site.name == "chosen":
            break
    assert first.done == 1, "what is made of the second site is not known"
    again = Observation(private, sites(private, *names), samples, folder=tmp_path, key="one")
    assert again.done == 1
    found = {s.name: seen for s, seen in again}
    assert list(found) == ["chosen", "d"]
    assert all(same(seen, expected(model, name or "", samples)) for name, seen in found.items())
    other = Observation(private, sites(private, *names), samples, folder=tmp_path, key="two")
    assert other.done == 0, "another model, other data: from the start"


class _Runs:
    """Unpickling this makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("kind", ["code", "text", "another version"])
def test_a_state_of_something_else_is_refused(kind: str, tmp_path: Path) -> None:
    private = ir.from_proto(chain())
    made = tmp_path / "made"
    content = {
        "code": pickle.dumps(("one", 1, _Runs(made))),
        "text": b"cut short",
        "another version": pickle.dumps(("one", 1, [])),
    }[kind]
    (tmp_path / "between.pickle").write_bytes(content)
    with pytest.raises(CuvilError, match=r"between\.pickle is not what .* left there .*: remove that folder"):
        Observation(private, sites(private, "d"), feeds(), folder=tmp_path, key="one")
    assert not made.exists()


def test_drift_is_how_far_the_first_weights_lead_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are replaced after their input was seen, as the driver does; with and without an interruption."""
    monkeypatch.setattr(calibrate, "SAVE_SECONDS", 0.0)
    model, samples = chain(), feeds()
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    values = {t.name: t for t in changed.graph.initializer}
    for name in "abc":
        values[f"w{name}"].CopyFrom(onnx.numpy_helper.from_array(weight(K, K, seed=ord(name)), f"w{name}"))

    def values_of(proto: onnx.ModelProto, name: str) -> np.ndarray:
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        copy.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))
        return np.concatenate([session(copy).run([name], f)[0] for f in samples])

    def change(private: ir.Model, *names: str) -> None:
        for node in private.graph:
            for name in names:
                if node.op_type == "MatMul" and node.inputs[1].name == f"w{name}":
                    new = ir.Value(name=f"w{name}_rounded")
                    new.const_value = ir.tensor(weight(K, K, seed=ord(name)), name=new.name)
                    private.graph.register_initializer(new)
                    node.replace_input_with(1, new)

    def check(name: str, seen: Statistics) -> None:
        x, exact = values_of(changed, name), values_of(model, name)
        np.testing.assert_allclose(seen.drift(), x.T @ (exact - x) / len(x), rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(seen.hessian(), x.T @ x / len(x), rtol=1e-4, atol=1e-4)

    private = ir.from_proto(model)
    names = ("x", "chosen", "d")
    seen = Observation(private, sites(private, *names), samples, folder=tmp_path, key="k", compare=True)
    found = {}
    for site, statistics in seen:
        found[site.name] = statistics
        if site.name == "d":
            break  # interrupted before its layer was done
        change(private, *{"x": "ab", "chosen": "c"}.get(site.name or "", ""))
    assert not found["x"].drift().any(), "nothing comes before"
    check("chosen", found["chosen"])
    check("d", found["d"])
    again = ir.from_proto(model)
    late = Observation(again, sites(again, *names), samples, folder=tmp_path, key="k", compare=True)
    assert late.done == 2
    change(again, "a", "b", "c")
    ((_, last),) = late
    check("d", last)


def test_rows_that_are_no_numbers_are_left_out() -> None:
    x = rows(6, K)
    x[1, 3], x[4, 0], x[5, 2] = np.nan, -np.inf, 1e30
    seen, clean = Statistics.empty(K), Statistics.empty(K)
    seen.add(x)
    clean.add(x[[0, 2, 3]])
    assert same(seen, clean) and seen.skipped == 3
    assert np.isfinite(seen.hessian()).all()
    nothing = Statistics.empty(K)
    assert np.array_equal(nothing.hessian(), np.eye(K)) and np.array_equal(nothing.mean_magnitude(), np.ones(K))


def test_errors_say_what_is_missing() -> None:
    private = ir.from_proto(chain())
    with pytest.raises(OptionError, match="no calibration sample"):
        Observation(private, sites(private, "d"), [])
    with pytest.raises(OptionError, match="lacks the model's input 'flag'"):
        Observation(private, sites(private, "d"), [{"x": rows(2, K)}])
    inner = next(n for n in private.graph if n.op_type == "If").attributes["then_branch"].as_graph()
    with pytest.raises(UnsupportedModelError, match="not computed in the main graph"):
        Observation(private, [inner.outputs[0]], feeds())
    for x, found in (
        (rows(2, K + 1), f"float32 \\[2, {K + 1}\\]"),
        (np.ones((2, K), np.int64), "int64"),
        (rows(K), "float32"),
    ):
        with pytest.raises(OptionError, match=f"sample's 'x' is {found}.*FLOAT .*M,{K}.* is required"):
            Observation(private, sites(private, "d"), [{"x": x, "flag": np.array(True)}])
    free = ir.from_proto(
        graph(f"(float[M,N] x) => (float[M,{K}] d) {{ a = MatMul(x, w) d = Relu(a) }}", w=weight(K, K))
    )
    wrong = Observation(free, sites(free, "d"), [{"x": rows(2, K + 1)}])
    with pytest.raises(CuvilError, match="up to 'd': this part of the model does not run"):
        next(iter(wrong))
