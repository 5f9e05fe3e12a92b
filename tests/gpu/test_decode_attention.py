"""Attention of one query over long caches: heads that share keys are rows of one block, blocks share the keys."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gpu.single_op import MakeSession, quick
from tests.gpu.test_attention import normal, rounded
from tests.gpu.test_attention_cache import check_onnx
from tests.gpu.test_group_query_attention import check_group

DTYPES = ["float16", "bfloat16"]  # those of the tensor-core kernel; float32 has another, see test_attention_cache


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("h", [32, 64, 80, 128])
def test_lengths(ep_session: MakeSession, h: int, dtype: str) -> None:
    """Keys for less than one block, for each block exactly, for one more, and for many steps of each."""
    for t in (17, 127, 128, 129, 1024, 1025, 2500):
        check_group(ep_session, (1, 8, 2, 1, h), dtype, [t], buffer=t + 3)
    check_group(ep_session, (3, 4, 1, 1, h), dtype, [1, 300, 1500], buffer=1500)  # some blocks see no key at all


@pytest.mark.parametrize("dtype", DTYPES)
def test_groups(ep_session: MakeSession, dtype: str) -> None:
    for n, kv in ((1, 1), (5, 5), (7, 1), (16, 1), (17, 1), (40, 2)):  # 17 and 20 heads take two tiles of rows
        check_group(ep_session, (2, n, kv, 1, 64), dtype, [700, 90], buffer=701, rotary=32)
    check_group(ep_session, (40, 8, 8, 1, 64), dtype, [200 + i for i in range(40)], buffer=300)  # no need to share


@pytest.mark.parametrize("dtype", DTYPES)
def test_options(ep_session: MakeSession, dtype: str) -> None:
    for n, kv in ((8, 2), (4, 4)):
        dims = (2, n, kv, 1, 64)
        check_group(ep_session, dims, dtype, [900, 400], buffer=900, window=130)
        check_group(ep_session, dims, dtype, [900, 400], buffer=900, softcap=0.8)
        check_group(ep_session, dims, dtype, [900, 400], buffer=900, bias=True)
        check_group(ep_session, dims, dtype, [900, 400], buffer=900, smooth=True)
        check_group(ep_session, dims, dtype, [900, 30], buffer=900, sink=True, window=20)
        check_group(ep_session, dims, dtype, [900, 400], buffer=900, packed=True, rotary=64, interleaved=True)


@pytest.mark.parametrize("dtype", DTYPES)
def test_masks(ep_session: MakeSession, dtype: str) -> None:
    dims = (2, 6, 2, 1, 899, 1, 64)
    rng = np.random.default_rng(4)
    for shape in ((2, 1, 1, 900), (1, 6, 1, 900), (2, 6, 1, 900), (900,)):
        check_onnx(ep_session, dims, dtype, mask=rounded(normal(*shape, seed=7), dtype))
        check_onnx(ep_session, dims, dtype, mask=rng.random(shape) < 0.6, causal=True)
    check_onnx(ep_session, dims, dtype, mask=np.arange(900) > 880)  # the first blocks see masked keys only


@quick
@given(data=st.data())
def test_any_shape(ep_session: MakeSession, data: st.DataObject) -> None:
    draw = data.draw
    b, kv, group = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.integers(1, 20))
    lengths = draw(st.lists(st.integers(1, 1500), min_size=b, max_size=b))
    lengths[0] = max(lengths[0], 2)
    check_group(
        ep_session,
        (b, kv * group, kv, 1, draw(st.integers(1, 16)) * 8),
        draw(st.sampled_from(DTYPES)),
        lengths,
        buffer=max(lengths) + draw(st.integers(-1, 5)),
        window=draw(st.sampled_from([-1, 1, 200])),
        softcap=draw(st.sampled_from([0.0, 2.0])),
        bias=draw(st.booleans()),
        smooth=draw(st.booleans()),
    )
