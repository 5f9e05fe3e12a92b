"""The container GGUF, versions 2 and 3: metadata, then a table of tensors, then their bytes.

Layout: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Only what is asked for is read from the disk.
"""

from __future__ import annotations

import dataclasses
import math
import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np

from cuvil_onnx.errors import ModelLoadError
from cuvil_onnx.quantize.grid import Array

# Codes of scalar metadata types, as struct formats.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DEPTH = 4
_MAX_DIMENSIONS = 4

# Names of the tensor types by their codes; types that are missing here are named by their number.
KINDS = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    6: "Q5_0",
    7: "Q5_1",
    8: "Q8_0",
    12: "Q4_K",
    13: "Q5_K",
    14: "Q6_K",
    30: "BF16",
}

# Elements and bytes of a block.
BLOCKS = {
    "F32": (1, 4),
    "F16": (1, 2),
    "BF16": (1, 2),
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
}


@dataclasses.dataclass(frozen=True)
class GgufTensor:
    """A tensor of the file.

    Attributes:
        shape: outermost dimension first, as numpy has it (the file lists the innermost first).
        kind: the name of its type, such as "Q4_1".
        data: uint8 [rows, bytes of a row], a view of the file; None for a type that is not known here.
    """

    name: str
    shape: tuple[int, ...]
    kind: str
    data: Array | None


@dataclasses.dataclass(frozen=True)
class GgufFile:
    """Metadata (numbers, texts, lists of them) and tensors by name."""

    path: str
    metadata: dict[str, Any]
    tensors: dict[str, GgufTensor]


def read(path: str | Path) -> GgufFile:
    """Opens a file.

    Raises:
        ModelLoadError: it is no GGUF file of a known version, or it is damaged or truncated.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        if not file.read(1):
            raise ModelLoadError(f"{path}: the file is empty")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    reader = _Reader(data, str(path))
    if reader.take(4) != b"GGUF":
        raise ModelLoadError(f"{path}: not a GGUF file (it does not start with GGUF)")
    (version,) = reader.unpack("I")
    if version not in (2, 3):
        raise ModelLoadError(f"{path}: GGUF version {version}; little-endian files of versions 2 and 3 can be read")
    tensor_count, pair_count = reader.unpack("QQ")
    metadata = {}
    for _ in range(reader.fits(pair_count)):
        key = reader.text()
        metadata[key] = reader.value(*reader.unpack("I"))
    entries = [reader.entry() for _ in range(reader.fits(tensor_count))]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0:
        raise ModelLoadError(f"{path}: general.alignment is {alignment!r}, a positive number is required")
    start = -(-reader.position // alignment) * alignment
    return GgufFile(str(path), metadata, {e[0]: _tensor(*e, start, data, str(path)) for e in entries})


def _tensor(
    name: str, shape: tuple[int, ...], code: int, offset: int, start: int, data: mmap.mmap, path: str
) -> GgufTensor:
    if code not in KINDS:
        return GgufTensor(name, shape, f"type {code}", None)
    kind = KINDS[code]
    block, size = BLOCKS[kind]
    columns = shape[-1] if shape else 1
    if columns % block:
        raise ModelLoadError(
            f"{path}: tensor {name!r} has rows of {columns} elements, {kind} needs multiples of {block}"
        )
    rows, row_bytes = math.prod(shape[:-1]), columns // block * size
    first = start + offset
    if first + rows * row_bytes > len(data):
        raise ModelLoadError(
            f"{path}: tensor {name!r} ends at byte {first + rows * row_bytes}, the file has {len(data)}: truncated"
        )
    view = np.frombuffer(data, np.uint8, rows * row_bytes, first).reshape(rows, row_bytes)
    return GgufTensor(name, shape, kind, view)


class _Reader:
    """Reads the head of the file; every length is checked against the file's."""

    def __init__(self, data: mmap.mmap, path: str) -> None:
        self._data = data
        self._path = path
        self.position = 0

    def fits(self, count: int) -> int:
        """A number of items, each of which takes at least one byte of what is left."""
        if count > len(self._data) - self.position:
            raise ModelLoadError(f"{self._path}: damaged or truncated: {count} items at byte {self.position}")
        return count

    def take(self, count: int) -> bytes:
        start = self.position
        self.position += self.fits(count)
        return self._data[start : self.position]

    def unpack(self, form: str) -> tuple[Any, ...]:
        return struct.unpack("<" + form, self.take(struct.calcsize("<" + form)))

    def text(self) -> str:
        (length,) = self.unpack("Q")
        return self.take(length).decode("utf-8", errors="replace")

    def value(self, code: int, depth: int = 0) -> Any:
        if code in _SCALARS:
            return self.unpack(_SCALARS[code])[0]
        if code == _STRING:
            return self.text()
        if code != _ARRAY or depth >= _MAX_DEPTH:
            raise ModelLoadError(f"{self._path}: damaged: metadata of type {code} at byte {self.position}")
        element, count = self.unpack("IQ")
        self.fits(count)
        if element in _SCALARS:
            return list(self.unpack(f"{count}{_SCALARS[element]}"))
        return [self.value(element, depth + 1) for _ in range(count)]

    def entry(self) -> tuple[str, tuple[int, ...], int, int]:
        """Name, shape, type and offset of a tensor."""
        name = self.text()
        (dimensions,) = self.unpack("I")
        if dimensions > _MAX_DIMENSIONS:
            raise ModelLoadError(f"{self._path}: damaged: tensor {name!r} has {dimensions} dimensions")
        shape = tuple(reversed(self.unpack(f"{dimensions}Q")))
        code, offset = self.unpack("IQ")
        return name, shape, code, offset
