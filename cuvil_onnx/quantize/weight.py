"""A weight as quantization sees it: [K, N], float32, finite, read in pieces from wherever it lies."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from cuvil_onnx.quantize.grid import Array

DTYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


@dataclasses.dataclass(frozen=True)
class Weight:
    """A constant operand of a product.

    Attributes:
        value: the initializer, [K, N] or [E, K, N] (with ``transposed``: [N, K] or [E, N, K]).
        transposed: see ``value``.
        factor: what the product multiplies it by (a Gemm's alpha).
    """

    value: ir.Value
    transposed: bool = False
    factor: float = 1.0

    @property
    def tensor(self) -> ir.TensorProtocol:
        """The elements, possibly still in a file."""
        tensor = self.value.const_value
        assert tensor is not None
        return tensor

    @property
    def shape(self) -> tuple[int, ...]:
        """[K, N] or [E, K, N]."""
        dims = tuple(int(d) for d in self.tensor.shape.numpy())
        return (*dims[:-2], dims[-1], dims[-2]) if self.transposed else dims

    @property
    def dtype(self) -> ir.DataType:
        """The element type in the model."""
        return self.tensor.dtype


@dataclasses.dataclass
class Repairs:
    """Elements of a weight that were no numbers, and what became of them."""

    nans: int = 0
    infinities: int = 0

    def __bool__(self) -> bool:
        return bool(self.nans or self.infinities)

    def __str__(self) -> str:
        parts = [f"{self.nans} NaN became 0"] if self.nans else []
        if self.infinities:
            parts.append(f"{self.infinities} infinities became the largest finite weight of their column")
        return "; ".join(parts)


class Reader:
    """The elements of one weight while it is open; several threads may read."""

    def __init__(self, weight: Weight) -> None:
        self._array = weight.tensor.numpy()
        self._weight = weight
        self.repairs = Repairs()
        self._lock = threading.Lock()

    def columns(self, part: slice, expert: int | None = None) -> Array:
        """float32 [K, n], finite: columns of the weight (of one expert of a weight of rank 3)."""
        array = self._array if expert is None else self._array[expert]
        piece = array[part].T if self._weight.transposed else array[:, part]
        numbers = np.array(piece, np.float32, order="C")
        if self._weight.factor != 1.0:
            numbers *= np.float32(self._weight.factor)
        if not np.isfinite(numbers).all():
            with self._lock:
                _repair(numbers, self.repairs)
        return numbers

    def largest(self) -> float:
        """The largest finite magnitude of all elements."""
        best = 0.0
        for part in _slabs(self._array):
            with np.errstate(invalid="ignore"):
                magnitudes = np.abs(part.astype(np.float32))
            finite = magnitudes[np.isfinite(magnitudes)]
            best = max(best, float(finite.max(initial=0.0)))
        return best * abs(self._weight.factor)


@contextlib.contextmanager
def opened(weight: Weight) -> Iterator[Reader]:
    """The weight's elements; afterwards the pages of its file are let go."""
    reader = Reader(weight)
    try:
        yield reader
    finally:
        del reader._array
        if isinstance(weight.tensor, ir.ExternalTensor):
            with contextlib.suppress(BufferError):  # somebody still looks at it
                weight.tensor.release()


def equal_weights(one: Weight, other: Weight) -> bool:
    """Whether two weights of one shape hold the same numbers, however they are laid out."""
    if one.shape != other.shape or one.dtype != other.dtype or one.factor != other.factor or len(one.shape) != 2:
        return False
    if one.value is other.value and one.transposed == other.transposed:
        return True
    with opened(one) as a, opened(other) as b:
        columns = one.shape[1]
        sample = slice(0, min(columns, 8))
        if not np.array_equal(a.columns(sample), b.columns(sample)):
            return False
        step = max(1, (1 << 22) // max(one.shape[0], 1))
        parts = [slice(i, min(i + step, columns)) for i in range(0, columns, step)]
        return all(np.array_equal(a.columns(p), b.columns(p)) for p in parts)


def _repair(numbers: Array, repairs: Repairs) -> None:
    nans = np.isnan(numbers)
    repairs.nans += int(nans.sum())
    numbers[nans] = 0
    bad = np.isinf(numbers)
    repairs.infinities += int(bad.sum())
    finite = np.where(bad, 0, np.abs(numbers)).max(axis=0, initial=0)
    numbers[bad] = (np.sign(numbers) * finite)[bad]


def _slabs(array: Array) -> Iterator[Array]:
    """The array in pieces along its first axis of some tens of megabytes."""
    rows = max(1, (1 << 24) // max(1, array[0].size)) if len(array) else 1
    for start in range(0, len(array), rows):
        yield array[start : start + rows]


def numpy_type(dtype: ir.DataType) -> np.dtype[np.generic]:
    """The type of arrays that hold a tensor's elements."""
    return np.dtype(dtype.numpy())
