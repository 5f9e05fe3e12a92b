"""What the provider takes of onnx's node cases, on the fake device: docs/operators.md tells, and it does not shrink."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.conformance.fake_library import ROOT, build_tree
from tests.conformance.values import from_ort, to_ort
from tests.conformance.workers import Lost, run_all


@pytest.mark.slow
def test_the_page_is_current() -> None:
    if build_tree() is None and "CUVIL_CONFORMANCE_LIBRARY" not in os.environ:
        pytest.skip("no build tree (python3 dev.py build)")
    # A process of its own: it registers the provider's library on the fake device, and forks.
    command = [sys.executable, "-m", "tests.conformance.operators", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr


def _act(name: str) -> str:
    if name.startswith("dies"):
        os.kill(os.getpid(), signal.SIGTERM)
    if name.startswith("hangs"):
        time.sleep(600)
    if name.startswith("loses"):
        raise Lost("the device is gone")
    return f"{name} in {os.getpid()}"


def test_a_crash_costs_one_name() -> None:
    names = ["a", "dies", "b", "loses", "c", "hangs", "d"]
    found = run_all(names, _act, jobs=1, seconds=2)
    assert list(found) == names
    assert found["dies"] == f"crashed: exit code -{int(signal.SIGTERM)}"
    assert found["hangs"] == f"crashed: exit code -{int(signal.SIGKILL)}"
    assert found["loses"] == "the device is gone"
    processes = [found[n].split()[-1] for n in "abcd"]
    assert len(set(processes)) == 4, "each of these ends the process, so the next name starts in a new one"


@pytest.mark.parametrize(
    "kind",
    [
        *(TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BOOL, TensorProto.UINT64, TensorProto.BFLOAT16),
        *(TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2FNUZ, TensorProto.INT4, TensorProto.UINT2),
    ],
)
@pytest.mark.parametrize("shape", [(3, 5), (), (0, 2)])
def test_values_survive_onnx_runtime(kind: int, shape: tuple[int, ...]) -> None:
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    given = np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape).astype(np.int64) % 2
    array = np.asarray(given.astype(dtype))
    value = to_ort(array)
    assert value.element_type() == kind
    back = from_ort(value)
    assert back.dtype == onnx.numpy_helper.to_array(onnx.numpy_helper.from_array(array)).dtype
    np.testing.assert_array_equal(back.astype(np.float32), array.astype(np.float32))
