"""A thin binding of the CUDA driver (``libcuda.so.1``): what the session needs to own a stream and staging memory.

Only the driver is used, so neither cupy, torch nor a CUDA toolkit is required. Every call is checked; a failure
raises :class:`CudaError` with the driver's name and text for it. Source: CUDA Driver API reference manual.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import weakref
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

import numpy as np
import numpy.typing as npt

from cuvil_onnx.errors import CuvilError

_STREAM_NON_BLOCKING = 1  # independent of the legacy default stream, as capture requires
_EVENT_DEFAULT = 0
_EVENT_DISABLE_TIMING = 2
_HOSTALLOC_PORTABLE = 1
_COMPUTE_CAPABILITY_MAJOR, _COMPUTE_CAPABILITY_MINOR = 75, 76

# The driver's signatures: name -> argument types. The _v2 names are the ones that cuda.h maps the plain names to.
_FUNCTIONS: dict[str, list[Any]] = {
    "cuInit": [c_uint],
    "cuDriverGetVersion": [c_void_p],
    "cuDeviceGetCount": [c_void_p],
    "cuDeviceGet": [c_void_p, c_int],
    "cuDeviceGetName": [c_char_p, c_int, c_int],
    "cuDeviceGetAttribute": [c_void_p, c_int, c_int],
    "cuDeviceTotalMem_v2": [c_void_p, c_int],
    "cuDevicePrimaryCtxRetain": [c_void_p, c_int],
    "cuCtxPushCurrent_v2": [c_void_p],
    "cuCtxPopCurrent_v2": [c_void_p],
    "cuMemGetInfo_v2": [c_void_p, c_void_p],
    "cuStreamCreate": [c_void_p, c_uint],
    "cuStreamSynchronize": [c_void_p],
    "cuStreamWaitEvent": [c_void_p, c_void_p, c_uint],
    "cuEventCreate": [c_void_p, c_uint],
    "cuEventRecord": [c_void_p, c_void_p],
    "cuEventSynchronize": [c_void_p],
    "cuEventElapsedTime": [c_void_p, c_void_p, c_void_p],
    "cuEventDestroy_v2": [c_void_p],
    "cuMemHostAlloc": [c_void_p, c_size_t, c_uint],
    "cuMemFreeHost": [c_void_p],
    "cuMemAlloc_v2": [c_void_p, c_size_t],
    "cuMemFree_v2": [c_uint64],
    "cuMemcpyHtoDAsync_v2": [c_uint64, c_void_p, c_size_t, c_void_p],
    "cuMemcpyDtoHAsync_v2": [c_void_p, c_uint64, c_size_t, c_void_p],
    "cuMemcpyDtoDAsync_v2": [c_uint64, c_uint64, c_size_t, c_void_p],
    "cuMemsetD8Async": [c_uint64, ctypes.c_ubyte, c_size_t, c_void_p],
    "cuStreamBeginCapture_v2": [c_void_p, c_int],
    "cuStreamEndCapture": [c_void_p, c_void_p],
    "cuGraphGetNodes": [c_void_p, c_void_p, c_void_p],
    "cuGraphNodeGetType": [c_void_p, c_void_p],
    "cuGraphMemcpyNodeGetParams": [c_void_p, c_void_p],
    "cuPointerGetAttribute": [c_void_p, c_int, c_uint64],
    "cuGraphInstantiateWithFlags": [c_void_p, c_void_p, c_uint64],
    "cuGraphLaunch": [c_void_p, c_void_p],
    "cuGraphExecDestroy": [c_void_p],
    "cuGraphDestroy": [c_void_p],
}


class CudaError(CuvilError):
    """A call of the CUDA driver failed, or there is no driver."""


class Driver:
    """The loaded driver library. Get it with :func:`driver`."""

    def __init__(self) -> None:
        try:
            self._lib = ctypes.CDLL("libcuda.so.1")
        except OSError:
            raise CudaError("no NVIDIA driver: libcuda.so.1 is not found") from None
        for name, argtypes in _FUNCTIONS.items():
            try:
                function = getattr(self._lib, name)
            except AttributeError:
                raise CudaError(f"the NVIDIA driver is too old: it has no {name}") from None
            function.argtypes, function.restype = argtypes, c_int
        self.call("cuInit", 0)

    def call(self, name: str, *args: Any) -> None:
        """Calls a driver function and raises CudaError unless it returns success."""
        status = getattr(self._lib, name)(*args)
        if status:
            raise CudaError(f"{name} failed: {self._describe(status)}")

    def _describe(self, status: int) -> str:
        texts = []
        for function in (self._lib.cuGetErrorName, self._lib.cuGetErrorString):
            text = c_char_p()
            function(c_int(status), byref(text))
            if text.value:
                texts.append(text.value.decode())
        return ": ".join(texts) or f"error {status}"

    def version(self) -> str:
        """The newest CUDA version the driver supports, such as ``13.0``."""
        value = c_int()
        self.call("cuDriverGetVersion", byref(value))
        return f"{value.value // 1000}.{value.value % 1000 // 10}"

    def device_count(self) -> int:
        value = c_int()
        self.call("cuDeviceGetCount", byref(value))
        return value.value

    def _device(self, ordinal: int) -> int:
        value = c_int()
        self.call("cuDeviceGet", byref(value), ordinal)
        return value.value

    def device_name(self, ordinal: int) -> str:
        buffer = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", buffer, 256, self._device(ordinal))
        return buffer.value.decode()

    def compute_capability(self, ordinal: int) -> tuple[int, int]:
        device, major, minor = self._device(ordinal), c_int(), c_int()
        self.call("cuDeviceGetAttribute", byref(major), _COMPUTE_CAPABILITY_MAJOR, device)
        self.call("cuDeviceGetAttribute", byref(minor), _COMPUTE_CAPABILITY_MINOR, device)
        return major.value, minor.value

    def total_memory(self, ordinal: int) -> int:
        value = c_size_t()
        self.call("cuDeviceTotalMem_v2", byref(value), self._device(ordinal))
        return value.value


@functools.cache
def driver() -> Driver:
    """The driver of this process, initialised; raises CudaError where there is none (a failure is not cached)."""
    return Driver()


class Context:
    """The primary context of a device, the one that the CUDA runtime (and so the provider) uses. See :func:`context`.

    A ``with`` block makes it current on the calling thread and restores what was current before.
    """

    def __init__(self, ordinal: int) -> None:
        self.driver = driver()
        self.ordinal = ordinal
        handle = c_void_p()
        # Retained for the life of the process: streams and buffers of sessions may outlive any one owner.
        self.driver.call("cuDevicePrimaryCtxRetain", byref(handle), self.driver._device(ordinal))
        self._handle = handle

    def __enter__(self) -> Context:
        self.driver.call("cuCtxPushCurrent_v2", self._handle)
        return self

    def __exit__(self, *exc: object) -> None:
        popped = c_void_p()
        self.driver.call("cuCtxPopCurrent_v2", byref(popped))

    def memory_info(self) -> tuple[int, int]:
        """Free and total bytes of the device."""
        free, total = c_size_t(), c_size_t()
        with self:
            self.driver.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value


@functools.cache
def context(ordinal: int) -> Context:
    """The primary context of device ``ordinal``, one object a process."""
    return Context(ordinal)


class Stream:
    """A non-blocking stream with the asynchronous copies of a run. Its methods need the context current.

    Streams are never destroyed: an ONNX Runtime object that outlives its session may still hold the handle.
    :func:`cuvil_onnx.runtime.stream_pool.take` reuses them.
    """

    def __init__(self, ctx: Context, handle: int | None = None) -> None:
        self.context = ctx
        self._driver = ctx.driver
        value = c_void_p(handle)
        if handle is None:
            with ctx:
                self._driver.call("cuStreamCreate", byref(value), _STREAM_NON_BLOCKING)
        self._handle = value
        self._order = c_void_p()
        with ctx:
            self._driver.call("cuEventCreate", byref(self._order), _EVENT_DISABLE_TIMING)

    @property
    def handle(self) -> int:
        return self._handle.value or 0

    def synchronize(self) -> None:
        self._driver.call("cuStreamSynchronize", self._handle)

    def wait_for(self, other: int) -> None:
        """Makes this stream wait for what stream handle ``other`` holds now (1: legacy default, 2: per thread)."""
        self._driver.call("cuEventRecord", self._order, c_void_p(other))
        self._driver.call("cuStreamWaitEvent", self._handle, self._order, 0)

    def copy_to_device(self, device: int, host: int, size: int) -> None:
        self._driver.call("cuMemcpyHtoDAsync_v2", device, host, size, self._handle)

    def copy_to_host(self, host: int, device: int, size: int) -> None:
        self._driver.call("cuMemcpyDtoHAsync_v2", host, device, size, self._handle)

    def copy_on_device(self, target: int, source: int, size: int) -> None:
        self._driver.call("cuMemcpyDtoDAsync_v2", target, source, size, self._handle)

    def fill(self, device: int, byte: int, size: int) -> None:
        self._driver.call("cuMemsetD8Async", device, byte, size, self._handle)


class Event:
    """A timing event. Its methods need the context current."""

    def __init__(self, ctx: Context) -> None:
        self._driver = ctx.driver
        self._handle = c_void_p()
        self._driver.call("cuEventCreate", byref(self._handle), _EVENT_DEFAULT)
        weakref.finalize(self, release, ctx, "cuEventDestroy_v2", self._handle)

    def record(self, stream: Stream) -> None:
        self._driver.call("cuEventRecord", self._handle, c_void_p(stream.handle))

    def milliseconds_since(self, start: Event) -> float:
        """Time from ``start`` to this event; waits for it."""
        self._driver.call("cuEventSynchronize", self._handle)
        value = c_float()
        self._driver.call("cuEventElapsedTime", byref(value), start._handle, self._handle)
        return value.value


class PinnedBuffer:
    """Page-locked host memory, needed for copies that overlap with the host. Freed with the object."""

    def __init__(self, ctx: Context, size: int) -> None:
        value = c_void_p()
        with ctx:
            ctx.driver.call("cuMemHostAlloc", byref(value), max(size, 1), _HOSTALLOC_PORTABLE)
        self.address: int = value.value or 0
        self.size = size
        weakref.finalize(self, release, ctx, "cuMemFreeHost", value)

    def array(self, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """The memory as an array, which keeps this object alive."""
        memory = (ctypes.c_ubyte * self.size).from_address(self.address)
        memory.owner = self  # type: ignore[attr-defined]
        return np.ndarray(shape, dtype, buffer=memoryview(memory))


class DeviceMemory:
    """Device memory outside ONNX Runtime's arena, for measurements. Freed with the object."""

    def __init__(self, ctx: Context, size: int) -> None:
        value = c_uint64()
        with ctx:
            ctx.driver.call("cuMemAlloc_v2", byref(value), max(size, 1))
        self.address: int = value.value
        self.size = size
        weakref.finalize(self, release, ctx, "cuMemFree_v2", value)


def release(ctx: Context, function: str, handle: Any) -> None:
    """Calls a driver function that frees ``handle``; for finalizers."""
    # At interpreter exit the driver may already be shut down; there is nobody left to tell.
    with contextlib.suppress(CudaError), ctx:
        ctx.driver.call(function, handle)
