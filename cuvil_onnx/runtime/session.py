"""``cuvil_onnx.InferenceSession``: ONNX Runtime's session that owns what CUDA Graph replay needs."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnxruntime

from cuvil_onnx.runtime import providers as provider_arguments
from cuvil_onnx.runtime.binding import BindingRunner, IOBinding
from cuvil_onnx.runtime.cuda_driver import Stream
from cuvil_onnx.runtime.eager import EAGER_GRAPH_ID, EagerRunner, config_entry, without_capture
from cuvil_onnx.runtime.graph_cache import GraphCache
from cuvil_onnx.runtime.graph_runner import ALWAYS, AUTO, NEVER, POLICIES, GraphRunner
from cuvil_onnx.runtime.model_source import open_model
from cuvil_onnx.runtime.opening import Opened, give_back_stream, open_session
from cuvil_onnx.runtime.placement import Placement, assignment
from cuvil_onnx.runtime.providers import Providers, flag
from cuvil_onnx.runtime.registration import EP_NAME
from cuvil_onnx.runtime.signature import Signature
from cuvil_onnx.runtime.tensors import DeviceTensor

_RECORD_PLACEMENT = "session.record_ep_graph_assignment_info"
_OUTPUTS = (None, "numpy", "device")


class InferenceSession:
    """Runs a model on CuvilExecutionProvider with CUDA Graph; everything else is ``onnxruntime.InferenceSession``.

    Parameters
    ----------
    model: a path, serialized bytes, ``onnx.ModelProto``, ``onnx_graphsurgeon.Graph`` or the result of
        ``cuvil_onnx.optimize``; also accepted under ONNX Runtime's name, ``path_or_bytes``.
    sess_options, providers, provider_options: as for ONNX Runtime. ``providers`` defaults to CuvilExecutionProvider,
        then the CPU; without a usable GPU the session warns once, with the reason, and runs on the rest. With
        onnxruntime-gpu, its CUDA provider comes between them for a model that leaves more than shape arithmetic to
        the CPU.
    cuda_graph: ``"auto"`` captures a combination of input shapes and types when it comes for the second time (at once
        for a model that has one only), ``"always"`` at first use, and raises where capture is impossible, ``"never"``
        runs eagerly. Capturing executes the model several times on the same inputs.
    output: what ``run`` returns: ``"numpy"``, ``"device"`` (``OrtValue`` on the GPU), or None for device outputs
        exactly when an input lay on the device.
    reuse_outputs: return the session's own buffers instead of copies; the next run with these shapes overwrites them.
    max_captured_graphs: the least recently used graph is released beyond this many.
    kwargs: passed on to ``onnxruntime.InferenceSession``.

    Calls from several threads are serialised. Raises ONNX Runtime's own errors for a model it cannot load, and
    never rebuilds itself on other providers after a failure.
    """

    def __init__(
        self,
        model: Any = None,
        sess_options: Any | None = None,
        providers: provider_arguments.ProviderArgument = None,
        provider_options: Sequence[dict[Any, Any]] | None = None,
        *,
        cuda_graph: str = AUTO,
        output: str | None = None,
        reuse_outputs: bool = False,
        max_captured_graphs: int = 16,
        **kwargs: Any,
    ) -> None:
        if cuda_graph not in POLICIES:
            raise ValueError(f"cuda_graph must be one of {', '.join(POLICIES)}, got {cuda_graph!r}")
        _check_output(output)
        self._output, self._reuse_outputs = output, reuse_outputs
        self._lock = threading.RLock()
        self._stream: Stream | None = None
        self._opened: Opened | None = None
        self._closed = False
        self._graphs: GraphRunner | None = None
        self._bindings: BindingRunner | None = None
        self._cache: GraphCache[Any] = GraphCache(max_captured_graphs, _releaser(self))
        model = kwargs.pop("path_or_bytes", model)
        self._kwargs = {**kwargs, "enable_fallback": 0}
        self._sess_options = onnxruntime.SessionOptions() if sess_options is None else sess_options
        if config_entry(self._sess_options, _RECORD_PLACEMENT) != "1":
            self._sess_options.add_session_config_entry(_RECORD_PLACEMENT, "1")

        # The method is missing before ONNX Runtime 1.23, where options cannot hold providers either.
        if providers is None and getattr(self._sess_options, "has_providers", bool)():
            resolved = Providers([], [], None)  # the caller chose devices on the options: nothing to add
        else:
            no_cpu = config_entry(self._sess_options, "session.disable_cpu_ep_fallback") == "1"
            resolved = provider_arguments.resolve(providers, provider_options, no_cpu=no_cpu)
        self._cpu_reason = resolved.fallback or ""
        ours = resolved.ours
        with open_model(model) as source:
            self._opened = open_session(
                lambda chosen: self._create(source, chosen),
                resolved,
                capture=cuda_graph != NEVER and (ours is None or flag(ours, "enable_cuda_graph", True)),
                max_graphs=self._cache.limit,
                may_add_cuda=providers is None,
            )
        self._session, self._stream = self._opened.session, self._opened.stream
        self._graph_reason = self._opened.eager_reason
        provider_arguments.warn_fallback(resolved, stacklevel=2)
        self._signature = Signature(self._session)
        self._eager = EagerRunner(self._session, self._signature, self._stream)
        self._set_up_graphs(cuda_graph)

    # ---- construction

    def _create(self, source: str | bytes, resolved: Providers) -> Any:
        names, options = resolved.names or None, resolved.options or None
        return onnxruntime.InferenceSession(source, self._sess_options, names, options, **self._kwargs)

    def _set_up_graphs(self, policy: str) -> None:
        if self._graph_reason is None and not self._signature.plain:
            self._graph_reason = "an input or output is no tensor that a fixed buffer can hold"
        capture = self._opened.capture if self._opened is not None else None
        if self._graph_reason is not None or self._stream is None or capture is None:
            if policy == ALWAYS:
                raise RuntimeError(f"cuda_graph='always': {self._graph_reason}")
            return
        self._graphs = GraphRunner(
            self._session, self._signature, self._stream, self._eager, self._cache, policy, capture
        )
        self._bindings = BindingRunner(self._session, self._signature, self._cache, policy, capture)

    # ---- running

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any | None = None,
        *,
        output: str | None = None,
        reuse_outputs: bool | None = None,
    ) -> list[Any]:
        """Computes the outputs ``output_names`` (all when None or empty), in that order.

        ``input_feed`` maps names to arrays, lists, ``OrtValue`` objects, or device tensors of any library with
        DLPack or ``__cuda_array_interface__``, which are not copied to the host. ``output`` and ``reuse_outputs``
        override the session's. A run with ``run_options`` of the caller's is an eager one.

        Raises ValueError for a missing input, ONNX Runtime's InvalidArgument for an unknown name, a wrong element
        type or shape; both before anything runs.
        """
        _check_output(output)
        wanted = output or self._output
        reuse = self._reuse_outputs if reuse_outputs is None else reuse_outputs
        with self._lock:
            self._check_open()
            names = self._signature.check_output_names(output_names)
            if self._stream is None:
                return self._run(names, input_feed, run_options, wanted, reuse)
            with self._stream.context:
                return self._run(names, input_feed, run_options, wanted, reuse)

    def _run(
        self, names: list[str], input_feed: Mapping[str, Any], run_options: Any | None, wanted: str | None, reuse: bool
    ) -> list[Any]:
        feed = self._signature.check(input_feed, self._stream)
        to_device = wanted == "device" or (wanted is None and any(isinstance(t, DeviceTensor) for t in feed.values()))
        if self._graphs is not None and run_options is None:
            return self._graphs.run(names, feed, to_device=to_device, reuse_outputs=reuse)
        options = None if run_options is None else without_capture(run_options)
        chosen = config_entry(options, "gpu_graph_id") if self._graphs is not None and options is not None else None
        if chosen not in (None, EAGER_GRAPH_ID):
            raise ValueError(
                f"gpu_graph_id={chosen} in run_options needs run_with_iobinding: replay reads and writes the memory "
                "that was bound when the graph was captured, and run() binds other memory each time"
            )
        return self._eager.run(names, feed, to_device=to_device, run_options=options)

    def io_binding(self) -> Any:
        """A binding for :meth:`run_with_iobinding`; it records the bound addresses, which key captured graphs."""
        return IOBinding(self._session)

    def run_with_iobinding(self, iobinding: Any, run_options: Any | None = None) -> None:
        """Runs on the memory the caller bound.

        A binding from :meth:`io_binding` with fixed device addresses throughout is captured and replayed under the
        session's policy. With ``run_options`` the caller decides: ``gpu_graph_id`` in them is passed on as it is.
        """
        with self._lock:
            self._check_open()
            if run_options is None and self._bindings is not None and isinstance(iobinding, IOBinding):
                self._bindings.run(iobinding)
            else:
                options = without_capture(run_options or onnxruntime.RunOptions())
                self._session.run_with_iobinding(iobinding, options)

    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """As ONNX Runtime's: ``OrtValue`` in and out, eagerly."""
        options = without_capture(run_options or onnxruntime.RunOptions())
        with self._lock:
            self._check_open()
            return list(self._session.run_with_ort_values(output_names, input_dict_ort_values, options))

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Any,
        user_data: Any,
        run_options: Any = None,
    ) -> None:
        """As ONNX Runtime's, eagerly. The provider serialises it with other runs."""
        options = without_capture(run_options or onnxruntime.RunOptions())
        with self._lock:
            self._check_open()
            self._session.run_async(output_names, input_feed, callback, user_data, options)

    # ---- information

    def placement(self) -> Placement:
        """Where each node runs and why; ``.cuda_graph`` says whether runs are replayed, or why not."""
        if self._graph_reason is not None:
            graph = f"eager: {self._graph_reason}"
        else:
            graph = f"{len(self._cache)} captured"
            refusals = self._cache.refusals()
            if refusals:
                graph += f"; eager for some inputs: {'; '.join(refusals)}"
        reasons = self._opened.reasons if self._opened is not None else {}
        default = self._cpu_reason or f"not taken by {EP_NAME}"
        if EP_NAME not in self._session.get_providers() and not self._cpu_reason:
            default = f"{EP_NAME} is not among the session's providers"
        return Placement(assignment(self._session, reasons, default), graph)

    @property
    def captured_graphs(self) -> int:
        """How many captured graphs the session holds."""
        return len(self._cache)

    def get_inputs(self) -> Sequence[Any]:
        """As ONNX Runtime's."""
        return list(self._session.get_inputs())

    def get_outputs(self) -> Sequence[Any]:
        """As ONNX Runtime's."""
        return list(self._session.get_outputs())

    def get_providers(self) -> list[str]:
        """As ONNX Runtime's."""
        return list(self._session.get_providers())

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Not offered: captured graphs and buffers belong to the providers a session was made with."""
        raise NotImplementedError("make a new cuvil_onnx.InferenceSession to change providers")

    def enable_fallback(self) -> None:
        """Not offered: an error on the GPU is reported, never answered by a silent rebuild on the CPU."""
        raise NotImplementedError("cuvil_onnx.InferenceSession never rebuilds itself on other providers")

    def __getattr__(self, name: str) -> Any:
        # The rest of ONNX Runtime's interface: get_modelmeta, get_session_options, end_profiling... and what its
        # own IOBinding asks a session for.
        if name == "_session" and self.__dict__.get("_closed"):
            raise RuntimeError("the session is closed")
        if name.startswith("_") and name != "_sess":
            raise AttributeError(name)
        return getattr(self._session, name)

    # ---- the end

    def close(self) -> None:
        """Releases captured graphs, buffers and the ONNX Runtime session. Further runs fail."""
        with self._lock:
            try:
                if self._graphs is not None and self._stream is not None:
                    with self._stream.context:
                        self._stream.synchronize()
                        self._cache.clear()
            finally:  # a GPU that reports an error keeps nothing of the session alive
                self._closed = True
                self._graphs = self._bindings = None
                for name in ("_eager", "_session"):
                    self.__dict__.pop(name, None)
                if self._opened is not None:
                    give_back_stream(self._opened)
                    self._opened = None

    def __reduce__(self) -> Any:
        # copy.copy would share the stream and the graphs with a second object that closes them.
        raise TypeError("an InferenceSession cannot be copied or pickled: make another one from the model")

    def __enter__(self) -> InferenceSession:
        self._check_open()
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        # Nobody can act on an error here, and at interpreter exit modules may be gone.
        with contextlib.suppress(Exception):
            self.close()

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the session is closed")

    def _release_graph(self, graph_id: int) -> None:
        if self._opened is not None and self._opened.capture is not None:
            self._opened.capture.release(graph_id)


def _releaser(session: InferenceSession) -> Callable[[int], None]:
    """Releases graphs of a session without keeping it alive: GPU memory must not wait for the garbage collector."""
    reference = weakref.ref(session)

    def release(graph_id: int) -> None:
        owner = reference()
        if owner is not None:  # else its graphs go with it
            owner._release_graph(graph_id)

    return release


def _check_output(output: str | None) -> None:
    if output not in _OUTPUTS:
        raise ValueError(f"output must be 'numpy', 'device' or None, got {output!r}")
