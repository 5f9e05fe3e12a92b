"""Runs generated pointwise kernels on the CPU: the CUDA source, compiled as C++ behind a few definitions.

Threads run one after the other, which is what the kernels allow: a thread touches its own elements only. So indexing,
tails, broadcasts and the semantics of every instruction are tested without a GPU.
"""

from __future__ import annotations

import ctypes
import pathlib
import shutil
import subprocess
from collections.abc import Sequence

import ml_dtypes
import numpy as np

from tests.csrc.pointwise_tool import Job, Tool

DTYPES = {
    "f32": np.float32,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f64": np.float64,
    "i8": np.int8,
    "i16": np.int16,
    "i32": np.int32,
    "i64": np.int64,
    "u8": np.uint8,
    "u16": np.uint16,
    "u32": np.uint32,
    "u64": np.uint64,
    "bool": np.bool_,
}

_SHIM = """
#include <cmath>
#include <cstdint>
#include <cstring>
using namespace std;
#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(n)
struct uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
static struct { unsigned x; } blockIdx, threadIdx;
template <class T> T __ldcs(const T* p) { return *p; }
template <class T> void __stcs(T* p, T v) { *p = v; }
static unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
static float __uint_as_float(unsigned x) { float r; memcpy(&r, &x, 4); return r; }
static double __longlong_as_double(long long x) { double r; memcpy(&r, &x, 8); return r; }
static float half_to_float(unsigned short h) { _Float16 x; memcpy(&x, &h, 2); return float(x); }
static unsigned short float_to_half(float f) {
  _Float16 x = _Float16(f);
  unsigned short r;
  memcpy(&r, &x, 2);
  return r;
}
static unsigned short float_to_bfloat(float f) {
  unsigned x;
  memcpy(&x, &f, 4);
  if (f != f) return 0x7fff;
  return (unsigned short)((x + 0x7fff + (x >> 16 & 1)) >> 16);
}
// The device converts out-of-range numbers to the end of the range; C++ leaves them undefined.
template <class To, class From> To saturated(From x, From low, From high, To least, To most) {
  return x < low ? least : x >= high ? most : To(x);
}
"""

# Device-only text and its stand-in.
_REPLACED = {
    'asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits))': "r = half_to_float(x.bits)",
    'asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(x))': "r.bits = float_to_half(x)",
    'asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x))': "r.bits = float_to_bfloat(x)",
    "T(i32(x))": "T(saturated<i32, F>(x, -0x1p31, 0x1p31, INT32_MIN, INT32_MAX))",
    "T(i64(x))": "T(saturated<i64, F>(x, -0x1p63, 0x1p63, INT64_MIN, INT64_MAX))",
    "T(u64(x))": "T(saturated<u64, F>(x, 0, 0x1p64, 0, UINT64_MAX))",
}

_DRIVER = """
extern "C" void launch(unsigned blocks, const Params* p) {
  for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < T; ++threadIdx.x) cuvil_pointwise(*p);
}
"""


def build(source: str, directory: pathlib.Path, compiler: str) -> ctypes.CDLL:
    """The generated source as a library with `launch(blocks, params)`."""
    for device, host in _REPLACED.items():
        assert device in source, device
        source = source.replace(device, host)
    # The prelude's names must not meet those of the C library.
    name = f"kernel{len(list(directory.glob('*.so')))}"
    file = directory / f"{name}.cc"
    file.write_text(_SHIM + source + _DRIVER)
    library = directory / f"{name}.so"
    command = [compiler, "-std=c++17", "-O0", "-w", "-ffp-contract=off", "-fno-strict-aliasing", "-fwrapv"]
    done = subprocess.run([*command, "-shared", "-fPIC", str(file), "-o", str(library)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library))


class Emulator:
    """Runs programs on numpy arrays."""

    def __init__(self, tool: Tool, directory: pathlib.Path) -> None:
        self._tool, self._directory = tool, directory
        self._compiler = shutil.which("g++") or "c++"
        self._built: dict[str, ctypes.CDLL] = {}

    def run(self, job: Job, inputs: Sequence[np.ndarray], results: Sequence[str]) -> list[np.ndarray]:
        """Outputs of dtypes `results`. Around each output lie guard bytes, which must survive."""
        job.source = self._directory / "source.cu"
        facts = self._tool.facts(job)
        shape = tuple(int(d) for d in facts["shape"].strip("[]").split(",") if d)
        if "params" not in facts:
            return [np.empty(shape, DTYPES[t]) for t in results]
        source = job.source.read_text()
        if source not in self._built:
            self._built[source] = build(source, self._directory, self._compiler)
        words = [int(w) for w in facts["params"].split(",") if w]
        keep = [_place(a.reshape(-1).view(np.uint8), 16 if job.aligned else 8) for a in inputs]
        count = int(np.prod(shape))
        outputs = [_place(np.full(count * np.dtype(DTYPES[t]).itemsize, 0xEE, np.uint8), 16) for t in results]
        for slot, (memory, start, _) in enumerate([*keep, *outputs]):
            words[slot] = memory.ctypes.data + start
        params = (ctypes.c_uint64 * len(words))(*words)
        self._built[source].launch(int(facts["blocks"]), ctypes.byref(params))
        for memory, start, size in [*keep, *outputs]:
            assert (memory[:start] == 0xCD).all() and (memory[start + size :] == 0xCD).all(), "wrote out of bounds"
        return [
            memory[start : start + size].view(DTYPES[t]).reshape(shape)
            for (memory, start, size), t in zip(outputs, results, strict=True)
        ]


def _place(data: np.ndarray, alignment: int) -> tuple[np.ndarray, int, int]:
    """A copy of `data` amid guard bytes, at an address that is a multiple of `alignment` but not of twice that."""
    memory = np.full(data.size + 128, 0xCD, np.uint8)
    start = 64 - memory.ctypes.data % 32 + alignment
    memory[start : start + data.size] = data
    return memory, start, data.size
