"""How far outputs are from a reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt


def largest_difference(
    got: Mapping[str, npt.NDArray[Any]], reference: Mapping[str, npt.NDArray[Any]]
) -> tuple[float, float]:
    """The largest absolute difference, and the largest one relative to its output's largest magnitude.

    Integer outputs count too. A NaN or infinity on one side only gives infinity, as do strings that are not all equal.
    """
    worst_absolute = worst_relative = 0.0
    for name, want in reference.items():
        if want.dtype.kind in "OSU":
            if not np.array_equal(got[name].astype(str), want.astype(str)):
                return float("inf"), float("inf")
            continue
        have, want64 = got[name].astype(np.float64), want.astype(np.float64)
        if have.shape != want64.shape:
            return float("inf"), float("inf")
        same = (have == want64) | (np.isnan(have) & np.isnan(want64))
        if same.all():
            continue
        with np.errstate(invalid="ignore"):
            difference = np.abs(np.where(same, 0.0, have - want64))
        absolute = float("inf") if np.isnan(difference).any() else float(difference.max())
        scale = float(np.abs(want64[np.isfinite(want64)]).max(initial=0.0))
        worst_absolute = max(worst_absolute, absolute)
        worst_relative = max(worst_relative, absolute / scale if scale else absolute)
    return worst_absolute, worst_relative
