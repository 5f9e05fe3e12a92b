"""Goes on with a quantization that was interrupted: keeps each result in a folder, and the values between two pieces.

The driver works as always. For layers that an earlier run finished it is given statistics that hold nothing, and the
scheme's results from the folder; the pieces of the model before them do not run again.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from cuvil_onnx.errors import CuvilError
from cuvil_onnx.quantize.grid import Array, Grid, Quantized
from cuvil_onnx.quantize.scheme import Context, InputStatistics, Layer, Scheme

SAMPLED = 4096
"""Elements at either end of a weight that tell it from another one."""


class Forgotten:
    """Statistics of an input whose layers were quantized by an earlier run."""

    def __init__(self, channels: int, skipped: int) -> None:
        self.rows, self.skipped = 1, skipped
        self._channels = channels

    def mean_magnitude(self) -> Array:
        """Nothing is known."""
        return np.zeros(self._channels, np.float32)

    def hessian(self) -> Array:
        """Nothing is known; the report says nothing of the output then."""
        return np.zeros((self._channels, self._channels), np.float32)

    def drift(self) -> Array | None:
        """Nothing is known."""
        return None


class Journal:
    """Results in a folder. Another model, other samples or options have other keys, and start from nothing.

    Attributes:
        replaying: whether the layers that come now were finished by an earlier run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.replaying = False

    def open(self, key: str) -> None:
        """Removes what belongs to another key.

        Raises:
            CuvilError: something is in the folder that no earlier run left there.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        mark = self.folder / "key"
        known = mark.read_text(encoding="ascii", errors="replace") if mark.is_file() else None
        if known == key:
            return
        if any(self.folder.iterdir()) and (known is None or not re.fullmatch("[0-9a-f]{64}", known)):
            raise CuvilError(f"{self.folder} holds files of something else: give a folder that is new or empty")
        for file in [*self.folder.glob("*.npz"), self.folder / "between.pickle"]:
            file.unlink(missing_ok=True)
        mark.write_text(key, encoding="ascii")

    def recall(self, name: str, key: str, make: Callable[[], Mapping[str, Array | None]]) -> dict[str, Array]:
        """The arrays kept under a key, or made and kept now.

        Raises:
            CuvilError: an earlier run finished the layer, and its result is not there.
        """
        file = self.folder / f"{key}.npz"
        if file.is_file():
            try:
                with np.load(file, allow_pickle=False) as archive:
                    return {part: archive[part] for part in archive.files}
            except (OSError, ValueError, EOFError):
                file.unlink()  # cut short
        if self.replaying:
            raise CuvilError(f"{name}: {self.folder} lacks the result of an earlier run: remove that folder")
        made = {part: _host(array) for part, array in make().items() if array is not None}
        temporary = self.folder / f"{key}.{os.getpid()}"
        with temporary.open("wb") as stream:
            np.savez(stream, **made)  # type: ignore[arg-type]
        temporary.replace(file)
        return made


class Resumable(Scheme):
    """A scheme whose results are kept."""

    def __init__(self, scheme: Scheme, journal: Journal) -> None:
        self._scheme, self._journal = scheme, journal
        self.options = scheme.options
        for attribute in ("name", "summary", "calibrated", "columnwise", "defaults"):
            setattr(self, attribute, getattr(scheme, attribute))

    @property
    def compares(self) -> bool:
        return self._scheme.compares

    def input_scale(self, layers: Sequence[Layer], grid: Grid, context: Context) -> Array | None:
        if type(self._scheme).input_scale is Scheme.input_scale:
            return None

        def make() -> Mapping[str, Array | None]:
            return {"scale": self._scheme.input_scale(layers, grid, context)}

        key = self._key("scale", layers, grid)
        scale = self._journal.recall(layers[0].name, key, make).get("scale")
        return None if scale is None else context.xp.asarray(scale)

    def quantize(self, layer: Layer, grid: Grid, context: Context) -> Quantized:
        def make() -> Mapping[str, Array | None]:
            return vars(self._scheme.quantize(layer, grid, context))

        found = self._journal.recall(layer.name, self._key("codes", [layer], grid), make)
        return Quantized(**{part: context.xp.asarray(array) for part, array in found.items()})

    def _key(self, kind: str, layers: Sequence[Layer], grid: Grid) -> str:
        text = f"{kind} {self.name} {sorted(self.options.items())} {grid}"
        digest = hashlib.sha256(text.encode())
        for layer in layers:
            digest.update(f"{layer.name} {layer.weight.shape}".encode())
            digest.update(np.ascontiguousarray(_host(layer.weight)).tobytes())
        return digest.hexdigest()[:32]


def fingerprint(model: ir.Model, feeds: Sequence[Mapping[str, Any]], sites: Sequence[ir.Value], compare: bool) -> str:
    """Tells models, samples and sites apart, without reading large weights whole."""
    digest = hashlib.sha256(b"compare" if compare else b"")
    for node in model.graph:
        digest.update(f"{node.domain} {node.op_type} {[v and v.name for v in node.inputs]}".encode())
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None or tensor.dtype == ir.DataType.STRING:
            continue
        flat = tensor.numpy().reshape(-1)
        digest.update(f"{value.name} {tensor.dtype} {tensor.shape}".encode())
        digest.update(flat[:SAMPLED].tobytes() + flat[-SAMPLED:].tobytes())
    for feed in feeds:
        for name in sorted(feed):
            digest.update(f"{name} {feed[name].dtype} {feed[name].shape}".encode())
            digest.update(np.ascontiguousarray(feed[name]).tobytes())
    digest.update(" ".join(site.name or "" for site in sites).encode())
    return digest.hexdigest()


def finished(sites: Sequence[ir.Value], journal: Journal) -> Iterator[tuple[ir.Value, InputStatistics]]:
    """The sites of an earlier run, for the driver to put their layers' results into the model."""
    journal.replaying = True
    for site in sites:
        kept = journal.recall(site.name or "", _site_key(site), dict)
        yield site, Forgotten(int(kept["channels"]), int(kept["skipped"]))
    journal.replaying = False


def note(site: ir.Value, channels: int, skipped: int, journal: Journal) -> None:
    """Keeps what :func:`finished` needs of a site."""
    journal.recall(
        site.name or "", _site_key(site), lambda: {"channels": np.array(channels), "skipped": np.array(skipped)}
    )


def _site_key(site: ir.Value) -> str:
    return hashlib.sha256(f"site {site.name}".encode()).hexdigest()[:32]


def _host(array: Any) -> Array:
    found: Array = array.get() if hasattr(array, "get") else np.asarray(array)
    return found
