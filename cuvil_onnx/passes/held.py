"""Weights as their file writes them, with what is asked of each again and again worked out once (exact)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import numpy.typing as npt
import onnx_ir as ir

from cuvil_onnx.rewrite import walk

MAX_CACHED_BYTES = 1024
"""The elements of larger weights are taken from the proto each time, or a model would be in memory twice."""


T = TypeVar("T")


class _once(Generic[T]):
    """``functools.cached_property`` without a lock: Python 3.11's takes longer than most of what is kept here."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __get__(self, held: Any, owner: type | None = None) -> T:
        found = held.__dict__[self._compute.__name__] = self._compute(held)
        return found


class Held(ir.TensorProtoTensor):
    """A TensorProtoTensor that makes its shape and its element type once, not at each look.

    Every pass asks every weight for its size, for which onnx-ir makes a new shape from the proto: a tenth of the time
    on models of many small weights.
    """

    @_once
    def shape(self) -> ir.Shape:  # type: ignore[override]
        """The dimensions."""
        return super().shape

    @_once
    def dtype(self) -> ir.DataType:
        """The element type."""
        return super().dtype

    @_once
    def size(self) -> int:
        """The number of elements."""
        return super().size

    @_once
    def nbytes(self) -> int:
        """The number of bytes; elements of less than one share them."""
        return super().nbytes

    def numpy(self) -> npt.NDArray[Any]:
        """The elements, not to be changed."""
        return self._elements if self.nbytes <= MAX_CACHED_BYTES else super().numpy()

    @_once
    def _elements(self) -> npt.NDArray[Any]:
        array = super().numpy()
        array.flags.writeable = False
        return array


def hold_initializers(model: ir.Model) -> None:
    """Lets the weights of a model that was read from a proto be :class:`Held`."""
    for graph, _ in walk.all_graphs(model.graph):
        for value in graph.initializers.values():
            if type(value.const_value) is ir.TensorProtoTensor:
                value.const_value = Held(value.const_value.raw)
