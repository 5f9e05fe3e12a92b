"""The joint configuration: AWQ's search on one grid, the result on another.

``{"awq": {"n_bits": 4, "q_group_size": 128}, "group": {"group_size": 32, "symmetric": True}}``: input scales are
searched for groups of ``q_group_size``, and the scaled weight is then rounded in groups of ``group_size``, which
divides it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cuvil_onnx.errors import OptionError

DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "awq": {"n_bits": 4, "q_group_size": 128},
    "group": {"group_size": 128, "symmetric": False},
}


def checked(awq: Any, group: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both parts with defaults filled in; AWQ's may hold further options of that scheme.

    Raises:
        OptionError: unknown or impossible values.
    """
    parts = []
    for name, given in (("awq", awq), ("group", group)):
        given = {} if given is None else given
        if not isinstance(given, Mapping):
            raise OptionError(f"joint: {name!r} must be a dict, got {given!r}")
        parts.append({**DEFAULTS[name], **given})
    search, result = parts
    unknown = sorted(set(result) - set(DEFAULTS["group"]))
    if unknown:
        raise OptionError(f"joint: 'group' has no {unknown[0]!r}; it has group_size, symmetric")
    if search["n_bits"] not in (2, 3, 4, 5, 6, 7, 8):
        raise OptionError(f"joint: n_bits={search['n_bits']!r} is not between 2 and 8")
    for key, size in (("q_group_size", search["q_group_size"]), ("group_size", result["group_size"])):
        if not isinstance(size, int) or isinstance(size, bool) or (size < 1 and size != -1):
            raise OptionError(f"joint: {key}={size!r} is neither a positive number nor -1 (whole columns)")
    outer, inner = search["q_group_size"], result["group_size"]
    if outer != -1 and (inner == -1 or outer % inner):
        raise OptionError(f"joint: group_size={inner} does not divide q_group_size={outer}")
    return search, result
