"""Streams of closed sessions, kept for the next one.

A stream handed to ONNX Runtime as ``user_compute_stream`` may stay in use by an ``IOBinding`` or ``OrtValue`` after
its session is gone, so it is reused (at worst two sessions are ordered after each other) and never destroyed.
"""

from __future__ import annotations

import threading

from cuvil_onnx.runtime.cuda_driver import Stream, context

_lock = threading.Lock()
_free: dict[int, list[Stream]] = {}


def take(device_id: int) -> Stream:
    """A stream on the device that no other open session uses."""
    with _lock:
        if _free.get(device_id):
            return _free[device_id].pop()
    return Stream(context(device_id))


def give_back(stream: Stream) -> None:
    with _lock:
        _free.setdefault(stream.context.ordinal, []).append(stream)
