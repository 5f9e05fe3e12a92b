"""Weight-only quantization: schemes, calibration, sources, and the pass that puts quantized weights into a model.

The package is also the function ``cuvil_onnx.quantize``: see :func:`cuvil_onnx.api.quantize`.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    """A package and a function of one name: whichever is imported first, both stay reachable."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from cuvil_onnx.api import quantize

        return quantize(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
