"""onnx's node test cases on the GPU: whatever the provider takes is right (tests/conformance)."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from cuvil_onnx.runtime.registration import unavailable_reason

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_taken_cases_are_right(tmp_path: pathlib.Path) -> None:
    if (reason := unavailable_reason()) is not None:
        pytest.skip(reason)
    # A process of its own, since it forks.
    command = [sys.executable, "-m", "tests.conformance.record", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
