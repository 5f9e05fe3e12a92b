"""The order of all passes and rule phases."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from cuvil_onnx import rules as rule_package
from cuvil_onnx.errors import OptionError, UnsupportedModelError
from cuvil_onnx.passes import simplify as simplify_package
from cuvil_onnx.passes.base import Pass
from cuvil_onnx.passes.cse import eliminate_common_subexpressions
from cuvil_onnx.passes.dead_code import remove_dead_code
from cuvil_onnx.passes.dedup import merge_equal_initializers
from cuvil_onnx.passes.fold import fold_constants
from cuvil_onnx.passes.inner_weights import lower_quantized_weights
from cuvil_onnx.passes.limits import OLDEST_BF16_OPSET, OLDEST_OPSET
from cuvil_onnx.passes.nhwc_layout import nhwc_pass
from cuvil_onnx.passes.normalise import forget_inferred, normalise
from cuvil_onnx.passes.precision import precision_pass
from cuvil_onnx.passes.sensitivity.guard import find_sensitive
from cuvil_onnx.passes.shape_chain import simplify_shape_chains
from cuvil_onnx.passes.shapes import infer_shapes
from cuvil_onnx.passes.symbols import name_dimensions
from cuvil_onnx.quantize.driver import Outcome, quantize_model
from cuvil_onnx.quantize.insert import NAME as QUANTIZE
from cuvil_onnx.quantize.settings import Settings
from cuvil_onnx.rewrite.discovery import discover
from cuvil_onnx.rewrite.driver import Driver
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.rule import Exactness, Phase, Rule
from cuvil_onnx.rewrite.trace import Trace

MAX_CLEANUP_ROUNDS = 12
"""Folding can make shapes known, which makes more foldable; deeper nests than this stay as they are."""

PRECISIONS = ("fp32", "fp16", "bf16")
LEVELS = ("none", "basic", "all")
LAYOUTS = ("auto", "nchw", "nhwc")

DEAD_CODE = Pass("dead_code", Exactness.EXACT, remove_dead_code)
FOLD = Pass("constant_folding", Exactness.EXACT, fold_constants)
SHAPE_CHAIN = Pass("shape_chain", Exactness.EXACT, simplify_shape_chains)
CSE = Pass("cse", Exactness.EXACT, eliminate_common_subexpressions)
DEDUP = Pass("initializer_dedup", Exactness.EXACT, merge_equal_initializers)


SENSITIVITY = "sensitivity"
"""The name under which ``skip`` leaves out the measurement of what 16 bits cost."""

TRAINED = ("dequantized_matmul", "dequantized_gather")
"""The rules for weights that are quantized already, which ``quantize`` applies without the others."""


@dataclasses.dataclass(frozen=True)
class Inputs:
    """Inputs to measure with: sets that may be rejected by the model, and how many to use."""

    sets: Callable[[], Iterable[Mapping[str, Any]]]
    limit: int


@dataclasses.dataclass(frozen=True)
class Options:
    """What ``optimize`` was asked for, see there.

    Attributes:
        keep: names of values that stay in float32 in any precision.
        quantize: how to quantize weights; None: not at all.
        keep_float: also give the models that quantization is verified with.
    """

    precision: str = "fp32"
    level: str = "all"
    layout: str = "auto"
    skip: frozenset[str] = frozenset()
    only: frozenset[str] | None = None
    keep: frozenset[str] = frozenset()
    quantize: Settings | None = None
    keep_float: bool = False

    @staticmethod
    def checked(
        precision: str, level: str, layout: str, skip: Collection[str], only: Collection[str] | None
    ) -> Options:
        """The options, or an OptionError that says what is allowed."""
        for name, value, allowed in (
            ("precision", precision, PRECISIONS),
            ("level", level, LEVELS),
            ("layout", layout, LAYOUTS),
        ):
            if value not in allowed:
                raise OptionError(f"{name}={value!r} is not one of {', '.join(allowed)}")
        if isinstance(skip, str) or isinstance(only, str):
            raise OptionError("skip and only take a list of names, not one string")
        known = names()
        for name in (*skip, *(only or ())):
            if name not in known:
                raise OptionError(f"no rule or pass is called {name!r}; there are {', '.join(known)}")
        return Options(precision, level, layout, frozenset(skip), None if only is None else frozenset(only))

    def without(self, name: str) -> Options:
        """The same without one rule or pass."""
        return dataclasses.replace(self, skip=self.skip | {name})


def run(model: ir.Model, trace: Trace, options: Options, inputs: Inputs | None = None) -> Outcome | None:
    """The whole pipeline, in the order in which each step helps the next.

    With ``inputs`` the error of a conversion to 16 bits is measured, and nodes that cause too much of it are kept.
    Weights are quantized when projections have been packed, and before a conversion to 16 bits rounds them.

    Returns:
        the account of the quantization, if there was one.

    Raises:
        UnsupportedModelError: bf16 was asked for and the model's opset has no such type.
    """
    ctx = GraphContext(model)
    pipeline = Pipeline(ctx, trace, options)
    if 0 < ctx.opset() < OLDEST_OPSET:
        trace.warn(f"opset {ctx.opset()} is older than {OLDEST_OPSET}: only unused nodes are removed")
        pipeline.run(DEAD_CODE)
        return None
    if options.precision == "bf16" and ctx.opset() < OLDEST_BF16_OPSET:
        raise UnsupportedModelError(
            f"precision='bf16': opset {ctx.opset()} has no bfloat16, {OLDEST_BF16_OPSET} is required; fp16 works"
        )
    normalise(ctx, trace)
    if options.level != "none":
        pipeline.cleanup()
    elif options.precision != "fp32" or options.quantize is not None:
        pipeline.infer()
    if options.level == "all" and pipeline.phase(Phase.STRUCTURAL):
        pipeline.run(DEAD_CODE)
        # What the rules wrote plainly may depend on constants alone; a region of elementwise nodes could not be folded.
        if pipeline.run(FOLD):
            pipeline.cleanup()
        else:
            pipeline.infer()
    outcome = None
    if options.quantize is not None:
        outcome = pipeline.quantize(options.quantize)
    if options.precision != "fp32":
        target = ir.DataType.FLOAT16 if options.precision == "fp16" else ir.DataType.BFLOAT16
        if inputs is not None:
            pipeline.find_sensitive(target, inputs)
        pipeline.run(precision_pass(target, options.keep | trace.kept))
        pipeline.phase(Phase.CLEANUP)
        pipeline.infer()
    if options.level == "all":
        if options.layout != "nchw" and pipeline.run(nhwc_pass(force=options.layout == "nhwc")):
            pipeline.phase(Phase.CLEANUP)
            pipeline.infer()
        pipeline.phase(Phase.EPILOGUE)
        pipeline.phase(Phase.POINTWISE)
    if options.level != "none":
        pipeline.cleanup(infer_first=False)
    lower_quantized_weights(ctx)
    forget_inferred(ctx)
    return outcome


class Pipeline:
    """Runs steps over one model, honouring ``skip`` and ``only``.

    ``only`` names rules and optional passes that may run; dead code, folding and shape inference always do.
    """

    def __init__(self, ctx: GraphContext, trace: Trace, options: Options) -> None:
        self._ctx = ctx
        self._trace = trace
        self._options = options

    def enabled(self, name: str) -> bool:
        """Whether a rule or pass may run."""
        only = self._options.only
        return name not in self._options.skip and (only is None or name in only)

    def run(self, item: Pass) -> int:
        """One pass, timed and recorded."""
        if not self.enabled(item.name):
            return 0
        start = time.perf_counter()
        count = item.run(self._ctx, self._trace)
        self._time(item.name, start)
        if count:
            self._trace.add_fired(item.name, item.exactness, count=count)
        return count

    def phase(self, phase: Phase) -> int:
        """All rules of one phase, until nothing fires."""
        rules = [r for r in all_rules() if r.phase == phase and self.enabled(r.name)]
        if not rules:
            return 0
        start = time.perf_counter()
        count = Driver(rules, self._ctx, self._trace).run()
        self._time(f"{phase.value} rules", start)
        return count

    def infer(self) -> int:
        """Shape inference."""
        start = time.perf_counter()
        changed = infer_shapes(self._ctx, self._trace)
        changed += name_dimensions(self._ctx, self._trace)
        self._time("shape_inference", start)
        return changed

    def cleanup(self, infer_first: bool = True) -> None:
        """Dead code, simplification, folding and merging, until nothing changes."""
        if infer_first:
            self.infer()
        self.run(DEAD_CODE)
        for _ in range(MAX_CLEANUP_ROUNDS):
            changed = self.run(SHAPE_CHAIN)
            changed += self.run(FOLD)
            changed += self.phase(Phase.CLEANUP)
            if not changed:
                break
            self.run(DEAD_CODE)
            self.infer()  # what folding made constant can be folded further even where no shape became better known
        if self.run(DEDUP) + self.run(CSE):
            self.run(DEAD_CODE)

    def quantize(self, settings: Settings) -> Outcome:
        """Quantizes weights, and takes out what only the float ones needed."""
        start = time.perf_counter()
        types = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}
        settings = dataclasses.replace(settings, scale_dtype=types.get(self._options.precision))
        if settings.format == "cuvil":
            self.trained()
        outcome = quantize_model(self._ctx, settings, keep_float=self._options.keep_float)
        if outcome.summary.layers:
            self._trace.add_fired(QUANTIZE, Exactness.APPROXIMATE, count=len(outcome.summary.layers))
        remove_dead_code(self._ctx, self._trace)
        self._time(QUANTIZE, start)
        return outcome

    def trained(self) -> None:
        """Weights that are quantized already, as training left them, in the form that the others get."""
        rules = [r for r in all_rules() if r.name in TRAINED and self.enabled(r.name)]
        if rules and Driver(rules, self._ctx, self._trace).run():
            self.run(DEAD_CODE)
            self.infer()

    def find_sensitive(self, target: ir.DataType, inputs: Inputs) -> None:
        """Measures the conversion to ``target`` before it is done; the trace holds what to keep in float32."""
        if not self.enabled("precision") or not self.enabled(SENSITIVITY):
            return
        start = time.perf_counter()
        found = find_sensitive(self._ctx, target, self._swallowed(), inputs.sets(), inputs.limit)
        self._trace.accuracy, self._trace.kept = found.account, found.keep
        for node, reason in found.reasons:
            self._trace.add_refused("precision", node, reason, None)
        if found.warning:
            self._trace.warn(f"precision={self._options.precision!r}: {found.warning}")
        self._time(SENSITIVITY, start)

    def _swallowed(self) -> set[str]:
        """Values that epilogues will fuse away, found on a copy: they are never written in 16 bits."""
        if self._options.level != "all":
            return set()
        rules = [r for r in all_rules() if r.phase == Phase.EPILOGUE and self.enabled(r.name)]
        copy = self._ctx.model.clone()
        Driver(rules, GraphContext(copy), Trace()).run()
        left = {value.name for node in copy.graph for value in node.outputs}
        return {v.name for n in self._ctx.model.graph for v in n.outputs if v.name and v.name not in left}

    def _time(self, name: str, start: float) -> None:
        seconds = self._trace.seconds
        seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - start


_rules: list[Rule] = []


def all_rules() -> Sequence[Rule]:
    """Every rule of this package, found once."""
    if not _rules:
        _rules.extend(discover(simplify_package))
        _rules.extend(discover(rule_package))
    return _rules


def names() -> list[str]:
    """What ``skip`` and ``only`` may name."""
    passes = (DEAD_CODE, FOLD, SHAPE_CHAIN, CSE, DEDUP)
    return sorted([*(r.name for r in all_rules()), *(p.name for p in passes), "precision", SENSITIVITY, "nhwc_layout"])
