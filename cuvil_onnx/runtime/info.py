"""What ``cuvil info`` shows: provider, devices, versions, libraries and caches of this installation."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import cuvil_onnx
from cuvil_onnx.runtime import cuda_driver
from cuvil_onnx.runtime.devices import devices
from cuvil_onnx.runtime.registration import EP_NAME, get_library_path, nvidia_library_dirs, unavailable_reason

_PACKAGES = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnx",
    "onnx-ir",
    "numpy",
    "nvidia-cublas",
    "nvidia-cudnn-cu13",
    "nvidia-cuda-nvrtc",
)


_TWO_BUILDS = (
    "onnxruntime and onnxruntime-gpu are both installed and overwrite each other's files: "
    "uninstall both, then install the one you want"
)


def cache_folder() -> Path:
    """Where compiled kernels and measured choices are kept: the rule of csrc/core/cache_dir.h."""
    if os.environ.get("CUVIL_CACHE_DIR"):
        return Path(os.environ["CUVIL_CACHE_DIR"])
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "cuvil_onnx"


def gather() -> dict[str, Any]:
    """The facts as JSON values. Never raises for a part that is missing: that part says why."""
    reason = unavailable_reason()
    packages = {name: _version(name) for name in _PACKAGES}
    cache = cache_folder()
    files = [f for f in cache.rglob("*") if f.is_file()] if cache.is_dir() else []
    return {
        "cuvil_onnx": cuvil_onnx.__version__,
        "python": platform.python_version(),
        "provider": {
            "name": EP_NAME,
            "available": reason is None,
            "reason": reason,
            "library": get_library_path(missing_ok=True) or None,
        },
        "driver": _driver_version(),
        "devices": [device.as_dict() for device in devices()],
        "packages": packages,
        "warnings": [_TWO_BUILDS] if packages["onnxruntime"] and packages["onnxruntime-gpu"] else [],
        "library_folders": nvidia_library_dirs(),
        "cache": {"folder": str(cache), "files": len(files), "bytes": sum(f.stat().st_size for f in files)},
    }


def render(facts: dict[str, Any]) -> str:
    """The facts as lines."""
    provider = facts["provider"]
    state = "available" if provider["available"] else f"not available: {provider['reason']}"
    lines = [
        f"cuvil_onnx {facts['cuvil_onnx']}, Python {facts['python']}",
        f"{provider['name']}: {state}",
        f"library: {provider['library'] or 'not built'}",
        f"driver: {facts['driver'] or 'none'}",
    ]
    lines += [
        f"GPU {d['id']}: {d['name']}, compute capability {d['compute_capability']}, {d['memory_bytes'] / 2**30:.0f} GiB"
        for d in facts["devices"]
    ] or ["GPU: none"]
    lines += [f"{name}: {version or 'not installed'}" for name, version in facts["packages"].items()]
    lines += [f"libraries: {folder}" for folder in facts["library_folders"]]
    lines += [f"warning: {warning}" for warning in facts["warnings"]]
    cache = facts["cache"]
    lines.append(f"cache: {cache['folder']} ({cache['files']} files, {cache['bytes'] / 2**20:.1f} MiB)")
    return "\n".join(lines)


def _driver_version() -> str | None:
    try:
        return f"supports CUDA {cuda_driver.driver().version()}"
    except cuda_driver.CudaError:
        return None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
