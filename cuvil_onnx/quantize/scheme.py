"""The interface of a quantization scheme.

A scheme is one module of ``cuvil_onnx/quantize/schemes`` that defines exactly one subclass of :class:`Scheme`; it is
discovered by name, never listed. The driver (``driver.py``) finds the products of a model, visits them in the order in
which the model computes them, and asks the scheme for each weight. A scheme sees arrays only: no graph, no file.

For every tensor that products read (q, k and v projections read one, a layer's gate and up projections another):

1. ``input_scale(layers, grid, context)`` may return a scale a channel, [K]. The driver then multiplies the rows of all
   the layers' weights by it and divides the tensor by it, exactly in real numbers: in what computes the tensor where
   that is a norm or another product that nothing else reads, else by a multiplication before the products. AWQ does
   this; the default is None. The division happens when all is quantized: until then the model computes with
   dequantize(quantize(W * scale)) / scale, so that statistics of later layers see what quantization does to them.
2. ``quantize(layer, grid, context)`` is called for each layer, with the scaled weight (and statistics of the scaled
   input). For a scheme whose columns do not depend on each other (``columnwise``) it is called with some of the columns
   at a time, so that the largest weight never is in memory as float32.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar, Protocol

import numpy as np

from cuvil_onnx.errors import OptionError
from cuvil_onnx.quantize import schemes as scheme_package
from cuvil_onnx.quantize.grid import Array, Grid, Quantized


class InputStatistics(Protocol):
    """What was seen at the input of a product over the calibration data: ``calibrate_statistics.Statistics``.

    Attributes:
        rows: how many rows (tokens) were seen.
        skipped: how many were left out, since they held NaN, Inf or numbers near the end of float32.
    """

    rows: int
    skipped: int

    def mean_magnitude(self) -> Array:
        """float32 [K]: the mean of |x|."""

    def hessian(self) -> Array:
        """float32 [K, K]: the mean of x^T x."""

    def drift(self) -> Array | None:
        """float32 [K, K]: the mean of x^T (x0 - x), where x0 is what the unquantized model has; None: not known."""


@dataclasses.dataclass(frozen=True)
class Layer:
    """One product with a constant weight.

    Attributes:
        name: the node's name, as in reports and ``include`` / ``exclude``.
        weight: float32 [K, N], all finite; some of the columns only, when ``quantize`` of a columnwise scheme gets it.
        statistics: of the product's input (divided by the input scale, where there is one); None without calibration
            data, never None for a scheme that is ``calibrated``.
    """

    name: str
    weight: Array
    statistics: InputStatistics | None = None


@dataclasses.dataclass(frozen=True)
class Context:
    """What a scheme works with.

    Attributes:
        xp: numpy or cupy; weights and statistics are its arrays, and so are results.
        rng: random numbers that depend on the seed and the layer's name only, not on the order of work.
    """

    xp: ModuleType
    rng: np.random.Generator


class Scheme(abc.ABC):
    """A way to choose codes, scales and zero points; see the module's text.

    Class attributes:
        name: how users name it ("rtn"); the module's name.
        summary: one line for the command's help.
        calibrated: whether it needs statistics. Layers that no calibration data reaches (in subgraphs) get ``rtn``.
        columnwise: whether the columns of a weight may be quantized separately.
        defaults: its options with their defaults; a given option is converted to the default's type.
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    calibrated: ClassVar[bool] = False
    columnwise: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = {}

    def __init__(self, **options: Any) -> None:
        """Takes the scheme's own options.

        Raises:
            OptionError: an option that it does not have, or a value that is none.
        """
        self.options = dict(self.defaults)
        for key, value in options.items():
            if key not in self.defaults:
                known = ", ".join(self.defaults) or "none"
                raise OptionError(f"scheme {self.name!r} has no option {key!r}; it has: {known}")
            self.options[key] = _converted(self.name, key, value, self.defaults[key])

    def input_scale(self, layers: Sequence[Layer], grid: Grid, context: Context) -> Array | None:
        """A positive float32 scale a channel of the layers' common input, [K]; None: leave it as it is.

        Args:
            layers: all products of one tensor, complete weights.
            grid: what they are going to be rounded to.
            context: array module and random numbers.
        """
        return None

    @property
    def compares(self) -> bool:
        """Whether it asks for ``drift`` of statistics, for which calibration runs the unquantized model as well."""
        return False

    @abc.abstractmethod
    def quantize(self, layer: Layer, grid: Grid, context: Context) -> Quantized:
        """The weight on the grid: see :class:`Quantized` for shapes and types, ``grid.py`` for the arithmetic."""


@functools.cache
def scheme_types() -> Mapping[str, type[Scheme]]:
    """Every scheme of this package by name.

    Raises:
        RuntimeError: a module defines no scheme or several, or a scheme by another name than its own.
    """
    found: dict[str, type[Scheme]] = {}
    for info in sorted(pkgutil.iter_modules(scheme_package.__path__), key=lambda i: i.name):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{scheme_package.__name__}.{info.name}")
        own = [
            c
            for _, c in inspect.getmembers(module, inspect.isclass)
            if issubclass(c, Scheme) and c.__module__ == module.__name__ and not inspect.isabstract(c)
        ]
        if len(own) != 1 or own[0].name != info.name:
            raise RuntimeError(f"{module.__name__} must define one scheme called {info.name!r}, it has {own}")
        found[info.name] = own[0]
    return found


def make_scheme(name: str, options: Mapping[str, Any]) -> Scheme:
    """The scheme of that name.

    Raises:
        OptionError: there is none, or it has no such option.
    """
    kind = scheme_types().get(name)
    if kind is None:
        raise OptionError(f"no quantization scheme is called {name!r}; there are {', '.join(scheme_types())}")
    return kind(**options)


def _converted(scheme: str, key: str, value: Any, default: Any) -> Any:
    """``value`` in the type of the default; text as in "clip=1", "damping=0.01"."""
    kind = type(default)
    try:
        if kind is bool:
            text = str(value).lower()
            if text not in ("1", "0", "true", "false"):
                raise ValueError(f"{value!r} is neither true nor false")
            return text in ("1", "true")
        return value if default is None else kind(value)
    except (TypeError, ValueError) as error:
        raise OptionError(f"scheme {scheme!r}: option {key!r}: {error}") from None
