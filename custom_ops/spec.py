"""What an op of domain `cuvil` is.

Function bodies, the names that C++ uses, the docs and the tests all come from this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

if TYPE_CHECKING:
    from custom_ops.body import Body

DOMAIN = "cuvil"
VERSION = 1

Array = npt.NDArray[Any]
AttrValue = int | float | str | Sequence[int] | Sequence[float] | Sequence[str]
# What is known of an output: its dtype and shape, None where unknown.
Inferred = tuple[ir.DataType | None, ir.Shape | None]


class OpError(ValueError):
    """A node that its specification does not allow; the message names the op, what was found and what is required."""


@dataclass(frozen=True)
class Input:
    """One input or output of an op.

    Attributes:
        name: the formal name in the function body.
        shape: the shape as documentation, such as "[N, C, H, W]".
        dtypes: the allowed element types as documentation; "T" is the node's own floating-point type.
        optional: an input may be absent (an empty name on the node).
        variadic: the op takes any number of these, at least one; only the last may be.
    """

    name: str
    shape: str
    doc: str
    dtypes: str = "T"
    optional: bool = False
    variadic: bool = False


Output = Input


@dataclass(frozen=True)
class Attribute:
    """An attribute. It is always written on the node: function attribute defaults are invisible to a kernel.

    Attributes:
        default: the value that `make` writes when the caller gives none; None when the caller must give one.
        allowed: every legal value, None when they are not a list.
    """

    name: str
    type: ir.AttributeType
    doc: str
    default: AttrValue | None = None
    allowed: tuple[AttrValue, ...] | None = None


@dataclass(frozen=True)
class Call:
    """One use of an op, which its body and its output types are made for."""

    op: str
    inputs: tuple[ir.Value | None, ...]
    num_outputs: int
    attrs: Mapping[str, Any]
    opset: int
    dtype: ir.DataType

    def has(self, index: int) -> bool:
        """Whether optional input `index` is present."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def shape(self, index: int) -> ir.Shape | None:
        """The shape of input `index`, None when absent or unknown."""
        value = self.inputs[index] if index < len(self.inputs) else None
        return None if value is None else value.shape

    def fail(self, message: str) -> OpError:
        """An error that names the op."""
        return OpError(f"cuvil::{self.op}: {message}")


@dataclass(frozen=True)
class Example:
    """Inputs and attributes of one node, for the tests that every op gets.

    Attributes:
        inputs: float32 arrays are cast to the dtype under test, others stay; None is an absent optional input.
        region: Pointwise only: writes the original nodes and returns the outputs.
        reference: overrides the op's own.
        opset: the lowest opset at which the example's body can be written.
        half: whether the example makes sense in float16 (False when it exceeds the range or tests another type).
        constant: positions of the inputs that are initializers in every model, such as quantized weights.
    """

    name: str
    inputs: tuple[Array | None, ...]
    attrs: Mapping[str, AttrValue] = field(default_factory=dict)
    num_outputs: int = 1
    region: Callable[[Body, Sequence[ir.Value]], Sequence[ir.Value]] | None = None
    reference: Callable[[Sequence[Array | None], Mapping[str, Any]], Sequence[Array]] | None = None
    opset: int = 7
    half: bool = True
    constant: tuple[int, ...] = ()


@dataclass(frozen=True)
class OpSpec:
    """An op.

    Attributes:
        body: writes the plain ONNX nodes of the function for one `Call` and returns its outputs.
        infer: the dtypes and shapes of the outputs.
        check: raises OpError where inputs and attributes contradict each other; attribute names, types and allowed
            values have been checked before.
        reference: the outputs in float64, given inputs in float64.
        examples: the cases of the parametrised tests.
    """

    name: str
    doc: str
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    attributes: tuple[Attribute, ...]
    body: Callable[[Body, Call, Sequence[ir.Value | None]], Sequence[ir.Value]]
    infer: Callable[[Call], Sequence[Inferred]]
    reference: Callable[[Sequence[Array | None], Mapping[str, Any]], Sequence[Array]]
    examples: Callable[[], Iterable[Example]]
    check: Callable[[Call], None] | None = None
    since_version: int = VERSION

    def formal_inputs(self, count: int) -> list[str]:
        """The names of `count` inputs; a variadic one is numbered (x0, x1, ...)."""
        return _formal(self.inputs, count)

    def formal_outputs(self, count: int) -> list[str]:
        """The names of `count` outputs."""
        return _formal(self.outputs, count)

    def attribute(self, name: str) -> Attribute:
        """The attribute of that name; OpError for a name the op does not have."""
        for attribute in self.attributes:
            if attribute.name == name:
                return attribute
        known = ", ".join(a.name for a in self.attributes)
        raise OpError(f"cuvil::{self.name} has no attribute '{name}'; it has {known}")


def rng(name: str) -> np.random.Generator:
    """A generator seeded by an example's name, so that examples do not change when one is added."""
    return np.random.default_rng(list(name.encode()))


def normal(name: str, *shape: int, scale: float = 1.0) -> Array:
    """Standard normal float32 values, seeded by name and shape."""
    generator = rng(name + repr(shape))
    return (generator.standard_normal(shape) * scale).astype(np.float32)


def _formal(parameters: Sequence[Input], count: int) -> list[str]:
    if parameters and parameters[-1].variadic:
        fixed = [p.name for p in parameters[:-1]]
        return fixed + [f"{parameters[-1].name}{i}" for i in range(count - len(fixed))]
    return [p.name for p in parameters][:count]
