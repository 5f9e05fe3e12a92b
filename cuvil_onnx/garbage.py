"""Pauses the search for garbage cycles while a model is worked on."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

MANY = 1_000_000
"""With more new objects than this the look through all of them that would follow the pause is put off."""

_put_off = False


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Python's cyclic collector off; a context manager or decorator.

    Nodes and values by the million are made and stay alive, and each collection visits all of them: a quarter of the
    time. What is dropped meanwhile is freed by its reference count, weights included; cycles wait for the end, and
    those of a large model, which is a million objects in cycles itself, until Python looks through old objects or the
    next model comes.
    """
    global _put_off
    was_on = gc.isenabled()
    if was_on and _put_off:
        gc.collect()
        _put_off = False
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if gc.get_count()[0] > MANY and not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()  # into the oldest generation, without a look
                _put_off = True
            gc.enable()
