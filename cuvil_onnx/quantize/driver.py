"""Quantizes the products of a model, in the order in which it computes them.

Weights that several products share are quantized once. With calibration data the inputs of later layers are seen as the
quantized layers before them give them: until all is done, each product computes with what its codes stand for.
"""

from __future__ import annotations

import collections
import dataclasses
import importlib
import os
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Protocol

import numpy as np
import onnx
import onnx_ir as ir

from cuvil_onnx.passes.write import self_contained
from cuvil_onnx.quantize import insert, nbits
from cuvil_onnx.quantize.grid import Array
from cuvil_onnx.quantize.input_scale import Division, plan_division
from cuvil_onnx.quantize.layers import Errors, context_for, quantize_weight
from cuvil_onnx.quantize.scheme import Context, InputStatistics, Layer, Scheme, make_scheme
from cuvil_onnx.quantize.settings import KEEP_BITS, Settings
from cuvil_onnx.quantize.store import Store, Stored
from cuvil_onnx.quantize.summary import LayerSummary, Summary
from cuvil_onnx.quantize.targets import Lookup, Product, Skipped, by_input, find_targets, fits
from cuvil_onnx.quantize.weight import Repairs, Weight, equal_weights, opened
from cuvil_onnx.rewrite.graph import GraphContext

FP16_LARGEST = 65504.0


class Calibration(Protocol):
    """Where statistics come from."""

    def observe(
        self, model: ir.Model, sites: Sequence[ir.Value], *, compare: bool
    ) -> Iterable[tuple[ir.Value, InputStatistics]]:
        """The statistics of each site, a value of the main graph, in the order in which the model computes them.

        Between two of them the driver gives products other weights (node inputs that are other initializers).
        ``compare``: also run the model as it is at first, for the drift of each site.
        """


@dataclasses.dataclass
class _Result:
    """A quantized weight with what is to be told about it."""

    product: Product
    stored: Stored
    errors: Errors
    repairs: Repairs
    scheme: str
    notes: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Outcome:
    """What :func:`quantize_model` did.

    Attributes:
        summary: the account of it.
        before: the model as it was, and ``after``: the same with the weights that the codes stand for, for
            verification; None where that was not asked for.
    """

    summary: Summary
    before: onnx.ModelProto | None = None
    after: onnx.ModelProto | None = None


_Key = tuple[ir.Value, bool, float]


def quantize_model(ctx: GraphContext, settings: Settings, *, keep_float: bool = False) -> Outcome:
    """Replaces every product that can be quantized.

    Args:
        ctx: the model, of opset 21 or later, with constants as initializers.
        settings: how.
        keep_float: also give the models to verify with.

    Raises:
        OptionError: a pattern that fits nothing.
    """
    return _Driver(ctx, settings, keep_float).run()


class _Driver:
    def __init__(self, ctx: GraphContext, settings: Settings, keep_float: bool) -> None:
        self._ctx, self._settings, self._keep_float = ctx, settings, keep_float
        # Statistics of calibration data are NumPy arrays, which cupy's do not mix with.
        self._xp = np if settings.calibration is not None else array_module()
        self._store = Store()
        self._summary = Summary(settings.label())
        self._results: dict[_Key, _Result] = {}
        self._fallback = make_scheme("rtn", {})
        self._divisions: list[tuple[Division, Array]] = []
        self._alone: dict[ir.Node, _Key] = {}  # products whose weight nothing else reads

    def run(self) -> Outcome:
        """See :func:`quantize_model`."""
        settings, summary = self._settings, self._summary
        outcome = Outcome(summary)
        targets = find_targets(self._ctx, settings.include, settings.exclude, settings.overrides)
        summary.skipped += targets.skipped
        products = [p for p in targets.products if self._accepts(p)]
        lookups = self._tied(products, targets.lookups) if settings.embeddings else {}
        if self._keep_float:
            outcome.before = self_contained(self._ctx.model)
        self._quantize(products, lookups)
        if self._keep_float:
            for lookup, key in lookups.items():
                self._simulate_lookup(lookup, self._results[key])
            outcome.after = self_contained(self._ctx.model)
        self._insert(products, lookups)
        for result in self._results.values():
            summary.layers.append(_summarised(result))
            if result.repairs:
                summary.warnings.append(f"{result.product.name}: the weight is not finite: {result.repairs}")
        return outcome

    # ---- what -----------------------------------------------------------------------------------------------------

    def _bits(self, product: Product) -> int:
        for pattern, bits in self._settings.overrides.items():
            if fits(product.names, (pattern,)):
                return bits
        return self._settings.bits

    def _accepts(self, product: Product) -> bool:
        reason = ""
        if self._bits(product) == KEEP_BITS:
            reason = "kept in full precision"
        elif self._settings.format == "matmulnbits":
            reason = nbits.unfit(product)
        if not reason and self._settings.scale_dtype == ir.DataType.FLOAT16 != product.weight.dtype:
            with opened(product.weight) as reader:
                largest = reader.largest()
            if largest > FP16_LARGEST:
                reason = f"a weight of {largest:.3g} is beyond float16"
        if reason:
            self._summary.skipped.append(Skipped(product.name, reason))
        return not reason

    def _tied(self, products: Sequence[Product], lookups: Sequence[Lookup]) -> dict[Lookup, _Key]:
        """The lookups whose table is the weight of a product, with that."""
        found: dict[Lookup, _Key] = {}
        for lookup in lookups:
            for product in products:
                if equal_weights(lookup.weight, product.weight):
                    found[lookup] = _key(product.weight)
                    break
        return found

    # ---- codes ----------------------------------------------------------------------------------------------------

    def _quantize(self, products: Sequence[Product], lookups: dict[Lookup, _Key]) -> None:
        groups = by_input(products)
        observed = {g[0].x: g for g in groups if self._observable(g[0])}
        done = 0
        readers = collections.Counter(_key(p.weight) for p in products)
        readers.update(lookups.values())
        self._alone = {p.node: _key(p.weight) for p in products if readers[_key(p.weight)] == 1}
        for group, statistics in self._visits(groups, observed):
            self._quantize_group(group, statistics)
            done += len(group)
            if self._settings.progress is not None:
                self._settings.progress(done, len(products), group[-1].name)

    def _visits(
        self, groups: Sequence[list[Product]], observed: dict[ir.Value, list[Product]]
    ) -> Iterator[tuple[list[Product], InputStatistics | None]]:
        """All groups of products of one input: those that calibration data reaches in its order, then the others."""
        calibration: Calibration | None = self._settings.calibration
        if calibration is None or not observed:
            yield from ((group, None) for group in groups)
            return
        compare = self._settings.scheme.compares
        lost: tuple[int, int, str | None] = (0, 0, None)
        for site, statistics in calibration.observe(self._ctx.model, list(observed), compare=compare):
            lost = max(lost, (statistics.skipped, statistics.rows, site.name), key=lambda found: found[0])
            yield observed[site], statistics
        if lost[0]:
            self._summary.warnings.append(
                f"calibration: {lost[0]} of {lost[0] + lost[1]} rows (tokens) at {lost[2]!r} hold NaN, Inf or numbers "
                "beyond 1e15 and were left out"
            )
        reached = {id(group) for group in observed.values()}
        yield from ((group, None) for group in groups if id(group) not in reached)

    def _observable(self, product: Product) -> bool:
        graph = product.node.graph
        own = product.x.is_graph_input() or product.x.producer() is not None
        return graph is self._ctx.model.graph and own and not product.transposed_x and len(product.weight.shape) == 2

    def _quantize_group(self, group: list[Product], statistics: InputStatistics | None) -> None:
        scheme = self._settings.scheme
        uncalibrated = statistics is None and scheme.calibrated
        scheme = self._fallback if uncalibrated else scheme
        fresh = {_key(p.weight): p for p in group if _key(p.weight) not in self._results}
        divisor, division = self._input_scale(scheme, list(fresh.values()), statistics)
        for key, product in fresh.items():
            stored, errors, repairs = quantize_weight(
                product.weight,
                scheme,
                self._settings.grid(self._bits(product), product.weight.dtype),
                self._context(product),
                name=product.name,
                statistics=statistics,
                input_scale=divisor,
            )
            stored.codes = self._store.keep(stored.codes)
            result = _Result(product, stored, errors, repairs, scheme.name)
            result.notes += ["no calibration data reaches it"] if uncalibrated else []
            result.notes += ["inputs scaled"] if divisor is not None else []
            self._results[key] = result
        if divisor is not None and division is not None:
            self._divisions.append((division, divisor))
        if self._keep_float or self._settings.calibration is not None:
            for product in group:
                self._simulate(product, self._results[_key(product.weight)])

    def _input_scale(
        self, scheme: Scheme, products: Sequence[Product], statistics: InputStatistics | None
    ) -> tuple[Array | None, Division | None]:
        """What the scheme wants the products' input divided by, and how that is done; (None, None): nothing."""
        if type(scheme).input_scale is Scheme.input_scale or not products:
            return None, None
        first = products[0]
        if any(p.node not in self._alone for p in products) or not self._observable(first):
            return None, None  # another reader of the weight or the table would see scaled rows
        rows = first.weight.shape[0]
        division = plan_division(first.x, {p.node for p in products}, self._alone, rows, self._ctx)
        if division is None:
            return None, None
        layers = []
        for product in products:
            with opened(product.weight) as reader:
                whole = self._xp.asarray(reader.columns(slice(0, product.weight.shape[1])))
            layers.append(Layer(product.name, whole, statistics))
        grid = self._settings.grid(self._bits(first), first.weight.dtype)
        scale = scheme.input_scale(layers, grid, self._context(first))
        if scale is None:
            return None, None
        host: Array = scale.get() if hasattr(scale, "get") else np.asarray(scale)
        if host.shape != (rows,) or not np.isfinite(host).all() or not (host > 0).all():
            raise RuntimeError(f"{first.name}: the scheme gave no positive input scale of {rows} channels")
        return host.astype(np.float32), division

    def _context(self, product: Product) -> Context:
        return context_for(product.name, self._settings.seed, self._xp)

    # ---- the float model that the codes stand for -----------------------------------------------------------------

    def _simulate(self, product: Product, result: _Result) -> None:
        """Lets a product compute with the weight that its codes stand for."""
        node = product.node
        transposed = bool(self._ctx.attr(node, "transB", 0)) if node.op_type != "MatMul" else False
        tensor = _simulated(result.stored, product.weight, transposed)
        node.replace_input_with(1, self._ctx.initializer(tensor, f"{product.weight.value.name}_rounded"))

    def _simulate_lookup(self, lookup: Lookup, result: _Result) -> None:
        tensor = _simulated(result.stored, lookup.weight, True)
        lookup.node.replace_input_with(0, self._ctx.initializer(tensor, f"{lookup.weight.value.name}_rounded"))

    # ---- the new model --------------------------------------------------------------------------------------------

    def _insert(self, products: Sequence[Product], lookups: dict[Lookup, _Key]) -> None:
        ctx = self._ctx
        writer = nbits if self._settings.format == "matmulnbits" else insert
        stored = {key: result.stored for key, result in self._results.items()}
        for division, divisor in self._divisions:
            division.apply(divisor, stored)
        parts: dict[_Key, insert.Parts] = {}
        for product in products:
            key = _key(product.weight)
            if key not in parts:
                parts[key] = writer.add_parts(product.weight, stored[key], ctx)
            writer.insert_product(product, parts[key], stored[key], ctx)
        for lookup, key in lookups.items():
            reason = writer.can_look_up(lookup, stored[key], ctx)
            if reason:
                self._summary.skipped.append(Skipped(lookup.name, reason))
                continue
            self._results[key].notes.append(f"shared with {lookup.name}")
            writer.insert_lookup(lookup, parts[key], stored[key], ctx)


def _key(weight: Weight) -> _Key:
    return weight.value, weight.transposed, weight.factor


def _simulated(stored: Stored, weight: Weight, transposed: bool) -> ir.TensorProtocol:
    """The weight that the codes stand for, in the type and layout of a node's operand; computed when it is read."""
    shape = (*weight.shape[:-2], weight.shape[-1], weight.shape[-2]) if transposed else weight.shape

    def make() -> ir.TensorProtocol:
        numbers = stored.weight()
        if weight.factor != 1.0:
            numbers /= np.float32(weight.factor)
        numbers = np.ascontiguousarray(numbers.swapaxes(-1, -2)) if transposed else numbers
        return ir.Tensor(numbers.astype(weight.dtype.numpy()), dtype=weight.dtype)

    return ir.LazyTensor(make, dtype=weight.dtype, shape=ir.Shape(shape))


def _summarised(result: _Result) -> LayerSummary:
    grid, weight, errors = result.stored.grid, result.product.weight, result.errors
    notes = [*result.notes, str(result.repairs)] if result.repairs else result.notes
    return LayerSummary(
        result.product.name,
        weight.shape,
        result.scheme,
        grid.bits,
        grid.group_size,
        grid.symmetric,
        errors.relative,
        errors.weight_snr,
        errors.output_snr,
        weight.tensor.nbytes,
        result.stored.nbytes,
        "; ".join(notes),
    )


def array_module() -> ModuleType:
    """cupy where CUVIL_QUANTIZE_ON_GPU=1 asks for it, it is installed and sees a GPU; else numpy."""
    if os.environ.get("CUVIL_QUANTIZE_ON_GPU") != "1":
        return np
    try:
        cupy = importlib.import_module("cupy")
        if cupy.cuda.runtime.getDeviceCount() > 0:
            return cupy
    except Exception:  # no such package, or one without a driver: each raises something of its own
        return np
    return np
