"""One run without a captured graph, with inputs and outputs on either side."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime

from cuvil_onnx.runtime import dtypes
from cuvil_onnx.runtime.cuda_driver import PinnedBuffer, Stream
from cuvil_onnx.runtime.signature import Feed, Signature
from cuvil_onnx.runtime.tensors import Array, DeviceTensor, ortvalue_array

EAGER_GRAPH_ID = "-1"


def eager_run_options() -> Any:
    """Run options that keep a run out of capture.

    They are always passed: a run without ``gpu_graph_id`` costs 40-70 us, ORT throws and catches an exception for it.
    """
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", EAGER_GRAPH_ID)
    return options


def config_entry(options: Any, name: str) -> str | None:
    """The value of a config entry of session or run options; None when there is none."""
    get = getattr(options, "get_run_config_entry", None) or options.get_session_config_entry
    try:
        return str(get(name))
    except Exception:  # no such entry; the class differs between releases
        return None


def without_capture(run_options: Any) -> Any:
    """Adds ``gpu_graph_id=-1`` unless the caller chose an id."""
    if not config_entry(run_options, "gpu_graph_id"):
        run_options.add_run_config_entry("gpu_graph_id", EAGER_GRAPH_ID)
    return run_options


class EagerRunner:
    """Runs a session eagerly. ``stream`` is the provider's stream, None for a session on the CPU."""

    def __init__(self, session: Any, signature: Signature, stream: Stream | None) -> None:
        self._session, self._signature, self._stream = session, signature, stream
        self._options = eager_run_options()
        slots = (*signature.inputs, *signature.outputs)
        self._numpy_enough = all(slot.element is None or slot.element.ort_has_numpy for slot in slots)

    def run(
        self, names: list[str], feed: Mapping[str, Feed], *, to_device: bool, run_options: Any | None = None
    ) -> list[Any]:
        """The outputs ``names``: fresh arrays, or fresh ``OrtValue`` objects with ``to_device``."""
        options = run_options if run_options is not None else self._options
        on_device = any(isinstance(t, DeviceTensor) for t in feed.values())
        if self._numpy_enough and not on_device and not to_device:
            return list(self._session.run(names, dict(feed), options))
        return self._run_bound(names, feed, to_device, options)

    def _run_bound(self, names: list[str], feed: Mapping[str, Feed], to_device: bool, options: Any) -> list[Any]:
        binding = self._session.io_binding()
        for name, tensor in feed.items():
            self._bind(binding, name, tensor)
        outputs = {slot.name: slot for slot in self._signature.outputs}
        distinct = list(dict.fromkeys(names))  # a second binding of a name would take the first one's place
        for name in distinct:
            if self._stream is None or outputs[name].on_host or outputs[name].element is None:
                binding.bind_output(name, "cpu")
            else:
                binding.bind_output(name, "cuda", self._stream.context.ordinal)
        self._session.run_with_iobinding(binding, options)
        values = dict(zip(distinct, binding.get_outputs(), strict=True))
        if not to_device:
            values = {name: self._to_host(value) for name, value in values.items()}
        return [values[name] for name in names]

    def _bind(self, binding: Any, name: str, tensor: Feed) -> None:
        if isinstance(tensor, DeviceTensor):
            kind = dtypes.BY_NUMPY[tensor.dtype].onnx
            binding.bind_input(name, "cuda", tensor.device_id, kind, list(tensor.shape), tensor.address)
        elif isinstance(tensor, np.ndarray) and tensor.dtype in dtypes.BY_NUMPY:
            kind = dtypes.BY_NUMPY[tensor.dtype].onnx
            binding.bind_input(name, "cpu", 0, kind, list(tensor.shape), tensor.ctypes.data)
        else:
            binding.bind_cpu_input(name, tensor)

    def _to_host(self, value: Any) -> Array | Any:
        if not value.is_tensor():
            return value
        element = dtypes.of_ort(value.data_type())
        if element is None or element.ort_has_numpy or self._stream is None or value.device_name() == "cpu":
            return ortvalue_array(value)
        shape = tuple(value.shape())
        staging = PinnedBuffer(self._stream.context, value.tensor_size_in_bytes())
        self._stream.copy_to_host(staging.address, value.data_ptr(), staging.size)
        self._stream.synchronize()
        return staging.array(element.numpy, shape).copy()
