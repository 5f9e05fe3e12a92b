"""All rules together on blocks as exporters write them: nothing of the pattern is left over, and the numbers agree."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

from cuvil_onnx.api import optimize
from tests.rules.rule_testing import attributes, feeds, graph, ops, run, weight

B, S, D, HEADS = 2, 5, 32, 4
SYMBOLS = {"B": B, "S": S}


class Writer:
    """Nodes as text; weights by name."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.weights: dict[str, np.ndarray] = {}

    def const(self, name: str, value: object) -> str:
        self.weights[name] = np.asarray(value)
        return name

    def add(self, line: str) -> str:
        self.lines.append(line)
        return line.split(" =")[0]

    def linear(self, x: str, name: str, inputs: int, outputs: int) -> str:
        w = self.const(f"{name}_w", weight(inputs, outputs, seed=len(self.weights), scale=0.3))
        b = self.const(f"{name}_b", weight(outputs, seed=len(self.weights)))
        product = self.add(f"{name}_p = MatMul({x}, {w})")
        return self.add(f"{name} = Add({b}, {product})")

    def norm(self, x: str, name: str) -> str:
        """Layer normalization as torch's exporter writes it before opset 17."""
        scale, bias = self.const(f"{name}_s", weight(D) + 1), self.const(f"{name}_b", weight(D, seed=7))
        self.const("two", np.float32(2)), self.const("eps", np.float32(1e-5))
        self.add(f"{name}_m = ReduceMean<axes=[-1]>({x})")
        self.add(f"{name}_d = Sub({x}, {name}_m)")
        self.add(f"{name}_q = Pow({name}_d, two)")
        self.add(f"{name}_v = ReduceMean<axes=[-1]>({name}_q)")
        self.add(f"{name}_e = Add({name}_v, eps)")
        self.add(f"{name}_r = Sqrt({name}_e)")
        self.add(f"{name}_n = Div({name}_d, {name}_r)")
        self.add(f"{name}_t = Mul({name}_n, {scale})")
        return self.add(f"{name} = Add({name}_t, {bias})")

    def gelu(self, x: str) -> str:
        self.const("root2", np.float32(2**0.5)), self.const("one", np.float32(1)), self.const("half", np.float32(0.5))
        self.add(f"{x}_u = Div({x}, root2)")
        self.add(f"{x}_e = Erf({x}_u)")
        self.add(f"{x}_a = Add({x}_e, one)")
        self.add(f"{x}_g = Mul({x}, {x}_a)")
        return self.add(f"{x}_h = Mul({x}_g, half)")

    def split_heads(self, x: str, perm: str) -> str:
        self.const("i0", np.array(0)), self.const("i1", np.array(1)), self.const("a0", np.array([0]))
        self.const("heads", np.array([HEADS])), self.const("size", np.array([D // HEADS]))
        self.add(f"{x}_sh = Shape({x})")
        self.add(f"{x}_b0 = Gather({x}_sh, i0)")
        self.add(f"{x}_n0 = Gather({x}_sh, i1)")
        self.add(f"{x}_b1 = Unsqueeze({x}_b0, a0)")
        self.add(f"{x}_n1 = Unsqueeze({x}_n0, a0)")
        self.add(f"{x}_to = Concat<axis=0>({x}_b1, {x}_n1, heads, size)")
        self.add(f"{x}_4 = Reshape({x}, {x}_to)")
        return self.add(f"{x}_t = Transpose<perm={perm}>({x}_4)")

    def attention(self, x: str, name: str) -> str:
        q, k, v = (self.linear(x, f"{name}_{part}", D, D) for part in "qkv")
        q, v = self.split_heads(q, "[0,2,1,3]"), self.split_heads(v, "[0,2,1,3]")
        k = self.split_heads(k, "[0,2,3,1]")
        self.const("scale", np.float32((D // HEADS) ** 0.5)), self.const("whole", np.array([0, 0, D]))
        self.add(f"{name}_s = MatMul({q}, {k})")
        self.add(f"{name}_d = Div({name}_s, scale)")
        self.add(f"{name}_a = Add({name}_d, mask)")
        self.add(f"{name}_p = Softmax<axis=-1>({name}_a)")
        self.add(f"{name}_c = MatMul({name}_p, {v})")
        self.add(f"{name}_ct = Transpose<perm=[0,2,1,3]>({name}_c)")
        merged = self.add(f"{name}_r = Reshape({name}_ct, whole)")
        return self.linear(merged, f"{name}_o", D, D)


def bert() -> onnx.ModelProto:
    """Post-norm encoder layers."""
    w, x = Writer(), "x"
    for i in range(2):
        s = w.add(f"s{i} = Add({w.attention(x, f'att{i}')}, {x})")
        x = w.norm(s, f"ln{i}a")
        h = w.linear(w.gelu(w.linear(x, f"up{i}", D, 4 * D)), f"down{i}", 4 * D, D)
        s = w.add(f"r{i} = Add({h}, {x})")
        x = w.norm(s, f"ln{i}b")
    return _model(w, x)


def vit() -> onnx.ModelProto:
    """Pre-norm encoder layers: the residual stream goes on beside the norm."""
    w, x = Writer(), "x"
    for i in range(2):
        x = w.add(f"s{i} = Add({x}, {w.attention(w.norm(x, f'ln{i}a'), f'att{i}')})")
        h = w.linear(w.norm(x, f"ln{i}b"), f"up{i}", D, 4 * D)
        x = w.add(f"r{i} = Add({x}, {w.linear(w.gelu(h), f'down{i}', 4 * D, D)})")
    return _model(w, w.norm(x, "last"))


def _model(w: Writer, out: str) -> onnx.ModelProto:
    w.add(f"y = Identity({out})")
    text = f"(float[B,S,{D}] x, float[B,1,1,S] mask) => (float[B,S,{D}] y) {{ {' '.join(w.lines)} }}"
    return graph(text, 13, **w.weights)


# A layer has 4 products once queries, keys and values are packed.
@pytest.mark.parametrize("build", [bert, vit])
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 5e-5), ("fp16", 2e-2), ("bf16", 1.5e-1)])
def test_transformer(build: Callable[[], onnx.ModelProto], precision: str, tolerance: float) -> None:
    model = build()
    result = optimize(model, precision=precision, verify=False).model
    onnx.checker.check_model(result, full_check=True)
    expected = {"cuvil::Attention": 2, "cuvil::FusedMatMul": 8, "cuvil::LayerNorm": 4 if build is bert else 5}
    found = ops(result)
    if precision != "fp32":
        found -= {"Cast": 3}  # two inputs and an output
    assert found == expected
    activations = [attributes(n)["activation"] for n in result.graph.node if n.op_type == "FusedMatMul"]
    assert sorted(activations) == [""] * 6 + ["Gelu"] * 2
    inputs = feeds(model, SYMBOLS)
    (old,), (new,) = run(model, inputs, plain=True), run(result, inputs)
    np.testing.assert_allclose(new, old, rtol=tolerance, atol=tolerance)


def test_mobile_block() -> None:
    """Expansion, depthwise and squeeze-excite with hard activations, projection and residual."""
    w = Writer()
    shapes = {"expand": (16, 8, 1, 1), "depth": (16, 1, 3, 3), "down": (4, 16, 1, 1), "up": (16, 4, 1, 1)}
    for i, (name, shape) in enumerate({**shapes, "project": (8, 16, 1, 1)}.items()):
        w.const(f"{name}_w", weight(*shape, seed=i)), w.const(f"{name}_b", weight(shape[0], seed=20 + i))
    w.const("three", np.float32(3)), w.const("zero", np.float32(0)), w.const("six", np.float32(6))

    def hard_swish(x: str) -> str:
        w.add(f"{x}_a = Add({x}, three)")
        w.add(f"{x}_c = Clip({x}_a, zero, six)")
        w.add(f"{x}_m = Mul({x}, {x}_c)")
        return w.add(f"{x}_h = Div({x}_m, six)")

    e = hard_swish(w.add("e = Conv(x, expand_w, expand_b)"))
    d = hard_swish(w.add(f"d = Conv<group=16, pads=[1,1,1,1]>({e}, depth_w, depth_b)"))
    w.add(f"pool = GlobalAveragePool({d})")
    w.add("c1 = Conv(pool, down_w, down_b)")
    w.add("c2 = Relu(c1)")
    w.add("c3 = Conv(c2, up_w, up_b)")
    w.add("gate = HardSigmoid(c3)")
    w.add(f"gated = Mul({d}, gate)")
    w.add("p = Conv(gated, project_w, project_b)")
    w.add("y = Add(p, x)")
    text = f"(float[N,8,H,W] x) => (float[N,8,H,W] y) {{ {' '.join(w.lines)} }}"
    model = graph(text, 13, **w.weights)
    result = optimize(model, verify=False).model
    assert ops(result) == {"cuvil::FusedConv": 5, "GlobalAveragePool": 1, "Mul": 1}
    inputs = feeds(model, {"N": 2, "H": 6, "W": 5})
    (old,), (new,) = run(model, inputs, plain=True), run(result, inputs)
    np.testing.assert_allclose(new, old, rtol=5e-5, atol=5e-5)
