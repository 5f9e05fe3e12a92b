"""Seeded random weights under which activations stay of order one through a deep network."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class Weights:
    """A stream of weights: the same seed and the same calls give the same arrays."""

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def he(self, shape: tuple[int, ...]) -> Array:
        """Normal weights [out, in, ...] that keep the mean square through convolution and ReLU (He et al., 2015)."""
        deviation = (2 / np.prod(shape[1:])) ** 0.5
        return self._rng.standard_normal(shape, np.float32) * np.float32(deviation)

    def normal(self, shape: tuple[int, ...], deviation: float) -> Array:
        """Normal weights of one deviation, as transformers start with."""
        return self._rng.standard_normal(shape, np.float32) * np.float32(deviation)

    def near(self, value: float, size: int, spread: float = 0.1) -> Array:
        """A vector around ``value``: scales, shifts and statistics of normalisation layers."""
        vector: Array = (value + spread * self._rng.uniform(-1, 1, size)).astype(np.float32)
        return vector
