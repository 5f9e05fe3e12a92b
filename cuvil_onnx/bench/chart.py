"""Bar charts as SVG, written directly: one picture needs no plotting library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_COLORS = {"cuvil": "#1a7f5a", "cuvil_run": "#6bb593", "stock_best": "#8c95a1", "stock_default": "#c3c9d1"}
_WIDTH, _LEFT, _RIGHT, _BAR, _GAP, _HEAD = 720, 240, 90, 20, 8, 34


@dataclass(frozen=True)
class Bar:
    """One bar; ``key`` chooses its colour."""

    key: str
    label: str
    value: float


def bar_chart(title: str, groups: Sequence[tuple[str, Sequence[Bar]]], unit: str = "ms") -> str:
    """Horizontal bars in titled groups, each group on a scale of its own; shorter is better."""
    body: list[str] = []
    y = 24
    for name, bars in groups:
        y += _HEAD
        body.append(f'<text x="16" y="{y - 10}" class="g">{escape(name)}</text>')
        longest = max((bar.value for bar in bars), default=1.0) or 1.0
        for bar in bars:
            width = max(1.0, (_WIDTH - _LEFT - _RIGHT) * bar.value / longest)
            color = _COLORS.get(bar.key, "#8c95a1")
            body.append(f'<text x="{_LEFT - 8}" y="{y + 14}" class="l">{escape(bar.label)}</text>')
            body.append(f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="{_BAR}" rx="2" fill="{color}"/>')
            body.append(f'<text x="{_LEFT + width + 6:.1f}" y="{y + 14}">{bar.value:.3g} {escape(unit)}</text>')
            y += _BAR + _GAP
    height = y + 12
    style = (
        "text{font:12px system-ui,sans-serif;fill:#222}.l{text-anchor:end}.g{font-weight:600}.t{font-size:15px;"
        "font-weight:600}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}">'
        f'<style>{style}</style><rect width="{_WIDTH}" height="{height}" fill="#fff"/>'
        f'<text x="16" y="26" class="t">{escape(title)}</text>{"".join(body)}</svg>\n'
    )
