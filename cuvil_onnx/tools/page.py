"""The report of ``optimize`` as one HTML page: no server, no script, nothing loaded from elsewhere."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Sequence
from html import escape

from cuvil_onnx.quantize.summary import Summary
from cuvil_onnx.report import Report
from cuvil_onnx.rewrite.trace import Refused
from cuvil_onnx.tools.picture import draw

MAX_OPS = 40
MAX_ROWS = 500
"""Rows per table; what is left out is counted."""

_STYLE = """
:root{color-scheme:light}
body{font:14px/1.5 system-ui,sans-serif;color:#222;background:#fff;max-width:1080px;margin:32px auto;padding:0 20px}
h1{font-size:22px;margin:0}h2{font-size:17px;margin:34px 0 10px}h3{font-size:14px;margin:0 0 8px}
.sub{color:#5c6670;margin:2px 0 18px}.good{color:#1a7f5a}.warn{color:#a15c00}
.cards{display:flex;flex-wrap:wrap;gap:12px}.card{border:1px solid #d9dee4;border-radius:8px;padding:10px 16px}
.card b{display:block;font-size:18px;font-weight:600}.card span{color:#5c6670}
table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:4px 10px 4px 0}
th{font-weight:600;border-bottom:1px solid #c3c9d1}td{border-bottom:1px solid #eef1f4;overflow-wrap:anywhere}
td.n,th.n{text-align:right}
code{font:12px ui-monospace,monospace}summary{cursor:pointer;color:#5c6670}
.fusion{border:1px solid #d9dee4;border-radius:8px;padding:12px 16px;margin:0 0 14px}
.pair{display:flex;align-items:center;gap:24px}.pair>div{min-width:0}.pair>.becomes{flex:none}
svg.graph{max-width:100%;height:auto}
.becomes{font-size:26px;color:#8c95a1}
svg text{font:12px system-ui,sans-serif;fill:#222}svg .op{font-weight:600;text-anchor:middle}
svg .detail{font-size:11px;fill:#5c6670;text-anchor:middle}svg .value{font-size:11px;text-anchor:middle}
svg .before{fill:#edf0f4;stroke:#8c95a1}svg .after{fill:#ddf3e9;stroke:#1a7f5a}
svg .pill{fill:#fff;stroke:#c3c9d1}svg .arrow{fill:none;stroke:#8c95a1}svg polygon{fill:#8c95a1}
svg .label{text-anchor:end}svg .bar-before{fill:#c3c9d1}svg .bar-after{fill:#1a7f5a}
"""


def render(report: Report, title: str = "") -> str:
    """The page; ``title`` names the model."""
    heading = f"{title}: what cuvil_onnx changed" if title else "What cuvil_onnx changed"
    parts = [f"<h1>{escape(heading)}</h1>", _verified(report), _accuracy(report), _cards(report)]
    parts += [f'<p class="warn">Warning: {escape(message)}</p>' for message in report.trace.warnings]
    parts += ["<h2>Operators</h2>", ops_chart(report.before.ops, report.after.ops)]
    if report.trace.pictures:
        parts += ["<h2>Rewrites, one of each kind</h2>", *_pictures(report)]
    if report.quantization is not None:
        parts += ["<h2>Quantized weights</h2>", _quantized(report.quantization)]
    parts += ["<h2>What fired where</h2>", _fired(report), "<h2>What nearly fired, and why not</h2>"]
    parts += [_near_misses(report.near_misses()), "<h2>Time</h2>", _seconds(report)]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(heading)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _verified(report: Report) -> str:
    text = report.verification
    if not text or text.startswith("no: "):
        return f'<p class="sub">Not verified{escape(": " + text[4:] if text else "")}</p>'
    against = "the original" if report.quantization is None else "the weights that the codes stand for"
    return f'<p class="sub good">Verified against {against}: {escape(text)}</p>'


def _accuracy(report: Report) -> str:
    text = report.trace.accuracy
    return f'<p class="sub">Accuracy in 16 bits: {escape(text)}</p>' if text else ""


def _cards(report: Report) -> str:
    before, after = report.before, report.after
    cards = [
        ("nodes", f"{before.nodes:,}", f"{after.nodes:,}"),
        ("nodes with subgraphs", f"{before.all_nodes:,}", f"{after.all_nodes:,}"),
        ("parameters", f"{before.parameters:,}", f"{after.parameters:,}"),
        ("bytes of parameters", _megabytes(before.parameter_bytes), _megabytes(after.parameter_bytes)),
    ]
    if before.nodes == before.all_nodes and after.nodes == after.all_nodes:
        del cards[1]
    body = "".join(f'<div class="card"><b>{a} → {b}</b><span>{name}</span></div>' for name, a, b in cards)
    return f'<div class="cards">{body}</div>'


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.2f} MB"


def ops_chart(before: dict[str, int], after: dict[str, int]) -> str:
    """Two bars an operator, the most frequent first, as an SVG element."""
    names = sorted({*before, *after}, key=lambda n: (-max(before.get(n, 0), after.get(n, 0)), n))
    shown = names[:MAX_OPS]
    left = 20 + 7 * max(map(len, shown), default=0)
    longest = max((max(before.get(n, 0), after.get(n, 0)) for n in shown), default=1)
    rows = []
    for i, name in enumerate(shown):
        y = 28 + 34 * i
        rows.append(f'<text class="label" x="{left - 8}" y="{y + 16}">{escape(name)}</text>')
        for kind, count, top in (("before", before.get(name, 0), y), ("after", after.get(name, 0), y + 13)):
            width = 480 * count / longest
            rows.append(f'<rect class="bar-{kind}" x="{left}" y="{top}" width="{width:.1f}" height="11" rx="2"/>')
            rows.append(f'<text class="detail" style="text-anchor:start" x="{left + width + 5:.1f}" y="{top + 10}">')
            rows.append(f"{count}</text>")
    key = "".join(
        f'<rect class="bar-{kind}" x="{left + 80 * i}" y="4" width="11" height="11" rx="2"/>'
        f'<text x="{left + 80 * i + 16}" y="14">{kind}</text>'
        for i, kind in enumerate(("before", "after"))
    )
    width, height = left + 480 + 60, 34 * len(shown) + 32
    more = f"<p>{len(names) - MAX_OPS} more operators</p>" if len(names) > MAX_OPS else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img">{key}{"".join(rows)}</svg>{more}'
    )


def _pictures(report: Report) -> Iterable[str]:
    trace = report.trace
    for rule, picture in trace.pictures.items():
        count = trace.counts.get(rule, 0)
        times = "once" if count == 1 else f"{count} times"
        out = f"<p>and {picture.before.left_out} more nodes</p>" if picture.before.left_out else ""
        yield (
            f'<div class="fusion"><h3>{escape(rule)} <span class="sub">({trace.exactness[rule].value}, {times})</span>'
            f'</h3><div class="pair"><div>{draw(picture.before, "before")}{out}</div><div class="becomes">→</div>'
            f"<div>{draw(picture.after, 'after')}</div></div></div>"
        )


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are HTML already; those of columns named with a leading # are aligned to the right."""
    right = [' class="n"' if h.startswith("#") else "" for h in headers]
    head = "".join(f"<th{r}>{escape(h.lstrip('#'))}</th>" for h, r in zip(headers, right, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{r}>{cell}</td>" for cell, r in zip(row, right, strict=True)) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"<code>{escape(n)}</code>" for n in names)


def _quantized(summary: Summary) -> str:
    """The settings, each weight with its errors, and what was left alone."""
    rows = []
    for layer in summary.layers[:MAX_ROWS]:
        snr = "" if layer.output_snr_db is None else f"{layer.output_snr_db:.1f} dB"
        shape = " x ".join(map(str, layer.shape))
        figures = [str(layer.bits), f"{layer.relative_error:.4f}", snr]
        rows.append([f"<code>{escape(layer.name)}</code>", shape, *figures, escape(layer.note)])
    left = [[f"<code>{escape(s.name)}</code>", escape(s.reason)] for s in summary.skipped[:MAX_ROWS]]
    parts = [f'<p class="sub">{escape(summary.label)}, {summary.bytes_saved / 1e6:,.1f} MB saved</p>']
    parts += [f'<p class="warn">Warning: {escape(message)}</p>' for message in summary.warnings]
    parts += [f"<p>{escape(str(name))}: {escape(str(value))}</p>" for name, value in summary.extra.items()]
    parts.append(_table(["layer", "shape", "bits", "weight error", "output SNR", ""], rows))
    if left:
        parts += ["<h3>Not quantized</h3>", _table(["layer", "why"], left)]
    return "\n".join(parts)


def _fired(report: Report) -> str:
    trace = report.trace
    if not trace.counts:
        return "<p>Nothing.</p>"
    summary = [[escape(name), trace.exactness[name].value, str(count)] for name, count in sorted(trace.counts.items())]
    rows = [
        [escape(f.rule), _names(f.nodes), _names(f.result) or "nothing", escape(f.shape)]
        for f in trace.fired
        if f.nodes
    ]
    table = _table(("rule or pass", "numbers", "#times"), summary)
    if not rows:
        return table
    more = f"<p>{len(rows) - MAX_ROWS} more</p>" if len(rows) > MAX_ROWS else ""
    places = _table(("rule", "nodes", "became", "shape"), rows[:MAX_ROWS])
    return f"{table}<details><summary>each place ({len(rows)})</summary>{places}{more}</details>"


def _near_misses(refused: Sequence[Refused]) -> str:
    if not refused:
        return "<p>Nothing.</p>"
    groups: dict[tuple[str, str], list[Refused]] = collections.defaultdict(list)
    for entry in refused:
        groups[entry.rule, entry.reason].append(entry)
    rows = []
    for (rule, reason), entries in sorted(groups.items())[:MAX_ROWS]:
        places = _names([e.node + (f" ({e.culprit})" if e.culprit else "") for e in entries[:MAX_ROWS]])
        if len(entries) > 3:
            places = f"<details><summary>{len(entries)} places</summary>{places}</details>"
        rows.append([escape(rule), escape(reason), places])
    return _table(("rule", "reason", "where"), rows)


def _seconds(report: Report) -> str:
    seconds = sorted(report.trace.seconds.items(), key=lambda item: -item[1])
    return _table(("step", "#seconds"), [[escape(name), f"{value:.3f}"] for name, value in seconds])
