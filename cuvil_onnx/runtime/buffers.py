"""The fixed buffers of one captured graph, and the copies into and out of them.

Replay reads and writes the addresses seen while capturing, whatever is bound later. So each graph owns its input and
output tensors for life, and pinned host memory beside each so that copies overlap with the host.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import onnxruntime

from cuvil_onnx.runtime.cuda_driver import DeviceMemory, PinnedBuffer, Stream
from cuvil_onnx.runtime.signature import Slot
from cuvil_onnx.runtime.tensors import Array, DeviceTensor

# Above this, pinned staging would double the host memory of a tensor to hide a copy the driver already pipelines.
_STAGING_LIMIT = 64 << 20


def fresh_ortvalue(slot: Slot, shape: tuple[int, ...], device_id: int) -> Any:
    """A new ``OrtValue`` on the device, from the provider's allocator.

    Asked for by the output's own memory info: "cuda" alone would be the built-in CUDA provider's allocator in GPU
    builds of ONNX Runtime, which needs libraries this package does not.
    """
    element = slot.element
    assert element is not None
    kind: Any = element.numpy.type if element.ort_has_numpy else element.onnx
    make = onnxruntime.OrtValue.ortvalue_from_shape_and_type
    if slot.memory_info is not None:
        with contextlib.suppress(TypeError):  # a release without the parameter
            return make(list(shape), kind, memory_info=slot.memory_info)
    return make(list(shape), kind, "cuda", device_id)


class DeviceBuffer:
    """The tensor of an input or output at a fixed device address, bound as ``slot.name``."""

    def __init__(self, slot: Slot, shape: tuple[int, ...], stream: Stream) -> None:
        assert slot.element is not None
        self.slot, self.shape, self.dtype = slot, shape, slot.element.numpy
        self._stream = stream
        self.nbytes = int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize
        self._memory = DeviceMemory(stream.context, self.nbytes)
        self._staging: Array | None = None
        self._staging_address = 0

    def _place(self) -> tuple[Any, ...]:
        assert self.slot.element is not None
        kind = self.slot.element.onnx
        return ("cuda", self._stream.context.ordinal, kind, list(self.shape), self._memory.address)

    def bind_input(self, binding: Any) -> None:
        binding.bind_input(self.slot.name, *self._place())

    def bind_output(self, binding: Any) -> None:
        binding.bind_output(self.slot.name, *self._place())

    def _host(self) -> Array:
        """The staging array: pinned, or pageable above the limit; made on first use."""
        if self._staging is None:
            if self.nbytes <= _STAGING_LIMIT:
                self._staging = PinnedBuffer(self._stream.context, self.nbytes).array(self.dtype, self.shape)
            else:
                self._staging = np.empty(self.shape, self.dtype)
            self._staging_address = self._staging.ctypes.data
        return self._staging

    def load(self, tensor: Array | DeviceTensor) -> None:
        """Enqueues the copy of a new value. The staging memory is free again once the run is synchronised."""
        if isinstance(tensor, DeviceTensor):
            if tensor.address != self._memory.address:
                self._stream.copy_on_device(self._memory.address, tensor.address, self.nbytes)
            return
        if self.nbytes <= _STAGING_LIMIT:
            np.copyto(self._host(), tensor)
            address = self._staging_address
        else:
            address = tensor.ctypes.data
        self._stream.copy_to_device(self._memory.address, address, self.nbytes)

    def start_read(self) -> Array:
        """Enqueues the copy to the host and returns the staging array, valid after the stream is synchronised."""
        host = self._host()
        self._stream.copy_to_host(self._staging_address, self._memory.address, self.nbytes)
        return host

    def start_clone(self) -> Any:
        """Enqueues the copy into a fresh device ``OrtValue``, valid after the stream is synchronised."""
        fresh = fresh_ortvalue(self.slot, self.shape, self._stream.context.ordinal)
        self._stream.copy_on_device(fresh.data_ptr(), self._memory.address, self.nbytes)
        return fresh


class HostBuffer:
    """A tensor that ONNX Runtime wants in host memory (a shape, an axis); constant for the life of a graph."""

    def __init__(self, slot: Slot, array: Array) -> None:
        self.slot = slot
        self._array = array.copy()
        self._ortvalue = onnxruntime.OrtValue.ortvalue_from_numpy(self._array)

    def bind_input(self, binding: Any) -> None:
        binding.bind_ortvalue_input(self.slot.name, self._ortvalue)

    def bind_output(self, binding: Any) -> None:
        binding.bind_ortvalue_output(self.slot.name, self._ortvalue)

    def read(self) -> Array:
        return self._array


Buffer = DeviceBuffer | HostBuffer
