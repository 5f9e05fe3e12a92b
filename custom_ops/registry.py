"""Finds the ops: every module of `custom_ops.ops`, each with its `SPEC`."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from custom_ops import ops
from custom_ops.spec import OpError, OpSpec


@functools.cache
def specs() -> dict[str, OpSpec]:
    """All ops by name, in alphabetical order.

    Raises:
        RuntimeError: a module without a `SPEC`, or two of one name.
    """
    found: dict[str, OpSpec] = {}
    for info in pkgutil.iter_modules(ops.__path__):
        spec = getattr(importlib.import_module(f"{ops.__name__}.{info.name}"), "SPEC", None)
        if not isinstance(spec, OpSpec):
            raise RuntimeError(f"custom_ops/ops/{info.name}.py must define SPEC, an OpSpec")
        if spec.name in found:
            raise RuntimeError(f"custom_ops/ops/{info.name}.py defines {spec.name} a second time")
        found[spec.name] = spec
    return dict(sorted(found.items()))


def get(name: str) -> OpSpec:
    """The op of that name; OpError when there is none."""
    if name not in specs():
        raise OpError(f"there is no op cuvil::{name}; there are {', '.join(specs())}")
    return specs()[name]
