"""Runs through captured CUDA graphs: one graph for each combination of input shapes and types.

The first run of a key is an eager one: it gives the caller's result and shows the output shapes, for which fixed
buffers are then made. Capturing executes the model a few times more (ONNX Runtime's warm-ups), on the same inputs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnxruntime

from cuvil_onnx.runtime.buffers import Buffer, DeviceBuffer, HostBuffer
from cuvil_onnx.runtime.capture import Capture, Replay
from cuvil_onnx.runtime.cuda_driver import Stream
from cuvil_onnx.runtime.eager import EagerRunner
from cuvil_onnx.runtime.graph_cache import GraphCache
from cuvil_onnx.runtime.signature import Feed, Signature, value_key
from cuvil_onnx.runtime.tensors import Array, DeviceTensor

# An input that ONNX Runtime wants on the host decides shapes or axes: its value is part of the key. A larger one is
# no shape, and hashing it on every run would cost more than it saves.
_MAX_HOST_VALUE_BYTES = 512

AUTO, ALWAYS, NEVER = "auto", "always", "never"
POLICIES = (AUTO, ALWAYS, NEVER)


class NotCapturable(Exception):
    """Why a feed cannot run through a captured graph."""


@dataclass
class _Graph:
    """A captured graph with its buffers, inputs in the model's order, outputs by name."""

    binding: Any
    inputs: list[tuple[str, Buffer]]
    outputs: dict[str, Buffer]
    replay: Replay | None = None


class GraphRunner:
    """Chooses between replay, capture and an eager run; the caller holds the session's lock.

    ``session`` is the ONNX Runtime session; ``capture`` makes its graphs.
    """

    def __init__(
        self,
        session: Any,
        signature: Signature,
        stream: Stream,
        eager: EagerRunner,
        cache: GraphCache[Any],
        policy: str,
        capture: Capture,
    ) -> None:
        self._make_capture = capture.capture
        self._session, self._signature, self._stream, self._eager = session, signature, stream, eager
        self._policy = policy
        self._cache = cache

    def run(self, names: list[str], feed: Mapping[str, Feed], *, to_device: bool, reuse_outputs: bool) -> list[Any]:
        """The outputs ``names`` for a checked feed."""
        try:
            key = self._key(feed)
        except NotCapturable as refusal:
            if self._policy == ALWAYS:
                raise RuntimeError(f"cuda_graph='always': {refusal}") from None
            self._cache.refuse(str(refusal), str(refusal))
            return self._eager.run(names, feed, to_device=to_device)
        graph = self._cache.get(key)
        if graph is not None:
            return self._replay(graph, names, feed, to_device, reuse_outputs)
        if self._cache.refusal(key) is not None:
            return self._eager.run(names, feed, to_device=to_device)
        # With "auto" a shape that may never come again is not worth a capture; a model that has one shape only is.
        if self._policy == AUTO and not self._signature.static and self._cache.first_sight(key):
            return self._eager.run(names, feed, to_device=to_device)
        return self._capture(key, names, feed, to_device)

    def _key(self, feed: Mapping[str, Feed]) -> Hashable:
        """Shapes and types of the inputs in the model's order, and the values of those that live on the host."""
        if len(feed) != len(self._signature.inputs):
            raise NotCapturable("the feed overrides an initializer or leaves out an optional input")
        parts: list[Hashable] = []
        for slot in self._signature.inputs:
            tensor = feed[slot.name]
            if 0 in tensor.shape:
                raise NotCapturable(f"input {slot.name!r} has no element")
            if not slot.on_host:
                parts.append((tensor.shape, tensor.dtype.char))
            elif isinstance(tensor, DeviceTensor) or tensor.nbytes > _MAX_HOST_VALUE_BYTES:
                raise NotCapturable(f"input {slot.name!r} is read by the CPU and is too large, or on the device")
            else:
                parts.append(value_key(tensor))
        return tuple(parts)

    def _capture(self, key: Hashable, names: list[str], feed: Mapping[str, Feed], to_device: bool) -> list[Any]:
        everything = self._signature.output_names
        results = dict(zip(everything, self._eager.run(everything, feed, to_device=to_device), strict=True))
        graph_id = self._cache.make_room()
        try:
            graph = self._make_graph(feed, results)
            for name, buffer in graph.inputs:
                if isinstance(buffer, DeviceBuffer):
                    buffer.load(feed[name])
            # The copies out are on the same stream, so one synchronisation after them serves everything.
            graph.replay = self._make_capture(graph_id, graph.binding, synchronize=False)
            self._stream.synchronize()
            self._cache.put(key, graph_id, graph)
        except BaseException as error:
            # The eager run above has already succeeded, so whatever fails here concerns capture alone. Nothing of it
            # stays: no copy that still reads the caller's memory, and nothing under the id.
            self._stream.synchronize()
            self._cache.abandon(graph_id)
            if self._policy == ALWAYS or not isinstance(error, Exception):
                raise
            self._cache.refuse(key, " ".join(str(error).split()))
        return [results[name] for name in names]

    def _make_graph(self, feed: Mapping[str, Feed], results: Mapping[str, Any]) -> _Graph:
        binding = self._session.io_binding()
        inputs: list[tuple[str, Buffer]] = []
        for slot in self._signature.inputs:
            tensor = feed[slot.name]
            buffer: Buffer = (
                HostBuffer(slot, tensor)
                if slot.on_host and isinstance(tensor, np.ndarray)
                else DeviceBuffer(slot, tensor.shape, self._stream)
            )
            buffer.bind_input(binding)
            inputs.append((slot.name, buffer))
        outputs: dict[str, Buffer] = {}
        for slot in self._signature.outputs:
            value, element = results[slot.name], slot.element
            assert element is not None  # the session has no GraphRunner unless all are tensors
            shape = tuple(value.shape() if callable(value.shape) else value.shape)
            if 0 in shape:
                raise NotCapturable(f"output {slot.name!r} has no element")
            buffer = (
                HostBuffer(slot, np.empty(shape, element.numpy))
                if slot.on_host
                else DeviceBuffer(slot, shape, self._stream)
            )
            buffer.bind_output(binding)
            outputs[slot.name] = buffer
        return _Graph(binding, inputs, outputs)

    def _replay(
        self, graph: _Graph, names: list[str], feed: Mapping[str, Feed], to_device: bool, reuse_outputs: bool
    ) -> list[Any]:
        try:
            return self._replay_ordered(graph, names, feed, to_device, reuse_outputs)
        except BaseException:
            # Staging memory may still be read by a copy in flight; the next run is to find it free.
            self._stream.synchronize()
            raise

    def _replay_ordered(
        self, graph: _Graph, names: list[str], feed: Mapping[str, Feed], to_device: bool, reuse_outputs: bool
    ) -> list[Any]:
        for name, buffer in graph.inputs:
            if isinstance(buffer, DeviceBuffer):
                buffer.load(feed[name])
        assert graph.replay is not None
        graph.replay(graph.binding)
        pending = [self._start_output(graph, name, to_device, reuse_outputs) for name in names]
        self._stream.synchronize()
        return [_finish(value, reuse_outputs) for value in pending]

    def _start_output(self, graph: _Graph, name: str, to_device: bool, reuse_outputs: bool) -> Any:
        buffer = graph.outputs[name]
        if isinstance(buffer, HostBuffer):
            return onnxruntime.OrtValue.ortvalue_from_numpy(buffer.read().copy()) if to_device else buffer.read()
        if not to_device:
            return buffer.start_read()
        if not reuse_outputs:
            return buffer.start_clone()
        value = graph.binding.get_outputs()[self._signature.output_names.index(name)]
        value.owner = buffer  # the OrtValue is a view of the buffer's memory
        return value


def _finish(value: Array | Any, reuse_outputs: bool) -> Any:
    """The value to hand out: a copy of the staging array unless the caller asked for the array itself."""
    return value.copy() if isinstance(value, np.ndarray) and not reuse_outputs else value
