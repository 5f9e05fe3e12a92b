"""What is kept of the activations at one value: sums over calibration tokens, of one size for any sample count."""

from __future__ import annotations

import dataclasses
from types import ModuleType

import numpy as np

from cuvil_onnx.quantize.grid import Array

LARGEST = 1e15
"""Rows with a larger magnitude count as not finite: their squares would drown everything in float32."""


@dataclasses.dataclass
class Statistics:
    """Sums over the rows (tokens) of a linear layer's input X; implements ``scheme.InputStatistics``.

    Attributes:
        gram: sum of X^T X, float32 [K, K]; divided by `rows` it is the Hessian of the mean squared output error (up to
            the factor 2). float32 suffices: the rounding of these sums is far below GPTQ's damping.
        magnitude: sum of |X|, float64 [K].
        drifts: sum of X^T (X0 - X), float32 [K, K], where X0 is what the unquantized model has there; None: unknown.
        xp: numpy or cupy, where the sums live.
        rows: how many rows were added.
        skipped: rows left out because they held NaN, Inf or numbers beyond ``LARGEST``.
    """

    gram: Array
    magnitude: Array
    xp: ModuleType = np
    rows: int = 0
    skipped: int = 0
    drifts: Array | None = None

    @classmethod
    def empty(cls, channels: int, xp: ModuleType = np) -> Statistics:
        """Nothing seen yet of a value with `channels` channels."""
        return cls(xp.zeros((channels, channels), xp.float32), xp.zeros(channels, xp.float64), xp)

    def add(self, activations: Array, exact: Array | None = None) -> None:
        """Adds activations [..., K] of any float dtype; rows that are not finite are counted and left out.

        Args:
            activations: of the model as it is quantized so far.
            exact: of the unquantized model, of the same shape; given for all samples or for none.
        """
        xp = self.xp
        rows = xp.asarray(activations, dtype=xp.float32).reshape(-1, self.magnitude.size)
        wanted = None if exact is None else xp.asarray(exact, dtype=xp.float32).reshape(rows.shape)
        with np.errstate(invalid="ignore"):
            usable = (xp.abs(rows) <= LARGEST).all(axis=1)  # NaN compares false
            if wanted is not None:
                usable &= (xp.abs(wanted) <= LARGEST).all(axis=1)
        if not bool(usable.all()):
            self.skipped += int((~usable).sum())
            rows = rows[usable]
            wanted = None if wanted is None else wanted[usable]
        if wanted is not None:
            product = rows.T @ (wanted - rows)
            self.drifts = product if self.drifts is None else self.drifts + product
        self.gram += rows.T @ rows
        self.magnitude += xp.abs(rows).sum(axis=0, dtype=xp.float64)
        self.rows += len(rows)

    def hessian(self) -> Array:
        """The mean of x x^T, float32 [K, K]; the identity when nothing was seen, so that weights alone decide."""
        if not self.rows:
            return self.xp.eye(self.magnitude.size, dtype=self.xp.float32)  # type: ignore[no-any-return]
        return self.gram / self.xp.float32(self.rows)  # type: ignore[no-any-return]

    def drift(self) -> Array | None:
        """The mean of x (x0 - x)^T, float32 [K, K]; None where it is not known."""
        if self.drifts is None or not self.rows:
            return None
        return self.drifts / self.xp.float32(self.rows)  # type: ignore[no-any-return]

    def mean_magnitude(self) -> Array:
        """The mean of |x| by channel, float32 [K]; ones when nothing was seen."""
        if not self.rows:
            return self.xp.ones(self.magnitude.size, self.xp.float32)  # type: ignore[no-any-return]
        mean: Array = (self.magnitude / self.rows).astype(self.xp.float32)
        return mean

    def scaled(self, divisor: Array) -> Statistics:
        """The statistics of X / divisor, where ``divisor`` is positive, [K]."""
        inverse = (1.0 / divisor).astype(self.xp.float32)
        gram = self.gram * inverse[:, None] * inverse[None, :]
        drifts = None if self.drifts is None else self.drifts * inverse[:, None] * inverse[None, :]
        return Statistics(gram, self.magnitude * inverse, self.xp, self.rows, self.skipped, drifts)
