"""Safetensors files: a JSON head with type, shape and place of each tensor, then the bytes. Tensors stay on the disk.

Format: https://github.com/huggingface/safetensors#format. A checkpoint may be spread over several files with an index.
"""

from __future__ import annotations

import json
import math
import mmap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from cuvil_onnx.errors import ModelLoadError
from cuvil_onnx.quantize.grid import Array

_DTYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "U8": np.uint8,
    "I8": np.int8,
    "I16": "<i2",
    "U16": "<u2",
    "I32": "<i4",
    "U32": "<u4",
    "I64": "<i8",
    "U64": "<u8",
    "F16": "<f2",
    "F32": "<f4",
    "F64": "<f8",
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}

_MAX_HEAD = 100_000_000


class Tensors(Mapping[str, Array]):
    """The tensors of one or several files by name; each access gives a read-only view of the file."""

    def __init__(self, files: list[Path]) -> None:
        """Reads the heads.

        Raises:
            ModelLoadError: a file is damaged or truncated, or two files hold tensors of one name.
        """
        self._places: dict[str, tuple[mmap.mmap, Any, tuple[int, ...], int]] = {}
        for path in files:
            for name, place in _head(path).items():
                if name in self._places:
                    raise ModelLoadError(f"{path}: tensor {name!r} is in another file of the checkpoint as well")
                self._places[name] = place

    def __getitem__(self, name: str) -> Array:
        data, dtype, shape, start = self._places[name]
        return np.frombuffer(data, dtype, math.prod(shape), start).reshape(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor, from the head alone."""
        return self._places[name][2]


def files_of(path: Path) -> list[Path]:
    """The safetensors files of a checkpoint: the file itself, or those of a folder (as its index says when it has one).

    Raises:
        ModelLoadError: there are none, or the index names one that is not there.
    """
    if not path.is_dir():
        if not path.is_file():
            raise ModelLoadError(f"{path}: no such file or folder")
        return [path]
    index = path / "model.safetensors.index.json"
    if not index.exists():
        found = sorted(path.glob("*.safetensors"))
        if not found:
            raise ModelLoadError(f"{path}: the folder holds no *.safetensors")
        return found
    names = sorted(set(read_json(index).get("weight_map", {}).values()))
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not (path / name).is_file():
            raise ModelLoadError(f"{index}: names {name!r}, which is no file of the folder")
    return [path / name for name in names]


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelLoadError(f"{path}: {error}") from None
    if not isinstance(content, dict):
        raise ModelLoadError(f"{path}: holds no JSON object")
    return content


def _head(path: Path) -> dict[str, tuple[mmap.mmap, Any, tuple[int, ...], int]]:
    """Mapped file, type, shape and first byte of each tensor of one file; of unknown types none."""
    if path.stat().st_size < 8:
        raise ModelLoadError(f"{path}: not a safetensors file, or truncated")
    with open(path, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    length = int.from_bytes(data[:8], "little")
    if length > min(_MAX_HEAD, len(data) - 8):
        raise ModelLoadError(f"{path}: not a safetensors file, or truncated")
    try:
        head = json.loads(data[8 : 8 + length])
        entries = {k: v for k, v in head.items() if k != "__metadata__"}
        places = {}
        for name, entry in entries.items():
            shape = tuple(int(d) for d in entry["shape"])
            first, end = (int(b) for b in entry["data_offsets"])
            places[name] = (entry["dtype"], shape, first, end)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelLoadError(f"{path}: the head of the file is damaged ({error!r})") from None
    found = {}
    for name, (kind, shape, first, end) in places.items():
        if kind not in _DTYPES:
            continue
        dtype = np.dtype(_DTYPES[kind])
        if min(shape, default=0) < 0 or first < 0 or end - first != math.prod(shape) * dtype.itemsize:
            raise ModelLoadError(f"{path}: tensor {name!r}: {end - first} bytes do not hold {kind} {list(shape)}")
        if 8 + length + end > len(data):
            raise ModelLoadError(f"{path}: tensor {name!r} ends behind the end of the file: truncated")
        found[name] = (data, dtype, shape, 8 + length + first)
    return found
