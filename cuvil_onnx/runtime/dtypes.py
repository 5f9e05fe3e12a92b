"""Element types: how ONNX Runtime, ONNX, NumPy and DLPack name them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class ElementType:
    """A tensor element type that a session can hold in fixed buffers."""

    ort: str  # as NodeArg.type writes it, without "tensor(...)"
    onnx: int  # TensorProto.DataType
    numpy: np.dtype[Any]
    dlpack: tuple[int, int]  # code and bits

    @property
    def ort_has_numpy(self) -> bool:
        """Whether ONNX Runtime itself converts it from and to NumPy: not so for bfloat16."""
        return self.ort != "bfloat16"


_INT, _UINT, _FLOAT, _BFLOAT, _BOOL = 0, 1, 2, 4, 6

TYPES: tuple[ElementType, ...] = (
    ElementType("float", 1, np.dtype(np.float32), (_FLOAT, 32)),
    ElementType("uint8", 2, np.dtype(np.uint8), (_UINT, 8)),
    ElementType("int8", 3, np.dtype(np.int8), (_INT, 8)),
    ElementType("uint16", 4, np.dtype(np.uint16), (_UINT, 16)),
    ElementType("int16", 5, np.dtype(np.int16), (_INT, 16)),
    ElementType("int32", 6, np.dtype(np.int32), (_INT, 32)),
    ElementType("int64", 7, np.dtype(np.int64), (_INT, 64)),
    ElementType("bool", 9, np.dtype(np.bool_), (_BOOL, 8)),
    ElementType("float16", 10, np.dtype(np.float16), (_FLOAT, 16)),
    ElementType("double", 11, np.dtype(np.float64), (_FLOAT, 64)),
    ElementType("uint32", 12, np.dtype(np.uint32), (_UINT, 32)),
    ElementType("uint64", 13, np.dtype(np.uint64), (_UINT, 64)),
    ElementType("bfloat16", 16, np.dtype(ml_dtypes.bfloat16), (_BFLOAT, 16)),
)

BY_ORT_NAME = {f"tensor({t.ort})": t for t in TYPES}
BY_NUMPY = {t.numpy: t for t in TYPES}
BY_DLPACK = {t.dlpack: t for t in TYPES}


def of_ort(type_name: str) -> ElementType | None:
    """The element type behind ``NodeArg.type`` or ``OrtValue.data_type()``; None for strings, sequences and others."""
    return BY_ORT_NAME.get(type_name)


def ort_name(dtype: np.dtype[Any]) -> str:
    """How ONNX Runtime names a NumPy type in its messages."""
    known = BY_NUMPY.get(dtype)
    return f"tensor({known.ort})" if known else f"tensor({dtype})"
