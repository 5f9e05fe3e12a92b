"""The interface of a rewrite rule.

A rule is one module of ``cuvil_onnx/rules`` that defines exactly one subclass of :class:`Rule`; it is discovered by
name, never listed. The driver calls ``match`` on every node whose operator is in ``roots`` (in subgraphs too), checks
the match and calls ``rewrite``. A rule holds no state: everything it learns travels in the :class:`Match`.

Example::

    class DoubleNeg(Rule):
        '''Neg(Neg(x)) -> x.'''

        name = "double_neg"
        phase = Phase.STRUCTURAL
        exactness = Exactness.EXACT
        roots = (("", "Neg"),)

        def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
            inner = ctx.producer(node.inputs[0], "Neg")
            if inner is None:
                return None                                # not this pattern at all: say nothing
            if ctx.dtype(inner.inputs[0]) == ir.DataType.INT8:
                return Refusal("Neg of int8 wraps", inner)  # nearly: the report tells the user why not
            return Match(node, nodes=(node, inner), values={"x": inner.inputs[0]})

        def rewrite(self, match: Match, ctx: GraphContext) -> Replacement:
            return Replacement(nodes=(), values=(match.values["x"],))

What the driver checks, so that no rule has to (each failed check is reported as a refusal):

* the values that the match makes disappear have no user outside the match, no user in a subgraph, and are no graph
  output. A node that must survive because something else needs it is simply left out of ``Match.nodes``;
* all matched nodes lie in one graph, and no path leaves the match and enters it again (several outputs);
* the new values have the element type, and no other static shape, than the old ones.

What the driver does: puts the new nodes where all their inputs exist, gives the new values the names of the old ones
(graph outputs keep their names whatever happens), fills in missing types and shapes, writes the provenance, registers
functions and opset imports, removes the old nodes, and queues the neighbourhood again.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import onnx_ir as ir

if TYPE_CHECKING:
    from cuvil_onnx.rewrite.graph import GraphContext

OpId = tuple[str, str]
"""(domain, op type); the domain of ONNX's own operators is ``""``."""


class Phase(enum.StrEnum):
    """When a rule runs; the phases run in this order, with the precision and layout passes after ``STRUCTURAL``."""

    CLEANUP = "cleanup"
    STRUCTURAL = "structural"
    EPILOGUE = "epilogue"
    POINTWISE = "pointwise"


class Exactness(enum.StrEnum):
    """What a rewrite does to the numbers."""

    EXACT = "exact"  # bit for bit
    ROUNDING = "rounding"  # reassociates: within a few roundings of the dtype
    APPROXIMATE = "approximate"  # changes precision; only when the user asks for it


@dataclasses.dataclass(frozen=True)
class Match:
    """One place where a rule applies.

    Attributes:
        root: the node ``match`` was called with.
        nodes: every node the rewrite removes (in any order). The root may be absent when it must survive.
        outputs: the old values that the replacement provides anew, in the order of ``Replacement.values``. Empty means
            all outputs of the root that are used. Any other value of ``nodes`` disappears.
        values: what ``rewrite`` needs, by name.
        attrs: the same for plain Python values.
    """

    root: ir.Node
    nodes: Sequence[ir.Node]
    outputs: Sequence[ir.Value] = ()
    values: Mapping[str, ir.Value | None] = dataclasses.field(default_factory=dict)
    attrs: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Nearly a match: the pattern is there but a condition does not hold. Shown by ``report`` and ``--explain``.

    Attributes:
        reason: one line a user understands ("the bias has 3 elements, 4 required").
        culprit: the node or value that breaks the condition.
    """

    reason: str
    culprit: ir.Node | ir.Value | None = None


@dataclasses.dataclass(frozen=True)
class Replacement:
    """What takes the place of a match.

    Attributes:
        nodes: the new nodes in topological order (not yet in any graph).
        values: for each of ``Match.outputs`` the value that replaces it: an output of a new node or an existing value.
        functions: model-local functions that the new nodes call.
    """

    nodes: Sequence[ir.Node]
    values: Sequence[ir.Value | None]
    functions: Sequence[ir.Function] = ()


class Rule(abc.ABC):
    """A rewrite; see the module text.

    Class attributes:
        name: how users name it (``skip=["layer_norm"]``); the module's name.
        phase: when it runs.
        exactness: what it does to the numbers.
        roots: the operators ``match`` wants to see.
        priority: rules on one root are tried from the highest priority down, then by name.
    """

    name: ClassVar[str]
    phase: ClassVar[Phase]
    exactness: ClassVar[Exactness]
    roots: ClassVar[Sequence[OpId]]
    priority: ClassVar[int] = 0

    @abc.abstractmethod
    def match(self, node: ir.Node, ctx: GraphContext) -> Match | Refusal | None:
        """Looks at the graph around ``node``, changing nothing.

        Returns:
            a Match; a Refusal when the pattern is there but must not be rewritten; None when it is not there.
        """

    @abc.abstractmethod
    def rewrite(self, match: Match, ctx: GraphContext) -> Replacement | Refusal:
        """Builds the new nodes; must not touch the graph (new initializers through ``ctx.initializer`` excepted)."""
