"""Finds what can be quantized: products with a constant weight, and tables that the same weight is."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Collection, Iterable, Sequence

import onnx_ir as ir

from cuvil_onnx.errors import OptionError
from cuvil_onnx.quantize.weight import DTYPES, Weight
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.provenance import FROM_KEY, origins

MIN_ELEMENTS = 4096
"""Smaller weights save next to nothing, and cost accuracy all the same."""

QUANTIZED = frozenset({("com.microsoft", "MatMulNBits"), ("cuvil", "MatMulInt4"), ("com.microsoft", "QMoE")})
"""Operators whose weights are quantized already."""


@dataclasses.dataclass(frozen=True)
class Product:
    """A node that multiplies by a constant weight.

    Attributes:
        node: MatMul, Gemm or cuvil::FusedMatMul.
        name: what reports, ``include`` and ``exclude`` call it.
        x: the other operand, as the node reads it.
        weight: the constant.
        transposed_x: whether the node transposes ``x`` first (a Gemm).
        origins: names of nodes of the caller's model that it stands for, where projections were packed.
    """

    node: ir.Node
    name: str
    x: ir.Value
    weight: Weight
    transposed_x: bool = False
    origins: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """What a pattern may fit."""
        unnamed = (origin.partition(":")[2] for origin in self.origins)  # "MatMul:output" stands for such a node
        return (self.name, self.weight.value.name or "", *self.origins, *unnamed)


@dataclasses.dataclass(frozen=True)
class Lookup:
    """A Gather of rows of a constant table [V, D]; as a weight it is [D, V]."""

    node: ir.Node
    name: str
    weight: Weight

    @property
    def names(self) -> tuple[str, ...]:
        """What a pattern may fit."""
        return (self.name, self.weight.value.name or "")


@dataclasses.dataclass(frozen=True)
class Skipped:
    """A node that was not quantized, and why."""

    name: str
    reason: str


@dataclasses.dataclass
class Targets:
    """What was found, in the order of the graphs."""

    products: list[Product] = dataclasses.field(default_factory=list)
    lookups: list[Lookup] = dataclasses.field(default_factory=list)
    skipped: list[Skipped] = dataclasses.field(default_factory=list)


def find_targets(
    ctx: GraphContext, include: Collection[str] = (), exclude: Collection[str] = (), others: Collection[str] = ()
) -> Targets:
    """Every product and lookup of the model and its subgraphs that may be quantized.

    Args:
        ctx: the model; constants are initializers.
        include: patterns (as in file names) of the names of nodes or weights; only those are taken, small ones too.
        exclude: patterns of those that are not.
        others: more patterns, which only have to fit something.

    Raises:
        OptionError: a pattern that fits no product, lookup or weight of one.
    """
    found = Targets()
    seen: list[tuple[str, ...]] = []
    for graph in ctx.graphs:
        for node in graph:
            target = _product(node, ctx) or _lookup(node, ctx)
            if target is None:
                continue
            if isinstance(target, Skipped):
                found.skipped.append(target)
                continue
            names = target.names
            seen.append(names)
            if fits(names, exclude):
                found.skipped.append(Skipped(target.name, "excluded"))
            elif include and not fits(names, include):
                found.skipped.append(Skipped(target.name, "not included"))
            elif isinstance(target, Lookup):
                found.lookups.append(target)
            elif not include and target.weight.tensor.size < MIN_ELEMENTS:
                reason = f"the weight has {target.weight.tensor.size} elements, fewer than {MIN_ELEMENTS}"
                found.skipped.append(Skipped(target.name, reason))
            else:
                found.products.append(target)
    for pattern in (*include, *exclude, *others):
        if not any(fits(names, (pattern,)) for names in seen):
            raise OptionError(f"{pattern!r} names no product with a constant weight, and no such weight")
    return found


def fits(names: Iterable[str], patterns: Collection[str]) -> bool:
    """Whether one of the names fits one of the patterns."""
    return any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in patterns)


def _product(node: ir.Node, ctx: GraphContext) -> Product | Skipped | None:
    kind = (node.domain, node.op_type)
    name = _name(node)
    if kind in QUANTIZED:
        return Skipped(name, f"{node.op_type}: quantized already")
    if kind not in (("", "MatMul"), ("", "Gemm"), ("cuvil", "FusedMatMul")):
        return None
    x, right = node.inputs[:2]
    if x is None or right is None:
        return None
    transposed = bool(ctx.attr(node, "transB", 0)) if kind != ("", "MatMul") else False
    factor = float(ctx.attr(node, "alpha", 1.0)) if kind == ("", "Gemm") else 1.0
    producer = ctx.producer(right)
    if producer is not None and producer.op_type == "DequantizeLinear":
        return Skipped(name, "the weight is quantized already")
    weight = _weight(right, transposed, factor, ctx)
    if weight is None:
        if ctx.is_constant(x):
            return Skipped(name, "the constant is the left operand")
        return None  # a product of two computed tensors: nobody expects it to be quantized
    problem = _unfit(weight, x, ctx)
    if problem:
        return Skipped(name, problem)
    transposed_x = bool(ctx.attr(node, "transA", 0)) and kind == ("", "Gemm")
    return Product(node, name, x, weight, transposed_x, origins([node]))


def _unfit(weight: Weight, x: ir.Value, ctx: GraphContext) -> str:
    """Why a product cannot be quantized; empty when it can."""
    shape = weight.shape
    if len(shape) not in (2, 3):
        return f"the weight has rank {len(shape)}, 2 or 3 is required"
    if weight.dtype not in DTYPES:
        return f"the weight is {weight.dtype}, a float of 16 or 32 bits is required"
    if 0 in shape:
        return "the weight is empty"
    if weight.factor == 0 or weight.factor != weight.factor or abs(weight.factor) == float("inf"):
        return f"alpha is {weight.factor}"
    if ctx.rank(x) == 1:
        return "the other operand is a vector"
    if ctx.is_constant(x):
        return "both operands are constant"
    return ""


def _lookup(node: ir.Node, ctx: GraphContext) -> Lookup | Skipped | None:
    if (node.domain, node.op_type) != ("", "Gather") or node.inputs[0] is None:
        return None
    weight = _weight(node.inputs[0], False, 1.0, ctx)
    if weight is None or len(weight.shape) != 2 or weight.dtype not in DTYPES or 0 in weight.shape:
        return None
    if int(ctx.attr(node, "axis", 0)) not in (0, -2) or weight.tensor.size < MIN_ELEMENTS:
        return None
    return Lookup(node, _name(node), Weight(weight.value, not weight.transposed))


def _weight(value: ir.Value, transposed: bool, factor: float, ctx: GraphContext) -> Weight | None:
    """The constant behind a value, through nodes that only lay it out anew."""
    while not value.is_initializer():
        node = value.producer()
        if node is None or node.domain or not node.inputs or node.inputs[0] is None:
            return None
        if node.op_type == "Transpose":
            rank = ctx.rank(node.inputs[0])
            if rank not in (2, 3):
                return None
            order = list(ctx.attr(node, "perm", range(rank)[::-1]))
            if order == [*range(rank - 2), rank - 1, rank - 2]:
                transposed = not transposed
            elif order != list(range(rank)):
                return None
        elif node.op_type != "Identity":
            return None
        value = node.inputs[0]
    return Weight(value, transposed, factor) if ctx.is_constant(value) else None


def _name(node: ir.Node) -> str:
    """The name of the first node of the caller's model that this one stands for."""
    if FROM_KEY in node.metadata_props:
        return next(iter(origins([node])), node.name or node.op_type)
    return node.name or next((v.name for v in node.outputs if v.name), node.op_type)


def by_input(products: Sequence[Product]) -> list[list[Product]]:
    """Products of one tensor together, in the order of the first of each."""
    groups: dict[tuple[ir.Value, bool], list[Product]] = {}
    for product in products:
        groups.setdefault((product.x, product.transposed_x), []).append(product)
    return list(groups.values())
