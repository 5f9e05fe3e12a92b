"""Inputs and outputs at fixed device addresses, for any session: ours or stock ONNX Runtime's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from cuvil_onnx.runtime import dtypes
from cuvil_onnx.runtime.cuda_driver import DeviceMemory, Stream, context

Array = npt.NDArray[Any]


class BoundIO:
    """A binding of a session to device memory of its own, filled with ``feed``.

    ``shapes`` are the outputs with shape and type, as a first run returned them. Inputs that ONNX Runtime wants on
    the host are bound there, as any careful user would.
    """

    def __init__(self, session: Any, feed: Mapping[str, Array], outputs: Mapping[str, Array], device_id: int = 0):
        self.binding = session.io_binding()
        self._stream = Stream(context(device_id))
        self._feed = dict(feed)
        self._kept: list[DeviceMemory] = []
        self._outputs: dict[str, tuple[DeviceMemory, Array]] = {}
        infos = zip(session.get_inputs(), session.get_input_memory_infos(), strict=True)
        on_host = {arg.name for arg, info in infos if info.name.lower() == "cpu"}
        with self._stream.context:
            for name, array in self._feed.items():
                if name in on_host:
                    self.binding.bind_cpu_input(name, array)
                else:
                    memory = self._memory(array)
                    self._stream.copy_to_device(memory.address, array.ctypes.data, array.nbytes)
                    self.binding.bind_input(name, "cuda", device_id, *_place(array, memory))
            for name, array in outputs.items():
                memory = self._memory(array)
                self._outputs[name] = (memory, np.empty_like(array))
                self.binding.bind_output(name, "cuda", device_id, *_place(array, memory))
            self._stream.synchronize()

    def _memory(self, array: Array) -> DeviceMemory:
        memory = DeviceMemory(self._stream.context, array.nbytes)
        self._kept.append(memory)
        return memory

    def read(self) -> dict[str, Array]:
        """The outputs of the last run."""
        with self._stream.context:
            for memory, host in self._outputs.values():
                self._stream.copy_to_host(host.ctypes.data, memory.address, host.nbytes)
            self._stream.synchronize()
        return {name: host.copy() for name, (_, host) in self._outputs.items()}


def _place(array: Array, memory: DeviceMemory) -> tuple[int, list[int], int]:
    return dtypes.BY_NUMPY[array.dtype].onnx, list(array.shape), memory.address
