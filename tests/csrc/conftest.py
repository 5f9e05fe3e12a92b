"""Fixtures of the C++ tests that need no GPU: small executables built by the system's compiler."""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import subprocess
from collections.abc import Callable, Sequence

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

CompileCpp = Callable[..., pathlib.Path]


@pytest.fixture(scope="session")
def compile_cpp(tmp_path_factory: pytest.TempPathFactory) -> CompileCpp:
    """`compile_cpp(sources, options=()) -> executable`: sources relative to the repository; options go to the compiler
    too. Skips where there is no C++20 compiler. Each file is compiled once a test session."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    directory = tmp_path_factory.mktemp("cpp")

    def run(*arguments: str) -> None:
        done = subprocess.run(
            [compiler, "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fPIC", f"-I{ROOT / 'csrc'}", *arguments],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr

    def compile_(sources: Sequence[str], options: Sequence[str] = ()) -> pathlib.Path:
        objects = []
        for source in sources:
            key = hashlib.sha256("\0".join([source, *options]).encode()).hexdigest()[:16]
            target = directory / f"{key}.o"
            if not target.exists():
                run(*options, "-c", str(ROOT / source), "-o", str(target))
            objects.append(str(target))
        executable = directory / hashlib.sha256("\0".join(objects).encode()).hexdigest()[:16]
        if not executable.exists():
            run(*options, *objects, "-ldl", "-pthread", "-o", str(executable))
        return executable

    return compile_
