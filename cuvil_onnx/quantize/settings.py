"""What quantization was asked for: from arguments, from a text such as "awq:w4a16:g128", from a nested dict."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from cuvil_onnx.errors import OptionError
from cuvil_onnx.quantize.grid import Grid
from cuvil_onnx.quantize.scheme import Scheme, make_scheme

FORMATS = ("cuvil", "matmulnbits")
BITS = (4, 8)
KEEP_BITS = 16
"""In ``overrides``: the layer stays as it is."""

JOINT = "joint"
"""The scheme that a dict of several schemes stands for."""

Progress = Callable[[int, int, str], None]


@dataclasses.dataclass(frozen=True)
class Settings:
    """Checked arguments of ``quantize``.

    Attributes:
        scheme: what chooses codes and scales.
        bits: 4 or 8, for all layers but those in ``overrides``.
        group_size: rows that share a scale, -1 for whole columns.
        symmetric: None: asymmetric at 4 bits, symmetric at 8, where a zero point gains little.
        include, exclude: patterns of the names of nodes or weights.
        overrides: pattern -> bits (4, 8, or 16 for unchanged); the first that fits counts.
        embeddings: whether tables get the codes of a product with the same weight.
        format: "cuvil" or "matmulnbits".
        seed: of random numbers.
        calibration: see ``cuvil_onnx.quantize``; None without.
        scale_dtype: what scales must be representable in; None: the type of each weight.
        progress: called with (done, all, name).
    """

    scheme: Scheme
    bits: int = 4
    group_size: int = 128
    symmetric: bool | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    overrides: Mapping[str, int] = dataclasses.field(default_factory=dict)
    embeddings: bool = True
    format: str = "cuvil"
    seed: int = 0
    calibration: Any = None
    scale_dtype: ir.DataType | None = None
    progress: Progress | None = None

    def grid(self, bits: int, dtype: ir.DataType) -> Grid:
        """The grid of a layer whose weight is of type ``dtype``."""
        symmetric = bits == 8 if self.symmetric is None else self.symmetric
        return Grid(bits, self.group_size, symmetric, self.scale_dtype or dtype)

    def label(self) -> str:
        """The settings in the words of :func:`parse`."""
        group = "channel" if self.group_size < 0 else f"g{self.group_size}"
        kind = [] if self.symmetric is None else ["sym" if self.symmetric else "asym"]
        changed = [f"{k}={v}" for k, v in self.scheme.options.items() if v != self.scheme.defaults[k]]
        return ":".join([self.scheme.name, f"w{self.bits}a16", group, *kind, *changed])


def settings(
    scheme: str | Mapping[str, Any],
    *,
    bits: int | None = None,
    group_size: int | None = None,
    symmetric: bool | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    overrides: Mapping[str, int] | None = None,
    options: Mapping[str, Any] | None = None,
    **others: Any,
) -> Settings:
    """Checks arguments and joins them with what the scheme's text says; an argument that is given wins.

    Raises:
        OptionError: a value that is not allowed, with those that are.
    """
    if not isinstance(scheme, str | Mapping):
        raise OptionError(f"scheme is {type(scheme).__name__}; a text like 'rtn:w4a16:g128' or a mapping is required")
    parsed = _joint(scheme) if isinstance(scheme, Mapping) else parse(scheme)
    given = {"bits": bits, "group_size": group_size, "symmetric": symmetric}
    parsed |= {key: value for key, value in given.items() if value is not None}
    made = make_scheme(parsed["scheme"], parsed.get("options", {}) | dict(options or {}))
    if others.get("calibration") is not None and not hasattr(others["calibration"], "observe"):
        others["calibration"] = _calibration(others["calibration"], others.get("seed", 0))
    if hasattr(others.get("calibration"), "resumable"):
        made = others["calibration"].resumable(made)
    for name, patterns in (("include", include), ("exclude", exclude)):
        if isinstance(patterns, str):
            raise OptionError(f"{name} takes a list of patterns, not one string")
    result = Settings(
        made,
        **{key: parsed[key] for key in given if key in parsed},
        include=tuple(include),
        exclude=tuple(exclude),
        overrides=dict(overrides or {}),
        **others,
    )
    _check(result)
    return result


def parse(text: str) -> dict[str, Any]:
    """The parts of "scheme:w4a16:g128:sym:option=value", of which only the scheme must be there.

    Raises:
        OptionError: a part that means nothing.
    """
    name, *parts = text.split(":")
    found: dict[str, Any] = {"scheme": name, "options": {}}
    for part in parts:
        if part in ("w4a16", "w8a16"):
            found["bits"] = int(part[1])
        elif part == "channel":
            found["group_size"] = -1
        elif part in ("sym", "asym"):
            found["symmetric"] = part == "sym"
        elif part[:1] == "g" and part[1:].isdigit():
            found["group_size"] = int(part[1:])
        elif "=" in part:
            key, _, value = part.partition("=")
            found["options"][key] = value
        else:
            raise OptionError(
                f"quantization {text!r}: {part!r} is none of w4a16, w8a16, g32 (a group size), channel, sym, asym, "
                "option=value"
            )
    return found


def _calibration(data: Any, seed: int) -> Any:
    """Samples as the driver wants them: see ``driver.Calibration``."""
    return importlib.import_module("cuvil_onnx.quantize.calibrate_data").as_calibration(data, seed=seed)


def _joint(nested: Mapping[str, Any]) -> dict[str, Any]:
    """A dict of schemes; what its "group" says of groups holds for the model."""
    group = nested.get("group", {})
    if not isinstance(group, Mapping):
        raise OptionError(f"scheme: 'group' must be a dict, got {group!r}")
    found: dict[str, Any] = {"scheme": JOINT, "options": dict(nested)}
    return found | {key: group[key] for key in ("group_size", "symmetric") if key in group}


def _check(made: Settings) -> None:
    if made.bits not in BITS:
        raise OptionError(f"bits={made.bits!r} is not one of {', '.join(map(str, BITS))}")
    size = made.group_size
    if not isinstance(size, int) or (size != -1 and (size < 16 or size & (size - 1))):
        raise OptionError(f"group_size={size!r} is neither a power of two from 16 on nor -1 (whole columns)")
    if made.format not in FORMATS:
        raise OptionError(f"format={made.format!r} is not one of {', '.join(FORMATS)}")
    for pattern, bits in made.overrides.items():
        if bits not in (*BITS, KEEP_BITS):
            raise OptionError(f"overrides[{pattern!r}]={bits!r} is not one of 4, 8, 16 (unchanged)")
    if made.scheme.calibrated and made.calibration is None:
        raise OptionError(
            f"scheme {made.scheme.name!r} chooses by what the layers see: it needs calibration= (texts or inputs)"
        )
