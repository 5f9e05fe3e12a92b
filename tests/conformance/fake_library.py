"""The execution provider with all its ops on the fake CUDA device of tests/ep: it claims nodes and makes kernels, but
computes nothing; no GPU is needed.

The host side of csrc comes from a build tree that `dev.py build` made (CUVIL_BUILD_TREE, else build/dev), brought up to
date first; what it wants of the device code, the launchers, is replaced by functions that do nothing and return 0.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAKE = ROOT / "tests" / "ep"


@dataclass(frozen=True, order=True)
class RegisteredOp:
    """An op that the provider has kernels for, with the versions of its schema; `until` None is open."""

    domain: str
    type: str
    since: int
    until: int | None

    @property
    def name(self) -> str:
        return f"{self.domain}::{self.type}" if self.domain else self.type


def build_tree() -> Path | None:
    """The CMake tree to take objects from, None where there is none."""
    tree = Path(os.environ.get("CUVIL_BUILD_TREE", ROOT / "build" / "dev"))
    return tree if (tree / "build.ninja").is_file() else None


def build(tree: Path) -> Path:
    """Compiles what changed and links the library into the tree; returns its path."""
    cache = dict(re.findall(r"^(\w+):\w+=(.*)$", (tree / "CMakeCache.txt").read_text(), re.M))
    ninja, compiler = cache["CMAKE_MAKE_PROGRAM"], cache["CMAKE_CXX_COMPILER"]
    _run(ninja, "-C", tree, "build.ninja")  # finds new sources
    objects = re.findall(r"^(\S+\.cc\.o):", _run(ninja, "-C", tree, "-t", "targets", "all"), re.M)
    _run(ninja, "-C", tree, *objects)
    out = tree / "fake"
    out.mkdir(exist_ok=True)
    include = [f"-I{ROOT / 'csrc'}", f"-I{FAKE}", "-isystem", cache["CUVIL_DIR_cuda_runtime_api_h"]]
    for source in (FAKE / "fake" / "cuda.cc", ROOT / "tests/conformance/list_ops.cc"):
        flags = ["-std=c++20", "-O1", "-fPIC", "-fvisibility=hidden"]
        _run(compiler, *flags, *include, "-c", source, "-o", out / f"{source.stem}.o")
    host = [*(tree / o for o in objects), out / "cuda.o", out / "list_ops.o"]
    library = out / "libcuvil_ep.so"
    _run(compiler, "-shared", *host, "-o", library, "-ldl", "-pthread")
    stubs = out / "stubs.s"
    stubs.write_text("".join(_stub(symbol) for symbol in _undefined(library)))
    # To a new file, then moved: a process may have the old one open.
    _run(compiler, "-shared", *host, stubs, "-o", library.with_suffix(".new"), "-ldl", "-pthread")
    library.with_suffix(".new").replace(library)
    return library


def registered_ops(library: Path) -> list[RegisteredOp]:
    """Every entry, sorted: standard ops first, then the other domains."""
    function = ctypes.CDLL(str(library)).cuvil_registered_ops
    function.restype = ctypes.c_char_p
    rows = [line.split("|") for line in function().decode().splitlines()]
    return sorted(RegisteredOp(d, t, int(since), int(until) if until else None) for d, t, since, until in rows)


def _undefined(library: Path) -> list[str]:
    """Symbols of CUDA's runtime and of this project that no object defines."""
    names = [line.split()[-1] for line in _run("nm", "-D", "--undefined-only", library).splitlines()]
    return [n for n in names if n.startswith(("cuda", "_ZN5cuvil", "_ZNK5cuvil"))]


def _stub(symbol: str) -> str:
    return f".globl {symbol}\n.hidden {symbol}\n.type {symbol}, @function\n{symbol}:\n  xorl %eax, %eax\n  ret\n"


def _run(*command: str | Path) -> str:
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command[0]} ... failed\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout
