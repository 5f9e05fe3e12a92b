"""Shape arithmetic disappears where sizes are known or are those of the reshaped tensor itself."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.pass_testing import basic, made, normal, ops, run, same

HEADS = (
    "s = Shape(x) b = Gather<axis=0>(s, i0) t = Gather<axis=0>(s, i1) bu = Unsqueeze(b, z) tu = Unsqueeze(t, z)"
    " target = Concat<axis=0>(bu, tu, h, d) y = Reshape(x, target)"
)
WEIGHTS = {
    "i0": np.int64(0),
    "i1": np.int64(1),
    "z": np.array([0]),
    "h": np.array([2]),
    "d": np.array([4]),
}


@pytest.mark.parametrize("batch", ["B", "3"])
def test_head_split_keeps_only_the_reshape(batch: str) -> None:
    model = made(f"(float[{batch},T,8] x) => (float[{batch},T,2,4] y) {{ {HEADS} }}", **WEIGHTS)
    result = basic(model)
    assert ops(result.model) == {"Reshape": 1}
    same(model, result, x=normal(3, 5, 8))


def test_an_empty_batch_still_runs() -> None:
    model = made(f"(float[B,T,8] x) => (float[B,T,2,4] y) {{ {HEADS} }}", **WEIGHTS)
    assert run(basic(model).model, x=np.zeros((0, 5, 8), np.float32))[0].shape == (0, 5, 2, 4)


@pytest.mark.parametrize(("rank", "extra"), [("", 0), ("two, ", 1)])
def test_expand_to_its_own_sizes_needs_no_shape(rank: str, extra: int) -> None:
    body = f"s = Shape(h) b = Slice(s, z, two) t = Concat<axis=0>({rank}b, d) y = Expand(x, t)"
    model = made(
        f"(float[B,T,1] x, float[B,T,8] h) => (float[{'2,' * extra}B,T,8] y) {{ {body} }}",
        z=np.array([0]),
        two=np.array([2]),
        d=np.array([8]),
    )
    result = basic(model)
    assert ops(result.model) == {"Expand": 1}
    same(model, result, x=normal(3, 5, 1), h=normal(3, 5, 8))


def test_expand_to_other_sizes_keeps_them() -> None:
    model = made("(float[B,1] x, float[B,T] h) => (float[B,T] y) { s = Shape(h) y = Expand(x, s) }")
    result = basic(model)
    assert ops(result.model) == {"Shape": 1, "Expand": 1}
    same(model, result, x=normal(3, 1), h=normal(3, 5))


def test_two_unknown_sizes_stay() -> None:
    body = "s = Shape(y) z = Reshape(x, s)"
    model = made(f"(float[A,B] x, float[C,D] y) => (float[C,D] z) {{ {body} }}")
    result = basic(model)
    assert ops(result.model)["Shape"] == 1
    same(model, result, x=normal(2, 6), y=normal(3, 4))


def test_start_and_end_are_respected() -> None:
    body = (
        "a = Shape<start=-2>(x) b = Shape<start=1, end=-1>(x) c = Shape<start=2, end=99>(x)"
        " d = Shape<start=3, end=1>(x) e = Size(x)"
    )
    model = made(f"(float[2,5,7,3] x) => (int64[2] a, int64[2] b, int64[2] c, int64[0] d, int64 e) {{ {body} }}")
    result = basic(model)
    assert set(ops(result.model)) == {"Identity"}
    same(model, result, x=normal(2, 5, 7, 3))


def test_declared_shapes_of_inner_values_are_not_believed() -> None:
    model = made("(float[N,4] x) => (int64[2] s, float[N,4] y) { y = Relu(x) s = Shape(y) }")
    stale = model.graph.value_info.add()
    stale.CopyFrom(model.graph.output[1])
    model.graph.output[1].type.tensor_type.shape.dim[0].dim_value = 99
    result = basic(model)
    assert run(result.model, x=normal(3, 4))[0].tolist() == [3, 4]


def test_split_by_computed_sizes_is_not_taken_for_an_even_one() -> None:
    body = "n = Shape<start=1, end=2>(k) r = Sub(w, n) p = Concat<axis=0>(n, r) a, b = Split<axis=1>(x, p) s = Shape(a)"
    model = made(f"(float[2,8] x, float[1,K] k) => (int64[2] s, float[2,M] b) {{ {body} }}", opset=18, w=np.array([8]))
    result = basic(model)
    assert run(result.model, x=normal(2, 8), k=normal(1, 3))[0].tolist() == [2, 3]


@pytest.mark.parametrize("declared", ["1,4", "K,4", "1,J"])
def test_what_a_loop_carries_may_grow(declared: str) -> None:
    """The shape that a file declares for it is that of the first iteration."""
    body = (
        f"body = loop_body (int64 i, bool k, float[{declared}] state) => (bool l, float[P,4] grown, float[2] sizes) "
        "{ l = Identity(k) grown = Concat<axis=0>(state, x) s = Shape(state) f = Cast<to=1>(s) sizes = Mul(f, h) }"
    )
    model = made(
        f"(float[1,4] x) => (float[Q,4] y, float[3,2] z) {{ y, z = Loop <{body}> (n, , x) }}",
        n=np.array(3),
        h=np.float32(0.5),
    )
    same(model, basic(model), x=normal(1, 4))
