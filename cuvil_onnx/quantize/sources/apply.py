"""Puts a checkpoint's weights into a model of the same network: quantized ones as they are, the others as constants."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from cuvil_onnx.errors import ModelLoadError, OptionError
from cuvil_onnx.passes.dead_code import remove_dead_code
from cuvil_onnx.passes.normalise import forget_inferred, normalise
from cuvil_onnx.passes.shapes import infer_shapes
from cuvil_onnx.quantize import insert
from cuvil_onnx.quantize.grid import Array
from cuvil_onnx.quantize.layers import Errors
from cuvil_onnx.quantize.pack import code_tensor
from cuvil_onnx.quantize.sources.matching import Names, candidates, initializers
from cuvil_onnx.quantize.sources.source import Source, SourceWeight, dequantized
from cuvil_onnx.quantize.store import Store, Stored
from cuvil_onnx.quantize.summary import LayerSummary, Summary
from cuvil_onnx.quantize.targets import Lookup, Product, Targets, find_targets
from cuvil_onnx.quantize.weight import Weight, numpy_type, opened
from cuvil_onnx.rewrite.graph import GraphContext, named
from cuvil_onnx.rewrite.trace import Trace

MAX_NAMES = 8
"""So many names an error lists."""

FAR = 1.0
"""A weight that differs from the model's by more, relative to its norm, is hardly the same layer's."""


def apply_source(
    ctx: GraphContext, source: Source, scopes: Mapping[str, Sequence[str]], *, strict: bool, trace: Trace
) -> Summary:
    """Replaces the weights of a model, of opset 21 or later, by those of a checkpoint.

    Args:
        ctx: the model.
        source: the checkpoint.
        scopes: see ``matching.scopes_of``.
        strict: whether a parameter of the checkpoint that the model has not is an error; it is a warning otherwise.
        trace: takes warnings.

    Raises:
        ModelLoadError: parameters without a place, of another shape than the model's, or that contradict each other.
    """
    normalise(ctx, trace)
    infer_shapes(ctx, trace)
    return _Import(ctx, source, scopes, strict).run(trace)


_Done = dict[tuple[str, ir.Value, bool], tuple[insert.Parts, Stored]]


class _Import:
    def __init__(self, ctx: GraphContext, source: Source, scopes: Mapping[str, Sequence[str]], strict: bool) -> None:
        self._ctx, self._source, self._scopes, self._strict = ctx, source, scopes, strict
        self._summary = Summary(f"{source.format} from {source.path}")
        self._store = Store()
        self._gathers: dict[tuple[ir.Value, bytes, int, ir.Graph | ir.Function], ir.Value] = {}
        self._given: dict[ir.Value, str] = {}
        self._done: _Done = {}

    def run(self, trace: Trace) -> Summary:
        source, ctx = self._source, self._ctx
        try:
            targets = find_targets(ctx, include=["*"])
        except OptionError:
            targets = Targets()
        found = self._matched([*targets.products, *targets.lookups])
        taken = {target.node for _, target in found}
        self._floats([product for product in targets.products if product.node not in taken])
        for name, target in found:
            if isinstance(target, Product):
                self._product(name, target)
        for name, target in found:
            if isinstance(target, Lookup):
                self._lookup(name, target)
        placed = {name for name, _ in found}
        self._unplaced([n for n in source.quantized if n not in placed], "quantized layers")
        remove_dead_code(ctx, trace)
        forget_inferred(ctx)
        return self._summary

    # ---- names ------------------------------------------------------------------------------------------------------

    def _matched(self, targets: Sequence[Product | Lookup]) -> list[tuple[str, Product | Lookup]]:
        """Targets with the quantized parameters that they get.

        A table and the output layer of one weight may have two names, of which the checkpoint has one.
        """
        names = Names(self._source.quantized)
        found = [(names.find(candidates(target, self._scopes)), target) for target in targets]
        by_weight = {t.weight.value: name for name, t in found if name is not None}
        return [(n, t) for name, t in found if (n := name or by_weight.get(t.weight.value)) is not None]

    def _unplaced(self, names: Sequence[str], what: str) -> None:
        if not names:
            return
        shown = ", ".join(names[:MAX_NAMES]) + (f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else "")
        message = f"{self._source.path}: {len(names)} {what} have no place in the model: {shown}"
        if self._strict:
            raise ModelLoadError(
                f"{message}; names of weights or nodes must be those of the checkpoint (strict=False leaves them out)"
            )
        self._summary.warnings.append(message)

    # ---- parameters that are not quantized ---------------------------------------------------------------------------

    def _floats(self, products: Sequence[Product]) -> None:
        """Gives the model the checkpoint's other parameters: AWQ changes norms and biases with the weights."""
        known = initializers(self._ctx.graphs)
        layers: dict[str, list[Product]] = {}
        names = Names(n.removesuffix(".weight") for n in self._source.floats)
        for product in products:
            name = names.find(candidates(product, self._scopes))
            if name is not None:
                layers.setdefault(name, []).append(product)
        ends = Names(known)
        missing = []
        for name, (shape, load) in self._source.floats.items():
            own = layers.get(name.removesuffix(".weight"), []) if name.endswith(".weight") else []
            places = {product.weight.value: not product.weight.transposed for product in own}
            found = ends.find([name])
            if found is not None and known[found] not in places:
                places[known[found]] = False
            for value, swapped in places.items():
                self._assign(name, load, value, shape, swapped)
            # AutoGPTQ writes biases of zeros where there are none.
            needless = name.endswith(".inv_freq") or (name.endswith(".bias") and not np.asarray(load()).any())
            if not places and not needless:
                missing.append(name)
        self._unplaced(missing, "parameters")

    def _assign(
        self, name: str, load: Callable[[], Array], value: ir.Value, shape: tuple[int, ...], swapped: bool
    ) -> None:
        """Lets an initializer hold a parameter, transposed where `swapped`."""
        assert value.const_value is not None
        array = load()
        array = array.T if swapped and array.ndim == 2 else array
        old = value.const_value
        if array.shape != tuple(old.shape.numpy()):
            raise ModelLoadError(
                f"{self._source.path}: {name!r} has the shape {list(shape)}, the model's {value.name!r} has "
                f"{list(old.shape.numpy())}"
            )
        numbers = np.asarray(array, order="C").astype(numpy_type(old.dtype))
        before = self._given.get(value)
        if before is not None and not np.array_equal(numbers, old.numpy()):
            raise ModelLoadError(
                f"{self._source.path}: {name!r} and {before!r} are one weight in the model, and differ"
            )
        self._given[value] = name
        value.const_value = named(ir.Tensor(numbers, dtype=old.dtype), value.name or name)

    # ---- quantized ones ----------------------------------------------------------------------------------------------

    def _product(self, name: str, product: Product) -> None:
        weight = product.weight
        if weight.factor != 1.0 or len(weight.shape) != 2:
            raise ModelLoadError(
                f"{product.name}: a Gemm with alpha {weight.factor}, or a weight of rank 3, takes none"
            )
        shape, decode = self._source.quantized[name]
        self._check_shape(name, shape, product)
        made = decode()
        key = (name, weight.value, weight.transposed)
        if key not in self._done:
            self._done[key] = self._stored(name, made, product)
        parts, stored = self._done[key]
        if made.order is not None:
            x = self._gathered(product, made.order)
            product.node.replace_input_with(0, x)
        insert.insert_product(product, parts, stored, self._ctx)

    def _check_shape(self, name: str, shape: tuple[int, int], target: Product | Lookup) -> None:
        if shape != target.weight.shape:
            raise ModelLoadError(
                f"{self._source.path}: {name!r} has {shape[0]} inputs and {shape[1]} outputs, the model's "
                f"{target.weight.value.name!r} has {target.weight.shape[0]} and {target.weight.shape[1]}"
            )

    def _stored(self, name: str, made: SourceWeight, target: Product | Lookup) -> tuple[insert.Parts, Stored]:
        """The weight as initializers, and its line in the account."""
        weight, quantized = target.weight, made.quantized
        grid = dataclasses.replace(made.grid, scale_dtype=weight.dtype)
        codes = self._store.keep(code_tensor(quantized.codes, grid.code_dtype))
        stored = Stored(grid, codes, quantized.scales, quantized.zero_points, quantized.offsets)
        errors = _difference(made, weight)
        notes = [] if made.order is None else ["rows in the order of the checkpoint's groups"]
        if not self._exact(name, stored):
            notes.append(f"scales rounded to {weight.dtype}")
        if errors.relative > FAR:
            self._summary.warnings.append(
                f"{name} differs from the model's weight by {errors.relative:.0%} of its norm: is it the same model?"
            )
        self._summary.layers.append(
            LayerSummary(
                target.name,
                weight.shape,
                self._source.format,
                grid.bits,
                grid.group_size,
                grid.symmetric,
                errors.relative,
                errors.weight_snr,
                None,
                weight.tensor.nbytes,
                stored.nbytes,
                "; ".join(notes),
            )
        )
        return insert.add_parts(weight, stored, self._ctx), stored

    def _exact(self, name: str, stored: Stored) -> bool:
        """Whether the model's type holds scales and offsets as they are."""
        kind, exact = numpy_type(stored.grid.scale_dtype), True
        for numbers in (stored.scales, stored.offsets):
            if numbers is None:
                continue
            with np.errstate(over="ignore"):
                rounded = numbers.astype(kind).astype(np.float32)
            if not np.isfinite(rounded).all():
                raise ModelLoadError(f"{self._source.path}: {name!r} has scales beyond {stored.grid.scale_dtype}")
            exact = exact and np.array_equal(rounded, numbers)
        return exact

    def _gathered(self, product: Product, order: Array) -> ir.Value:
        """A product's input with its channels in the order of the codes; products of one input share it."""
        node, x = product.node, product.node.inputs[0]
        assert x is not None and node.graph is not None
        axis = 0 if product.transposed_x else -1
        key = (x, order.tobytes(), axis, node.graph)
        known = self._gathers.get(key)
        if known is not None:
            return known
        indices = self._ctx.initializer(order, "channel_order")
        gather = self._ctx.node("Gather", [x, indices], {"axis": axis}, like=x, name=f"{product.name}_order")
        node.graph.insert_before(node, gather)
        self._ctx.adopt(gather)
        self._ctx.order.invalidate(node.graph)
        self._gathers[key] = gather.outputs[0]
        return gather.outputs[0]

    def _lookup(self, name: str, lookup: Lookup) -> None:
        weight = lookup.weight
        shape, decode = self._source.quantized[name]
        self._check_shape(name, shape, lookup)
        shared = [v for (n, value, _), v in self._done.items() if (n, value) == (name, weight.value)]
        made = decode()
        if shared and made.order is None and not insert.can_look_up(lookup, shared[0][1], self._ctx):
            insert.insert_lookup(lookup, *shared[0], self._ctx)
            return
        if made.order is None and not shared and made.quantized.offsets is None:
            parts, stored = self._stored(name, made, lookup)
            if not insert.can_look_up(lookup, stored, self._ctx):
                insert.insert_lookup(lookup, parts, stored, self._ctx)
                return
        # As floats, which are what the codes stand for.
        numbers = dequantized(made)
        numbers = np.ascontiguousarray(numbers.T if weight.transposed else numbers)
        table = ir.Tensor(numbers.astype(numpy_type(weight.dtype)), dtype=weight.dtype)
        lookup.node.replace_input_with(0, self._ctx.initializer(table, f"{weight.value.name}_table"))


def _difference(made: SourceWeight, weight: Weight) -> Errors:
    """How far the checkpoint's weight is from the model's."""
    errors = Errors()
    with opened(weight) as reader:
        old = reader.columns(slice(0, weight.shape[1]))
    new = dequantized(made)
    errors.signal = float(np.square(old, dtype=np.float64).sum())
    errors.noise = float(np.square(new - old, dtype=np.float64).sum())
    return errors
