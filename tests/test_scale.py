"""Large models: work that grows with the nodes and not with their square, and the same bytes in every process."""

from __future__ import annotations

import cProfile
import os
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest

import cuvil_onnx
from benchmarks.scale_models import GENERATORS

ROOT = Path(__file__).resolve().parent.parent


def calls(model: onnx.ModelProto) -> int:
    """The function calls that optimizing takes: the same number on every machine, unlike time."""
    profile = cProfile.Profile()
    profile.enable()
    cuvil_onnx.optimize(model, verify=False)
    profile.disable()
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.parametrize("name", GENERATORS)
def test_work_grows_with_the_nodes_and_not_with_their_square(name: str) -> None:
    make = GENERATORS[name]
    calls(make(100))  # imports, and what is made once
    small, large = calls(make(200)), calls(make(800))
    # Four times the nodes: what is done once, such as reading versions, makes it less, lookups in ordered keys a
    # little more; quadratic work in a twentieth of the calls would make it 4.6.
    assert large < 4.4 * small, (small, large)


def test_a_shared_value_costs_its_readers_nothing() -> None:
    """In time, too: copying all readers of a value is one call."""
    seconds = []
    for nodes in (500, 4000):
        model = GENERATORS["fan_out"](nodes)
        start = time.process_time()
        cuvil_onnx.optimize(model, verify=False)
        seconds.append(time.process_time() - start)
    # Eight times the nodes and readers; 24 leaves room for noise and fails well before the 64 of quadratic growth.
    assert seconds[1] < 24 * max(seconds[0], 0.1), seconds


SCRIPT = """
import hashlib, sys
import cuvil_onnx
from benchmarks.scale_models import GENERATORS
for name, make in GENERATORS.items():
    model = cuvil_onnx.optimize(make(120), verify=False).model
    print(name, hashlib.sha256(model.SerializeToString(deterministic=True)).hexdigest())
"""


def test_the_same_bytes_whatever_the_order_of_sets() -> None:
    found = []
    for seed in ("0", "4711"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, check=True)
        found.append(done.stdout)
    assert len(found[0].splitlines()) == len(GENERATORS)
    assert found[0] == found[1]
