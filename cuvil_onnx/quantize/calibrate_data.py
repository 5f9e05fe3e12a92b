"""Calibration data: where samples come from, and how texts become inputs of a model.

``as_calibration`` takes what a user has: feeds (a dict, or some of them), an .npz file, a folder of those, texts with a
tokenizer (:class:`Texts`), a text file with its tokenizer.json beside it.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from cuvil_onnx.errors import OptionError
from cuvil_onnx.quantize.calibrate import Feeds, Observation
from cuvil_onnx.quantize.calibrate_resume import Journal, Resumable, fingerprint, finished, note
from cuvil_onnx.quantize.grid import Array
from cuvil_onnx.quantize.scheme import InputStatistics, Scheme

MAX_SAMPLES = 128
"""Of what is iterated over: an endless source must not hang."""

TEXT_SUFFIXES = (".txt", ".md", ".text")


@dataclasses.dataclass
class Samples:
    """Samples for the driver (``driver.Calibration``).

    Attributes:
        feeds: the samples, or a function that makes them for a model's inputs.
        providers: of ONNX Runtime; None: CUDA where there is one, and the CPU.
        folder: where results are kept so that interrupted work goes on from there; None: nowhere. It is for one model
            at a time, and may be removed after the work.
        rows_seen: how many rows (tokens) the last site had, after the work.
    """

    feeds: Sequence[Feeds] | Callable[[Sequence[ir.Value]], Sequence[Feeds]]
    providers: Sequence[str] | None = None
    folder: Path | None = None
    rows_seen: int = 0

    def __post_init__(self) -> None:
        self._journal = None if self.folder is None else Journal(Path(self.folder))

    def for_model(self, model: ir.Model) -> Sequence[Feeds]:
        """The samples as inputs of this model."""
        return self.feeds(model.graph.inputs) if callable(self.feeds) else self.feeds

    def resumable(self, scheme: Scheme) -> Scheme:
        """The scheme, keeping its results where there is a folder."""
        return scheme if self._journal is None else Resumable(scheme, self._journal)

    def observe(
        self, model: ir.Model, sites: Sequence[ir.Value], *, compare: bool = False
    ) -> Iterator[tuple[ir.Value, InputStatistics]]:
        """See ``driver.Calibration``."""
        feeds, journal, key = self.for_model(model), self._journal, ""
        if journal is not None:
            key = fingerprint(model, feeds, sites, compare)
            journal.open(key)
        seen = Observation(model, sites, feeds, folder=self.folder, key=key, providers=self.providers, compare=compare)
        if journal is not None:
            yield from finished(seen.sites[: seen.done], journal)
        for site, statistics in seen:
            self.rows_seen = statistics.rows
            if journal is not None:
                note(site, statistics.magnitude.size, statistics.skipped, journal)
            yield site, statistics


@dataclasses.dataclass(frozen=True)
class Texts:
    """Texts for a language model: cut into windows of tokens, some of which are drawn.

    Attributes:
        texts: any number of them.
        tokenizer: has ``encode(text)``, which gives token ids or an object with ``ids`` (as the packages tokenizers and
            transformers do), or is a function from text to ids; or the path of a tokenizer.json.
        samples: how many windows at most.
        length: tokens of a window.
        separator: the token between two texts; None: nothing.
    """

    texts: Sequence[str]
    tokenizer: Any
    samples: int = 64
    length: int = 512
    separator: int | None = None

    def windows(self, seed: int) -> list[Array]:
        """int64 [1, length] each; one shorter window where the texts are too short for a whole one.

        Raises:
            OptionError: no text gives any token.
        """
        encode = _encoder(self.tokenizer)
        tokens: list[int] = []
        for text in self.texts:
            tokens += encode(text)
            tokens += [] if self.separator is None else [self.separator]
        if not tokens:
            raise OptionError("calibration: the texts give no tokens")
        ids = np.array(tokens, np.int64)
        count = max(len(ids) // self.length, 1)
        order = np.random.default_rng(seed).permutation(count)[: self.samples]
        return [ids[None, i * self.length : (i + 1) * self.length] for i in sorted(order)]


def as_calibration(data: Any, *, seed: int = 0) -> Samples:
    """The calibration of whatever was given; see the module's text.

    Args:
        data: feeds, a path, or :class:`Texts`.
        seed: chooses the windows of texts.

    Raises:
        OptionError: it is nothing of that, or empty.
    """
    if isinstance(data, Samples):
        return data
    if isinstance(data, Texts):
        return Samples(functools.partial(_text_feeds, data, seed))
    if isinstance(data, Mapping):
        return Samples([_feed(data, 0)])
    if isinstance(data, (str, os.PathLike)):
        return _from_path(Path(data), seed)
    if not isinstance(data, Iterable):
        raise OptionError(f"calibration: {type(data).__name__} is neither inputs, nor a path, nor Texts")
    feeds: list[Feeds] = []
    for sample in data:
        if isinstance(sample, str):
            raise OptionError("calibration: texts need a tokenizer: give calibrate_data.Texts(texts, tokenizer)")
        feeds.append(_feed(sample, len(feeds)))
        if len(feeds) == MAX_SAMPLES:
            break
    if not feeds:
        raise OptionError("calibration: there are no samples")
    return Samples(feeds)


def _feed(sample: Any, index: int) -> Feeds:
    if not isinstance(sample, Mapping):
        raise OptionError(
            f"calibration: sample {index} is a {type(sample).__name__}, a dict from input name to array is required"
        )
    return {str(name): np.asarray(array) for name, array in sample.items()}


def _from_path(path: Path, seed: int) -> Samples:
    if not path.exists():
        raise OptionError(f"calibration: {path}: no such file or folder")
    files = sorted(p for p in path.iterdir() if p.is_file()) if path.is_dir() else [path]
    archives = [p for p in files if p.suffix == ".npz"]
    texts = [p for p in files if p.suffix.lower() in TEXT_SUFFIXES]
    if archives:
        return Samples([_archive(p) for p in archives[:MAX_SAMPLES]])
    if texts:
        tokenizer = texts[0].parent / "tokenizer.json"
        if not tokenizer.is_file():
            raise OptionError(f"calibration: {texts[0]}: texts need the model's tokenizer.json beside them")
        try:
            return as_calibration(Texts([p.read_text(encoding="utf-8") for p in texts], tokenizer), seed=seed)
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"calibration: {path}: {error}") from None
    raise OptionError(f"calibration: {path}: neither .npz files nor texts ({', '.join(TEXT_SUFFIXES)})")


def _archive(path: Path) -> Feeds:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError) as error:
        raise OptionError(f"calibration: {path}: cannot be read as .npz: {error}") from None


def _encoder(tokenizer: Any) -> Callable[[str], list[int]]:
    """A function from text to token ids."""
    if isinstance(tokenizer, (str, os.PathLike)):
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise OptionError(f"{tokenizer}: reading it needs: pip install tokenizers") from None
        try:
            tokenizer = Tokenizer.from_file(os.fspath(tokenizer))
        except Exception as error:  # the package raises Exception itself
            raise OptionError(f"{tokenizer}: not a tokenizer: {error}") from None
    encode = getattr(tokenizer, "encode", tokenizer)
    if not callable(encode):
        raise OptionError(f"calibration: a {type(tokenizer).__name__} is no tokenizer: it has no encode()")

    def ids(text: str) -> list[int]:
        found = encode(text)
        return [int(i) for i in getattr(found, "ids", found)]

    return ids


def _text_feeds(texts: Texts, seed: int, inputs: Sequence[ir.Value]) -> list[Feeds]:
    windows = texts.windows(seed)
    return [language_feed(inputs, window) for window in windows]


def language_feed(inputs: Sequence[ir.Value], ids: Array) -> Feeds:
    """The inputs of a language model for token ids [batch, length], by the names and types that exporters use.

    ids: "...ids" or "...tokens"; masks: ones; positions: counted from 0; token types: zeros; caches (any float input of
    rank 3 or more with "past" or "cache" in its name): empty, that is 0 wherever a size is free but the first, which is
    the batch.

    Raises:
        OptionError: an input that is nothing of that.
    """
    batch, length = ids.shape
    feed: dict[str, Array] = {}
    for value in inputs:
        if value.is_initializer():
            continue
        name, kind = (value.name or ""), value.dtype
        low = name.lower()
        if kind is None:
            raise OptionError(f"calibration: input {name!r} has no type")
        dtype = kind.numpy()
        if "past" in low or "cache" in low:
            dims = list(value.shape) if value.shape is not None else []
            if len(dims) < 3:
                raise OptionError(f"calibration: the shape of the cache {name!r} is not known: give inputs yourself")
            sizes = [d if isinstance(d, int) else (batch if i == 0 else 0) for i, d in enumerate(dims)]
            feed[name] = np.zeros(sizes, dtype)
        elif "mask" in low:
            feed[name] = np.ones((batch, length), dtype)
        elif "position" in low:
            feed[name] = np.arange(length, dtype=dtype)[None].repeat(batch, 0)
        elif "type" in low:
            feed[name] = np.zeros((batch, length), dtype)
        elif low.endswith("ids") or "token" in low:
            feed[name] = ids.astype(dtype)
        else:
            raise OptionError(f"calibration: text says nothing of the model's input {name!r}: give inputs yourself")
    return feed
