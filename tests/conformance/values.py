"""Values into and out of a session, also of the types that its Python interface refuses (bfloat16, float8, int4).

Those are written to and read from the memory of ONNX Runtime's tensors in the form of TensorProto's `raw_data`, which
is the same.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper


def run(session: ort.InferenceSession, inputs: list[Any]) -> list[Any]:
    """The session's outputs as arrays, lists of arrays, or None; `inputs` stand in the order of the session's."""
    names = [i.name for i in session.get_inputs()]
    feeds = dict(zip(names, inputs, strict=True))
    if not all(_is_tensor(i.type) and "string" not in i.type for i in [*session.get_inputs(), *session.get_outputs()]):
        return session.run(None, feeds)
    outputs = [o.name for o in session.get_outputs()]
    found = session.run_with_ort_values(outputs, {name: to_ort(np.asarray(x)) for name, x in feeds.items()})
    return [from_ort(v) if v.has_value() else None for v in found]


def to_ort(array: np.ndarray) -> ort.OrtValue:
    """The array in host memory, as a tensor of its ONNX type."""
    if array.dtype.isbuiltin == 1:
        return ort.OrtValue.ortvalue_from_numpy(array)
    tensor = numpy_helper.from_array(array)
    value = ort.OrtValue.ortvalue_from_shape_and_type(list(array.shape), tensor.data_type)
    ctypes.memmove(value.data_ptr(), tensor.raw_data, len(tensor.raw_data))
    return value


def from_ort(value: ort.OrtValue) -> np.ndarray:
    """The tensor, which must be in host memory, as an array."""
    kind = value.element_type()
    if np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind)).isbuiltin == 1:
        return value.numpy()
    data = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return numpy_helper.to_array(onnx.TensorProto(data_type=kind, dims=value.shape(), raw_data=data))


def _is_tensor(type_name: str) -> bool:
    return type_name.startswith("tensor(")
