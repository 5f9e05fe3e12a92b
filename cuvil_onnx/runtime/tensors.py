"""What a caller may feed: arrays on the host, and tensors on the device that are used where they lie.

A device tensor is anything with DLPack (torch, cupy, ``OrtValue``) or ``__cuda_array_interface__``. The producer's
pending work is ordered before ours on the session's stream, as both protocols ask.
Sources: DLPack specification and ``dlpack.h``; CUDA Array Interface, version 3.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cuvil_onnx.runtime import dtypes
from cuvil_onnx.runtime.cuda_driver import Stream

Array = npt.NDArray[Any]

_DLPACK_CPU, _DLPACK_CUDA, _DLPACK_PINNED, _DLPACK_MANAGED = 1, 2, 3, 13


@dataclass(frozen=True)
class DeviceTensor:
    """A contiguous tensor in device memory. ``owner`` keeps that memory alive."""

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device_id: int
    owner: object

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def on_device(value: Any) -> bool:
    """Whether the value lies in device memory."""
    if isinstance(value, np.ndarray):
        return False
    if hasattr(value, "__dlpack_device__"):
        try:
            kind = int(value.__dlpack_device__()[0])
        except Exception:  # an OrtValue of strings or a sequence has the method and refuses
            return False
        return kind in (_DLPACK_CUDA, _DLPACK_MANAGED)
    return hasattr(value, "__cuda_array_interface__")


def device_ordinal(value: Any) -> int | None:
    """The GPU that a device tensor lies on; None when it does not tell.

    Asked before anything else, because a producer cannot order its work before a stream of another GPU.
    """
    if hasattr(value, "__dlpack_device__"):
        return int(value.__dlpack_device__()[1])
    ordinal = getattr(getattr(value, "device", None), "id", None)
    return ordinal if isinstance(ordinal, int) else None


def device_tensor(name: str, value: Any, stream: Stream) -> DeviceTensor:
    """Describes a device tensor without copying it; its producer's work is ordered before ``stream``'s next work.

    Raises ValueError for a tensor that is not contiguous or of a type this package cannot pass on.
    """
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(name, value, stream)
    return _from_cuda_array_interface(name, value, stream)


def _from_dlpack(name: str, value: Any, stream: Stream) -> DeviceTensor:
    # The capsule is read, not consumed: its destructor releases the producer's tensor when `owner` goes.
    capsule = value.__dlpack__(stream=stream.handle)
    address = _capsule_pointer(capsule, b"dltensor")
    tensor = ctypes.cast(address, ctypes.POINTER(_DLTensor)).contents
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if tensor.strides:
        _require_contiguous(name, shape, tuple(tensor.strides[i] for i in range(tensor.ndim)))
    element = dtypes.BY_DLPACK.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if element is None:
        raise ValueError(f"input {name!r}: DLPack type (code {tensor.code}, {tensor.bits} bits) is not supported")
    dtype = element.numpy
    if dtype == np.uint8 and _is_bool(value):
        dtype = np.dtype(np.bool_)  # producers before DLPack 1.0 export booleans as uint8
    data = (tensor.data or 0) + tensor.byte_offset
    return DeviceTensor(data, shape, dtype, tensor.device_id, (value, capsule))


def _is_bool(value: Any) -> bool:
    if hasattr(value, "data_type"):
        return bool(value.data_type() == "tensor(bool)")
    return str(getattr(value, "dtype", "")).endswith("bool")


def _from_cuda_array_interface(name: str, value: Any, stream: Stream) -> DeviceTensor:
    interface = value.__cuda_array_interface__
    dtype, shape = np.dtype(interface["typestr"]), tuple(interface["shape"])
    if dtype not in dtypes.BY_NUMPY:
        raise ValueError(f"input {name!r}: type {interface['typestr']} is not supported")
    if interface.get("mask") is not None:
        raise ValueError(f"input {name!r}: a masked device array has no meaning for ONNX")
    if interface.get("strides"):
        _require_contiguous(name, shape, tuple(s // dtype.itemsize for s in interface["strides"]))
    if interface.get("stream"):
        stream.wait_for(int(interface["stream"]))
    ordinal = device_ordinal(value)
    device = stream.context.ordinal if ordinal is None else ordinal
    return DeviceTensor(int(interface["data"][0] or 0), shape, dtype, device, value)


def _require_contiguous(name: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 0:
            return
        if size != 1 and stride != expected:
            raise ValueError(f"input {name!r}: a device tensor must be contiguous, got strides {strides} for {shape}")
        expected *= size


def host_array(value: Any, dtype: np.dtype[Any] | None) -> Array:
    """A C-contiguous array of a host value: array, list, scalar, torch CPU tensor, ``OrtValue``.

    ``dtype`` is the model's, applied to plain Python numbers only: an array of another type stays as it is, so that
    the check can refuse it as ONNX Runtime does.
    """
    if value is None:  # NumPy would make a NaN of it
        raise TypeError("None is not a tensor")
    if isinstance(value, np.ndarray):
        array: Array = value
    elif hasattr(value, "data_type") and hasattr(value, "data_ptr"):
        array = ortvalue_array(value)
    elif hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        array = np.asarray(value)
    elif hasattr(value, "__dlpack__"):
        array = np.from_dlpack(value)
    else:
        array = np.asarray(value, dtype=dtype)
    # Not ascontiguousarray: that one turns a scalar into a vector of one element.
    return array if array.flags.c_contiguous else array.copy()


def ortvalue_array(value: Any) -> Array:
    """The elements of an ``OrtValue``; a bfloat16 one must lie in host memory, ONNX Runtime copies the others."""
    if value.data_type() != "tensor(bfloat16)":
        return np.asarray(value.numpy())
    if value.device_name() != "cpu":
        raise ValueError("a bfloat16 OrtValue on the device has no NumPy form; use it through DLPack")
    shape = tuple(value.shape())
    size = 2 * int(np.prod(shape, dtype=np.int64))
    memory = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(bytearray(memory), dtype=dtypes.BY_ORT_NAME["tensor(bfloat16)"].numpy).reshape(shape)
