"""What the execution provider's core must do, as functions: `python -m tests.ep.scenarios LIBRARY NAME...`, where
LIBRARY holds the ops of test_ops.cc. Each runs in a process of its own: some lose the GPU context on purpose, and ONNX
Runtime registers a provider's name once. The same scenarios run on a GPU (tests/gpu/test_ep_core.py) and on the fake
device (test_fake_device.py)."""

from __future__ import annotations

import os
import sys

import onnxruntime as ort

from tests.ep import (  # noqa: F401
    scenarios_capture,
    scenarios_control_flow,
    scenarios_errors,
    scenarios_gpu,
    scenarios_outside,
    scenarios_run,
    scenarios_session,
)
from tests.ep.harness import EP, FAKE_ONLY, GPU_ONLY, SCENARIOS

__all__ = ["FAKE_ONLY", "GPU_ONLY", "SCENARIOS"]


def main() -> None:
    """Runs the scenarios named on the command line, each reported."""
    library, names = sys.argv[1], sys.argv[2:]
    if names == ["a_machine_without_a_driver_registers_no_device"]:
        os.environ["FAKE_CUDA_DEVICES"] = "0"
    ort.register_execution_provider_library(EP, library)
    for name in names:
        SCENARIOS[name]()
        print("ok", name, flush=True)


if __name__ == "__main__":
    main()
