"""What the kernel benchmark measures: one op of one size a case, as ONNX for both runtimes and as a PyTorch call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper

import cuvil_onnx

Shape = tuple[int, ...]
_TYPES = {"f16": 10, "f32": 1}
_SIZES = {"f16": 2, "f32": 4}


@dataclass(frozen=True)
class Tensor:
    """Name, shape and element type (``f16``, ``f32``) of an input or output."""

    name: str
    shape: Shape
    dtype: str

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * _SIZES[self.dtype]


@dataclass(frozen=True)
class Program:
    """A model with fixed shapes: nodes as (op, inputs, output, attributes), constants by name."""

    inputs: tuple[Tensor, ...]
    output: Tensor
    nodes: tuple[tuple[str, tuple[str, ...], str, dict[str, Any]], ...]
    constants: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    opset: int = 20

    def model(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            [helper.make_node(op, i, [o], name=f"{op}_{o}", **a) for op, i, o, a in self.nodes],
            "kernel",
            [helper.make_tensor_value_info(t.name, _TYPES[t.dtype], t.shape) for t in self.inputs],
            [helper.make_tensor_value_info(self.output.name, _TYPES[self.output.dtype], self.output.shape)],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)


@dataclass(frozen=True)
class Case:
    """``torch`` is a function of the module and the tensors of ``ours.inputs``, then of the constants.

    ``nbytes`` is what the op must read and write once; ``flops`` is set where the matrix rate is the ceiling instead.
    ``stock`` is the same on tensors in NCHW where ``ours`` has them in NHWC, None where there is no difference.
    """

    name: str
    ours: Program
    torch: Callable[..., Any]
    flops: float = 0.0
    stock: Program | None = None

    @property
    def channels_last(self) -> bool:
        return self.stock is not None

    def optimized(self) -> onnx.ModelProto:
        """What our provider runs: the optimized model, of one node."""
        if self.stock is None:
            return cuvil_onnx.optimize(self.ours.model(), verify=False).model
        return _without_transposes(
            cuvil_onnx.optimize(self.stock.model(), verify=False, layout="nhwc").model, self.ours
        )

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in self.ours.inputs) + self.ours.output.nbytes


def _without_transposes(model: onnx.ModelProto, program: Program) -> onnx.ModelProto:
    """The model of one inner node between two Transposes, without these: it takes and gives what ``program`` does."""
    _, node, _ = model.graph.node
    node.input[0], node.output[0] = program.inputs[0].name, program.output.name
    graph = program.model().graph
    for name, values in (("node", [node]), ("input", graph.input), ("output", graph.output)):
        model.graph.ClearField(name)
        getattr(model.graph, name).extend(values)
    return model


def _case(
    op: str,
    inputs: Sequence[tuple[Shape, str]],
    output: tuple[Shape, str],
    nodes: Sequence[tuple[str, tuple[str, ...], str, dict[str, Any]]],
    torch: Callable[..., Any],
    constants: Mapping[str, npt.NDArray[Any]] | None = None,
    flops: float = 0.0,
    tag: str = "",
    opset: int = 20,
) -> Case:
    """A case whose inputs are called x, y, z and whose output is called out."""
    tensors = tuple(Tensor(name, *spec) for name, spec in zip("xyz", inputs, strict=False))
    shape, dtype = inputs[0]
    name = f"{op}/{dtype}_{'x'.join(map(str, shape))}{tag}"
    program = Program(tensors, Tensor("out", *output), tuple(nodes), constants or {}, opset)
    return Case(name, program, torch, flops)


def _pointwise() -> list[Case]:
    square = (8192, 8192)
    chain = [
        ("Cast", ("x",), "a", {"to": 1}),
        ("Add", ("a", "y"), "b", {}),
        ("Relu", ("b",), "out", {}),
    ]
    return [
        _case(
            "pointwise_cast_add_relu",
            [(square, "f16"), (square, "f32")],
            (square, "f32"),
            chain,
            lambda torch, x, y: torch.relu(x.float() + y),
        ),
        _case(
            "add",
            [(square, "f16")] * 2,
            (square, "f16"),
            [("Add", ("x", "y"), "out", {})],
            lambda _, x, y: x + y,
        ),
        _case(
            "gelu",
            [(square, "f16")],
            (square, "f16"),
            [("Gelu", ("x",), "out", {})],
            lambda torch, x: torch.nn.functional.gelu(x),
        ),
    ]


def _norms() -> list[Case]:
    cases = []
    for dtype, rows in (("f16", 16384), ("f32", 8192)):
        shape, width = (rows, 4096), (4096,)
        cases.append(
            _case(
                "layer_norm",
                [(shape, dtype), (width, dtype), (width, dtype)],
                (shape, dtype),
                [("LayerNormalization", ("x", "y", "z"), "out", {"axis": -1, "epsilon": 1e-5})],
                lambda torch, x, y, z: torch.nn.functional.layer_norm(x, (4096,), y, z, 1e-5),
            )
        )
        cases.append(
            _case(
                "rms_norm",
                [(shape, dtype), (width, dtype)],
                (shape, dtype),
                [("RMSNormalization", ("x", "y"), "out", {"axis": -1, "epsilon": 1e-5})],
                lambda torch, x, y: torch.nn.functional.rms_norm(x, (4096,), y, 1e-5),
                opset=23,
            )
        )
        cases.append(
            _case(
                "softmax",
                [(shape, dtype)],
                (shape, dtype),
                [("Softmax", ("x",), "out", {"axis": -1})],
                lambda torch, x: torch.softmax(x, -1),
            )
        )
    return cases


def _reductions() -> list[Case]:
    def reduce(op: str, shape: Shape, axes: tuple[int, ...], dtype: str, torch: Callable[..., Any]) -> Case:
        out = tuple(n for i, n in enumerate(shape) if i not in axes)
        node = (op, ("x", "axes"), "out", {"keepdims": 0})
        constants = {"axes": np.array(axes, np.int64)}
        return _case(op.lower(), [(shape, dtype)], (out, dtype), [node], torch, constants, tag=f"_over_{axes[0]}")

    return [
        reduce("ReduceSum", (16384, 4096), (1,), "f32", lambda _, x: x.sum(1)),
        reduce("ReduceSum", (4096, 16384), (0,), "f32", lambda _, x: x.sum(0)),
        reduce("ReduceMean", (64, 256, 64, 64), (2, 3), "f16", lambda _, x: x.mean((2, 3))),
        reduce("ReduceMax", (32768, 4096), (1,), "f16", lambda _, x: x.amax(1)),
    ]


def _transposes() -> list[Case]:
    def transpose(shape: Shape, order: tuple[int, ...], dtype: str = "f16") -> Case:
        out = tuple(shape[i] for i in order)
        node = ("Transpose", ("x",), "out", {"perm": list(order)})
        tag = f"_to_{''.join(map(str, order))}"
        return _case(
            "transpose",
            [(shape, dtype)],
            (out, dtype),
            [node],
            lambda _, x: x.permute(order).contiguous(),
            tag=tag,
        )

    return [
        transpose((8192, 8192), (1, 0)),
        transpose((8192, 8192), (1, 0), "f32"),
        transpose((64, 256, 56, 56), (0, 2, 3, 1)),
        transpose((64, 1024, 16, 64), (0, 2, 1, 3)),
    ]


def _products() -> list[Case]:
    def product(m: int, k: int, n: int, dtype: str = "f16") -> Case:
        return _case(
            "gemm",
            [((m, k), dtype), ((k, n), dtype)],
            ((m, n), dtype),
            [("MatMul", ("x", "y"), "out", {})],
            lambda torch, x, y: torch.matmul(x, y),
            flops=2.0 * m * k * n,
            tag=f"x{n}",
        )

    return [
        product(8192, 8192, 8192),
        product(4096, 4096, 4096),
        product(1024, 1024, 1024),
        product(16384, 768, 3072),
        product(128, 4096, 4096),
        product(4096, 4096, 4096, "f32"),
    ]


def _convolution(n: int, c: int, size: int, out: int, kernel: int, stride: int = 1) -> Case:
    """Convolution, bias and ReLU in fp16: in NHWC for us, in NCHW with prefer_nhwc for stock ONNX Runtime."""
    rng = np.random.default_rng(0)
    deviation = np.float32((2 / (c * kernel * kernel)) ** 0.5)
    weight = (rng.standard_normal((out, c, kernel, kernel), np.float32) * deviation).astype(np.float16)
    constants = {"weight": weight, "bias": (rng.standard_normal(out, np.float32) * 0.1).astype(np.float16)}
    pad, side = kernel // 2, size // stride
    attributes = {"kernel_shape": [kernel] * 2, "pads": [pad] * 4, "strides": [stride] * 2}
    nchw = Program(
        (Tensor("x", (n, c, size, size), "f16"),),
        Tensor("out", (n, out, side, side), "f16"),
        (("Conv", ("x", "weight", "bias"), "a", attributes), ("Relu", ("a",), "out", {})),
        constants,
        opset=18,
    )
    nhwc = Program(
        (Tensor("x", (n, size, size, c), "f16"),),
        Tensor("out", (n, side, side, out), "f16"),
        (
            ("Transpose", ("x",), "nchw", {"perm": [0, 3, 1, 2]}),
            ("Conv", ("nchw", "weight", "bias"), "a", attributes),
            ("Relu", ("a",), "b", {}),
            ("Transpose", ("b",), "out", {"perm": [0, 2, 3, 1]}),
        ),
        constants,
        opset=18,
    )

    def torch_call(torch: Any, x: Any, w: Any, b: Any) -> Any:
        y = torch.conv2d(x.permute(0, 3, 1, 2), w, b, stride, pad)
        return torch.relu_(y).permute(0, 2, 3, 1)

    flops = 2.0 * n * out * side * side * c * kernel * kernel
    return Case(f"conv/f16_{n}x{c}x{size}x{size}_to_{out}_k{kernel}s{stride}", nhwc, torch_call, flops, nchw)


def all_cases() -> list[Case]:
    """Every case, in the order of the table."""
    convolutions = [
        _convolution(64, 64, 56, 64, 3),
        _convolution(64, 256, 14, 256, 3),
        _convolution(64, 256, 56, 64, 1),
        _convolution(64, 128, 56, 128, 3, 2),
        _convolution(1, 256, 14, 256, 3),
    ]
    return [*_pointwise(), *_norms(), *_reductions(), *_transposes(), *_products(), *convolutions]
