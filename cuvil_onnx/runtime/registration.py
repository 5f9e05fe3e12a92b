"""Registration of ``CuvilExecutionProvider`` with ONNX Runtime.

The names follow other plugin wheels: ``get_library_path``, ``get_ep_name``, ``get_ep_names``.
"""

from __future__ import annotations

import importlib.util
import os
import re
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EP_NAME = "CuvilExecutionProvider"
LIBRARY_NAME = "libcuvil_ep.so"
MINIMUM_ORT = (1, 27)


@dataclass(frozen=True)
class Registration:
    """State of the provider in this process: ``reason`` says why it is not registered, and is None when it is."""

    library: Path | None
    reason: str | None

    @property
    def registered(self) -> bool:
        return self.reason is None


_lock = threading.Lock()
_state: Registration | None = None


def get_ep_name() -> str:
    """The provider's name, for ``providers=[...]``."""
    return EP_NAME


def get_ep_names() -> list[str]:
    """Every provider in the library: one."""
    return [EP_NAME]


def get_library_path(*, missing_ok: bool = False) -> str:
    """Path of the provider's shared library, for ``onnxruntime.register_execution_provider_library``.

    Raises FileNotFoundError when it was not built, or returns "" with ``missing_ok``.
    """
    path = Path(__file__).resolve().parent.parent / "lib" / LIBRARY_NAME
    if path.is_file():
        return str(path)
    if missing_ok:
        return ""
    raise FileNotFoundError(f"{path} does not exist: {_NOT_BUILT}")


_NOT_BUILT = f"{LIBRARY_NAME} is not built (install with nvcc available: pip install '.[gpu]')"


def nvidia_library_dirs() -> list[str]:
    """The ``lib`` folders of the pip packages ``nvidia-*`` (cuBLAS, cuDNN, NVRTC), in search order."""
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        return []
    roots = [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    return [str(lib) for root in roots for lib in sorted(root.glob("*/lib")) if lib.is_dir()]


def _export_library_path() -> None:
    """Adds the pip folders to ``CUVIL_LIBRARY_PATH``, which the library searches when it opens cuBLASLt and others.

    What the user put there stays in front.
    """
    entries = [e for e in os.environ.get("CUVIL_LIBRARY_PATH", "").split(os.pathsep) if e]
    entries += [d for d in nvidia_library_dirs() if d not in entries]
    if entries:
        os.environ["CUVIL_LIBRARY_PATH"] = os.pathsep.join(entries)


def ort_version(text: str) -> tuple[int, int]:
    """Major and minor number of an ONNX Runtime version such as ``1.31.1`` or ``1.27.0.dev20260101``."""
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def register() -> Registration:
    """Registers the provider with ONNX Runtime; once per process, later calls return the same state.

    Never raises: what went wrong stands in the returned ``reason``. A failure is retried by the next call, so that
    a library built meanwhile is found.
    """
    global _state
    with _lock:
        if _state is None or not _state.registered:
            _state = _register()
        return _state


def _register() -> Registration:
    library = get_library_path(missing_ok=True)
    if not library:
        return Registration(None, _NOT_BUILT)
    path = Path(library)
    try:
        import onnxruntime
    except ImportError as error:
        return Registration(path, f"onnxruntime cannot be imported: {error}")
    if ort_version(onnxruntime.__version__) < MINIMUM_ORT:
        wanted = ".".join(map(str, MINIMUM_ORT))
        return Registration(path, f"onnxruntime {onnxruntime.__version__} is too old, {wanted} or newer is needed")
    _export_library_path()
    try:
        onnxruntime.register_execution_provider_library(EP_NAME, library)
    except Exception as error:  # ORT raises its own classes, one per status code
        # Somebody may have registered the same library by hand; then the provider is there, which is all we want.
        if "already" not in str(error).lower():
            return Registration(path, f"{path.name} could not be registered: {_one_line(error)}")
    return Registration(path, None)


def ep_devices() -> list[Any]:
    """The ``OrtEpDevice`` objects of the provider, in device order; empty without a usable GPU."""
    if not register().registered:
        return []
    import onnxruntime

    return [d for d in onnxruntime.get_ep_devices() if d.ep_name == EP_NAME]


def unavailable_reason() -> str | None:
    """Why models cannot run on the provider in this process, in one line; None when they can."""
    state = register()
    if not state.registered:
        return state.reason
    if ep_devices():
        return None
    from cuvil_onnx.runtime import cuda_driver

    try:
        count = cuda_driver.driver().device_count()
    except cuda_driver.CudaError as error:
        return str(error)
    if count == 0:
        return "the NVIDIA driver reports no GPU"
    return f"ONNX Runtime lists no {EP_NAME} device although the driver reports {count} GPU(s)"


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
