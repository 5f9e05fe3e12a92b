"""What rules and passes see of a model: users, constants, shapes and types, names, and new nodes.

One :class:`GraphContext` serves one model for the whole of ``optimize``. Values of a subgraph and of its outer scopes
are used alike: onnx-ir links uses across graphs.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from cuvil_onnx.rewrite import walk
from cuvil_onnx.rewrite.order import Order

Dim = int | str | None
"""A known size, a symbol (equal symbols are equal sizes), or unknown."""

DEFAULT_MAX_ELEMENTS = 1 << 20


@functools.lru_cache(1 << 12)
def names_a_size(symbol: str | None) -> bool:
    """Whether equal symbols of this kind are equal sizes; for any size files write "?", "-1", "None" or nothing."""
    return symbol is not None and any(c.isalpha() for c in symbol) and symbol.lower() != "none"


class GraphContext:
    """Queries and constructors over one model.

    Attributes:
        model: the model that is being rewritten (a private copy of the caller's).
        order: topological positions; see :class:`Order`.
        owners: for each subgraph the node that holds it.
        memo: what rules and passes have made and may need again for this model, such as equal function bodies; keys
            are tuples that begin with the name of who made it.
    """

    def __init__(self, model: ir.Model) -> None:
        self.model = model
        self.order = Order()
        self.owners: dict[ir.Graph, ir.Node | None] = {}
        self.memo: dict[Hashable, Any] = {}
        self._names: set[str] = set()
        self._counters: dict[str, int] = {}
        self._scalars: dict[tuple[ir.DataType, tuple[int, ...], bytes], ir.Value] = {}
        self.refresh()

    def refresh(self) -> None:
        """Reads names and subgraph ownership again, after a pass changed the model on its own."""
        self.order.invalidate()
        self.find_graphs()
        names = self._names
        for graph in self.owners:
            names.update(v.name for v in graph.inputs if v.name)
            names.update(graph.initializers)
            for node in graph:
                if node.name:
                    names.add(node.name)
                names.update(v.name for v in node.outputs if v.name)

    def find_graphs(self) -> None:
        """Reads subgraph ownership again: outer graphs before inner ones."""
        self.owners = dict(walk.all_graphs(self.model.graph))

    # ---- the model -------------------------------------------------------------------------------------------------

    @property
    def graphs(self) -> Sequence[ir.Graph]:
        """The main graph and every subgraph, outer before inner."""
        return tuple(self.owners)

    def opset(self, domain: str = "") -> int:
        """The imported version of a domain; 0 when it is not imported."""
        return self.model.graph.opset_imports.get(domain, 0)

    def add_function(self, function: ir.Function) -> None:
        """Registers a model-local function (once) and the import of its domain (version 1)."""
        self.model.functions.setdefault(function.identifier(), function)
        self.model.graph.opset_imports.setdefault(function.domain, 1)

    def adopt(self, node: ir.Node) -> None:
        """Takes note of a node that has just entered a graph: its domain's import and its subgraphs."""
        self.model.graph.opset_imports.setdefault(node.domain, 1)
        for inner in walk.subgraphs(node) if node.attributes.data else ():
            self.owners[inner] = node
            self.owners.update((g, o) for g, o in walk.all_graphs(inner) if o is not None)

    def abandon(self, node: ir.Node) -> None:
        """Forgets the subgraphs of a node that is about to go."""
        for graph in walk.subgraphs(node) if node.attributes.data else ():
            for inner, _ in walk.all_graphs(graph):
                self.owners.pop(inner, None)

    def fresh_name(self, hint: str) -> str:
        """A name that no value and no node of the model has, starting with ``hint``."""
        name, count = hint, self._counters.get(hint, 0)
        while not name or name in self._names:
            count += 1
            name = f"{hint}_{count}"
        self._counters[hint] = count
        self._names.add(name)
        return name

    # ---- uses ------------------------------------------------------------------------------------------------------

    def producer(self, value: ir.Value | None, op_type: str | None = None, domain: str = "") -> ir.Node | None:
        """The node that computes ``value``; None for inputs, initializers, or when the operator is another one."""
        node = None if value is None else value.producer()
        if node is None or (op_type is not None and (node.op_type != op_type or node.domain != domain)):
            return None
        return node

    def use_count(self, value: ir.Value) -> int:
        """How many node inputs read ``value`` (one node that reads it twice counts twice); constant time."""
        return walk.use_count(value)

    def users(self, value: ir.Value) -> tuple[ir.Node, ...]:
        """The nodes, in any graph, that read ``value``; linear in their number."""
        return tuple(value.consumers())

    def single_user(self, value: ir.Value, op_type: str | None = None, domain: str = "") -> ir.Node | None:
        """The only reader of ``value``, when there is exactly one use, in the same graph, and it is no graph output."""
        if walk.use_count(value) != 1 or value.is_graph_output():
            return None
        node = walk.first_use(value)
        if node is None or node.graph is not value.graph:
            return None
        if op_type is not None and (node.op_type != op_type or node.domain != domain):
            return None
        return node

    def is_graph_output(self, value: ir.Value) -> bool:
        """Whether the value is an output of the main graph or of a subgraph."""
        return value.is_graph_output()

    def holder(self, node: ir.Node, graph: ir.Graph) -> ir.Node | None:
        """The node of ``graph`` that is ``node`` or holds it in a nested subgraph; None when ``node`` is elsewhere."""
        current: ir.Node | None = node
        while current is not None and current.graph is not graph:
            owner = current.graph
            current = None if owner is None else self.owners.get(owner)
        return current

    # ---- constants -------------------------------------------------------------------------------------------------

    def tensor(self, value: ir.Value | None) -> ir.TensorProtocol | None:
        """The tensor behind a value that is the same in every run (initializer or Constant node), not loaded yet.

        An initializer that is also a graph input can be overridden by the caller and is no constant.
        """
        if value is None:
            return None
        if value.is_initializer():
            return None if value.is_graph_input() else value.const_value
        node = value.producer()
        if node is None or node.op_type != "Constant" or node.domain != "":
            return None
        attr = node.attributes.get("value")
        if attr is not None and attr.type == ir.AttributeType.TENSOR and not attr.is_ref():
            return attr.as_tensor()
        return _plain_constant(node)

    def is_constant(self, value: ir.Value | None) -> bool:
        """Whether :meth:`tensor` gives one."""
        return self.tensor(value) is not None

    def constant(
        self, value: ir.Value | None, max_elements: int | None = DEFAULT_MAX_ELEMENTS
    ) -> npt.NDArray[Any] | None:
        """The elements of a constant (do not modify them); None when it is none or has more than ``max_elements``."""
        tensor = self.tensor(value)
        if tensor is None or (max_elements is not None and tensor.size > max_elements):
            return None
        return tensor.numpy()

    def scalar(self, value: ir.Value | None) -> float | int | bool | None:
        """The Python number in a constant of exactly one element, whatever its rank."""
        tensor = self.tensor(value)
        if tensor is None or tensor.size != 1 or tensor.dtype == ir.DataType.STRING:
            return None
        item = tensor.numpy().reshape(-1)[0]
        return item.item() if isinstance(item, (np.bool_, np.integer)) else float(item)

    def ints(self, value: ir.Value | None) -> list[int] | None:
        """The elements of a constant integer tensor (axes, shapes, pads)."""
        array = self.constant(value)
        if array is None or array.dtype.kind not in "iu":
            return None
        return [int(i) for i in array.reshape(-1)]

    # ---- types and shapes ------------------------------------------------------------------------------------------

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """The element type of a tensor; None when unknown or when the value is no tensor."""
        if value is None:
            return None
        kind = value.type
        if kind is None:
            return None if value.const_value is None else value.const_value.dtype
        if not isinstance(kind, ir.TensorType):
            return None
        dtype = kind.dtype
        return None if dtype is ir.DataType.UNDEFINED else dtype

    def shape(self, value: ir.Value | None) -> tuple[Dim, ...] | None:
        """The dimensions: int when known, str when symbolic (equal symbols are equal sizes), None when unknown."""
        if value is None:
            return None
        shape = value.shape
        if shape is None:
            tensor = value.const_value
            return None if tensor is None else tuple(int(d) for d in tensor.shape.numpy())
        return tuple([d if isinstance(d, int) else d.value for d in shape])

    def static_shape(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """The shape when every dimension is a known number."""
        shape = self.shape(value)
        if shape is None:
            return None
        for dim in shape:
            if not isinstance(dim, int):
                return None
        return cast("tuple[int, ...]", shape)

    def rank(self, value: ir.Value | None) -> int | None:
        """The number of dimensions."""
        if value is None:
            return None
        shape = value.shape
        if shape is None:
            tensor = value.const_value
            return None if tensor is None else len(tensor.shape)
        return len(shape)

    def same_shape(self, a: ir.Value | None, b: ir.Value | None) -> bool:
        """Whether both shapes are known to be equal (equal symbols count as equal)."""
        left, right = self.shape(a), self.shape(b)
        return left is not None and left == right and None not in left

    def attr(self, node: ir.Node, name: str, default: Any = None) -> Any:
        """The plain value of an attribute (int, float, str, tuple, tensor, graph), or ``default`` when absent."""
        attr = node.attributes.data.get(name)  # of the dict inside, which does not raise to say no
        return default if attr is None or attr.is_ref() else attr.value

    # ---- new things ------------------------------------------------------------------------------------------------

    def initializer(self, data: npt.NDArray[Any] | ir.TensorProtocol, hint: str = "const") -> ir.Value:
        """A new constant of the main graph, visible everywhere. Small ones with the same bits are shared."""
        tensor = ir.Tensor(np.asarray(data)) if isinstance(data, (np.ndarray, np.generic)) else data
        dims = tuple(tensor.shape.numpy())
        key = (tensor.dtype, dims, tensor.tobytes()) if tensor.nbytes <= 64 else None
        if key is not None:
            known = self._scalars.get(key)
            if known is not None and known.is_initializer() and known.graph is self.model.graph:
                return known
        name = self.fresh_name(hint)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(dims))
        value.const_value = named(tensor, name)
        self.model.graph.register_initializer(value)
        if key is not None:
            self._scalars[key] = value
        return value

    def node(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attrs: Mapping[str, Any] | None = None,
        *,
        domain: str = "",
        like: Sequence[ir.Value | None] | ir.Value | None = None,
        num_outputs: int = 1,
        overload: str = "",
        name: str | None = None,
    ) -> ir.Node:
        """A new node, not yet in a graph, with fresh names.

        Args:
            op_type: operator.
            inputs: input values; None for an absent optional one.
            attrs: plain Python values (see ``onnx_ir.node``).
            domain: operator domain.
            like: values whose element types and shapes the outputs take.
            num_outputs: how many outputs (at least as many as ``like`` has).
            overload: function overload.
            name: a hint for the node's name.
        """
        models = [like] if isinstance(like, ir.Value) else list(like or ())
        node = ir.node(
            op_type,
            inputs,
            attributes={key: _attribute(key, value) for key, value in (attrs or {}).items()},
            domain=domain,
            overload=overload,
            num_outputs=max(num_outputs, len(models)),
            name=self.fresh_name(name or f"{op_type}"),
        )
        for i, output in enumerate(node.outputs):
            output.name = self.fresh_name(f"{node.name}_out" if i == 0 else f"{node.name}_out{i}")
            model = models[i] if i < len(models) else None
            if model is not None:
                output.type, output.shape = model.type, None if model.shape is None else model.shape.copy()
        return node


def named(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    """``tensor`` under a name of its own; renaming one that wraps the caller's proto would change that proto."""
    if tensor.name == name:
        return tensor
    if not tensor.name and isinstance(tensor, (ir.Tensor, ir.LazyTensor, ir.PackedTensor, ir.ExternalTensor)):
        tensor.name = name
        return tensor
    return ir.LazyTensor(lambda: tensor, dtype=tensor.dtype, shape=ir.Shape(tensor.shape.numpy()), name=name)


def _attribute(name: str, value: Any) -> Any:
    """An attribute for the types that are frequent; others as they are, for onnx-ir to find out, which is slow."""
    kind = type(value)
    if kind in _PLAIN:
        return ir.Attr(name, _PLAIN[kind], value)
    if kind in (list, tuple) and value:
        items = {type(item) for item in value}
        if len(items) == 1 and (inner := _LISTS.get(items.pop())) is not None:
            return ir.Attr(name, inner, value)
    return value


_PLAIN = {int: ir.AttributeType.INT, float: ir.AttributeType.FLOAT, str: ir.AttributeType.STRING}
_LISTS = {int: ir.AttributeType.INTS, float: ir.AttributeType.FLOATS, str: ir.AttributeType.STRINGS}


def _plain_constant(node: ir.Node) -> ir.TensorProtocol | None:
    """The tensor of a Constant node written with value_int, value_floats and so on."""
    kinds: dict[str, type[np.generic]] = {
        "value_int": np.int64,
        "value_ints": np.int64,
        "value_float": np.float32,
        "value_floats": np.float32,
    }
    for key, kind in kinds.items():
        attr = node.attributes.get(key)
        if attr is not None and not attr.is_ref():
            return ir.tensor(np.asarray(attr.value, dtype=kind))
    return None
