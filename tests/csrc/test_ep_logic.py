"""The parts of csrc/ep that need neither a GPU nor ONNX Runtime: arena, capture bookkeeping, placement."""

from __future__ import annotations

import pathlib
import subprocess
from collections.abc import Callable, Sequence

import pytest

SANITIZE = ["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]


@pytest.mark.parametrize(
    ("name", "sources", "arguments"),
    [
        ("test_arena", ["arena"], [str(seed) for seed in range(1, 13)]),
        ("test_capture_book", ["capture_book"], []),
        ("test_placement", ["placement", "min_cut"], []),
    ],
)
def test_logic(
    compile_cpp: Callable[..., pathlib.Path], name: str, sources: Sequence[str], arguments: Sequence[str]
) -> None:
    files = [f"tests/csrc/{name}.cc", *(f"csrc/ep/{s}.cc" for s in sources)]
    done = subprocess.run([compile_cpp(files, SANITIZE), *arguments], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr
