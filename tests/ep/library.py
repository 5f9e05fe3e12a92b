"""Builds the provider's core (csrc/ep) with control flow and the ops of test_ops.cc: for a GPU, or the fake device."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FLAGS = ["-std=c++20", "-O0", "-fPIC", "-fvisibility=hidden"]


def ort_headers() -> pathlib.Path:
    """The directory of ONNX Runtime's C headers (API >= 27); skips the test where there is none. Fetches nothing."""
    places = [os.environ.get("ORT_INCLUDE_DIR"), ROOT / ".deps/onnxruntime", "/usr/include/onnxruntime"]
    for place in places:
        header = pathlib.Path(place or "/nonexistent") / "onnxruntime_c_api.h"
        version = re.search(r"#define ORT_API_VERSION (\d+)", header.read_text()) if header.is_file() else None
        if version and int(version.group(1)) >= 27:
            return header.parent
    pytest.skip("no ONNX Runtime headers of API >= 27 (ORT_INCLUDE_DIR)")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stderr}"


def _build(sources: list[pathlib.Path], compile_: list[str], link: list[str], out: pathlib.Path) -> pathlib.Path:
    objects = [str(out / f"{s.parent.name}_{s.name}.o") for s in sources]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda so: _run([*compile_, "-c", str(so[0]), "-o", so[1]]), zip(sources, objects, strict=True)))
    library = out / "libcuvil_ep.so"
    _run([*link, "-shared", *objects, "-o", str(library), "-ldl"])
    return library


def _common_sources() -> list[pathlib.Path]:
    return [*sorted((ROOT / "csrc/ep").glob("*.cc")), ROOT / "csrc/ops/control_flow.cc", HERE / "test_ops.cc"]


def build_fake(out: pathlib.Path) -> pathlib.Path:
    """The library on the fake device, in `out`. Needs a C++ compiler and ONNX Runtime's headers, else skips."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    include = [f"-I{HERE / 'fake'}", f"-I{ROOT / 'csrc'}", f"-I{HERE}", "-isystem", str(ort_headers())]
    warnings = ["-Wall", "-Wextra", "-Wno-missing-field-initializers", "-Werror"]
    command = [compiler, *FLAGS, *warnings, *include]
    return _build(
        [*_common_sources(), HERE / "fake/cuda.cc", HERE / "fake/driver.cc"], command, [compiler, "-pthread"], out
    )


def build_gpu(out: pathlib.Path) -> pathlib.Path:
    """The library for the GPU of this machine, in `out`. Needs nvcc and ONNX Runtime's headers, else skips."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc")
    include = [f"-I{ROOT / 'csrc'}", f"-I{HERE}", "-isystem", str(ort_headers())]
    host = ",".join(FLAGS[2:])
    command = [nvcc, "-std=c++20", "-O1", "-arch=native", f"-Xcompiler={host}", *include]
    sources = [*_common_sources(), HERE / "test_kernels.cu", ROOT / "csrc/ep/probe.cu"]
    return _build(sources, command, [nvcc, "-cudart=static"], out)


def run_scenario(library: pathlib.Path, name: str) -> None:
    """Runs one scenario in a process of its own."""
    command = [sys.executable, "-m", "tests.ep.scenarios", str(library), name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
