"""Error bounds of sums of products, for tests of convolutions and matrix products."""

from __future__ import annotations

import ml_dtypes
import numpy as np

Array = np.ndarray

# Half a unit in the last place of a result near 1.
ROUNDING = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8, "float64": 2.0**-53}


def rounded(x: Array, dtype: str) -> Array:
    """float64 values as they are after a cast to `dtype`."""
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    return x.astype(kind).astype(np.float64)


def in_bfloat16(x: Array) -> Array:
    """x rounded to bfloat16, as float32."""
    y: Array = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    return y


def assert_sum_of_products(
    found: Array, exact: Array, magnitude: Array, terms: int, dtype: str, between: Array | float = 0.0
) -> None:
    """`found` within the error of a sum of `terms` products accumulated in float32 (float64 for float64).

    `magnitude` is the same sum over absolute values: every one of the `terms` additions rounds by at most one unit of
    the partial sum, which `magnitude` bounds. Fast convolution algorithms (Winograd) transform inputs first, and
    activations in 16 bits are approximations: hence the factors 4 and 3. TF32 (2**-11 a product) or sums in 16 bits
    exceed the bound by far.

    `between` bounds the absolute values that are rounded to `dtype` on the way, for ways that add the bias, the
    residual or the activation in a second pass over the result: half a unit of them comes on top, which is not small
    against `exact` where the addends cancel. The nodes that were fused round there too, and once more often.
    """
    unit = ROUNDING["float64" if dtype == "float64" else "float32"]
    bound = 4 * max(terms, 8) * unit * magnitude + 3 * ROUNDING[dtype] * (np.abs(exact) + magnitude / max(terms, 1))
    bound += ROUNDING[dtype] * between
    bound += 2.0**-24 if dtype == "float16" else 0.0  # the spacing of float16's smallest numbers
    assert found.shape == exact.shape, f"{found.shape} instead of {exact.shape}"
    error = np.abs(found.astype(np.float64) - exact)
    worst = np.unravel_index(np.argmax(error - bound), error.shape) if error.size else ()
    assert (error <= bound).all(), f"at {worst}: {found[worst]} instead of {exact[worst]}, bound {bound[worst]}"
