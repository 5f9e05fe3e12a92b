"""Generated inputs that are more like pictures than noise.

Noise averages out in the first layers of a network for images, so that little depends on their weights; flat areas and
edges do not. On PP-OCR's classifier the roundings that matter for real lines of text are those that matter for
patchwork (cosine 0.82 between what all roundings contribute to each), much less those that matter for noise (0.27).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx

PATCH = 8
"""Height and width of an area of one colour."""


def takes_pictures(model: onnx.ModelProto) -> bool:
    """Whether a model has an input that may be [N, C, H, W] floats."""
    constants = {t.name for t in model.graph.initializer}
    tensors = [i.type.tensor_type for i in model.graph.input if i.name not in constants]
    return any(t.elem_type == onnx.TensorProto.FLOAT and len(t.shape.dim) == 4 for t in tensors)


def with_pictures(sets: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Each set, followed by the same with patchwork in place of [N, C, H, W] floats, when it has any."""
    for number, feeds in enumerate(sets):
        yield feeds
        pictures = {name: _patchwork(array.shape, number) for name, array in feeds.items() if _is_picture(array)}
        if pictures:
            yield {**feeds, **pictures}


def _is_picture(array: Any) -> bool:
    return (
        isinstance(array, np.ndarray) and array.dtype == np.float32 and array.ndim == 4 and min(array.shape[2:]) > PATCH
    )


def _patchwork(shape: tuple[int, ...], seed: int) -> Any:
    """Squares of random colours, of mean 0 and deviation 1 over all squares."""
    height, width = shape[2:]
    rows, columns = -(-height // PATCH), -(-width // PATCH)
    colours = np.random.default_rng([seed, *shape]).standard_normal((*shape[:2], rows, columns), dtype=np.float32)
    return colours.repeat(PATCH, 2).repeat(PATCH, 3)[:, :, :height, :width]
