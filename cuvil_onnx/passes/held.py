"""Weights as their file writes them, with what is asked of each again and again worked out once (exact)."""

from __future__ import annotations

import functools
from typing import Any

import numpy.typing as npt
import onnx_ir as ir

from cuvil_onnx.rewrite import walk

MAX_CACHED_BYTES = 1024
"""The elements of larger weights are taken from the proto each time, or a model would be in memory twice."""


class Held(ir.TensorProtoTensor):
    """A TensorProtoTensor that makes its shape and its element type once, not at each look.

    Every pass asks every weight for its size, for which onnx-ir makes a new shape from the proto: a tenth of the time
    on models of many small weights.
    """

    @functools.cached_property
    def shape(self) -> ir.Shape:  # type: ignore[override]
        """The dimensions."""
        return super().shape

    @functools.cached_property
    def dtype(self) -> ir.DataType:  # type: ignore[override]
        """The element type."""
        return super().dtype

    @functools.cached_property
    def size(self) -> int:
        """The number of elements."""
        return super().size

    @functools.cached_property
    def nbytes(self) -> int:
        """The number of bytes; elements of less than one share them."""
        return super().nbytes

    def numpy(self) -> npt.NDArray[Any]:
        """The elements, not to be changed."""
        return self._elements if self.nbytes <= MAX_CACHED_BYTES else super().numpy()

    @functools.cached_property
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
