"""The model's inputs, and the checks that every run makes before anything executes.

The messages are worded as ONNX Runtime words them, and raised as its classes, so that code written for
``onnxruntime.InferenceSession`` meets nothing new.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

from cuvil_onnx.runtime import dtypes
from cuvil_onnx.runtime.cuda_driver import Stream
from cuvil_onnx.runtime.tensors import Array, DeviceTensor, device_ordinal, device_tensor, host_array, on_device

Feed = Array | DeviceTensor


def _invalid(text: str) -> Exception:
    error: Exception = InvalidArgument(f"[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : {text}")
    return error


@dataclass(frozen=True)
class Slot:
    """One input or output of the model. ``memory_info``: where ONNX Runtime wants it, None when it cannot tell."""

    name: str
    type: str
    shape: tuple[int | str | None, ...]
    memory_info: Any

    @functools.cached_property
    def on_host(self) -> bool:
        return self.memory_info is not None and self.memory_info.name.lower() == "cpu"

    @functools.cached_property
    def element(self) -> dtypes.ElementType | None:
        return dtypes.of_ort(self.type)

    @functools.cached_property
    def fixed_dims(self) -> tuple[tuple[int, int], ...]:
        """Axis and size of the dimensions that are numbers."""
        return tuple((i, d) for i, d in enumerate(self.shape) if isinstance(d, int))

    @property
    def fixed_shape(self) -> bool:
        return len(self.fixed_dims) == len(self.shape)


class Signature:
    """Inputs and outputs of a session, in the model's order.

    Optional inputs and overridable initializers may be left out of a feed.
    """

    def __init__(self, session: Any) -> None:
        self.inputs = _slots(session.get_inputs(), session, "get_input_memory_infos")
        self.outputs = _slots(session.get_outputs(), session, "get_output_memory_infos")
        self.overridable = {arg.name: Slot(arg.name, arg.type, _shape(arg), None) for arg in _overridable(session)}
        self.by_name = {**{slot.name: slot for slot in self.inputs}, **self.overridable}
        self.output_names = [slot.name for slot in self.outputs]
        self._required = [slot.name for slot in self.inputs if not slot.type.startswith("optional")]

    @functools.cached_property
    def plain(self) -> bool:
        """Whether all inputs and outputs are tensors that fixed buffers can hold."""
        return all(slot.element is not None for slot in (*self.inputs, *self.outputs))

    @functools.cached_property
    def static(self) -> bool:
        """Whether every input has one shape only."""
        return all(slot.fixed_shape for slot in self.inputs)

    def check_output_names(self, names: Sequence[str] | None) -> list[str]:
        """The wanted outputs, all when ``names`` is empty; raises InvalidArgument for an unknown one."""
        if isinstance(names, str):
            raise TypeError(f"output_names must be a sequence of names such as [{names!r}], not a string")
        wanted = [] if names is None else list(names)
        for name in wanted:
            if name not in self.output_names:
                raise _invalid(f"Invalid output name:{name}. The model's outputs are {self.output_names}")
        return wanted or self.output_names

    def check(self, feed: Mapping[str, Any], stream: Stream | None) -> dict[str, Feed]:
        """The feed as arrays and device tensors, each of the model's element type, rank and fixed dimensions.

        Raises ValueError for a missing input, InvalidArgument for an unknown name or a wrong type or shape.
        Inputs that are no tensors (strings, sequences, optionals) are left to ONNX Runtime's own checks.
        """
        if not isinstance(feed, Mapping):
            raise TypeError(f"input_feed must map input names to values, got {type(feed).__name__}")
        missing = [name for name in self._required if name not in feed]
        if missing:
            raise ValueError(f"Required inputs ({missing}) are missing from input feed ({list(feed)}).")
        return {name: self._check_one(name, value, stream) for name, value in feed.items()}

    def _check_one(self, name: str, value: Any, stream: Stream | None) -> Feed:
        slot = self.by_name.get(name)
        if slot is None:
            raise _invalid(f"Invalid input name: {name}. The model's inputs are {[s.name for s in self.inputs]}")
        element = slot.element
        if element is None:
            return value  # type: ignore[no-any-return]
        tensor: Feed
        if type(value) is np.ndarray:  # the common case, first because replay is a matter of microseconds
            tensor = value if value.flags.c_contiguous else value.copy()
        elif on_device(value) and stream is not None:
            ordinal = device_ordinal(value)
            if ordinal not in (None, stream.context.ordinal):
                raise _invalid(f"input {name} lies on GPU {ordinal}, the session runs on GPU {stream.context.ordinal}")
            tensor = device_tensor(name, value, stream)
        elif on_device(value) and not hasattr(value, "numpy"):
            raise _invalid(f"input {name} lies on a GPU, the session runs on the CPU")
        else:
            try:
                tensor = host_array(value, element.numpy)
            except (TypeError, ValueError, OverflowError) as error:
                raise _invalid(f"input {name} is no tensor of {slot.type}: {error}") from None
        if tensor.dtype != element.numpy:
            raise _invalid(
                f"Unexpected input data type for input: {name}. Actual: ({dtypes.ort_name(tensor.dtype)}) , "
                f"expected: ({slot.type})"
            )
        _check_shape(slot, tensor.shape)
        return tensor


def _check_shape(slot: Slot, shape: tuple[int, ...]) -> None:
    if not slot.shape and len(shape):
        # ONNX Runtime reports both "scalar" and "unknown rank" as an empty shape, and so checks neither.
        return
    advice = "Please fix either the inputs/outputs or the model."
    if len(shape) != len(slot.shape):
        raise _invalid(f"Invalid rank for input: {slot.name} Got: {len(shape)} Expected: {len(slot.shape)} {advice}")
    wrong = [f" index: {i} Got: {shape[i]} Expected: {want}" for i, want in slot.fixed_dims if shape[i] != want]
    if wrong:
        lines = "\n".join(wrong)
        raise _invalid(f"Got invalid dimensions for input: {slot.name} for the following indices\n{lines}\n {advice}")


def _shape(arg: Any) -> tuple[int | str | None, ...]:
    return tuple(d if isinstance(d, int) and d >= 0 else d if isinstance(d, str) else None for d in arg.shape or ())


def _overridable(session: Any) -> list[Any]:
    return list(session.get_overridable_initializers())


def _slots(args: Any, session: Any, infos: str) -> list[Slot]:
    try:
        places = list(getattr(session, infos)())
    except Exception:  # an older release has no such method; a newer one raises its own classes
        places = []
    if len(places) != len(args):
        places = [None] * len(args)
    return [Slot(a.name, a.type, _shape(a), place) for a, place in zip(args, places, strict=True)]


def value_key(array: Array) -> tuple[Any, ...]:
    """A host array's value as part of a graph's key: replay would not see a changed one."""
    return (array.shape, array.dtype.char, np.ascontiguousarray(array).tobytes())
