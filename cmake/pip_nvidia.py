"""Prints, as a CMake list, the directories in which pip's NVIDIA packages put headers, libraries and programs."""

from __future__ import annotations

import importlib.util

namespace = importlib.util.find_spec("nvidia")
print(";".join(namespace.submodule_search_locations or ()) if namespace is not None else "")
