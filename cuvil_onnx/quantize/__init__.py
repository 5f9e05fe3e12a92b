"""Weight-only quantization: schemes, calibration, sources, and the pass that puts quantized weights into a model.

The package is also the function ``cuvil_onnx.quantize``: see :func:`cuvil_onnx.api.quantize`. ``from_gguf`` and
``from_safetensors`` take weights that others quantized.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def from_gguf(*args: Any, **kwargs: Any) -> Any:
    """See :func:`cuvil_onnx.quantize.sources.importing.from_gguf`."""
    from cuvil_onnx.quantize.sources import importing

    return importing.from_gguf(*args, **kwargs)


def from_safetensors(*args: Any, **kwargs: Any) -> Any:
    """See :func:`cuvil_onnx.quantize.sources.importing.from_safetensors`."""
    from cuvil_onnx.quantize.sources import importing

    return importing.from_safetensors(*args, **kwargs)


class _Callable(ModuleType):
    """A package and a function of one name: whichever is imported first, both stay reachable."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from cuvil_onnx.api import quantize

        return quantize(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
