"""CUDA graphs recorded on a stream: their nodes, and launching them. Source: CUDA Driver API reference manual."""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

from cuvil_onnx.runtime.cuda_driver import Context, CudaError, Driver, Stream, release

_THREAD_LOCAL, _RELAXED = 1, 2  # CU_STREAM_CAPTURE_MODE
_KINDS = {0: "kernel", 1: "memcpy", 2: "memset", 3: "host", 5: "empty"}
_MEMORY_DEVICE, _MEMORY_UNIFIED = 2, 4
_POINTER_MEMORY_TYPE = 2


def record(stream: Stream, work: Callable[[], object], *, relaxed: bool = False) -> Graph:
    """What ``work`` enqueues on the stream, as a graph; none of it executes. Raises what ``work`` raises.

    ``relaxed``: libraries may allocate memory meanwhile. The stream's context must be current.
    """
    drv, handle = stream.context.driver, c_void_p()
    capturing = c_void_p(stream.handle)
    drv.call("cuStreamBeginCapture_v2", capturing, _RELAXED if relaxed else _THREAD_LOCAL)
    try:
        work()
    except BaseException:
        # The work failed; that its capture is invalid too is no news.
        with contextlib.suppress(CudaError):
            drv.call("cuStreamEndCapture", capturing, byref(handle))
        if handle.value:
            drv.call("cuGraphDestroy", handle)
        raise
    drv.call("cuStreamEndCapture", capturing, byref(handle))
    return Graph(stream.context, handle)


def _place(side: str) -> list[tuple[str, Any]]:
    numbers = [(f"{side}_{name}", c_size_t) for name in ("x", "y", "z", "lod")]
    pointers = [(f"{side}_host", c_void_p), (f"{side}_device", c_uint64), (f"{side}_array", c_void_p)]
    rest = [(f"{side}_reserved", c_void_p), (f"{side}_pitch", c_size_t), (f"{side}_height", c_size_t)]
    return [*numbers, (f"{side}_memory", c_int), *pointers, *rest]


class _Copy(ctypes.Structure):
    """``CUDA_MEMCPY3D`` of cuda.h."""

    _fields_ = (*_place("src"), *_place("dst"), ("width", c_size_t), ("rows", c_size_t), ("depth", c_size_t))


class GraphNode:
    """A node of a :class:`Graph`. ``kind``: ``kernel``, ``memcpy``, ``memset``, ``host``, ``empty`` or ``other``."""

    def __init__(self, drv: Driver, handle: int | None) -> None:
        self._driver, self._handle = drv, c_void_p(handle)
        kind = c_int()
        drv.call("cuGraphNodeGetType", self._handle, byref(kind))
        self.kind = _KINDS.get(kind.value, "other")

    def touches_host(self) -> bool:
        """Whether a ``memcpy`` node reads or writes anything but device memory, as far as the driver can tell."""
        copy = _Copy()
        try:
            self._driver.call("cuGraphMemcpyNodeGetParams", self._handle, byref(copy))
        except CudaError:
            return True
        ends = ((copy.src_memory, copy.src_device), (copy.dst_memory, copy.dst_device))
        return not all(self._on_device(kind, address) for kind, address in ends)

    def _on_device(self, kind: int, address: int) -> bool:
        if kind != _MEMORY_UNIFIED:
            return kind == _MEMORY_DEVICE
        found = c_uint()
        try:
            self._driver.call("cuPointerGetAttribute", byref(found), _POINTER_MEMORY_TYPE, address)
        except CudaError:  # memory that the driver does not know: pageable
            return False
        return found.value == _MEMORY_DEVICE


class Graph:
    """A recorded graph: inspected, then instantiated and launched. Destroyed with the object."""

    def __init__(self, ctx: Context, handle: c_void_p) -> None:
        self._context, self._driver, self._handle = ctx, ctx.driver, handle
        self._executable = c_void_p()
        weakref.finalize(self, release, ctx, "cuGraphDestroy", handle)

    def nodes(self) -> list[GraphNode]:
        """Its nodes, in no order."""
        number = c_size_t()
        self._driver.call("cuGraphGetNodes", self._handle, None, byref(number))
        nodes = (c_void_p * number.value)()
        self._driver.call("cuGraphGetNodes", self._handle, nodes, byref(number))
        return [GraphNode(self._driver, node) for node in nodes]

    def instantiate(self) -> None:
        """Makes it launchable; once."""
        self._driver.call("cuGraphInstantiateWithFlags", byref(self._executable), self._handle, 0)
        weakref.finalize(self, release, self._context, "cuGraphExecDestroy", self._executable)

    def launch(self, stream: Stream) -> None:
        """Enqueues it."""
        self._driver.call("cuGraphLaunch", self._executable, c_void_p(stream.handle))
