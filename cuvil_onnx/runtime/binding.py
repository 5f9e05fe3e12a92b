"""I/O binding by the caller, captured too when every bound address is fixed and known.

The binding records the addresses given to it. They are the key of the captured graph, so that a graph can only be
replayed while exactly these addresses are bound: rebinding leads to another key, never to a stale result.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import numpy as np
import onnxruntime

from cuvil_onnx.runtime import dtypes
from cuvil_onnx.runtime.capture import Capture
from cuvil_onnx.runtime.eager import eager_run_options
from cuvil_onnx.runtime.graph_cache import GraphCache
from cuvil_onnx.runtime.graph_runner import ALWAYS, AUTO, NotCapturable
from cuvil_onnx.runtime.signature import Signature

_Place = tuple[int, tuple[int, ...], str]


class IOBinding(onnxruntime.IOBinding):  # type: ignore[misc]
    """``onnxruntime.IOBinding`` that knows what is bound where."""

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        self._input_places: dict[str, _Place | None] = {}
        self._output_places: dict[str, _Place | None] = {}
        self._key: Hashable | None = None

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        super().bind_cpu_input(name, arr_on_cpu)
        self._input_places[name] = None
        self._key = None

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Any, buffer_ptr: int
    ) -> None:
        super().bind_input(name, device_type, device_id, element_type, shape, buffer_ptr)
        self._input_places[name] = _place(device_type, buffer_ptr, shape, element_type)
        self._key = None

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        super().bind_ortvalue_input(name, ortvalue)
        self._input_places[name] = _ortvalue_place(ortvalue)
        self._key = None

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Any = None,
        buffer_ptr: int | None = None,
    ) -> None:
        super().bind_output(name, device_type, device_id, element_type, shape, buffer_ptr)
        self._output_places[name] = _place(device_type, buffer_ptr, shape, element_type) if buffer_ptr else None
        self._key = None

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        super().bind_ortvalue_output(name, ortvalue)
        self._output_places[name] = _ortvalue_place(ortvalue)
        self._key = None

    def clear_binding_inputs(self) -> None:
        super().clear_binding_inputs()
        self._input_places.clear()
        self._key = None

    def clear_binding_outputs(self) -> None:
        super().clear_binding_outputs()
        self._output_places.clear()
        self._key = None

    def key(self) -> Hashable:
        """Addresses, shapes and types of everything bound; raises NotCapturable unless all of them are fixed.

        Made once for a state of the binding: replay is a matter of microseconds.
        """
        if self._key is None:
            self._key = self._make_key()
        return self._key

    def _make_key(self) -> Hashable:
        for name, place in (*self._input_places.items(), *self._output_places.items()):
            if place is None:
                raise NotCapturable(f"{name!r} is not bound to a fixed device address")
        # Warm-ups run the model several times: an output written over an input would be applied more than once.
        inputs = [_extent(place) for place in self._input_places.values() if place]
        for name, place in self._output_places.items():
            first, last = _extent(place) if place else (0, 0)
            if any(first < end and start < last for start, end in inputs):
                raise NotCapturable(f"output {name!r} is bound to the memory of an input")
        return _Key((tuple(sorted(self._input_places.items())), tuple(sorted(self._output_places.items()))))


class _Key:
    """A tuple that hashes itself once."""

    __slots__ = ("_hash", "_parts")

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self._parts, self._hash = parts, hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Key) and self._parts == other._parts


def _place(device_type: str, address: int, shape: Any, element_type: Any) -> _Place | None:
    return None if device_type == "cpu" else (int(address), tuple(shape), _kind(element_type))


def _kind(element_type: Any) -> str:
    """ONNX Runtime's name of an element type given as NumPy's or as ONNX's number."""
    if isinstance(element_type, int):
        found = next((t for t in dtypes.TYPES if t.onnx == element_type), None)
    else:
        found = dtypes.BY_NUMPY.get(np.dtype(element_type))
    return f"tensor({found.ort})" if found else str(element_type)


def _extent(place: _Place) -> tuple[int, int]:
    """The first address of a place and the one behind its last."""
    address, shape, kind = place
    element = dtypes.of_ort(kind)
    item_size = element.numpy.itemsize if element else 8  # of a type unknown here: none is wider
    return address, address + math.prod(shape) * item_size


def _ortvalue_place(value: Any) -> _Place | None:
    if not value.is_tensor() or value.device_name() == "cpu":
        return None
    return (value.data_ptr(), tuple(value.shape()), value.data_type())


class BindingRunner:
    """Runs a caller's binding: eagerly the first time (policy "auto"), captured and replayed when it comes again."""

    def __init__(
        self, session: Any, signature: Signature, cache: GraphCache[Any], policy: str, capture: Capture
    ) -> None:
        self._session, self._cache, self._policy, self._make_capture = session, cache, policy, capture.capture
        self._eager = eager_run_options()
        # ONNX Runtime copies these when they are bound or after the run: outside of a graph, so never on replay.
        on_host = [slot.name for slot in (*signature.inputs, *signature.outputs) if slot.on_host]
        self._never = f"{on_host[0]!r} lives on the host" if on_host else None

    def run(self, binding: IOBinding) -> None:
        """Runs with outputs left where they are bound; ONNX Runtime synchronises before it returns."""
        try:
            if self._never is not None:
                raise NotCapturable(self._never)
            key = binding.key()
        except NotCapturable as refusal:
            if self._policy == ALWAYS:
                raise RuntimeError(f"cuda_graph='always': {refusal}") from None
            self._cache.refuse(str(refusal), str(refusal))
            return self._run(binding, self._eager)
        replay = self._cache.get(key)
        if replay is not None:
            return replay(binding)  # type: ignore[no-any-return]
        if self._cache.refusal(key) is not None or (self._policy == AUTO and self._cache.first_sight(key)):
            return self._run(binding, self._eager)
        return self._capture(key, binding)

    def _capture(self, key: Hashable, binding: IOBinding) -> None:
        graph_id = self._cache.make_room()
        try:
            replay = self._make_capture(graph_id, binding, synchronize=True)
        except Exception as error:
            self._cache.abandon(graph_id)
            if self._policy == ALWAYS:
                raise
            self._cache.refuse(key, " ".join(str(error).split()))
            return self._run(binding, self._eager)
        return self._cache.put(key, graph_id, replay)

    def _run(self, binding: IOBinding, options: Any) -> None:
        self._session.run_with_iobinding(binding, options)
