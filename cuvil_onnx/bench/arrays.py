"""Arrays by name in a file, between the processes of a comparison.

NumPy's ``.npz`` layout, but for what ``numpy.savez`` cannot hold: tensors named as one of its own parameters
(``file``), types that NumPy has no name for (bfloat16), strings as objects. Source: numpy.lib.format.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_TYPES = "types.json"


def save_arrays(path: str | Path, arrays: Mapping[str, Array]) -> None:
    """Writes the arrays; object arrays as strings."""
    types = {}
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        for name, array in arrays.items():
            stored = np.asarray(array)
            if stored.dtype.kind == "O":
                stored = stored.astype(np.str_)
            elif hasattr(ml_dtypes, stored.dtype.name):
                types[name] = stored.dtype.name
                stored = stored.view(f"u{stored.dtype.itemsize}")
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, stored, allow_pickle=False)
        archive.writestr(_TYPES, json.dumps(types))


def load_arrays(path: str | Path) -> dict[str, Array]:
    """Reads what :func:`save_arrays` or ``numpy.savez`` wrote."""
    arrays = {}
    with zipfile.ZipFile(path) as archive:
        types = json.loads(archive.read(_TYPES)) if _TYPES in archive.namelist() else {}
        for member in archive.namelist():
            if member == _TYPES:
                continue
            name = member.removesuffix(".npy")
            with archive.open(member) as file:
                array: Array = np.lib.format.read_array(file, allow_pickle=False)
            arrays[name] = array.view(getattr(ml_dtypes, types[name])) if name in types else array
    return arrays
