"""Inputs for a comparison: from a file of the user's, or made from the model's signature."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from cuvil_onnx.errors import CuvilError

Feed = dict[str, npt.NDArray[Any]]

MAX_ELEMENTS = 1 << 40
"""NumPy has no array of more than 2^63 bytes; this many elements are more than any machine has room for."""

_DEFAULT_SIZES = {"batch": 1, "length": 128, "image": 224}


class InputError(CuvilError):
    """The given inputs do not fit the model, or none can be made for it."""


def required_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """The graph inputs that are no overridable initializers."""
    initializers = {t.name for t in model.graph.initializer}
    return [i for i in model.graph.input if i.name not in initializers]


def load_feed(path: Path, model: onnx.ModelProto) -> Feed:
    """The arrays of an ``.npz`` file; raises InputError when it is no such file or names do not match the model."""
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise InputError(f"{path}: holds one array without a name, an .npz file is required")
        with file:
            feed = dict(file)
    except (OSError, ValueError, AttributeError) as error:
        raise InputError(f"{path}: cannot be read as .npz inputs: {error}") from None
    inputs = required_inputs(model)
    names = [i.name for i in inputs]
    if sorted(feed) != sorted(names):
        raise InputError(f"{path} holds {sorted(feed)}, the model's inputs are {sorted(names)}")
    return {i.name: _named_type(feed[i.name], i) for i in inputs}


def _named_type(array: npt.NDArray[Any], info: onnx.ValueInfoProto) -> npt.NDArray[Any]:
    """An array whose type NumPy's files have no name for (bfloat16 comes back as raw bytes) in the model's type."""
    if array.dtype.kind != "V" or not info.type.HasField("tensor_type"):
        return array
    dtype = onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
    return array.view(dtype) if dtype.itemsize == array.dtype.itemsize else array


def make_feed(model: onnx.ModelProto, dims: Mapping[str, int], seed: int = 0) -> Feed:
    """Random values for each input: floats from a normal distribution, masks of ones, other integers 0 or 1.

    ``dims`` gives sizes of free dimensions by symbol (``N``) or by input and axis (``x:2``); the others get 1 for
    the first axis, 224 for the last two of four, 128 elsewhere. Raises InputError for an unknown entry of ``dims``,
    and for inputs that are no tensors.
    """
    unused = set(dims)
    feed = {}
    for info in required_inputs(model):
        if not info.type.HasField("tensor_type"):
            raise InputError(f"input {info.name!r} is no tensor: give --inputs FILE.npz")
        shape = _shape(info, dims, unused)
        if math.prod(shape) > MAX_ELEMENTS:
            raise InputError(f"input {info.name!r} of shape {shape} fits into no memory")
        feed[info.name] = _values(info, shape, np.random.default_rng([seed, zlib.crc32(info.name.encode())]))
    if unused:
        raise InputError(f"no input has the dimension {sorted(unused)[0]!r}")
    return feed


def _shape(info: onnx.ValueInfoProto, dims: Mapping[str, int], unused: set[str]) -> list[int]:
    tensor, shape = info.type.tensor_type, []
    rank = len(tensor.shape.dim)
    for axis, dim in enumerate(tensor.shape.dim):
        keys = [k for k in (f"{info.name}:{axis}", dim.dim_param) if k and k in dims]
        unused.difference_update(keys)
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            if keys and dims[keys[0]] != dim.dim_value:
                raise InputError(f"{keys[0]}={dims[keys[0]]}: this dimension is {dim.dim_value} in the model")
            shape.append(dim.dim_value)
        elif keys:
            shape.append(dims[keys[0]])
        else:
            kind = "batch" if axis == 0 else "image" if rank == 4 and axis >= 2 else "length"
            shape.append(_DEFAULT_SIZES[kind])
    return shape


def _values(info: onnx.ValueInfoProto, shape: Sequence[int], rng: np.random.Generator) -> npt.NDArray[Any]:
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
    except KeyError:
        raise InputError(f"input {info.name!r} has no element type") from None
    if dtype.kind in "OUS":
        raise InputError(f"input {info.name!r} holds strings: give --inputs FILE.npz")
    if dtype == np.bool_ or "mask" in info.name.lower():
        return np.ones(shape, dtype)
    if dtype.kind in "iu":
        return rng.integers(0, 2, shape).astype(dtype)
    return rng.standard_normal(shape, np.float32).astype(dtype)
