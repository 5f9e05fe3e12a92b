"""cuvil_onnx: ONNX models made fast on NVIDIA GPUs, inside ONNX Runtime.

Importing the package registers ``CuvilExecutionProvider`` with ONNX Runtime when the library is built and
onnxruntime >= 1.27 is installed; set ``CUVIL_REGISTER=0`` to leave that to an explicit :func:`register`.
A failure never breaks the import: it is kept, and shown by ``cuvil info`` and by the session's fallback warning.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any

from cuvil_onnx import errors
from cuvil_onnx.runtime.registration import get_ep_name, get_ep_names, get_library_path, register

if TYPE_CHECKING:
    from cuvil_onnx.api import Optimized, optimize, quantize, quantize_settings
    from cuvil_onnx.runtime.devices import devices
    from cuvil_onnx.runtime.session import InferenceSession

__version__ = "0.1.0"

__all__ = [
    "InferenceSession",
    "Optimized",
    "__version__",
    "devices",
    "errors",
    "get_ep_name",
    "get_ep_names",
    "get_library_path",
    "optimize",
    "quantize",
    "quantize_settings",
    "register",
]

# Loaded on first use: onnx, onnx_ir and onnxruntime take longer to import than a short script may want to wait.
_LAZY = {
    "InferenceSession": "cuvil_onnx.runtime.session",
    "Optimized": "cuvil_onnx.api",
    "devices": "cuvil_onnx.runtime.devices",
    "optimize": "cuvil_onnx.api",
    "quantize": "cuvil_onnx.quantize",  # a package that can be called
    "quantize_settings": "cuvil_onnx.api",
}

_INSTALL = 'install cuvil_onnx with one of its extras, pip install ".[gpu]" or ".[cpu]"'


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'cuvil_onnx' has no attribute {name!r}")
    try:
        value = importlib.import_module(_LAZY[name])
        value = value if name == "quantize" else getattr(value, name)
    except ModuleNotFoundError as error:
        if error.name != "onnxruntime":
            raise
        raise ImportError(f"cuvil_onnx.{name} needs onnxruntime: {_INSTALL}", name="onnxruntime") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})


if os.environ.get("CUVIL_REGISTER", "1") != "0" and get_library_path(missing_ok=True):
    register()
