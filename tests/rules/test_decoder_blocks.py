"""All rules together on decoders as torch's exporters write them: Llama, Mistral, Qwen, GPT-NeoX, GPT-J, a cache."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
import pytest

from cuvil_onnx.api import optimize
from tests.rules.rule_testing import attributes, graph, ops, run, weight

B, S, D, N, H, FF = 2, 6, 32, 4, 8, 48
LAYERS = 2


@dataclass(frozen=True)
class Style:
    """What differs between families.

    Attributes:
        groups: heads of keys and values.
        rotary: "half", "interleaved", "part" (rotate_half of half of each head), "joined" (halves rotated one by one).
        angles: "computed" from positions, or gathered from a "cache".
        window: how many keys a query sees; None for all before it.
        by_head: one projection in which queries, keys and values alternate by head.
        cached: keys and values of earlier tokens come in, and go out with the new ones.
    """

    groups: int = 2
    rotary: str = "half"
    angles: str = "computed"
    window: int | None = None
    bias: bool = False
    by_head: bool = False
    cached: bool = False


STYLES = {
    "llama": Style(),
    "llama_cached": Style(cached=True),
    "mistral": Style(window=3),
    "qwen": Style(bias=True, groups=1),
    "neox": Style(groups=N, rotary="part", bias=True, by_head=True),
    "gptj": Style(groups=N, rotary="interleaved", angles="cache"),
    "meta": Style(rotary="joined", angles="cache"),
}


class Decoder:
    """Writes the graph of a style as text."""

    def __init__(self, style: Style) -> None:
        self.style = style
        self.lines: list[str] = []
        self.weights: dict[str, np.ndarray] = {}
        self.width = {"part": H // 2, "joined": H // 2}.get(style.rotary, H)  # of cosines
        for i in (-1, 0, 1, 2, 3, 4, 5, 8, 16, 24):
            self.weights[f"c{i}".replace("-", "m")] = np.array([i])
        self.weights |= {"top": np.array([2**63 - 1]), "eps": np.float32(1e-6), "two": np.float32(2)}
        self.weights |= {"zero": np.zeros(1, np.float32), "hide": np.array([-np.inf], np.float32)}
        self.weights |= {"i0": np.array(0), "i1": np.array(1), "i2": np.array(2), "half": np.float32(H**-0.25)}
        self.weights |= {"whole": np.array([0, 0, -1]), "heads": np.array([0, 0, -1, H]), "hs": np.array([H])}
        self.weights |= {"nh": np.array([N]), "copies": np.array([1, 1, N // style.groups, 1, 1])}

    def add(self, line: str) -> str:
        self.lines.append(line)
        return line.split(" =")[0]

    def linear(self, x: str, name: str, inputs: int, outputs: int, bias: bool = False) -> str:
        self.weights[f"{name}w"] = weight(inputs, outputs, seed=len(self.weights), scale=0.3)
        if not bias:
            return self.add(f"{name} = MatMul({x}, {name}w)")
        self.weights[f"{name}b"] = weight(outputs, seed=len(self.weights))
        self.add(f"{name}p = MatMul({x}, {name}w)")
        return self.add(f"{name} = Add({name}b, {name}p)")

    def norm(self, x: str, name: str) -> str:
        self.weights[f"{name}s"] = weight(D, seed=len(self.weights)) + 1
        self.add(f"{name}q = Pow({x}, two) {name}m = ReduceMean<axes=[-1]>({name}q) {name}e = Add({name}m, eps)")
        self.add(f"{name}r = Sqrt({name}e) {name}i = Reciprocal({name}r) {name}n = Mul({x}, {name}i)")
        return self.add(f"{name} = Mul({name}s, {name}n)")

    def angles(self) -> None:
        """cos and sin, [B, S, width]."""
        if self.style.angles == "cache":
            angle = np.arange(16)[:, None] * np.linspace(1, 0.1, self.width)
            if self.style.rotary == "interleaved":
                angle = angle[:, : self.width // 2].repeat(2, 1)
            self.weights |= {"cosc": np.cos(angle).astype(np.float32), "sinc": np.sin(angle).astype(np.float32)}
            self.add("cos = Gather(cosc, positions) sin = Gather(sinc, positions)")
            return
        self.weights["inv"] = np.linspace(1, 0.1, self.width // 2, dtype=np.float32).reshape(1, -1, 1)
        self.add("pu = Unsqueeze(positions, c1) pf = Cast<to=1>(pu) fr = MatMul(inv, pf)")
        self.add("ft = Transpose<perm=[0,2,1]>(fr) fc = Concat<axis=-1>(ft, ft) cos = Cos(fc) sin = Sin(fc)")

    def mask(self) -> None:
        """What each query may see, bool [B, 1, S, T]: causal, in the window, and no padding."""
        self.add("ps = Shape(seen) tl = Gather(ps, i1) ss = Shape(positions) sl = Gather(ss, i1) past = Sub(tl, sl)")
        self.add("kr = Range(i0, tl, i1) qn = Range(i0, sl, i1) qr = Add(qn, past) qu = Unsqueeze(qr, c1)")
        self.add("causal = LessOrEqual(kr, qu)")
        allowed = "causal"
        if self.style.window is not None:
            self.weights["reach"] = np.array(self.style.window)
            self.add("low = Sub(qu, reach) inside = Greater(kr, low) windowed = And(causal, inside)")
            allowed = "windowed"
        self.weights["pads"] = np.array([1, 2])
        self.add(f"pb = Cast<to=9>(seen) pm = Unsqueeze(pb, pads) may = And(pm, {allowed})")

    def rotate(self, x: str, perm: bool) -> str:
        """`x`, [B, N, S, H] when `perm`, else [B, S, N, H]."""
        axis = "c1" if perm else "c2"
        cos, sin = (self.add(f"{x}{f} = Unsqueeze({f}, {axis})") for f in ("cos", "sin"))
        source = x
        if self.style.rotary == "part":
            source = self.add(f"{x}rot = Slice({x}, c0, c4, c3)")
            self.add(f"{x}pass = Slice({x}, c4, top, c3)")
        middle = H // 4 if self.style.rotary == "part" else H // 2
        self.weights[f"c{middle}"] = np.array([middle])
        if self.style.rotary == "interleaved":
            self.weights["merge"] = np.array([0, 0, N, H])
            self.add(f"{x}a = Slice({x}, c0, top, c3, c2) {x}b = Slice({x}, c1, top, c3, c2) {x}n = Neg({x}b)")
            self.add(f"{x}nu = Unsqueeze({x}n, cm1) {x}au = Unsqueeze({x}a, cm1)")
            self.add(f"{x}st = Concat<axis=-1>({x}nu, {x}au) {x}t = Reshape({x}st, merge)")
        else:
            self.add(f"{x}a = Slice({source}, c0, c{middle}, c3) {x}b = Slice({source}, c{middle}, top, c3)")
            if self.style.rotary == "joined":
                self.add(f"{x}ac = Mul({x}a, {cos}) {x}bs = Mul({x}b, {sin}) {x}lo = Sub({x}ac, {x}bs)")
                self.add(f"{x}bc = Mul({x}b, {cos}) {x}as = Mul({x}a, {sin}) {x}hi = Add({x}bc, {x}as)")
                return self.add(f"{x}y = Concat<axis=-1>({x}lo, {x}hi)")
            self.add(f"{x}n = Neg({x}b) {x}t = Concat<axis=-1>({x}n, {x}a)")
        self.add(f"{x}xc = Mul({source}, {cos}) {x}ts = Mul({x}t, {sin}) {x}e = Add({x}xc, {x}ts)")
        return self.add(f"{x}y = Concat<axis=-1>({x}e, {x}pass)") if self.style.rotary == "part" else f"{x}e"

    def repeat(self, x: str) -> str:
        """repeat_kv, with the sizes read from the tensor."""
        if self.style.groups == N:
            return x
        self.add(f"{x}sh = Shape({x}) {x}s0 = Gather({x}sh, i0) {x}s2 = Gather({x}sh, i2)")
        self.add(f"{x}b1 = Unsqueeze({x}s0, c0) {x}n1 = Unsqueeze({x}s2, c0)")
        self.add(f"{x}to = Concat<axis=0>({x}b1, nh, {x}n1, hs) {x}u = Unsqueeze({x}, c2)")
        self.add(f"{x}k = Expand({x}u, copies)")
        return self.add(f"{x}rep = Reshape({x}k, {x}to)")

    def attention(self, x: str, i: int) -> str:
        style, first = self.style, self.style.rotary != "interleaved"
        names = [f"{n}{i}" for n in "qkv"]
        if style.by_head:
            self.weights["three"] = np.array([0, 0, N, 3 * H])
            packed = self.linear(x, f"qkv{i}", D, 3 * D, style.bias)
            self.add(f"z{i} = Reshape({packed}, three) zt{i} = Transpose<perm=[0,2,1,3]>(z{i})")
            for j, n in enumerate(names):
                self.add(f"{n}h = Slice(zt{i}, c{H * j}, c{H * (j + 1)}, cm1)")
        else:
            for n, heads in zip(names, (N, style.groups, style.groups), strict=True):
                self.linear(x, n, D, heads * H, style.bias)
                self.add(f"{n}4 = Reshape({n}, heads)")
                if first or n == names[2]:
                    self.add(f"{n}h = Transpose<perm=[0,2,1,3]>({n}4)")
        q, k = (self.rotate(f"{n}h" if first else f"{n}4", first) for n in names[:2])
        v = f"{names[2]}h"
        if not first:
            q, k = (self.add(f"{n}t = Transpose<perm=[0,2,1,3]>({n})") for n in (q, k))
        if style.cached:
            k, v = (self.add(f"new{n}{i} = Concat<axis=-2>(old{n}{i}, {x})") for n, x in (("k", k), ("v", v)))
        k, v = self.repeat(k), self.repeat(v)
        self.add(f"kT{i} = Transpose<perm=[0,1,3,2]>({k}) qs{i} = Mul({q}, half) ks{i} = Mul(kT{i}, half)")
        self.add(f"sc{i} = MatMul(qs{i}, ks{i}) mk{i} = Where(may, zero, hide) sm{i} = Add(sc{i}, mk{i})")
        self.add(f"p{i} = Softmax<axis=-1>(sm{i}) nan{i} = IsNaN(p{i}) w{i} = Where(nan{i}, zero, p{i})")
        self.add(f"c_{i} = MatMul(w{i}, {v}) ct{i} = Transpose<perm=[0,2,1,3]>(c_{i}) m{i} = Reshape(ct{i}, whole)")
        return self.linear(f"m{i}", f"o{i}", D, D, style.bias)

    def model(self) -> onnx.ModelProto:
        self.angles()
        self.mask()
        x, inputs, outputs = "x", "", ""
        for i in range(LAYERS):
            x = self.add(f"ra{i} = Add({x}, {self.attention(self.norm(x, f'na{i}'), i)})")
            normed = self.norm(x, f"nb{i}")
            gate, up = self.linear(normed, f"g{i}", D, FF), self.linear(normed, f"u{i}", D, FF)
            self.add(f"e{i} = Sigmoid({gate}) s{i} = Mul({gate}, e{i}) gu{i} = Mul(s{i}, {up})")
            x = self.add(f"rb{i} = Add({x}, {self.linear(f'gu{i}', f'd{i}', FF, D)})")
            if self.style.cached:
                inputs += "".join(f", float[B,{self.style.groups},P,{H}] old{n}{i}" for n in "kv")
                outputs += "".join(f", float[B,{self.style.groups},T,{H}] new{n}{i}" for n in "kv")
        self.add(f"y = Identity({self.norm(x, 'last')})")
        columns = "T" if self.style.cached else "S"
        head = f"(float[B,S,{D}] x, int64[B,{columns}] seen, int64[B,S] positions{inputs})"
        text = f"{head} => (float[B,S,{D}] y{outputs}) {{ {' '.join(self.lines)} }}"
        used = {k: v for k, v in self.weights.items() if any(f"{a}{k}{b}" in text for a in " (" for b in ",)")}
        return graph(text, 13, **used)


def inputs_of(style: Style) -> dict[str, np.ndarray]:
    """Left padding in the first entry: its first queries see nothing. Without a cache positions start at 0."""
    rng = np.random.default_rng(3)
    past = 3 if style.cached else 0
    seen = np.ones((B, past + S), np.int64)
    seen[0, :2] = 0
    feeds: dict[str, np.ndarray] = {
        "x": rng.standard_normal((B, S, D)).astype(np.float32),
        "seen": seen,
        "positions": np.arange(past, past + S)[None].repeat(B, 0),
    }
    if style.cached:
        for i in range(LAYERS):
            for n in "kv":
                feeds[f"old{n}{i}"] = rng.standard_normal((B, style.groups, past, H)).astype(np.float32)
    return feeds


@pytest.mark.parametrize("name", list(STYLES))
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 5e-5), ("fp16", 2e-2)])
def test_decoder(name: str, precision: str, tolerance: float) -> None:
    style = STYLES[name]
    model = Decoder(style).model()
    result = optimize(model, precision=precision, verify=False).model
    onnx.checker.check_model(result, full_check=True)
    found = ops(result)
    # A layer: one product for queries, keys and values, one rotation, one attention, one gated unit, two norms.
    expected = {"cuvil::Attention": LAYERS, "cuvil::GatedUnit": LAYERS, "cuvil::LayerNorm": 2 * LAYERS + 1}
    expected["cuvil::RotaryEmbedding"] = LAYERS
    assert {op: n for op, n in found.items() if op in expected} == expected
    assert found["MatMul"] + found["cuvil::FusedMatMul"] == LAYERS * 4 + (style.angles == "computed")
    assert found["Concat"] <= 1  # attention appends to the cache itself
    assert not {"Softmax", "Slice", "Neg", "Expand", "IsNaN", "Sigmoid"} & found.keys()
    assert found["Cos"] == found["Sin"] == (style.angles == "computed")
    for node in result.graph.node:
        if node.op_type == "Attention":
            assert attributes(node)["kv_num_heads"] == style.groups and attributes(node)["masked_rows_zero"] == 1
    inputs = inputs_of(style)
    for old, new in zip(run(model, inputs, plain=True), run(result, inputs), strict=True):
        np.testing.assert_allclose(new, old, rtol=tolerance, atol=tolerance)
