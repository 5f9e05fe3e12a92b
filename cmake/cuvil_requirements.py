"""Decides whether the execution provider is compiled here, and with which pip packages. Standard library only.

`CUVIL_BUILD_EP` = 1 (compile; an impossible build is an error), 0 (Python only), or auto (default: compile when an
NVIDIA GPU or an nvcc is found here). nvcc comes from CUDA_HOME or PATH when one is there and from pip otherwise; the
headers of cuBLAS and cuDNN always come from pip's packages, so that no system installation is asked for.
"""

from __future__ import annotations

import os
import shutil

# Pinned to 13.0: a driver for CUDA 13.0 rejects what a newer compiler emits.
_COMPILER = ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-cccl", "nvidia-cuda-runtime")
_HEADERS = ("nvidia-cublas>=13,<14", "nvidia-cudnn-cu13>=9.10")


def wants_ep() -> bool:
    """True when this build compiles the execution provider."""
    choice = os.environ.get("CUVIL_BUILD_EP", "auto").lower()
    if choice not in ("auto", "0", "1"):
        raise SystemExit(f"CUVIL_BUILD_EP is {choice!r}; it must be 0, 1 or auto")
    if choice != "auto":
        return choice == "1"
    return has_gpu() or find_nvcc() is not None


def has_gpu() -> bool:
    """True when the machine shows an NVIDIA driver with a device."""
    return any(os.path.exists(p) for p in ("/dev/nvidia0", "/dev/dxg", "/proc/driver/nvidia/gpus"))


def find_nvcc() -> str | None:
    """Path of an installed nvcc, from CUDA_HOME or PATH; None when pip's is needed."""
    home = os.environ.get("CUDA_HOME")
    if home and os.path.exists(os.path.join(home, "bin", "nvcc")):
        return os.path.join(home, "bin", "nvcc")
    return shutil.which("nvcc")


def build_requirements() -> list[str]:
    """The pip packages that compiling needs here; empty when nothing is compiled."""
    if not wants_ep():
        return []
    compiler = [] if find_nvcc() else [f"{name}~=13.0.0" for name in _COMPILER]
    return [*compiler, *_HEADERS, "cmake>=3.25", "ninja"]
