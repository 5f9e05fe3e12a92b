"""name_dimensions on random graphs: numbers are right, and equal names are equal sizes, in every run."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from cuvil_onnx.passes.shapes import infer_shapes
from cuvil_onnx.passes.symbols import name_dimensions
from cuvil_onnx.rewrite.graph import GraphContext
from cuvil_onnx.rewrite.trace import Trace

ort.set_default_logger_severity(4)
INPUTS = {"x0": ("N", 4, 6), "x1": ("N", "M", 6), "x2": ("M", 6), "x3": (1, "M", 1), "x4": ("N", 4, "M", 6)}
CONSTANTS = {
    "zero": [0],
    "one": [1],
    "two": [2],
    "last": [-1],
    "big": [1 << 40],
    "flat": [0, -1],
    "all": [-1],
    "keep": [0, 0, -1],
    "pair": [-1, 2],
}

KINDS = [
    "add",
    "add",
    "mul",
    "softmax",
    "transpose",
    "matmul",
    "reduce",
    "concat",
    "slice",
    "cut",
    "unsqueeze",
    "squeeze",
    "gather",
    "vector",
    "vector",
    "join",
    "join",
    "math",
    "reshape",
    "reshape",
    "reshape",
    "expand",
    "where",
    "pool",
]


@st.composite
def models(draw: st.DrawFn) -> onnx.ModelProto:
    """Up to 16 steps, each on values drawn from those before; steps that cannot run are left out later."""
    nodes: list[onnx.NodeProto] = []
    tensors, shapes = list(INPUTS), ["keep", "flat", "all", "pair"]

    def node(op: str, inputs: list[str], **attrs: object) -> str:
        name = f"v{len(nodes)}"
        nodes.append(helper.make_node(op, inputs, [name], **attrs))
        return name

    for _ in range(draw(st.integers(3, 16))):
        kind = draw(st.sampled_from(KINDS))
        x, z = draw(st.sampled_from(tensors)), draw(st.sampled_from(tensors))
        s, t = draw(st.sampled_from(shapes)), draw(st.sampled_from(shapes))
        axis = draw(st.integers(-1, 1))
        index = draw(st.sampled_from(["zero", "one", "last"]))
        if kind in ("add", "mul", "matmul"):
            tensors.append(node({"add": "Add", "mul": "Mul", "matmul": "MatMul"}[kind], [x, z]))
        elif kind == "softmax":
            tensors.append(node("Softmax", [x]))
        elif kind == "transpose":
            tensors.append(node("Transpose", [x]))
        elif kind == "reduce":
            tensors.append(node("ReduceMean", [x], axes=[axis], keepdims=draw(st.integers(0, 1))))
        elif kind == "concat":
            tensors.append(node("Concat", [x, z], axis=axis))
        elif kind == "slice":
            tensors.append(node("Slice", [x, draw(st.sampled_from(["zero", "one"])), "big", index, "one"]))
        elif kind == "cut":
            tensors.append(node("Slice", [x, "zero", draw(st.sampled_from(shapes)), index, "one"]))
        elif kind in ("unsqueeze", "squeeze"):
            tensors.append(node("Unsqueeze" if kind == "unsqueeze" else "Squeeze", [x, index]))
        elif kind == "gather":
            tensors.append(node("Gather", [x, "zero"], axis=axis))
        elif kind == "vector":
            shapes.append(node("Shape", [x]))
            shapes.append(node("Gather", [shapes[-1], index]))
        elif kind == "join":
            shapes.append(node("Concat", [s, t], axis=0))
        elif kind == "math":
            op = draw(st.sampled_from(["Add", "Sub", "Mul", "Div"]))
            shapes.append(node(op, [s, draw(st.sampled_from([t, "two"]))]))
        elif kind == "where":
            shapes.append(node("Where", [node("Equal", [s, "last"]), "one", s]))
        elif kind == "pool":
            attrs = {"kernel_shape": [2], "strides": [draw(st.integers(1, 2))], "pads": [draw(st.integers(0, 1)), 0]}
            tensors.append(node("MaxPool", [x], **attrs))
        else:
            tensors.append(node("Reshape" if kind == "reshape" else "Expand", [x, s]))
    graph = helper.make_graph(
        nodes,
        "random",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in INPUTS.items()],
        [onnx.ValueInfoProto(name=n.output[0]) for n in nodes],
        [numpy_helper.from_array(np.array(v), n) for n, v in CONSTANTS.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(model: onnx.ModelProto, **sizes: int) -> dict[str, np.ndarray] | None:
    """All values, or None where the model does not run."""
    feeds = {
        name: np.ones([d if isinstance(d, int) else sizes[d] for d in shape], np.float32)
        for name, shape in INPUTS.items()
    }
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
    except Exception:
        return None


def runnable(model: onnx.ModelProto, **sizes: int) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The model without the steps that do not run, and all its values."""
    nodes, made = list(model.graph.node), {*INPUTS, *CONSTANTS}
    kept = onnx.ModelProto.FromString(model.SerializeToString())
    del kept.graph.node[:], kept.graph.output[:]
    values: dict[str, np.ndarray] = {}
    for node in nodes:
        if not set(node.input) <= made:
            continue
        kept.graph.node.append(node)
        kept.graph.output.append(onnx.ValueInfoProto(name=node.output[0]))
        found = run(kept, **sizes)
        # ONNX Runtime's reductions give tensors without elements another rank than ONNX says.
        if found is None or found[node.output[0]].size == 0:
            del kept.graph.node[-1], kept.graph.output[-1]
        else:
            values = found
            made.add(node.output[0])
    return kept, values


@settings(max_examples=80, deadline=None, derandomize=True)
@given(models(), st.sampled_from([(2, 3), (1, 4), (6, 6), (4, 1), (3, 6)]))
def test_names_and_numbers_hold(model: onnx.ModelProto, sizes: tuple[int, int]) -> None:
    symbols = {"N": sizes[0], "M": sizes[1]}
    model, values = runnable(model, **symbols)
    ctx = GraphContext(ir.from_proto(model))
    infer_shapes(ctx, Trace())
    name_dimensions(ctx, Trace())
    known: dict[str, tuple[int, str]] = {name: (size, "the inputs") for name, size in symbols.items()}
    for node in ctx.model.graph:
        for value in node.outputs:
            shape = ctx.shape(value)
            actual = values[value.name or ""].shape
            if shape is None:
                continue
            assert len(shape) == len(actual), (value.name, shape, actual)
            for dim, size in zip(shape, actual, strict=True):
                if isinstance(dim, int):
                    assert dim == size, (value.name, shape, actual)
                elif dim is not None:
                    assert known.setdefault(dim, (size, value.name or ""))[0] == size, (
                        value.name,
                        shape,
                        actual,
                        known[dim],
                    )
