"""Models of any number of nodes in the forms that make a rewriter slow; the same bytes for the same arguments.

Sizes of tensors are small: what counts is nodes, readers and regions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

WIDTH, HEADS, CHANNELS = 32, 4, 8


class Writer:
    """Nodes and weights under construction; equal names of weights are one weight."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, onnx.TensorProto] = {}

    def op(self, op_type: str, *inputs: str, **attrs: Any) -> str:
        """A node with one output, whose name is returned."""
        output = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], **attrs))
        return output

    def const(self, name: str, value: npt.ArrayLike) -> str:
        """An initializer."""
        if name not in self._weights:
            self._weights[name] = numpy_helper.from_array(np.asarray(value), name)
        return name

    def weight(self, name: str, *shape: int) -> str:
        """An initializer of random numbers that depend on its name and shape."""
        if name in self._weights:
            return name
        seed = [*name.encode(), *shape]
        return self.const(name, (np.random.default_rng(seed).standard_normal(shape) * 0.3).astype(np.float32))

    def model(self, inputs: dict[str, Sequence[int | str]], output: str, opset: int = 17) -> onnx.ModelProto:
        """The model with float inputs and one float output."""
        infos = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, s) for n, s in inputs.items()]
        result = helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "scale", infos, [result], list(self._weights.values()))
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def deep_chain(nodes: int) -> onnx.ModelProto:
    """One chain: a scalar added, functions, a matrix product in every 97th place."""
    w, x = Writer(), "x"
    one = w.const("one", np.float32(0.125))
    while len(w.nodes) < nodes:
        kind = len(w.nodes)
        if kind % 97 == 96:
            x = w.op("MatMul", x, w.weight("square", WIDTH, WIDTH))
        elif kind % 3 == 0:
            x = w.op("Add", x, one)
        else:
            x = w.op("Tanh" if kind % 3 == 1 else "Relu", x)
    return w.model({"x": ["N", WIDTH]}, x)


def shared_scalar(nodes: int) -> onnx.ModelProto:
    """A constant and a computed scalar, each read by a fifth of the nodes, in branches off one tensor."""
    w, x = Writer(), "x"
    scale = w.const("scale", np.float32(0.5))
    drift = w.op("ReduceMean", "x", keepdims=0)
    ends: list[str] = []
    while len(w.nodes) < nodes:
        p = w.op("MatMul", w.op("Mul", x, scale), w.weight(f"w{len(ends) % 50}", WIDTH, WIDTH))
        ends.append(w.op("Softmax", w.op("Sigmoid", w.op("Add", p, drift))))
        if len(ends) % 50 == 0:  # else two branches would be the same
            x = w.op("Sum", *ends[-50:])
    return w.model({"x": ["N", WIDTH]}, _total(w, ends))


def fan_out(nodes: int) -> onnx.ModelProto:
    """One tensor read by half of the nodes, each with a weight of its own, summed up in the end."""
    w = Writer()
    root = w.op("Relu", "x")
    ends: list[str] = []
    while len(w.nodes) < nodes - 1:
        row = w.const(f"c{len(ends)}", np.full(WIDTH, len(ends) / nodes, np.float32))
        ends.append(w.op("Tanh", w.op("Add", root, row)))
    return w.model({"x": ["N", WIDTH]}, _total(w, ends))


def diamonds(nodes: int) -> onnx.ModelProto:
    """Sigmoid(x) * Tanh(x) + x, over and over, with no end to the elementwise region."""
    w, x = Writer(), "x"
    while len(w.nodes) < nodes:
        x = w.op("Add", w.op("Mul", w.op("Sigmoid", x), w.op("Tanh", x)), x)
    return w.model({"x": ["N", WIDTH]}, x)


def ladder(nodes: int) -> onnx.ModelProto:
    """Two long chains that read each other, so that every region has several inputs and outputs."""
    w, a, b = Writer(), "x", "z"
    while len(w.nodes) < nodes:
        a, b = w.op("Tanh", w.op("Add", a, b)), w.op("Mul", w.op("Neg", b), a)
    return w.model({"x": ["N", WIDTH], "z": ["N", WIDTH]}, w.op("Add", a, b))


def regions(nodes: int) -> onnx.ModelProto:
    """Small elementwise regions between matrix products: half of them alike, half with numbers of their own."""
    w, x, count = Writer(), "x", 0
    while len(w.nodes) < nodes:
        p = w.op("Softmax", w.op("MatMul", x, w.weight("square", WIDTH, WIDTH)))
        number = w.const("half", np.float32(0.5)) if count % 2 else w.const(f"c{count}", np.float32(1 / (2 + count)))
        s = w.op("Sigmoid", w.op("Mul", p, number))
        x, count = w.op("Add", w.op("Mul", s, p), x), count + 1
    return w.model({"x": ["N", WIDTH]}, x)


def transformer(nodes: int) -> onnx.ModelProto:
    """Post-norm encoder layers as torch's exporter writes them at opset 13: about 90 nodes a layer."""
    w, x, layer = Writer(), "x", 0
    while len(w.nodes) < nodes:
        suffix = layer % 4  # weights repeat, so that the file stays small
        x = _norm(w, w.op("Add", _attention(w, x, suffix), x), f"a{suffix}")
        h = _linear(w, _gelu(w, _linear(w, x, f"up{suffix}", WIDTH, 4 * WIDTH)), f"down{suffix}", 4 * WIDTH, WIDTH)
        x, layer = _norm(w, w.op("Add", h, x), f"b{suffix}"), layer + 1
    return w.model({"x": ["B", "S", WIDTH], "mask": ["B", 1, 1, "S"]}, x, opset=13)


def residual(nodes: int) -> onnx.ModelProto:
    """Convolutions with batch normalization, activation and shortcut."""
    w, x, block = Writer(), "x", 0
    while len(w.nodes) < nodes:
        y = x
        for part in range(2):
            name = f"{block % 8}_{part}"
            y = w.op("Conv", y, w.weight(f"w{name}", CHANNELS, CHANNELS, 3, 3), pads=[1, 1, 1, 1])
            scales = [w.weight(f"{kind}{name}", CHANNELS) for kind in ("s", "b", "m")]
            y = w.op("BatchNormalization", y, *scales, w.const(f"v{name}", np.ones(CHANNELS, np.float32)))
            y = w.op("Relu", y if part == 0 else w.op("Add", y, x))
        x, block = y, block + 1
    return w.model({"x": ["N", CHANNELS, 8, 8]}, x)


def shape_arithmetic(nodes: int) -> onnx.ModelProto:
    """Reshapes whose targets are computed from the shape of what is reshaped."""
    w, x = Writer(), "x"
    zero, last = w.const("zero", np.array([0])), w.const("last", np.array([-1]))
    while len(w.nodes) < nodes:
        rows = w.op("Gather", w.op("Shape", x), zero)
        width = w.op("Mul", w.op("Gather", w.op("Shape", x), last), w.const("one", np.array([1])))
        x = w.op("Reshape", w.op("Softmax", x), w.op("Concat", rows, width, axis=0))
    return w.model({"x": ["N", WIDTH]}, x)


def constants(nodes: int) -> onnx.ModelProto:
    """Half of the nodes can be computed now: arithmetic on weights, in chains of five."""
    w, x = Writer(), "x"
    while len(w.nodes) < nodes:
        c = w.const(f"c{len(w.nodes)}", np.arange(4, dtype=np.float32) + len(w.nodes))
        for kind in ("Neg", "Exp", "Sqrt", "Abs", "Neg"):
            c = w.op(kind, c)
        for kind in ("Add", "Softmax", "Mul", "Relu", "Softmax"):
            x = w.op(kind, x, c) if kind in ("Add", "Mul") else w.op(kind, x)
    return w.model({"x": ["N", 4]}, x)


def branches(nodes: int) -> onnx.ModelProto:
    """Ifs, each with an If in its branch; the branches read the tensors outside."""
    w, x = Writer(), "x"
    made = 0
    condition = w.op("Greater", w.op("ReduceMean", "x", keepdims=0), w.const("zero", np.float32(0)))
    while made < nodes:
        inner = helper.make_node("If", [condition], [f"i{made}"], **_arms(f"{made}_in", x, ("Neg", "Abs")))
        arms = _arms(f"{made}_out", x, ("Tanh", "Sigmoid"))
        arms["then_branch"].node.insert(0, inner)
        arms["then_branch"].node[1].input[0] = f"i{made}"
        x = w.op("If", condition, **arms)
        made += 10
    return w.model({"x": ["N", WIDTH]}, x)


def _arms(name: str, outer: str, kinds: tuple[str, str]) -> dict[str, onnx.GraphProto]:
    found = {}
    for branch, kind in zip(("then_branch", "else_branch"), kinds, strict=True):
        mid, out = f"m{name}_{kind}", f"o{name}_{kind}"
        info = helper.make_tensor_value_info(out, onnx.TensorProto.FLOAT, None)
        nodes = [helper.make_node(kind, [outer], [mid]), helper.make_node("Add", [mid, "x"], [out])]
        found[branch] = helper.make_graph(nodes, f"g{name}_{kind}", [], [info])
    return found


def _total(w: Writer, parts: Sequence[str]) -> str:
    """The sum of all parts, by nodes of at most 100 inputs."""
    while len(parts) > 1:
        parts = [w.op("Sum", *parts[i : i + 100]) for i in range(0, len(parts), 100)]
    return parts[0]


def _linear(w: Writer, x: str, name: str, inputs: int, outputs: int) -> str:
    return w.op("Add", w.weight(f"{name}_b", outputs), w.op("MatMul", x, w.weight(f"{name}_w", inputs, outputs)))


def _norm(w: Writer, x: str, name: str) -> str:
    d = w.op("Sub", x, w.op("ReduceMean", x, axes=[-1]))
    variance = w.op("ReduceMean", w.op("Pow", d, w.const("two", np.float32(2))), axes=[-1])
    n = w.op("Div", d, w.op("Sqrt", w.op("Add", variance, w.const("eps", np.float32(1e-5)))))
    return w.op("Add", w.op("Mul", n, w.weight(f"ln{name}_s", WIDTH)), w.weight(f"ln{name}_b", WIDTH))


def _gelu(w: Writer, x: str) -> str:
    e = w.op("Erf", w.op("Div", x, w.const("root2", np.float32(2**0.5))))
    return w.op("Mul", w.op("Mul", x, w.op("Add", e, w.const("one", np.float32(1)))), w.const("half", np.float32(0.5)))


def _split_heads(w: Writer, x: str, perm: Sequence[int]) -> str:
    sizes = []
    for axis in (0, 1):
        size = w.op("Gather", w.op("Shape", x), w.const(f"i{axis}", np.array(axis)))
        sizes.append(w.op("Unsqueeze", size, w.const("a0", np.array([0]))))
    heads, size = w.const("heads", np.array([HEADS])), w.const("size", np.array([WIDTH // HEADS]))
    return w.op("Transpose", w.op("Reshape", x, w.op("Concat", *sizes, heads, size, axis=0)), perm=perm)


def _attention(w: Writer, x: str, layer: int) -> str:
    q, k, v = (_linear(w, x, f"{part}{layer}", WIDTH, WIDTH) for part in "qkv")
    scores = w.op("MatMul", _split_heads(w, q, [0, 2, 1, 3]), _split_heads(w, k, [0, 2, 3, 1]))
    scores = w.op("Add", w.op("Div", scores, w.const("scale", np.float32((WIDTH // HEADS) ** 0.5))), "mask")
    mixed = w.op("MatMul", w.op("Softmax", scores, axis=-1), _split_heads(w, v, [0, 2, 1, 3]))
    merged = w.op("Reshape", w.op("Transpose", mixed, perm=[0, 2, 1, 3]), w.const("merge", np.array([0, 0, WIDTH])))
    return _linear(w, merged, f"o{layer}", WIDTH, WIDTH)


GENERATORS: dict[str, Callable[[int], onnx.ModelProto]] = {
    make.__name__: make
    for make in (
        deep_chain,
        shared_scalar,
        fan_out,
        diamonds,
        ladder,
        regions,
        transformer,
        residual,
        shape_arithmetic,
        constants,
        branches,
    )
}
