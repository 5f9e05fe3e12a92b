"""What the installed ONNX Runtime accepts."""

from __future__ import annotations

import importlib.metadata
import re

import onnx

_LIMITS: tuple[tuple[tuple[int, int], int, int], ...] = (
    ((1, 32), 28, 14),
    ((0, 0), 26, 13),
)
"""(first ONNX Runtime version, newest opset, newest IR version), newest first; tried on 1.31.1 and 1.32.0."""

OLDEST_OPSET = 7
"""Before opset 7 binary operators broadcast by attributes; such models are passed through."""

OLDEST_BF16_OPSET = 13
"""Before opset 13 no operator takes bfloat16, not even Cast."""


def runtime_version() -> tuple[int, int] | None:
    """(major, minor) of the installed ONNX Runtime, under whatever package name."""
    for package in ("onnxruntime", "onnxruntime-gpu"):
        try:
            found = re.match(r"(\d+)\.(\d+)", importlib.metadata.version(package))
        except importlib.metadata.PackageNotFoundError:
            continue
        if found:
            return int(found[1]), int(found[2])
    return None


def newest_opset_and_ir() -> tuple[int, int]:
    """The newest opset of ONNX's domain and the newest IR version that both ONNX Runtime and onnx can read."""
    version = runtime_version()
    opset, ir_version = next((o, i) for first, o, i in _LIMITS if version is None or version >= first)
    return min(opset, onnx.defs.onnx_opset_version()), min(ir_version, int(onnx.IR_VERSION))
