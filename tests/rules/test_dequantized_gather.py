"""Lookups in quantized tables: every layout of scales, both widths of codes, and what must stay."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tests.rules.rule_testing import Case, apply, contract, ops, refused, run
from tests.rules.test_dequantized_matmul import codes, model, steps

RULE = "dequantized_gather"
V, D = 11, 64
LAYOUTS = {
    "groups": ("axis=1, block_size=16", (V, 4)),
    "groups_from_the_end": ("axis=-1, block_size=32", (V, 2)),
    "rows": ("axis=0", (V,)),
    "one": ("axis=1", ()),
    "columns": ("axis=1", (D,)),
}


def table(kind: str = "u4", layout: str = "groups", zeros: bool = True, dtype: type = np.float32, d: int = D):
    axes, shape = LAYOUTS[layout]
    shape = tuple(d if s == D else s for s in shape)
    more = {"z": codes(kind, *shape, seed=3) if shape else np.asarray(codes(kind, 4)[3])} if zeros else {}
    name = {np.float32: "float", np.float16: "float16"}[dtype]
    text = (
        f"(int64[B,S] ids) => ({name}[B,S,{d}] y) {{ w = DequantizeLinear<{axes}>(q, s{', z' * zeros}) "
        "y = Gather(w, ids) }"
    )
    return model(text, q=codes(kind, V, d), s=steps(*shape, dtype=dtype), **more)


def check(made, **expected) -> None:
    """The rewrite gives the same bits for ids at both ends, negative ones and repeated ones."""
    result = apply(made, RULE, "dead_code").model
    assert ops(result) == expected
    for ids in ([[0, V - 1, -1], [-V, 3, 3]], [[5]], np.zeros((0, 2))):
        feed = {"ids": np.array(ids, np.int64)}
        old, new = run(made, feed, plain=True)[0], run(result, feed)[0]
        assert old.dtype == new.dtype
        np.testing.assert_array_equal(new, old)


def contract_model():
    """With ids that feeds() draws within the table."""
    return table("u8")


test_contract = contract(Case(RULE, contract_model, "w", kept=1, exact=True))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", ["i8", "u8"])
@pytest.mark.parametrize("zeros", [True, False])
def test_bytes(kind, layout, zeros):
    gathers = 1 if layout in ("one", "columns") else 2 + zeros
    check(table(kind, layout, zeros), Gather=gathers, DequantizeLinear=1)


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "columns"])
@pytest.mark.parametrize("kind", ["i4", "u4"])
@pytest.mark.parametrize("zeros", [True, False])
def test_four_bits(kind, layout, zeros):
    check(table(kind, layout, zeros), **{"com.microsoft::GatherBlockQuantized": 1})


def test_half_and_rows_of_odd_length():
    check(table("u4", "rows", dtype=np.float16), **{"com.microsoft::GatherBlockQuantized": 1})
    check(table("u4", "rows", d=45), **{"com.microsoft::GatherBlockQuantized": 1})
    check(table("i8", "rows", d=45), Gather=3, DequantizeLinear=1)


def test_a_table_that_a_product_reads_too():
    """Tied: the lookup takes rows, the product its own layout."""
    text = (
        f"(int64[B,S] ids) => (float[B,S,{V}] y) {{ w = DequantizeLinear<axis=1, block_size=16>(q, s) "
        "x = Gather(w, ids) t = Transpose(w) y = MatMul(x, t) }"
    )
    made = model(text, q=codes("i4", V, D), s=steps(V, 4))
    result = apply(made, RULE, "dequantized_matmul", "dead_code").model
    assert ops(result) == {"com.microsoft::GatherBlockQuantized": 1, "cuvil::MatMulInt4": 1}
    feed = {"ids": np.array([[0, 3, -1]])}
    np.testing.assert_allclose(run(result, feed)[0], run(made, feed, plain=True)[0], rtol=1e-5, atol=1e-5)


def test_what_stays():
    text = (
        f"(int64[B] ids) => (float[B,{D}] y) {{ w = DequantizeLinear<axis=0, block_size=4>(q, s) y = Gather(w, ids) }}"
    )
    refused(model(text, q=codes("u8", V, D), s=steps(3, D)), RULE, "groups of rows")
    text = f"(int64[B] ids) => (float[{V},B] y) {{ w = DequantizeLinear(q, s) y = Gather<axis=1>(w, ids) }}"
    refused(model(text, q=codes("u8", V, D), s=steps()), RULE, "columns of a quantized table")
    refused(table("u4", "columns"), RULE, "each column of a table of 4 bits")
    text = (
        f"(int64[B] ids) => (float[B,{D}] y) {{ w = DequantizeLinear<axis=1, block_size=8>(q, s) y = Gather(w, ids) }}"
    )
    refused(model(text, q=codes("u4", V, D), s=steps(V, 8)), RULE, "groups of 8 elements")
    text = f"(int64[B] ids, uint8[{V},{D}] q) => (float[B,{D}] y) {{ w = DequantizeLinear(q, s) y = Gather(w, ids) }}"
    refused(model(text, s=steps()), RULE, "")
    text = f"(int64[B] ids) => (float[B,{D}] y) {{ w = DequantizeLinear<axis=0>(q, s) y = Gather(w, ids) }}"
    refused(model(text, 19, q=codes("u8", V, D), s=steps(V)), RULE, "need opset 21")


def test_other_types_are_no_codes():
    text = f"(int64[B] ids) => (float[B,{D}] y) {{ w = DequantizeLinear(q, s) y = Gather(w, ids) }}"
    refused(model(text, q=np.zeros((V, D), ml_dtypes.float8_e4m3fn), s=steps()), RULE, "")
