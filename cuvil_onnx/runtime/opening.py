"""Creates the ONNX Runtime session of ``cuvil_onnx.InferenceSession``: providers, their stream, the way to capture."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuvil_onnx.runtime import providers as provider_arguments
from cuvil_onnx.runtime import stream_pool
from cuvil_onnx.runtime.capture import Capture, OrtCapture, OutsideCapture
from cuvil_onnx.runtime.cuda_driver import Stream, context
from cuvil_onnx.runtime.placement import SHAPES, assignment, read_reasons
from cuvil_onnx.runtime.providers import CPU, CUDA, Providers
from cuvil_onnx.runtime.registration import EP_NAME

Create = Callable[[Providers], Any]  # the ONNX Runtime session of a model with these providers


@dataclass
class Opened:
    """A session and what belongs to it.

    ``stream`` is the one that its GPU providers share, None where they have none of ours; ``pooled`` says that it goes
    back to the pool. ``capture`` is None for a session that is never captured, and ``eager_reason`` says why.
    """

    session: Any
    stream: Stream | None = None
    pooled: bool = False
    capture: Capture | None = None
    eager_reason: str | None = None
    reasons: dict[tuple[str, str], str] = field(default_factory=dict)


def open_session(create: Create, resolved: Providers, *, capture: bool, max_graphs: int, may_add_cuda: bool) -> Opened:
    """Creates a session with ``resolved`` providers, whose options are completed in place.

    ``capture``: prepare for CUDA Graphs. ``may_add_cuda``: where ours leaves more than shape arithmetic to the CPU (or
    nodes that the CPU cannot or may not run), onnxruntime-gpu's CUDA provider is put behind it. Raises what ONNX
    Runtime raises.
    """
    ours = resolved.ours
    without = _without_own_stream(resolved)
    if ours is None or without is not None:
        return Opened(create(resolved), eager_reason=without)
    opened = Opened(None)
    opened.stream, opened.pooled = _stream(resolved, ours)
    ours["max_captured_graphs"] = str(max_graphs)
    try:
        with _placement_file(ours) as path:
            mixed = provider_arguments.with_cuda(resolved) if may_add_cuda else None
            try:
                _create(opened, create, resolved, capture)
            except Exception:
                if mixed is None or not _created(opened, create, mixed, capture):
                    raise
            opened.reasons = read_reasons(path)
            before = _nodes_on_cpu(opened)
            if before and mixed is not None:
                _add_cuda(opened, create, mixed, before)
    except BaseException:
        give_back_stream(opened)
        raise
    return opened


def give_back_stream(opened: Opened) -> None:
    """Lets the next session have the stream."""
    if opened.stream is not None and opened.pooled:
        stream_pool.give_back(opened.stream)
        opened.pooled = False


def _without_own_stream(resolved: Providers) -> str | None:
    """Why a session with these providers keeps its own streams, and so is never captured."""
    if resolved.ours is None:
        return resolved.fallback or f"the session does not use {EP_NAME}"
    if resolved.foreign:
        return f"{EP_NAME} shares no stream with {', '.join(resolved.foreign)}"
    if provider_arguments.flag(resolved.ours, "stream_aware", False):
        return "option stream_aware leaves the streams to ONNX Runtime"
    return None


def _stream(resolved: Providers, ours: dict[str, str]) -> tuple[Stream, bool]:
    """The caller's stream, or one of the pool."""
    ours.setdefault("device_id", "0")
    device_id = provider_arguments.number(ours, "device_id")
    given = provider_arguments.shared_stream(resolved)
    if given is None:
        return stream_pool.take(device_id), True
    return Stream(
        context(device_id), provider_arguments.number({"user_compute_stream": given}, "user_compute_stream")
    ), False


def _create(opened: Opened, create: Create, resolved: Providers, capture: bool) -> None:
    """The session with graphs captured by ONNX Runtime, else from outside."""
    ours, stream = resolved.ours, opened.stream
    assert ours is not None and stream is not None
    for options in (ours, resolved.cuda):
        if options is not None:
            options["user_compute_stream"] = str(stream.handle)
    if capture:
        ours["enable_cuda_graph"] = "1"
        # ONNX Runtime refuses capture for the whole session when it holds control flow or nodes on other providers.
        # Other errors come again below.
        with contextlib.suppress(Exception):
            opened.session = create(resolved)
            opened.capture = OrtCapture(opened.session)
            return
    ours["enable_cuda_graph"] = "0"
    opened.session = create(resolved)
    if not capture:
        opened.eager_reason = "switched off"
    elif not resolved.ours_first:
        opened.eager_reason = f"{CUDA} comes first, and its memory may be given to others while a graph still uses it"
    else:
        opened.capture = OutsideCapture(opened.session, stream)


def _created(opened: Opened, create: Create, resolved: Providers, capture: bool) -> bool:
    """Whether :func:`_create` succeeded; errors are not reported."""
    try:
        _create(opened, create, resolved, capture)
    except Exception:  # the CUDA provider's libraries are missing, say
        return False
    return True


def _nodes_on_cpu(opened: Opened) -> int:
    """How many nodes the CPU runs that are no arithmetic on shapes."""
    nodes = assignment(opened.session, opened.reasons, "")
    return sum(node.provider == CPU and SHAPES not in node.reason for node in nodes)


def _add_cuda(opened: Opened, create: Create, mixed: Providers, before: int) -> None:
    """Replaces the session by one with both providers, if that takes nodes off the CPU."""
    trial = Opened(None, stream=opened.stream, reasons=opened.reasons)
    if _created(trial, create, mixed, capture=False) and _nodes_on_cpu(trial) < before:
        opened.session = trial.session
        if opened.capture is not None and opened.stream is not None:
            opened.capture = OutsideCapture(trial.session, opened.stream)


@contextlib.contextmanager
def _placement_file(options: dict[str, str]) -> Iterator[Path]:
    """The file for the provider's reasons: the caller's, or a temporary one."""
    if "placement_file" in options:
        yield Path(options["placement_file"])
        return
    handle, name = tempfile.mkstemp(prefix="cuvil_onnx-placement-", suffix=".json")
    os.close(handle)
    options["placement_file"] = name
    try:
        yield Path(name)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(name)
