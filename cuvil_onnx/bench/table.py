"""A comparison as text: for the terminal and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from cuvil_onnx.bench.compare import Comparison, Row

_HEADERS = (
    "variant",
    "p50 ms",
    "p90 ms",
    "p99 ms",
    "runs/s",
    "x stock",
    "memory MB",
    "kernels",
    "graph",
    "max rel err",
)


def text_table(rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned, the first to the left; the first row is the header."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """The same as Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    lines.insert(1, "|" + "---|" + "---:|" * (len(rows[0]) - 1))
    return "\n".join(lines)


def comparison_rows(comparison: Comparison) -> list[list[str]]:
    """Header and one row a variant."""
    base = comparison.get("stock_default")
    return [list(_HEADERS), *(_cells(row, base) for row in comparison.rows)]


def _cells(row: Row, base: Row | None) -> list[str]:
    r = row.result
    return [
        row.label,
        f"{r.p50:.3f}",
        f"{r.p90:.3f}",
        f"{r.p99:.3f}",
        f"{r.runs_per_s:.0f}",
        f"{base.result.p50 / r.p50:.2f}" if base else "-",
        "-" if r.memory_mb is None else f"{r.memory_mb:.0f}",
        "-" if r.kernels is None else str(r.kernels),
        "yes" if r.captured else "no",
        f"{row.max_rel_err:.1e}",
    ]


def render(comparison: Comparison) -> str:
    """The whole comparison for a terminal."""
    inputs = ", ".join(f"{k} {v}" for k, v in comparison.inputs.items())
    lines = [f"{comparison.model} {comparison.precision} on {comparison.device} ({inputs})"]
    if comparison.device == "CPU":
        lines.append("No usable GPU: both run on the CPU provider, so this shows the rewriting alone.")
    lines += ["", text_table(comparison_rows(comparison))]
    lines += [f"not measured: {failure}" for failure in comparison.failures]
    for row in comparison.rows:
        lines += [f"on the CPU ({row.label}): {node}" for node in row.result.nodes_on_cpu]
    return "\n".join(lines)
