"""The shape of a few nodes, kept after they are gone, to be drawn in the report."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import onnx_ir as ir

MAX_NODES = 40
"""A larger rewrite is sketched by its first nodes; nobody reads more boxes."""


@dataclasses.dataclass(frozen=True)
class Box:
    """One node: its operator, and the names of what it reads and computes (weights excluded, but counted)."""

    op: str
    name: str
    inputs: tuple[str, ...]
    weights: int
    outputs: tuple[str, ...]
    shape: str


@dataclasses.dataclass(frozen=True)
class Sketch:
    """Nodes in graph order; ``left_out`` more are not listed. ``results`` are the values that others read."""

    boxes: tuple[Box, ...]
    results: tuple[str, ...]
    left_out: int = 0


@dataclasses.dataclass(frozen=True)
class Picture:
    """One rewrite: what was there and what took its place."""

    before: Sketch
    after: Sketch


def sketch(nodes: Iterable[ir.Node], results: Iterable[ir.Value | None]) -> Sketch:
    """Describes ``nodes`` as they are now."""
    every = list(nodes)
    names = tuple(v.name or "" for v in results if v is not None)
    return Sketch(tuple(_box(n) for n in every[:MAX_NODES]), names, max(0, len(every) - MAX_NODES))


def _box(node: ir.Node) -> Box:
    read = [v for v in node.inputs if v is not None]
    weights = [v for v in read if v.is_initializer() or v.const_value is not None]
    return Box(
        f"{node.domain}::{node.op_type}" if node.domain else node.op_type,
        node.name or "",
        tuple(v.name or "" for v in read if v not in weights),
        len(weights),
        tuple(v.name or "" for v in node.outputs if v.name),
        _shape(node.outputs[0]) if node.outputs else "",
    )


def _shape(value: ir.Value) -> str:
    if value.shape is None:
        return ""
    return "×".join(str(d if isinstance(d, int) else d.value or "?") for d in value.shape)
