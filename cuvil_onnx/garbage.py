"""Pauses the search for garbage cycles while a model is worked on."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Python's cyclic collector off; a context manager or decorator.

    Nodes and values by the million are made and stay alive, and each collection visits all of them: a quarter of the
    time. What is dropped meanwhile is freed by its reference count, weights included; cycles wait for the end.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
