"""Kernels that may start early wait first: read from the sources, since no test could rely on losing the race."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[2] / "csrc"
SOURCES = {p.name: p.read_text(encoding="utf-8") for p in sorted(CSRC.rglob("*.cu*"))}
KERNEL = re.compile(r"__global__ void\s[^;{]*?\b(\w+)\((?:[^(){}]|\([^()]*\))*\) \{\n\s*([^\n]*)")
USERS = [name for name, text in SOURCES.items() if "launch_early(" in text and name != "launch.cuh"]


def early_kernels(text: str) -> set[str]:
    """Names that a file starts early; `kernel` stands for a choice among all of its kernels."""
    names = set(re.findall(r"launch_early\(\s*(\w+)", text))
    return names - {"kernel"} | ({m[1] for m in KERNEL.finditer(text)} if "kernel" in names else set())


@pytest.mark.parametrize("name", USERS)
def test_the_first_statement_waits(name: str) -> None:
    first = {m[1]: m[2] for m in KERNEL.finditer(SOURCES[name])}
    early = early_kernels(SOURCES[name])
    assert early and early <= set(first)
    assert {k: first[k] for k in early if not first[k].endswith("wait_for_predecessor();")} == {}


def test_pointwise_kernels_wait_first() -> None:
    text = (CSRC / "jit" / "codegen.cc").read_text(encoding="utf-8")
    assert re.search(r'__global__.*\(const Params p\) \{\\n"\s*<< "wait_for_predecessor', text)
    assert "early_launch()" in (CSRC / "ops" / "pointwise_op.cc").read_text(encoding="utf-8")
