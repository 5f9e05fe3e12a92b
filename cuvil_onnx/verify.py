"""Runs a model before and after optimization on ONNX Runtime's CPU and compares the outputs."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from cuvil_onnx.errors import OptionError

Array = npt.NDArray[Any]
Feeds = Mapping[str, Any]

INPUT_SETS = 3
"""Sets that must run; further sizes are tried only while the model rejects the earlier ones."""

BATCHES = (1, 3, 2, 1, 1, 1)
LENGTHS = (8, 5, 16, 64, 512, 1600)
IMAGE_SIZES = (32, 64, 48, 224, 320, 640)
"""Sizes of free dimensions per input set: the first one of a tensor counts as the batch."""

MAX_INPUT_ELEMENTS = 1 << 28
"""No larger input is made: a file may declare sizes that no machine can hold."""

MAX_PROBES = 1000
"""Inner values compared when an output differs."""

BUDGET_SECONDS = 8.0
"""After this no further set is started (the first one always runs)."""


@dataclasses.dataclass(frozen=True)
class Tolerance:
    """|a - b| <= absolute + relative * max|b|; both zero means bit for bit (NaN equal NaN)."""

    relative: float
    absolute: float


EXACT = Tolerance(0.0, 0.0)

ROUNDING = Tolerance(2e-4, 1e-5)
"""Folding scales into weights and fusing reorders float32 roundings: each layer adds about one unit in the last place
(6e-8) per accumulated term, relative to the largest partial sum. Some hundred layers of some thousand terms stay below
1e-4; a wrong rewrite (axis, group, missing bias) is off by orders of magnitude more."""

NATIVE_HALF = Tolerance(1e-2, 2e-3)
"""For models that compute in 16 bits already: ONNX Runtime's CPU computes most of their operators in float32 and drops
the roundings between neighbours, so that even a graph with one Identity less may round elsewhere."""

HALF = Tolerance(3e-2, 3e-2)
"""fp16 has a unit roundoff of 4.9e-4; tens of layers of rounded activations stay within a few percent of the largest
output, whereas overflow or a wrong scale is off by far more."""

BFLOAT16 = Tolerance(1e-1, 1e-1)
"""bf16 has a unit roundoff of 3.9e-3, eight times that of fp16."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a verification.

    Attributes:
        status: "passed", "failed" or "skipped".
        message: one line; for a difference it names the output and the first value inside that differs.
        unloadable: ONNX Runtime does not load or run the optimized model.
    """

    status: str
    message: str
    unloadable: bool = False


def verify(
    before: onnx.ModelProto, after: onnx.ModelProto, tolerance: Tolerance, inputs: Feeds | Sequence[Feeds] | None = None
) -> Outcome:
    """Compares all outputs over several input sets.

    Args:
        before: the original model.
        after: the optimized model.
        tolerance: allowed difference.
        inputs: one dict (or several) from input name to array; made from the signature when absent.

    Returns:
        "skipped" when the original does not run here (unknown operators, inputs that cannot be guessed).

    Raises:
        OptionError: the original does not run on the given inputs.
    """
    try:
        import onnxruntime  # noqa: F401
    except ImportError:
        return Outcome("skipped", "onnxruntime is not installed")
    try:
        original = cpu_session(before)
    except Exception as error:
        return Outcome("skipped", f"onnxruntime cannot load the original: {_line(error)}")
    try:
        optimized = cpu_session(after)
    except Exception as error:
        return Outcome("failed", f"onnxruntime cannot load the optimized model: {_line(error)}", True)
    names = [o.name for o in original.get_outputs()]
    compared, problem = 0, ""
    start = time.perf_counter()
    for feeds in input_sets(before, inputs):
        if compared >= INPUT_SETS and inputs is None:
            break
        if compared and time.perf_counter() - start > BUDGET_SECONDS:
            break
        try:
            expected = original.run(names, feeds)
        except Exception as error:
            problem = _line(error)
            if inputs is not None:
                raise OptionError(f"the original does not run on the inputs for verification: {problem}") from error
            continue
        try:
            found = optimized.run(names, feeds)
        except Exception as error:
            return Outcome("failed", f"the optimized model does not run: {_line(error)}", True)
        for name, want, got in zip(names, expected, found, strict=True):
            difference = compare(got, want, tolerance)
            if difference:
                shapes = ", ".join(f"{k}{list(np.shape(v))}" for k, v in feeds.items())
                place = first_difference(before, after, feeds, tolerance)
                return Outcome("failed", f"output {name!r} {difference} (inputs {shapes}){place}")
        compared += 1
    if not compared and not problem:
        return Outcome("skipped", f"an input has more than {MAX_INPUT_ELEMENTS} elements")
    if not compared:
        return Outcome("skipped", f"the original does not run on generated inputs: {problem}")
    kind = "bit for bit" if tolerance == EXACT else f"within {tolerance.relative:g} relative"
    return Outcome("passed", f"{len(names)} outputs over {compared} input sets {kind}")


def first_difference(before: onnx.ModelProto, after: onnx.ModelProto, feeds: Feeds, tolerance: Tolerance) -> str:
    """Names the first node of the optimized model whose result differs from the original's value of the same name.

    Rewrites keep the names of the values they replace, so the two models share most names. Empty when nothing inside
    can be compared.
    """
    computed = {name for node in before.graph.node for name in node.output if name}
    shared = [(node, name) for node in after.graph.node for name in node.output if name in computed][:MAX_PROBES]
    names = [name for _, name in shared]
    try:
        want = cpu_session(exposing(before, names)).run(names, feeds)
        got = cpu_session(exposing(after, names)).run(names, feeds)
    except Exception:
        return ""  # a probe has a type that cannot be an output: the outer message has to do
    for (node, name), a, b in zip(shared, got, want, strict=True):
        if compare(a, b, tolerance):
            rules = [p.value for p in node.metadata_props if p.key == "cuvil.rule"]
            made = f", made by {rules[0]}" if rules else ""
            return f"; first at {name!r} of node {node.name!r} ({node.op_type}{made})"
    return ""


def exposing(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """The model with more outputs, whose types ONNX Runtime infers."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    present = {o.name for o in copy.graph.output}
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in present)
    return copy


def computes_in_half(model: onnx.ModelProto) -> bool:
    """Whether any weight, input or output of the model is a 16-bit float."""
    half = {onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16}
    values = (*model.graph.input, *model.graph.output, *model.graph.value_info)
    casts = (a.i for n in model.graph.node if n.op_type == "Cast" for a in n.attribute if a.name == "to")
    return (
        any(t.data_type in half for t in model.graph.initializer)
        or any(v.type.tensor_type.elem_type in half for v in values)
        or any(to in half for to in casts)
    )


def compare(got: Any, want: Any, tolerance: Tolerance) -> str:
    """Describes the first difference; empty when equal within the tolerance."""
    if isinstance(want, (list, tuple)):
        if not isinstance(got, (list, tuple)) or len(got) != len(want):
            return "is another sequence"
        return next((d for d in (compare(g, w, tolerance) for g, w in zip(got, want, strict=True)) if d), "")
    if want is None or isinstance(want, dict):
        return "" if repr(got) == repr(want) else "differs"
    got, want = np.asarray(got), np.asarray(want)
    if got.dtype != want.dtype:
        return f"has type {got.dtype}, {want.dtype} expected"
    if got.shape != want.shape:
        return f"has shape {list(got.shape)}, {list(want.shape)} expected"
    if want.dtype.kind not in "fc" or tolerance == EXACT:
        same = np.array_equal(got, want, equal_nan=want.dtype.kind in "fc")
        return "" if same else f"differs in {int(np.sum(got != want))} of {want.size} elements"
    return _compare_floats(got.astype(np.float64), want.astype(np.float64), tolerance)


def _compare_floats(got: Array, want: Array, tolerance: Tolerance) -> str:
    if not np.array_equal(np.isnan(got), np.isnan(want)):
        return f"has {int(np.isnan(got).sum())} NaN, {int(np.isnan(want).sum())} expected"
    finite = np.isfinite(want)
    special = ~finite & ~np.isnan(want)
    if not np.array_equal(got[special], want[special]) or not np.isfinite(got[finite]).all():
        return "has other infinities"
    if not finite.any():
        return ""
    allowed = tolerance.absolute + tolerance.relative * float(np.abs(want[finite]).max())
    error = float(np.abs(got[finite] - want[finite]).max())
    return "" if error <= allowed else f"is off by {error:.3g}, {allowed:.3g} allowed"


def cpu_session(model: onnx.ModelProto) -> Any:
    """A session on the CPU without any optimization of ONNX Runtime's own."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def input_sets(model: onnx.ModelProto, inputs: Feeds | Sequence[Feeds] | None) -> Iterable[Feeds]:
    """The given inputs, or sets made from the signature, smaller sizes first; OptionError when one is missing.

    Sets with an input larger than ``MAX_INPUT_ELEMENTS`` are left out, perhaps all of them.
    """
    constants = {t.name for t in model.graph.initializer}
    required = [i for i in model.graph.input if i.name not in constants]
    if inputs is None:
        shapes = ([_shape(i, k) for i in required] for k in range(len(BATCHES)))
        return (
            {i.name: _generate(i, shape, k) for i, shape in zip(required, chosen, strict=True)}
            for k, chosen in enumerate(shapes)
            if all(math.prod(shape) <= MAX_INPUT_ELEMENTS for shape in chosen)
        )
    listed = inputs if isinstance(inputs, Sequence) else ()
    given = [inputs] if isinstance(inputs, Mapping) else list(listed)
    if not given or not all(isinstance(feeds, Mapping) for feeds in given):
        raise OptionError("inputs is neither a dict from input names to arrays nor a list of such dicts")
    for feeds in given:
        missing = [i.name for i in required if i.name not in feeds]
        if missing:
            raise OptionError(
                f"inputs for verification lack {missing[0]!r}; the model needs {[i.name for i in required]}"
            )
    return given


def _shape(info: onnx.ValueInfoProto, k: int) -> list[int]:
    """Sizes for one input in set ``k``."""
    dims = info.type.tensor_type.shape.dim
    given = [d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else d.dim_param for d in dims]
    return [d if isinstance(d, int) else _size(d, i, len(given), k) for i, d in enumerate(given)]


def _generate(info: onnx.ValueInfoProto, shape: Sequence[int], k: int) -> Any:
    """Values for one input in set ``k``: floats around zero (images: 0..1), small ids, masks with padding."""
    tensor = info.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type or onnx.TensorProto.FLOAT)
    random = np.random.default_rng([k, len(shape), sum(map(ord, info.name))])
    if dtype == np.bool_:
        return np.asarray(random.random(shape) < 0.7)
    if "mask" in info.name.lower() and len(shape) >= 2:
        return _mask(shape, k).astype(dtype)
    if np.issubdtype(dtype, np.integer):
        return np.asarray(random.integers(0, 2 + k, shape)).astype(dtype)
    if dtype.kind in "OUS":
        return np.full(shape, "a", dtype=object)
    return np.asarray(random.standard_normal(shape)).astype(dtype)


def _mask(shape: Sequence[int], k: int) -> Array:
    """All ones; padding on the right; padding on the left (set by set, at most half of the last axis)."""
    mask = np.ones(shape)
    half = max(1, shape[-1] // 2)
    if k == 1 and shape[-1] > 1:
        mask[..., half:] = 0
    if k == 2 and shape[-1] > 1:
        mask[..., : shape[-1] - half] = 0
    return mask


def _size(symbol: str, axis: int, rank: int, k: int) -> int:
    """A size for a free dimension: equal symbols get equal sizes."""
    if axis == 0 or "batch" in symbol.lower():
        return BATCHES[k % len(BATCHES)]
    if rank == 4 and axis >= 2:
        return IMAGE_SIZES[k % len(IMAGE_SIZES)]
    return LENGTHS[k % len(LENGTHS)]
