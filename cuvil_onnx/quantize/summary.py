"""What quantization did to each layer: errors, bytes, and why others were left alone."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from cuvil_onnx.quantize.targets import Skipped

MAX_ROWS_SHOWN = 40


@dataclasses.dataclass(frozen=True)
class LayerSummary:
    """One quantized weight.

    Attributes:
        name: of the node.
        shape: [K, N] or [E, K, N].
        scheme, bits, group_size, symmetric: how it was quantized.
        relative_error: of the weight: |W' - W| / |W| (root of the sums of squares).
        weight_snr_db: the same in decibels.
        output_snr_db: of the product over the calibration data; None without.
        bytes_before, bytes_after: of the weight.
        note: what else happened: repairs, a scale moved out of the input, readers that share it.
    """

    name: str
    shape: tuple[int, ...]
    scheme: str
    bits: int
    group_size: int
    symmetric: bool
    relative_error: float
    weight_snr_db: float | None
    output_snr_db: float | None
    bytes_before: int
    bytes_after: int
    note: str = ""


@dataclasses.dataclass
class Summary:
    """The account of one quantization; part of the report.

    Attributes:
        label: the settings in one line.
        layers: in the order of the model.
        skipped: products that stay as they were, with reasons.
        warnings: what the user should read.
        extra: figures by name from calibration, such as perplexities.
    """

    label: str
    layers: list[LayerSummary] = dataclasses.field(default_factory=list)
    skipped: list[Skipped] = dataclasses.field(default_factory=list)
    warnings: list[str] = dataclasses.field(default_factory=list)
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def bytes_saved(self) -> int:
        """How much smaller the quantized weights are."""
        return sum(layer.bytes_before - layer.bytes_after for layer in self.layers)

    def table(self) -> str:
        """Layers with the largest errors first, then what was left alone."""
        before = sum(layer.bytes_before for layer in self.layers)
        lines = [
            f"quantized: {len(self.layers)} weights as {self.label}, "
            f"{before / 1e6:.2f} -> {(before - self.bytes_saved) / 1e6:.2f} MB"
        ]
        worst = sorted(self.layers, key=lambda layer: -layer.relative_error)
        rows = [("layer", "shape", "bits", "weight error", "output SNR", "")]
        for layer in worst[:MAX_ROWS_SHOWN]:
            snr = "" if layer.output_snr_db is None else f"{layer.output_snr_db:.1f} dB"
            shape = "x".join(map(str, layer.shape))
            rows.append((layer.name, shape, str(layer.bits), f"{layer.relative_error:.4f}", snr, layer.note))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines += ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
        if len(worst) > MAX_ROWS_SHOWN:
            lines.append(f"... {len(worst) - MAX_ROWS_SHOWN} more with smaller errors")
        lines += [f"{key}: {value}" for key, value in self.extra.items()]
        lines += [f"not quantized: {s.name}: {s.reason}" for s in self.skipped[:MAX_ROWS_SHOWN]]
        if len(self.skipped) > MAX_ROWS_SHOWN:
            lines.append(f"... {len(self.skipped) - MAX_ROWS_SHOWN} more not quantized")
        lines += [f"warning: {message}" for message in self.warnings]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {
            "settings": self.label,
            "bytes_saved": self.bytes_saved,
            "layers": [dataclasses.asdict(layer) for layer in self.layers],
            "skipped": [dataclasses.asdict(s) for s in self.skipped],
            "warnings": list(self.warnings),
            **self.extra,
        }


def decibels(signal: float, noise: float) -> float | None:
    """The ratio of two sums of squares in decibels; None where there is no noise, or nothing else."""
    return 10.0 * math.log10(signal / noise) if signal > 0 and noise > 0 else None
