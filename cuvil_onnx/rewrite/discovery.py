"""Finds the rules of a package: one module, one rule, no list."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from types import ModuleType

from cuvil_onnx.errors import RewriteError
from cuvil_onnx.rewrite.rule import Rule


def discover(package: ModuleType) -> list[Rule]:
    """One instance of the rule of every module of ``package`` (modules named ``_x`` are helpers), sorted by name.

    Raises:
        RewriteError: a module defines no rule or several, or two rules have one name.
    """
    rules: list[Rule] = []
    for info in sorted(pkgutil.iter_modules(package.__path__), key=lambda i: i.name):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{package.__name__}.{info.name}")
        found = [
            c
            for _, c in inspect.getmembers(module, inspect.isclass)
            if issubclass(c, Rule) and c.__module__ == module.__name__ and not inspect.isabstract(c)
        ]
        if len(found) != 1:
            raise RewriteError(f"{module.__name__} defines {len(found)} rules, exactly one is required")
        rules.append(found[0]())
    names = [rule.name for rule in rules]
    if len(set(names)) != len(names):
        raise RewriteError(f"two rules have one name: {sorted(n for n in names if names.count(n) > 1)[0]}")
    return sorted(rules, key=lambda r: r.name)
