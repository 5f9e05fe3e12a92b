"""The parts of the accuracy guard: simulation, contributions, selection, deviation, generated pictures."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

from cuvil_onnx.passes.load import load
from cuvil_onnx.passes.precision_plan import Plan, plan_precision
from cuvil_onnx.passes.sensitivity import guard
from cuvil_onnx.passes.sensitivity.contributions import contributions
from cuvil_onnx.passes.sensitivity.deviation import PEAK, WORST, Deviation, Point, deviation, find_points
from cuvil_onnx.passes.sensitivity.pictures import takes_pictures, with_pictures
from cuvil_onnx.passes.sensitivity.selection import Costs, Selection
from cuvil_onnx.passes.sensitivity.simulation import Simulation
from cuvil_onnx.passes.sensitivity.sites import Site, Sites, find_sites
from cuvil_onnx.passes.shapes import infer_shapes
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.trace import Trace
from tests.passes.pass_testing import made, normal

CHAIN = "(float[2,8] x) => (float[2,4] y, float[2,16] a) { a = MatMul(x, w) b = Relu(a) y = MatMul(b, v) }"
W, V, X = normal(8, 16), normal(16, 4), normal(2, 8, seed=3)
KINDS = {ir.DataType.FLOAT16: np.float16, ir.DataType.BFLOAT16: ml_dtypes.bfloat16}


def prepared(
    proto: onnx.ModelProto, target: ir.DataType = ir.DataType.FLOAT16, swallowed: Sequence[str] = ()
) -> tuple[GraphContext, Plan, Sites]:
    ctx = GraphContext(load(proto).model)
    infer_shapes(ctx, Trace())
    plan = plan_precision(ctx, target)
    return ctx, plan, find_sites(ctx, plan, target, swallowed)


@pytest.mark.parametrize("target", KINDS)
def test_all_roundings_together_are_those_of_16_bits(target: ir.DataType) -> None:
    def cut(array: np.ndarray) -> np.ndarray:
        return array.astype(KINDS[target]).astype(np.float32)

    ctx, plan, sites = prepared(made(CHAIN, opset=22, w=W, v=V), target)
    simulation = Simulation(ctx, plan, sites, target)
    y, a = simulation.run({"x": X}, range(len(sites.all)))
    want = cut(cut(X) @ cut(W))
    # Products of 8 and 16 terms summed in another order differ by their float32 roundings alone, far below one of 16.
    np.testing.assert_allclose(a, want, rtol=1e-2 if target == ir.DataType.BFLOAT16 else 1e-3)
    np.testing.assert_allclose(y, cut(cut(np.maximum(want, 0)) @ cut(V)), rtol=1e-2, atol=1e-2)
    assert np.array_equal(y, cut(y)), "what leaves the model has only 16 bits"


def test_nothing_is_rounded_while_all_are_off() -> None:
    ctx, plan, sites = prepared(made(CHAIN, w=W, v=V))
    found, sizes = Simulation(ctx, plan, sites, ir.DataType.FLOAT16).reference({"x": X})
    np.testing.assert_allclose(found[0], np.maximum(X @ W, 0) @ V, rtol=1e-5, atol=1e-5)
    assert sorted(sizes.values()) == [(2, 4), (2, 8), (2, 16), (2, 16)]


def test_each_rounding_is_switched_alone() -> None:
    ctx, plan, sites = prepared(made(CHAIN, w=W, v=V))
    simulation = Simulation(ctx, plan, sites, ir.DataType.FLOAT16)
    exact = simulation.run({"x": X}, ())
    for index, site in enumerate(sites.all):
        y, a = simulation.run({"x": X}, [index])
        before_a = site.value is not None and site.value.name == "x"
        first = site.weights and site.weights[0].name == "w"
        shown = site.value is not None and site.value.name == "a" and site.reader is None  # as output of the model
        assert np.array_equal(a, exact[1]) != bool(before_a or first or shown)
        assert np.array_equal(y, exact[0]) != (not shown)


def test_which_units_spare_which_rounding() -> None:
    _, _, sites = prepared(made(CHAIN, w=W, v=V))
    assert [node.op_type for nodes in sites.units for node in nodes] == ["MatMul", "Relu", "MatMul"]
    needs = {(s.value.name if s.value else s.weights[0].name, s.reader): set(s.needs) for s in sites.all}
    assert needs == {
        ("x", 0): {0},
        ("w", None): {0},
        ("a", None): {0},  # cast for the caller, who gets float32 anyway
        ("b", 2): {0, 1, 2},  # Relu only chooses: what it reads is rounded when the product behind it is
        ("v", None): {2},
        ("y", None): {2},
    }
    assert {i for i, s in enumerate(sites.all) if s.needs == {0}}.isdisjoint(sites.active({0}))


def test_moved_numbers_are_rounded_once() -> None:
    body = """a = Pad(x, ends) b = Unsqueeze(a, axis) c = MatMul(b, w) d = Tanh(c)
              e = Concat<axis=-1>(c, d) f = Reshape(e, size) y = MatMul(f, v)"""
    proto = made(
        f"(float[2,6] x) => (float[2,4] y) {{ {body} }}",
        ends=np.array([0, 1, 0, 1], np.int64),
        axis=np.array([1], np.int64),
        size=np.array([2, 16], np.int64),
        w=W[:, :8],
        v=V,
    )
    _, _, sites = prepared(proto)
    assert [nodes[0].op_type for nodes in sites.units] == [
        *("Pad", "Unsqueeze", "MatMul", "Tanh", "Concat", "Reshape", "MatMul")
    ]
    needs = {(s.value.name, s.reader): set(s.needs) for s in sites.all if s.value}
    assert needs == {
        ("b", 2): {0, 1, 2},
        ("c", 3): {2, 3},
        ("c", 4): {2, 4, 5, 6},
        ("d", 4): {3, 4, 5, 6},
        ("y", None): {6},
    }


def test_values_inside_a_kernel_are_not_rounded() -> None:
    _, _, sites = prepared(made(CHAIN.replace(", float[2,16] a", ""), w=W, v=V), swallowed=["a"])
    assert [[n.op_type for n in nodes] for nodes in sites.units] == [["MatMul", "Relu"], ["MatMul"]]
    assert all(s.value is None or s.value.name != "a" for s in sites.all)


def test_constants_that_16_bits_hold_are_no_sites() -> None:
    body = "a = MatMul(x, w) b = Mul(a, two) y = MatMul(b, v)"
    _, _, sites = prepared(made(f"(float[2,8] x) => (float[2,4] y) {{ {body} }}", w=W, v=V, two=np.float32(2)))
    assert all(w.name != "two" for s in sites.all for w in s.weights)


def test_named_values_stay_in_float() -> None:
    ctx = prepared(made(CHAIN, w=W, v=V))[0]
    half = plan_precision(ctx, ir.DataType.FLOAT16, {"a"}).half
    assert [n.op_type for n in half] == ["MatMul"], "the cheap Relu follows what it reads"


# ---- contributions


@pytest.mark.parametrize("runs", [10, 30, 400])
def test_planted_contributions_are_found_within_the_limit(runs: int) -> None:
    planted = {17: 5.0, 90: 3.0}
    calls = []

    def measure(group: Sequence[int]) -> float:
        calls.append(tuple(group))
        return sum(planted.get(site, 1e-6) for site in group)

    found = contributions(range(100), measure, runs)
    assert len(calls) <= runs
    assert set(found) == set(range(100))
    assert sum(found.values()) == pytest.approx(sum(planted.values()), rel=1e-3)
    if runs >= 30:
        assert {site for site, square in found.items() if square > 0.5} == set(planted)


def test_without_runs_nothing_is_known() -> None:
    assert contributions(range(10), lambda group: 1.0, 1) == {}


# ---- selection


def chain_of(count: int) -> Sites:
    """Units in a row: weights of each, and the value between each two."""
    values = [ir.Value(name=f"v{i}") for i in range(count)]
    found = [Site(frozenset({i}), weights=(ir.Value(name=f"w{i}"),)) for i in range(count)]
    found += [Site(frozenset({i, i + 1}), value=values[i], producer=i, reader=i + 1) for i in range(count - 1)]
    nodes = tuple((ir.Node("", "MatMul", []),) for _ in range(count))
    return Sites(nodes, {n: i for i, (n,) in enumerate(nodes)}, tuple(found))


def equal_costs(count: int, cast: float = 0.02) -> Costs:
    share = [1 / count] * count
    return Costs(share, share, share, cast)


def grown(selection: Selection, goal: float) -> frozenset[int]:
    while selection.remaining() > goal and selection.step():
        pass
    return selection.filled()


def test_a_value_is_spared_by_keeping_both_ends() -> None:
    sites = chain_of(10)
    squares = dict.fromkeys(range(19), 0.01) | {14: 1.0}  # the value between units 4 and 5
    selection = Selection(sites, squares, equal_costs(10), 0.25)
    assert grown(selection, 0.5) == {4, 5}


def test_gaps_are_filled_to_save_casts() -> None:
    sites = chain_of(40)
    squares = dict.fromkeys(range(79), 1e-4) | {10: 1.0, 12: 1.0}
    selection = Selection(sites, squares, equal_costs(40, cast=0.02), 0.25)
    assert grown(selection, 0.1) == {10, 11, 12}, "two casts less are worth a unit more"


def test_the_limit_holds() -> None:
    squares = dict.fromkeys(range(19), 1.0)
    selection = Selection(chain_of(10), squares, equal_costs(10), 0.25)
    assert len(grown(selection, 1.0)) == 2


def test_cheap_units_go_first() -> None:
    costs = Costs([0.1] * 10, [0.1] * 10, [0.2] + [0.01] * 9, 0.0)
    squares = {0: 1.0, 5: 0.9} | dict.fromkeys(range(10, 19), 0.0)
    selection = Selection(chain_of(10), squares, costs, 0.25)
    assert grown(selection, 1.5) == {5}


# ---- deviation


def test_deviations_are_relative_to_the_largest_value() -> None:
    want = np.linspace(-4, 4, 2000, dtype=np.float32)
    got = want.copy()
    got[7] += 0.1
    found = deviation([Point(output=0)], [([want], [got])])
    assert found.relative == pytest.approx(0.1 / 4, rel=1e-4)
    assert found.square == pytest.approx((0.1 / 4) ** 2 / 2000, rel=1e-3)


def test_few_numbers_may_be_close_by_luck() -> None:
    want = np.array([1.0], np.float32)
    assert deviation([Point(output=0)], [([want], [want * 1.01])]).relative == pytest.approx(PEAK * 0.01, rel=1e-4)


def test_a_single_number_near_zero_is_not_the_measure() -> None:
    large, small, moved = (
        np.array([[2.0]], np.float32),
        np.array([[0.001]], np.float32),
        np.array([[0.003]], np.float32),
    )
    found = deviation([Point(output=0)], [([large], [large]), ([small], [moved])])
    assert found.relative == pytest.approx(max(0.002 / 0.5, PEAK * 0.004 / 2**0.5), rel=1e-3)


@pytest.mark.parametrize("spoilt", [np.nan, np.inf])
def test_what_is_no_number_counts_as_worst(spoilt: float) -> None:
    want = np.ones(4, np.float32)
    assert deviation([Point(output=0)], [([want], [np.where([0, 0, 0, 1], spoilt, want)])]).relative == WORST
    masked = np.array([1, -np.inf], np.float32)
    assert deviation([Point(output=0)], [([masked], [masked])]).relative == 0


def test_outputs_of_another_size_or_type_are_left_out() -> None:
    assert deviation([Point(output=0)], [([np.ones(3, np.float32)], [np.ones(2, np.float32)])]).relative == 0
    assert deviation([Point(output=0)], [([np.array([1])], [np.array([5])])]).relative == 0


def test_logits_count_only_where_the_probabilities_hide_them() -> None:
    ctx, _, sites = prepared(
        made("(float[2,8] x) => (float[2,16] y) { a = MatMul(x, w) y = Softmax<axis=-1>(a) }", w=W)
    )
    points = find_points(ctx, sites)
    assert [p.logits is not None for p in points] == [False, True]
    sure, unsure = np.array([[9.0, 0.0]], np.float32), np.array([[0.5, 0.0]], np.float32)
    moved = np.array([[0.1, 0.0]], np.float32)
    logits = [Point(logits=points[1].logits)]
    assert deviation(logits, [([sure], [sure + moved])]).undecided == pytest.approx(0.05, rel=1e-4)
    assert deviation(logits, [([unsure], [unsure + moved])]).undecided == 0


# ---- pictures


def test_pictures_precede_the_noise() -> None:
    noise = {"x": normal(2, 3, 20, 33), "m": np.ones((2, 4), np.int64)}
    large, small, first, patches, second = with_pictures([noise, noise])
    assert first is noise
    assert second is noise
    for picture in (large, small, patches):
        assert picture["m"] is noise["m"]
        assert picture["x"].dtype == np.float32
    assert (large["x"].shape, small["x"].shape) == ((2, 3, 256, 256), (2, 3, 20, 33))
    assert np.array_equal(large["x"][:, 0], large["x"][:, 2])
    assert np.abs(large["x"]).max() <= 1
    x = patches["x"]
    assert x.shape == (2, 3, 20, 33)
    assert np.array_equal(x[:, :, 0, 0], x[:, :, 7, 7])
    assert not np.array_equal(x[:, :, 0, 0], x[:, :, 0, 8])
    assert len(list(with_pictures([{"x": normal(2, 8)}]))) == 1
    assert len(list(with_pictures([{"x": normal(1, 3, 300, 256)}]))) == 2


def test_who_takes_pictures() -> None:
    assert takes_pictures(made("(float[N,3,H,W] x) => (float[N,3,H,W] y) { y = Relu(x) }"))
    assert not takes_pictures(made("(float[N,3] x) => (float[N,3] y) { y = Relu(x) }"))


# ---- luck


class Lucky:
    """An experiment in which each rounding alone causes more than all of them together."""

    work = (1e9,)

    def deviation(self, active: Sequence[int], chosen: Sequence[int] | None = None) -> Deviation:
        return Deviation(relative=2e-3, square=1e-6 * len(active), numbers=4)

    def costs(self) -> Costs:
        return equal_costs(3)


@pytest.mark.parametrize(("numbers", "expected"), [(4, PEAK * 6e-6**0.5), (guard.FEW, 2e-3)])
def test_few_numbers_that_are_close_are_looked_into(numbers: int, expected: float) -> None:
    ctx, _, sites = prepared(made(CHAIN, w=W, v=V))
    assert len(sites.all) == 6
    before = Deviation(relative=2e-3, square=1e-7, numbers=numbers)
    found = guard._Search(ctx, ir.DataType.FLOAT16, sites, Lucky(), before, 1, float("inf")).run()
    assert found.before is not None
    assert found.before.relative == pytest.approx(expected)
