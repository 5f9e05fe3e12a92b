"""cuvil::RotaryEmbedding and cuvil::GatedUnit against their references in float64, on shapes for every kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import custom_ops
from tests.gpu.single_op import MakeSession, quick
from tests.gpu.test_attention import TYPES, UNIT, Array, normal, rounded, run


def angles(dtype: str, *shape: int) -> tuple[Array, Array]:
    angle = normal(*shape, seed=5) * 3
    return rounded(np.cos(angle), dtype), rounded(np.sin(angle), dtype)


def check_rotary(
    make: MakeSession,
    dims: tuple[int, int, int, int],
    dim: int,
    dtype: str,
    *,
    factors: tuple[int, int] | None = None,
    factor_dtype: str | None = None,
    **attrs: int,
) -> None:
    """X is a cast of the input that nothing else reads, so that ONNX Runtime lets the op work in place."""
    b, s, n, h = dims
    x = rounded(normal(b, s, n * h), dtype)
    factor_dtype = factor_dtype or dtype
    rows = factors or (b, s)
    cos, sin = angles(factor_dtype, *rows, dim // 2 if attrs.get("per_pair") else dim)
    given = {"num_heads": n, "rotary_dim": dim, "interleaved": 0, "per_pair": 0, "rotated_heads": 0, **attrs}
    found = run(make, "RotaryEmbedding", "cuvil", [x, cos, sin], [dtype, factor_dtype, factor_dtype], given, 17)
    wide = [np.broadcast_to(f, (b, s, f.shape[2])) for f in (cos, sin)]
    (exact,) = custom_ops.get("RotaryEmbedding").reference([x, *wide], given)
    # Two products and a sum in float32, and the rounding of the result: values below 8.
    bound = 4 * UNIT["float32"] * 8 + UNIT[dtype] * np.abs(exact)
    assert found.shape == exact.shape
    assert (np.abs(found - exact) <= bound + 1e-12).all(), np.abs(found - exact).max()


@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("per_pair", [0, 1])
def test_rotary(ep_session: MakeSession, per_pair: int, interleaved: int, dtype: str) -> None:
    kind = {"interleaved": interleaved, "per_pair": per_pair}
    check_rotary(ep_session, (2, 37, 12, 128), 128, dtype, **kind)
    check_rotary(ep_session, (2, 5, 8, 64), 64, dtype, factors=(1, 5), rotated_heads=6, **kind)  # packed, grouped
    check_rotary(ep_session, (3, 1, 40, 80), 32, dtype, factors=(3, 1), **kind)  # one token; a part of each head
    check_rotary(ep_session, (2, 7, 3, 20), 6, dtype, factors=(2, 1), rotated_heads=2, **kind)  # nothing is aligned
    check_rotary(ep_session, (1, 4, 600, 16), 16, dtype, **kind)  # more than a block has threads
    check_rotary(ep_session, (2, 9, 4, 32), 32, dtype, factor_dtype="float32", **kind)
    check_rotary(ep_session, (2, 9, 4, 30), 30, dtype, factor_dtype="float32", **kind)


def test_rotary_of_heads_of_odd_size(ep_session: MakeSession) -> None:
    for dtype in TYPES:
        check_rotary(ep_session, (2, 3, 5, 7), 4, dtype, rotated_heads=3)


@quick
@given(data=st.data())
def test_rotary_any_shape(ep_session: MakeSession, data: st.DataObject) -> None:
    draw = data.draw
    b, s, n = draw(st.integers(1, 3)), draw(st.integers(1, 9)), draw(st.integers(1, 9))
    half = draw(st.integers(1, 24))
    h = 2 * half + 2 * draw(st.integers(0, 20))
    check_rotary(
        ep_session,
        (b, s, n, h),
        2 * half,
        draw(st.sampled_from(list(TYPES))),
        factors=(draw(st.sampled_from([1, b])), draw(st.sampled_from([1, s]))),
        factor_dtype=draw(st.sampled_from([None, "float32"])),
        interleaved=draw(st.integers(0, 1)),
        per_pair=draw(st.integers(0, 1)),
        rotated_heads=draw(st.integers(0, n)),
    )


def test_rotary_empty(ep_session: MakeSession) -> None:
    attrs = {"num_heads": 2, "rotary_dim": 8}
    x = np.zeros((2, 0, 16))
    y = run(ep_session, "RotaryEmbedding", "cuvil", [x, x[..., :8], x[..., :8]], ["float32"] * 3, attrs, 17)
    assert y.shape == x.shape


def check_gated(make: MakeSession, shape: tuple[int, ...], dtype: str, **attrs: Any) -> None:
    x = rounded(normal(*shape) * 2, dtype)
    given = {"activation_params": [], "gate_first": 1, **attrs}
    found = run(make, "GatedUnit", "cuvil", [x], [dtype], given, 17)
    (exact,) = custom_ops.get("GatedUnit").reference([x], given)
    # Activations in float32 of values below 10, one product, and the rounding of the result.
    bound = 16 * UNIT["float32"] * 100 + UNIT[dtype] * np.abs(exact) + (2.0**-24 if dtype == "float16" else 0)
    assert found.shape == exact.shape
    assert (np.abs(found - exact) <= bound).all(), np.abs(found - exact).max()


@pytest.mark.parametrize("dtype", list(TYPES))
@pytest.mark.parametrize("activation", ["Swish", "Gelu", "GeluTanh", "Sigmoid", "Relu"])
def test_gated_unit(ep_session: MakeSession, activation: str, dtype: str) -> None:
    for shape in ((2, 33, 2 * 1408), (5, 2 * 7), (2 * 24,), (1, 1, 3, 2 * 9), (3, 2)):
        for gate_first in (0, 1):
            check_gated(ep_session, shape, dtype, activation=activation, gate_first=gate_first)


def test_gated_unit_empty(ep_session: MakeSession) -> None:
    y = run(ep_session, "GatedUnit", "cuvil", [np.zeros((0, 6))], ["float32"], {"activation": "Swish"}, 17)
    assert y.shape == (0, 3)
