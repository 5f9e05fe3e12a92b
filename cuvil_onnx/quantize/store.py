"""Keeps quantized weights until the model is written: in memory, and past some size in a temporary file."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from pathlib import Path

import numpy as np
import onnx_ir as ir

from cuvil_onnx.errors import OutputError
from cuvil_onnx.quantize.grid import Array, Grid, Quantized, dequantize
from cuvil_onnx.quantize.pack import codes_of

MEMORY_BYTES = 1 << 29
"""So much of codes stays in memory; those of a model of billions of weights would not fit."""


@dataclasses.dataclass
class Stored:
    """A quantized weight, [K, N], or [E, K, N] where every array has the further dimension first.

    Attributes:
        grid: what its numbers are.
        codes: of the grid's ``code_dtype``.
        scales: float32 [groups, N].
        zero_points: as numbers, int8 or uint8 [groups, N]; None: 0.
        offsets: float32 [groups, N]; None: 0.
        input_scale: float32 [K]; the codes are of the weight's rows times these. None: 1.
    """

    grid: Grid
    codes: ir.TensorProtocol
    scales: Array
    zero_points: Array | None = None
    offsets: Array | None = None
    input_scale: Array | None = None

    @property
    def nbytes(self) -> int:
        """What it takes in the model."""
        size = self.grid.scale_dtype.itemsize
        floats = self.scales.size + (0 if self.offsets is None else self.offsets.size)
        zeros = 0 if self.zero_points is None else -(-self.zero_points.size * self.grid.bits // 8)
        return int(self.codes.nbytes + floats * size + zeros)

    def weight(self) -> Array:
        """float32: the weight that the model computes with."""
        codes = codes_of(self.codes)
        if codes.ndim == 3:
            parts = [self._part(codes[e], e) for e in range(len(codes))]
            return np.stack(parts)
        whole = Quantized(codes, self.scales, self.zero_points, self.offsets)
        numbers = dequantize(whole, self.grid, np)
        return numbers if self.input_scale is None else numbers / self.input_scale[:, None]

    def _part(self, codes: Array, e: int) -> Array:
        zeros = None if self.zero_points is None else self.zero_points[e]
        return dequantize(Quantized(codes, self.scales[e], zeros), self.grid, np)


class _Spilled(ir.ExternalTensor):
    """A tensor in a temporary folder, which lives as long as one of its tensors."""

    folder: tempfile.TemporaryDirectory[str] | None = None


class Store:
    """Takes tensors over."""

    def __init__(self) -> None:
        self._held = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._written = 0

    def keep(self, tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        """The same tensor, in memory or in a file.

        Raises:
            OutputError: the temporary folder is full.
        """
        if self._held + tensor.nbytes <= MEMORY_BYTES:
            self._held += tensor.nbytes
            return tensor
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="cuvil-quantize-")
        path = Path(self._folder.name) / f"{self._written}.bin"
        self._written += 1
        try:
            with path.open("wb") as file:
                file.write(tensor.tobytes())
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OutputError(f"{path}: cannot be written: {error.strerror or error}") from error
        spilled = _Spilled(
            path.name,
            0,
            tensor.nbytes,
            tensor.dtype,
            shape=ir.Shape(tensor.shape.numpy()),
            name="",
            base_dir=path.parent,
        )
        spilled.folder = self._folder
        return spilled
