"""Mixed precision: which layers get 4 bits, which 8, and which stay as they are, within a budget.

Every layer is quantized with 4 and with 8 bits. What that does to it, the part of its output's energy that is noise
(over calibration data; of its weight's energy without), is its sensitivity. From 4 bits everywhere, whatever removes
most noise for a byte is upgraded next, until the bytes are spent or the noise is low enough.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cuvil_onnx.errors import OptionError
from cuvil_onnx.quantize.settings import KEEP_BITS


@dataclasses.dataclass(frozen=True)
class Sensitivity:
    """What one layer costs at each precision.

    Attributes:
        name: of the node.
        noise: bits (4, 8, 16) -> noise energy over signal energy.
        size: bits -> bytes of the weight.
    """

    name: str
    noise: Mapping[int, float]
    size: Mapping[int, int]


@dataclasses.dataclass(frozen=True)
class Choice:
    """The bits of each layer.

    Attributes:
        bits: layer name -> 4, 8 or 16 (as it is).
        size: bytes of all weights.
        noise: the sum of the layers' noise.
        layers: what was known of each.
    """

    bits: Mapping[str, int]
    size: int
    noise: float
    layers: Sequence[Sensitivity]

    @property
    def overrides(self) -> dict[str, int]:
        """For ``cuvil_onnx.quantize(bits=4, overrides=...)``: the layers that differ from 4 bits, as patterns."""
        return {name.replace("[", "[[]"): bits for name, bits in self.bits.items() if bits != 4}

    def table(self) -> str:
        """One line a layer that got more than 4 bits, the most sensitive first."""
        chosen = sorted((s for s in self.layers if self.bits[s.name] != 4), key=lambda s: -s.noise[4])
        lines = [f"{len(chosen)} of {len(self.layers)} layers above 4 bits, {self.size / 1e6:.2f} MB"]
        lines += [f"  {s.name}: {self.bits[s.name]} bits (noise at 4 bits {s.noise[4]:.2e})" for s in chosen]
        return "\n".join(lines)


def choose_bits(
    model: Any,
    *,
    budget_bytes: int | None = None,
    max_noise: float | None = None,
    scheme: str = "rtn",
    **arguments: Any,
) -> Choice:
    """Measures each layer of a model and spends the budget.

    Args:
        model: as for ``cuvil_onnx.quantize``.
        budget_bytes: what the quantized layers' weights may take, scales included.
        max_noise: the mean over the layers of noise over signal that is allowed. Exactly one of the two is given.
        scheme: what to measure with.
        arguments: of ``cuvil_onnx.quantize``: calibration, group_size, include, exclude, ...

    Raises:
        OptionError: no budget or two, or one that 4 bits everywhere do not meet.
    """
    import cuvil_onnx

    if (budget_bytes is None) == (max_noise is None):
        raise OptionError("mixed precision needs either budget_bytes or max_noise")
    for taken in ("bits", "overrides", "output"):
        if taken in arguments:
            raise OptionError(f"mixed precision chooses {taken!r} itself")
    reports = {}
    for bits in (4, 8):
        report = cuvil_onnx.quantize(model, scheme, bits=bits, verify=False, **arguments).report.quantization
        assert report is not None
        reports[bits] = report.layers
    layers = []
    for four, eight in zip(reports[4], reports[8], strict=True):
        noise = {4: _noise(four), 8: _noise(eight), KEEP_BITS: 0.0}
        size = {4: four.bytes_after, 8: eight.bytes_after, KEEP_BITS: four.bytes_before}
        layers.append(Sensitivity(four.name, noise, size))
    return spend(layers, budget_bytes=budget_bytes, max_noise=max_noise)


def _noise(layer: Any) -> float:
    """Noise energy over signal energy, of the output where that was seen."""
    if layer.output_snr_db is not None:
        return float(10.0 ** (-layer.output_snr_db / 10.0))
    return float(layer.relative_error**2)


def spend(layers: Iterable[Sensitivity], *, budget_bytes: int | None = None, max_noise: float | None = None) -> Choice:
    """The choice for known sensitivities; see :func:`choose_bits`."""
    layers = list(layers)
    bits = {layer.name: 4 for layer in layers}
    if len(bits) != len(layers):
        raise OptionError("mixed precision needs layers with names of their own")
    size = sum(layer.size[4] for layer in layers)
    noise = sum(layer.noise[4] for layer in layers)
    if budget_bytes is not None and size > budget_bytes:
        raise OptionError(f"mixed precision: 4 bits everywhere take {size} bytes, the budget is {budget_bytes}")
    limit = None if max_noise is None else max_noise * len(layers)
    while limit is None or noise > limit:
        best: tuple[float, Sensitivity, int] | None = None
        for layer in layers:
            now = bits[layer.name]
            for more in (8, KEEP_BITS):
                extra, gain = layer.size[more] - layer.size[now], layer.noise[now] - layer.noise[more]
                if more <= now or gain <= 0 or (budget_bytes is not None and size + extra > budget_bytes):
                    continue
                rate = gain / max(extra, 1)
                if best is None or rate > best[0]:
                    best = rate, layer, more
        if best is None:
            break
        _, layer, more = best
        now = bits[layer.name]
        size += layer.size[more] - layer.size[now]
        noise += layer.noise[more] - layer.noise[now]
        bits[layer.name] = more
    return Choice(bits, size, sum(layer.noise[bits[layer.name]] for layer in layers), layers)
