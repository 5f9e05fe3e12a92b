"""Draws a handful of nodes as SVG: boxes in layers from top to bottom, arrows between them, weights as a count.

The layers are longest paths; an arrow over several layers gets a waypoint in each, so that it passes between the
boxes; the order within a layer follows the mean of the neighbours, swept down and up a few times.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from html import escape

from cuvil_onnx.rewrite.sketch import Box, Sketch

_ROW, _HEIGHT, _PILL, _GAP, _MARGIN = 66, 38, 22, 18, 10
_CHARACTER = 7.0
"""Width of a character at 11 to 12 px, somewhat generous: fonts differ."""
_SWEEPS = 4
_MAX_NAME, _MAX_DIM = 20, 7


@dataclasses.dataclass(eq=False)
class _Item:
    """Something with a place: a box, a value that enters or leaves (pill), or a waypoint."""

    kind: str
    label: str
    detail: str
    hover: str
    layer: int
    width: float
    x: float = 0.0
    above: list[_Item] = dataclasses.field(default_factory=list)
    below: list[_Item] = dataclasses.field(default_factory=list)

    @property
    def half(self) -> float:
        return {"box": _HEIGHT / 2, "pill": _PILL / 2}.get(self.kind, 0.0)

    @property
    def y(self) -> float:
        return _MARGIN + _HEIGHT / 2 + self.layer * _ROW


def draw(sketch: Sketch, color: str) -> str:
    """One SVG element; ``color`` is the CSS class of the boxes ("before" or "after")."""
    layers = _layers(_items(sketch))
    _place(layers)
    items = [item for layer in layers for item in layer]
    width = max((i.x + i.width / 2 for i in items), default=0) + _MARGIN
    height = max((i.y + i.half for i in items), default=0) + _MARGIN
    arrows = "".join(_arrow(item, target) for item in items for target in item.below)
    shapes = "".join(_shape(item, color) for item in items if item.kind != "point")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="graph" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img">{arrows}{shapes}</svg>'
    )


def _items(sketch: Sketch) -> list[_Item]:
    """Boxes and pills with their layers and arrows, waypoints included."""
    made: dict[str, _Item] = {}  # the item that a value comes from
    items: list[_Item] = []
    boxes: list[tuple[Box, _Item]] = []
    for box in sketch.boxes:
        layer = 1 + max((made[name].layer for name in box.inputs if name in made), default=0)
        item = _box_item(box, layer)
        items.append(item)
        boxes.append((box, item))
        made.update(dict.fromkeys(box.outputs, item))
    entering: dict[str, _Item] = {}
    for box, item in boxes:
        for name in dict.fromkeys(box.inputs):
            if name not in made:
                pill = entering.setdefault(name, _pill(name, item.layer - 1))
                pill.layer = min(pill.layer, item.layer - 1)
    items += entering.values()
    for box, item in boxes:
        for name in dict.fromkeys(box.inputs):
            items += _connect(made.get(name) or entering[name], item)
    for name in dict.fromkeys(sketch.results):
        source = made.get(name)
        if source is not None:
            pill = _pill(name, source.layer + 1)
            items += [pill, *_connect(source, pill)]
        else:
            items.append(_pill(name, 0))  # an existing value takes over
    return items


def _box_item(box: Box, layer: int) -> _Item:
    weights = {0: "", 1: "1 weight"}.get(box.weights, f"{box.weights} weights")
    shape = "×".join(dim if len(dim) <= _MAX_DIM else dim[: _MAX_DIM - 1] + "…" for dim in box.shape.split("×"))
    detail = ", ".join(part for part in (shape, weights) if part)
    width = 20 + _CHARACTER * max(len(box.op), len(detail))
    return _Item("box", box.op, detail, f"{box.name} → {', '.join(box.outputs)} {box.shape}", layer, width)


def _pill(name: str, layer: int) -> _Item:
    label = name if len(name) <= _MAX_NAME else "…" + name[1 - _MAX_NAME :]
    return _Item("pill", label, "", name, layer, 20 + _CHARACTER * len(label))


def _connect(source: _Item, target: _Item) -> list[_Item]:
    """Links two items through waypoints, which are returned."""
    points = []
    for layer in range(source.layer + 1, target.layer):
        point = _Item("point", "", "", "", layer, 4)
        points.append(point)
    for upper, lower in zip((source, *points), (*points, target), strict=True):
        upper.below.append(lower)
        lower.above.append(upper)
    return points


def _layers(items: Sequence[_Item]) -> list[list[_Item]]:
    layers: list[list[_Item]] = [[] for _ in range(max((i.layer for i in items), default=-1) + 1)]
    for item in items:
        layers[item.layer].append(item)
    return [layer for layer in layers if layer]


def _place(layers: Sequence[list[_Item]]) -> None:
    """Orders each layer and gives every item its x."""
    for layer in layers:
        _spread(layer, [0.0] * len(layer))
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            wanted = {id(i): _mean(i.above if down else i.below, i.x) for i in layer}
            layer.sort(key=lambda i: wanted[id(i)])
            _spread(layer, [wanted[id(i)] for i in layer])
    left = min((i.x - i.width / 2 for layer in layers for i in layer), default=0.0)
    for layer in layers:
        for item in layer:
            item.x += _MARGIN - left


def _mean(neighbours: Sequence[_Item], otherwise: float) -> float:
    return sum(n.x for n in neighbours) / len(neighbours) if neighbours else otherwise


def _spread(layer: Sequence[_Item], wanted: Sequence[float]) -> None:
    """Puts items as near to where they want to be as their widths allow, the layer as a whole unshifted."""
    edge = float("-inf")
    for item, x in zip(layer, wanted, strict=True):
        item.x = max(x, edge + item.width / 2)
        edge = item.x + item.width / 2 + _GAP
    if layer:
        shift = sum(x - i.x for i, x in zip(layer, wanted, strict=True)) / len(layer)
        for item in layer:
            item.x += shift


def _arrow(source: _Item, target: _Item) -> str:
    x, y, to, end = source.x, source.y + source.half, target.x, target.y - target.half
    bend = (end - y) / 2
    tip = ""
    if target.kind != "point":
        tip = f'<polygon points="{to:.1f},{end:.1f} {to - 4:.1f},{end - 7:.1f} {to + 4:.1f},{end - 7:.1f}"/>'
        end -= 6
    path = f"M{x:.1f} {y:.1f}C{x:.1f} {y + bend:.1f} {to:.1f} {end - bend:.1f} {to:.1f} {end:.1f}"
    return f'<path class="arrow" d="{path}"/>{tip}'


def _shape(item: _Item, color: str) -> str:
    left, top, height = item.x - item.width / 2, item.y - item.half, 2 * item.half
    rect = f'x="{left:.1f}" y="{top:.1f}" width="{item.width:.1f}" height="{height:.0f}"'
    hover = f"<title>{escape(item.hover)}</title>"
    if item.kind == "pill":
        text = f'<text class="value" x="{item.x:.1f}" y="{item.y + 4:.1f}">{escape(item.label)}</text>'
        return f'<g>{hover}<rect class="pill" {rect} rx="{item.half:.0f}"/>{text}</g>'
    line = item.y - 3 if item.detail else item.y + 4
    text = f'<text class="op" x="{item.x:.1f}" y="{line:.1f}">{escape(item.label)}</text>'
    if item.detail:
        text += f'<text class="detail" x="{item.x:.1f}" y="{item.y + 11:.1f}">{escape(item.detail)}</text>'
    return f'<g>{hover}<rect class="{escape(color)}" {rect} rx="5"/>{text}</g>'
