"""Runs a model piece by piece over calibration samples and gives the statistics of one linear layer's input at a time.

Between two pieces the weights of the model may change: who quantizes a layer as soon as its statistics are there has
the later ones see what the quantized layers before them give.
"""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from cuvil_onnx.errors import CuvilError, OptionError
from cuvil_onnx.quantize import calibrate_segments as segments
from cuvil_onnx.quantize.calibrate_statistics import Statistics

Array = npt.NDArray[Any]
Feeds = Mapping[str, Array]

PROVIDERS = ("CUDAExecutionProvider", "CPUExecutionProvider")

SAVE_SECONDS = 60.0
"""How often the values between pieces go to disk when the work shall be resumable; they are larger than the rest."""


class Observation:
    """Goes through the model's sites in order; iterate it once.

    Args:
        model: changed only by whoever iterates: weights may be replaced (their names, shapes and types stay).
        sites: values of the main graph, [..., K] each.
        feeds: the calibration samples: input name -> array.
        xp: numpy or cupy, where statistics are wanted.
        folder: where to keep what a later run needs to go on from here; None: nowhere.
        key: what that must agree on: the model, the samples and the options. Another one's state is not taken up.
        compare: also run the model with the weights that it has now, for the drift of each site.

    Attributes:
        done: how many sites an earlier run finished; iteration starts after them, and whatever was decided from them
            must be in the model before it does.
    """

    def __init__(
        self,
        model: ir.Model,
        sites: Sequence[ir.Value],
        feeds: Sequence[Feeds],
        *,
        xp: ModuleType = np,
        folder: Path | None = None,
        key: str = "",
        providers: Sequence[str] | None = None,
        compare: bool = False,
    ) -> None:
        if not feeds:
            raise OptionError("there is no calibration sample")
        self._model, self._xp = model, xp
        self._plan = segments.plan(model.graph, sites)
        self._providers = list(providers) if providers is not None else _available()
        self._file = None if folder is None else folder / "between.pickle"
        self._key = key
        self._saved = time.monotonic()
        self.done = 0
        self._live: list[dict[str, Any]] = []
        self._exact: list[dict[str, Any]] | None = None  # the same of the model with its first weights
        self._first_inputs = (
            {node: tuple(node.inputs) for segment in self._plan for node in segment.nodes} if compare else {}
        )
        state = self._load()
        if state is None:
            self._live = [self._first(feed) for feed in feeds]
            self._exact = [dict(sample) for sample in self._live] if compare else None
        else:
            self.done, self._live, self._exact = state

    @property
    def sites(self) -> list[ir.Value]:
        """All sites in the order in which they come."""
        return [segment.site for segment in self._plan]

    def __iter__(self) -> Iterator[tuple[ir.Value, Statistics]]:
        for index in range(self.done, len(self._plan)):
            yield self._plan[index].site, self._advance(self._plan[index])
            self.done = index + 1
            if time.monotonic() - self._saved >= SAVE_SECONDS:
                self._save()

    def _save(self) -> None:
        """Writes the state after the last finished site, if there is a folder; interrupted, it leaves the old one."""
        if self._file is None:
            return
        try:
            live, exact = _arrays(self._live), None if self._exact is None else _arrays(self._exact)
        except Exception:  # numpy has no bfloat16, and sequences are no arrays: such models start over
            self._file = None
            return
        self._file.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._file.with_suffix(f".{os.getpid()}")
        with temporary.open("wb") as file:
            pickle.dump((self._key, self.done, live, exact), file, protocol=pickle.HIGHEST_PROTOCOL)
        temporary.replace(self._file)
        self._saved = time.monotonic()

    def _load(self) -> tuple[int, list[dict[str, Any]], list[dict[str, Any]] | None] | None:
        if self._file is None or not self._file.is_file():
            return None
        try:
            with self._file.open("rb") as file:
                key, done, live, exact = _Arrays(file).load()
            if key != self._key:
                return None
            return int(done), _values(live), None if exact is None else _values(exact)
        except Exception as error:  # unpickling what is no pickle raises whatever its bytes happen to ask for
            raise CuvilError(
                f"{self._file} is not what an interrupted quantization by this version left there ({error}): "
                "remove that folder to start over"
            ) from None

    def _first(self, feed: Feeds) -> dict[str, Any]:
        """The graph inputs that the pieces read, as ONNX Runtime's values."""
        import onnxruntime

        wanted = {value.name or "": value for segment in self._plan for value in (*segment.inputs, segment.site)}
        graph_inputs = {value.name: value for value in self._model.graph.inputs}
        found = {}
        for name in wanted:
            if name not in graph_inputs:
                continue
            if name not in feed:
                default = graph_inputs[name].const_value
                if default is not None:  # an initializer that may be overridden
                    found[name] = _ort_value(default)
                    continue
                raise OptionError(f"a calibration sample lacks the model's input {name!r}")
            array = np.asarray(feed[name], order="C")  # not ascontiguousarray, which gives a scalar a dimension
            _check_sample(graph_inputs[name], array)
            found[name] = onnxruntime.OrtValue.ortvalue_from_numpy(array)
        return found

    def _advance(self, segment: segments.Segment) -> Statistics:
        """Runs one piece over all samples, keeps its results, forgets what no later piece reads."""
        run = self._runner(segment)
        exact = self._live if self._exact is None else self._exact
        run_exact = None if self._exact is None else self._exact_runner(segment)
        statistics: Statistics | None = None
        comparable = True
        for sample, first in zip(self._live, exact, strict=True):
            site = run(sample)
            wanted = None if run_exact is None else run_exact(first)
            # Where values decide on shapes (tokens sent to experts) rows do not correspond.
            comparable &= wanted is None or wanted.shape == site.shape
            if statistics is None:
                statistics = Statistics.empty(site.shape[-1], self._xp)
            statistics.add(site, wanted if comparable else None)
        assert statistics is not None
        if not comparable:
            statistics.drifts = None
        return statistics

    def _exact_runner(self, segment: segments.Segment) -> Callable[[dict[str, Any]], Array]:
        """As :meth:`_runner`, with the weights that the model had at first."""
        now = {node: tuple(node.inputs) for node in segment.nodes}
        _set_inputs(self._first_inputs, segment.nodes)
        try:
            return self._runner(segment)
        finally:
            _set_inputs(now, segment.nodes)

    def _runner(self, segment: segments.Segment) -> Callable[[dict[str, Any]], Array]:
        """A function that runs the piece on a sample, which gets its results, and gives the site's value."""
        import onnxruntime

        first = self._live[0]
        types = {value: first[value.name or ""].data_type() for value in segment.inputs}
        if not segment.nodes:
            types[segment.site] = first[segment.site.name or ""].data_type()
            segment.inputs = list(dict.fromkeys([*segment.inputs, segment.site]))
        proto, fed = segments.model_of(segment, self._model, types)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        where = f"calibration, up to {segment.site.name!r}"
        try:
            session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=self._providers)
        except Exception as error:
            raise CuvilError(f"{where}: ONNX Runtime cannot load this part of the model: {error}") from error
        weights = {v.name: _ort_value(v.const_value) for v in fed if v.const_value is not None}
        names = [output.name for output in session.get_outputs()]

        def run(sample: dict[str, Any]) -> Array:
            inputs = {value.name: sample[value.name or ""] for value in segment.inputs} | weights
            try:
                results = session.run_with_ort_values(names, inputs)
            except Exception as error:
                raise CuvilError(f"{where}: this part of the model does not run: {error}") from error
            sample.update(zip(names[1:], results[1:], strict=True))
            for value in segment.last_used:
                sample.pop(value.name or "", None)
            site: Array = results[0].numpy()
            return site

        return run


def _set_inputs(inputs: Mapping[ir.Node, Sequence[ir.Value | None]], nodes: Sequence[ir.Node]) -> None:
    for node in nodes:
        for index, value in enumerate(inputs[node]):
            if node.inputs[index] is not value:
                node.replace_input_with(index, value)


def _available() -> list[str]:
    import onnxruntime

    present = onnxruntime.get_available_providers()
    return [name for name in PROVIDERS if name in present]


def _arrays(samples: Sequence[Mapping[str, Any]]) -> list[dict[str, Array]]:
    return [{name: value.numpy() for name, value in sample.items()} for sample in samples]


def _values(samples: Sequence[Mapping[str, Array]]) -> list[dict[str, Any]]:
    import onnxruntime

    make = onnxruntime.OrtValue.ortvalue_from_numpy
    return [{name: make(array) for name, array in sample.items()} for sample in samples]


def _ort_value(tensor: ir.TensorProtocol) -> Any:
    import onnxruntime

    array = np.asarray(tensor.numpy(), order="C")
    if tensor.dtype == ir.DataType.BFLOAT16:  # numpy has no such type of its own
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(np.uint16), int(tensor.dtype))
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def _check_sample(declared: ir.Value, array: np.ndarray[Any, Any]) -> None:
    """Raises OptionError unless the array is of the type and the known sizes of the model's input."""
    shape, dtype = declared.shape, declared.dtype
    fits = shape is None or (
        len(shape) == array.ndim
        and all(not isinstance(d, int) or d == found for d, found in zip(shape, array.shape, strict=True))
    )
    if fits and (dtype is None or array.dtype == dtype.numpy()):
        return
    wanted = f"{dtype.name if dtype else 'any type'} {shape if shape is not None else 'of any shape'}"
    raise OptionError(
        f"a calibration sample's {declared.name!r} is {array.dtype} {list(array.shape)}; {wanted} is required"
    )


class _Arrays(pickle.Unpickler):
    """Reads arrays and plain containers only: a state file must not be able to run code."""

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "numpy" and name in (
            "_reconstruct",
            "ndarray",
            "dtype",
            "_frombuffer",
            "scalar",
        ):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} is not expected in a calibration state")
