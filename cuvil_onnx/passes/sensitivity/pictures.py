"""Generated inputs that are more like pictures than noise.

Noise averages out in the first layers of a network for images, so that little depends on their weights; flat areas and
edges do not. On PP-OCR's classifier the roundings that matter for real lines of text are those that matter for
patchwork (cosine 0.82 between what all roundings contribute to each), much less those that matter for noise (0.27).
Real pictures also have grey areas and details of all sizes, which small ones cannot: on PP-OCR's detector and reader
16 bits are off by 4e-2 and 2e-2 for text, 6e-2 and 5e-2 for a large grey mosaic, 2e-2 and 2e-3 for patchwork.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx

PATCH = 8
"""Height and width of an area of one colour."""

LARGE = 256
"""Height and width that a mosaic has at least, where the model takes it."""


def takes_pictures(model: onnx.ModelProto) -> bool:
    """Whether a model has an input that may be [N, C, H, W] floats."""
    constants = {t.name for t in model.graph.initializer}
    tensors = [i.type.tensor_type for i in model.graph.input if i.name not in constants]
    return any(t.elem_type == onnx.TensorProto.FLOAT and len(t.shape.dim) == 4 for t in tensors)


def with_pictures(sets: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Each set, before it the same with pictures in place of [N, C, H, W] floats: a mosaic or patchwork, in turn.

    A mosaic comes twice when a set is small: larger, which models of one size reject, and as it is.
    """
    for number, feeds in enumerate(sets):
        shapes = {name: array.shape for name, array in feeds.items() if _is_picture(array)}
        if shapes and number % 2:
            yield {**feeds, **{name: _patchwork(shape, number) for name, shape in shapes.items()}}
        elif shapes:
            sizes = [{n: (*s[:2], *(max(d, LARGE) for d in s[2:])) for n, s in shapes.items()}, shapes]
            for size in sizes if sizes[0] != shapes else [shapes]:
                yield {**feeds, **{name: _mosaic(shape, number) for name, shape in size.items()}}
        yield feeds


def _is_picture(array: Any) -> bool:
    return (
        isinstance(array, np.ndarray) and array.dtype == np.float32 and array.ndim == 4 and min(array.shape[2:]) > PATCH
    )


def _patchwork(shape: tuple[int, ...], seed: int, patch: int = PATCH) -> Any:
    """Squares of random colours, of mean 0 and deviation 1 over all squares."""
    height, width = shape[2:]
    rows, columns = -(-height // patch), -(-width // patch)
    colours = np.random.default_rng([seed, patch, *shape]).standard_normal((*shape[:2], rows, columns), np.float32)
    return colours.repeat(patch, 2).repeat(patch, 3)[:, :, :height, :width]


def _mosaic(shape: tuple[int, ...], seed: int) -> Any:
    """Squares of many sizes over each other, equal in all channels, between -1 and 1."""
    grey = (shape[0], 1, *shape[2:])
    squares = sum(_patchwork(grey, seed, PATCH << k) for k in range(5)) / 2
    return np.broadcast_to(np.tanh(squares), shape).copy()
