"""AWQ's search on one grid and the result on another; see ``cuvil_onnx/quantize/joint.py`` for the configuration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from cuvil_onnx.quantize.grid import Array, Grid, Quantized
from cuvil_onnx.quantize.joint import checked
from cuvil_onnx.quantize.scheme import Context, Layer, Scheme
from cuvil_onnx.quantize.schemes.awq import Awq


class Joint(Scheme):
    """See the module's text. Options: ``awq`` and ``group``, two dicts."""

    name = "joint"
    summary = 'AWQ searched on one grid, rounded to another: {"awq": {...}, "group": {...}}'
    calibrated: ClassVar[bool] = True
    defaults: ClassVar[Mapping[str, Any]] = {"awq": None, "group": None}

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        search, group = checked(self.options["awq"], self.options["group"])
        self.options = {"awq": search, "group": group}
        others = {key: value for key, value in search.items() if key not in ("n_bits", "q_group_size")}
        self._awq = Awq(**others, search_bits=search["n_bits"], search_group_size=search["q_group_size"])

    @property
    def compares(self) -> bool:
        return self._awq.compares

    def input_scale(self, layers: Sequence[Layer], grid: Grid, context: Context) -> Array | None:
        return self._awq.input_scale(layers, grid, context)

    def quantize(self, layer: Layer, grid: Grid, context: Context) -> Quantized:
        return self._awq.quantize(layer, grid, context)
