"""Prints, as a CMake list, the directories in which pip's NVIDIA packages put headers, libraries and programs."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import pathlib

roots: list[str] = []
namespace = importlib.util.find_spec("nvidia")
if namespace is not None and namespace.submodule_search_locations is not None:
    roots += list(namespace.submodule_search_locations)
try:  # headers only, installed under the environment's prefix instead of in the nvidia namespace
    frontend = importlib.metadata.distribution("nvidia-cudnn-frontend")
    header = next(f for f in frontend.files or () if f.name == "cudnn_frontend.h")
    roots.append(str(pathlib.Path(str(frontend.locate_file(header))).resolve().parent))
except (importlib.metadata.PackageNotFoundError, StopIteration):
    pass
print(";".join(roots))
