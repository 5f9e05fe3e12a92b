"""Gathers the newest value of each metric and renders README's table and picture from them.

python -m benchmarks.summary            write summary.json, README.md's table, docs/latency.svg, docs/performance.md
python -m benchmarks.summary --check    fail (exit code 1) when one of them does not follow from the result files
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from pathlib import Path
from typing import Any

from cuvil_onnx.bench.chart import Bar, bar_chart
from cuvil_onnx.bench.record import newest
from cuvil_onnx.bench.table import markdown_table

ROOT = Path(__file__).resolve().parent.parent
RESULTS, README, CHART = ROOT / "benchmarks" / "results", ROOT / "README.md", ROOT / "docs" / "latency.svg"
PERFORMANCE = ROOT / "docs" / "performance.md"
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"
POINTWISE = "pointwise/cast_add_relu_64Mi"

Metrics = dict[str, dict[str, Any]]


def configurations(metrics: Metrics) -> list[str]:
    """The model configurations that have a value for cuvil."""
    return [m[len("model/") : -len("/cuvil")] for m in metrics if re.fullmatch(r"model/[^/]+/cuvil", m)]


def _value(metrics: Metrics, name: str) -> float | None:
    entry = metrics.get(name)
    return None if entry is None else float(entry["value"])


def _stock_best(metrics: Metrics, prefix: str) -> float | None:
    """The fastest stock variant: a conversion that is meant to help can be slower than the model as given."""
    stock = [_value(metrics, f"{prefix}/{key}") for key in ("stock_best", "stock_default")]
    return min((value for value in stock if value is not None), default=None)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def render_table(cards: dict[str, Metrics]) -> str:
    """The Markdown between README's markers."""
    parts = [_card_table(metrics) for metrics in cards.values() if configurations(metrics)]
    if not parts:
        return "No results are recorded yet."
    return "\n\n".join(parts)


def _card_table(metrics: Metrics) -> str:
    card = next(iter(metrics.values()))["card"]
    rows = [["model", "stock ORT `run()`", "stock ORT at its best", "cuvil", "x best", "largest difference"]]
    for name in configurations(metrics):
        prefix = f"model/{name}"
        best = _stock_best(metrics, prefix)
        for label, key, error in ((name, "cuvil", "max_rel_err"), (f"{name}, TF32", "cuvil_tf32", "tf32_max_rel_err")):
            ours, difference = _value(metrics, f"{prefix}/{key}"), _value(metrics, f"{prefix}/{error}")
            if ours is None:
                continue
            rows.append(
                [
                    label,
                    _ms(_value(metrics, f"{prefix}/stock_default")),
                    _ms(best),
                    _ms(ours),
                    f"{best / ours:.2f}" if best else "-",
                    "-" if difference is None else f"{difference:.1e}",
                ]
            )
    lines = [f"Median latency in ms on one {card}; differences are relative to fp32 on the CPU.", ""]
    lines.append(markdown_table(rows))
    percent, times = _value(metrics, f"{POINTWISE}/pct_copy"), _value(metrics, f"{POINTWISE}/x_stock")
    if percent is not None:
        against = "" if times is None else f", {times:.2f}x stock ORT's three kernels"
        lines += ["", f"Cast, Add, Relu over 64 Mi elements: {percent:.1f} % of the measured copy bandwidth{against}."]
    return "\n".join(lines)


def render_chart(cards: dict[str, Metrics]) -> str:
    """One picture: each model configuration as a group of bars."""
    groups = []
    title = "Median latency"
    for metrics in cards.values():
        for name in configurations(metrics):
            prefix = f"model/{name}"
            values = {
                ("stock_default", "stock ORT, run()"): _value(metrics, f"{prefix}/stock_default"),
                ("stock_best", "stock ORT at its best"): _stock_best(metrics, prefix),
                ("cuvil", "cuvil"): _value(metrics, f"{prefix}/cuvil"),
            }
            bars = [Bar(*bar, value) for bar, value in values.items() if value is not None]
            groups.append((name, bars))
            title = f"Median latency on {metrics[f'model/{name}/cuvil']['card']}"
    return bar_chart(title, groups)


def render_performance(cards: dict[str, Metrics]) -> str:
    """The page of all kernels and models, one section a card."""
    parts = [
        "# Performance",
        "Written by `python -m benchmarks.summary` from the newest value of each metric in `benchmarks/results`. "
        "Kernels are timed inside a CUDA graph over memory rotated past the L2 cache (`python -m benchmarks.kernels`); "
        "the ceiling is the card's device-to-device copy, or its fp16 product of 8192 x 8192 matrices, measured in the "
        "same run. Stock is onnxruntime-gpu's CUDA provider, torch is PyTorch's own kernel, both in a graph as well. "
        "A `-` was not measured.",
    ]
    for metrics in cards.values():
        if kernels(metrics):
            parts += [f"## Kernels on one {next(iter(metrics.values()))['card']}", _kernel_table(metrics)]
        if configurations(metrics):
            parts += ["## Models", _card_table(metrics)]
            mean = geometric_mean(metrics, "_fp16_")
            if mean is not None:
                parts.append(f"Geometric mean of the fp16 rows: {mean:.2f}x stock ONNX Runtime at its best.")
    return "\n\n".join(parts) + "\n"


def geometric_mean(metrics: Metrics, kind: str) -> float | None:
    """Mean of stock's best time over ours, of the configurations whose name holds ``kind`` and that have both."""
    names = [f"model/{name}" for name in configurations(metrics) if kind in name]
    pairs = [(_stock_best(metrics, prefix), _value(metrics, f"{prefix}/cuvil")) for prefix in names]
    ratios = [best / ours for best, ours in pairs if best and ours]
    return math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None


def kernels(metrics: Metrics) -> list[str]:
    """The kernels that have a time of ours, as ``<op>/<shape>``."""
    return [m[len("kernel/") : -len("/us")] for m in metrics if re.fullmatch(r"kernel/[^/]+/[^/]+/us", m)]


def _kernel_table(metrics: Metrics) -> str:
    def cell(name: str, digits: int) -> str:
        value = _value(metrics, name)
        return "-" if value is None else f"{value:.{digits}f}"

    rows = [["kernel", "us", "GB/s", "TFLOP/s", "% of ceiling", "x stock", "x torch"]]
    for name in kernels(metrics):
        columns = (("us", 1), ("gb_s", 0), ("tflop_s", 0), ("pct_roof", 0), ("x_stock", 2), ("x_torch", 2))
        rows.append([name, *(cell(f"kernel/{name}/{key}", digits) for key, digits in columns)])
    ceilings = (
        f"Copy {cell('kernel/copy/gb_s', 0)} GB/s, fp16 product {cell('kernel/matmul_f16_8192/tflop_s', 0)} TFLOP/s."
    )
    return f"{ceilings}\n\n{markdown_table(rows)}"


def outputs() -> dict[Path, str]:
    """Every generated file with the content that follows from the result files."""
    folders = sorted(p for p in RESULTS.iterdir() if p.is_dir()) if RESULTS.is_dir() else []
    cards = {folder.name: newest(folder) for folder in folders}
    files: dict[Path, str] = {}
    for name, metrics in cards.items():
        flat = {metric: entry["value"] for metric, entry in metrics.items()}
        files[RESULTS / name / "summary.json"] = json.dumps(flat, indent=1) + "\n"
    readme = README.read_text(encoding="utf-8")
    before, _, rest = readme.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{README.name} lacks the markers {BEGIN} and {END}")
    files[PERFORMANCE] = render_performance(cards)
    files[README] = f"{before}{BEGIN}\n{render_table(cards)}\n{END}{after}"
    if any(configurations(metrics) for metrics in cards.values()):
        files[CHART] = render_chart(cards)
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, fail when something is out of date")
    args = parser.parse_args()
    stale = [p for p, text in outputs().items() if not p.is_file() or p.read_text(encoding="utf-8") != text]
    if args.check:
        for path in stale:
            print(f"{path.relative_to(ROOT)} does not follow from benchmarks/results", file=sys.stderr)
        return 1 if stale else 0
    for path, text in outputs().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
