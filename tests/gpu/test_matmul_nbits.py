"""com.microsoft MatMulNBits on the GPU against float64."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import cuvil_onnx
from cuvil_onnx.runtime.devices import devices
from tests.gpu.bounds import ROUNDING, in_bfloat16, rounded
from tests.gpu.single_op import Array, MakeSession, quick

DTYPES = ["float32", "float16", "bfloat16"]
# The ways of the tensor-core kernels (csrc/ops/int4_ways.cc), each with rows that fill a tile and that do not.
WAYS = [
    *[(m, f"mma c{c} {cut}") for m, c in ((1, 8), (8, 8), (13, 16), (16, 16), (17, 32)) for cut in ("narrow", "wide")],
    *[(m, f"mma c{c} wide") for m, c in ((33, 64), (64, 64), (70, 64), (130, 64), (70, 128), (130, 128))],
    (70, "library"),
]
DIRECT_WAYS = [(1, 8), (5, 8), (8, 8), (9, 16), (13, 16), (16, 16)]
WGMMA_WAYS = [(17, 32), (32, 32), (33, 64), (64, 64), (70, 64), (300, 128)]


@pytest.fixture(autouse=True)
def first_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """No measuring: what is tested is the kernel, and every shape here would be measured for nothing."""
    monkeypatch.setenv("CUVIL_TUNING", "off")


def pack(codes: Array, bits: int) -> Array:
    """Rows of codes as bytes, the first code in the lowest bits; each row is filled up to whole bytes."""
    per = 8 // bits
    fill = np.zeros((*codes.shape[:-1], -codes.shape[-1] % per), codes.dtype)
    groups = np.concatenate([codes, fill], -1).reshape(*codes.shape[:-1], -1, per).astype(np.uint8)
    packed: Array = np.bitwise_or.reduce(groups << (np.arange(per, dtype=np.uint8) * bits), axis=-1).astype(np.uint8)
    return packed


@dataclass
class Weight:
    """A random weight: the node's inputs, and its numbers in float64, rounded to the dtype as DequantizeLinear does.

    The kernels round (code - zero) * scale once to the dtype, or not at all where they scale sums: half a unit, the
    `slack` of a weight. A float zero point is split into an integer and a rest below 1/2, whose product with the scale
    is rounded first: at most half a unit of scale / 2 more, and the sum of both is rounded again.
    """

    n: int
    k: int
    block: int
    bits: int
    dtype: str
    zeros: str = "codes"
    group_index: bool = False
    seed: int = 0
    inputs: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        generator = np.random.default_rng(self.seed)
        blocks = -(-self.k // self.block)
        codes = np.zeros((self.n, blocks * self.block), np.int64)
        codes[:, : self.k] = generator.integers(0, 1 << self.bits, (self.n, self.k))
        scales = rounded(generator.uniform(0.5, 1.5, (self.n, blocks)) / 2**self.bits, self.dtype)
        self.inputs = {"B": pack(codes, self.bits).reshape(self.n, blocks, -1), "scales": scales}
        zeros = np.full((self.n, blocks), 1.0 * (1 << (self.bits - 1)))
        if self.zeros == "codes":
            zeros = generator.integers(0, 1 << self.bits, (self.n, blocks)).astype(np.float64)
            self.inputs["zero_points"] = pack(zeros.astype(np.int64), self.bits)
        elif self.zeros == "float":
            zeros = rounded(generator.uniform(0, (1 << self.bits) - 1, (self.n, blocks)), self.dtype)
            self.inputs["zero_points"] = zeros
        group = np.arange(self.k) // self.block
        if self.group_index:
            group = generator.permutation(group)
            self.inputs["g_idx"] = group.astype(np.int32)
        exact = (codes[:, : self.k] - zeros[:, group]) * scales[:, group]
        self.numbers = rounded(exact, self.dtype)
        unit = ROUNDING[self.dtype]
        self.slack = unit * np.abs(exact)
        if self.zeros == "float":
            self.slack += unit * (np.abs(exact) + scales[:, group] / 2)


def build(
    weight: Weight, x: Array, *, bias: Array | None = None, constant: bool = True
) -> tuple[Any, dict[str, Array]]:
    """The model of one node and what to feed it. bfloat16 tensors are cast inside the model."""
    brain = weight.dtype == "bfloat16"
    kind = np.dtype(np.float32 if brain else weight.dtype)
    arrays: dict[str, Array | None] = {"A": x, "zero_points": None, "g_idx": None, "bias": bias, **weight.inputs}
    graph_inputs, initializers, nodes, names, feeds = [], [], [], [], {}
    for name in ("A", "B", "scales", "zero_points", "g_idx", "bias"):
        array = arrays[name]
        if array is None:
            names.append("")
            continue
        array = array.astype(kind) if array.dtype == np.float64 else array
        if name != "A" and (constant or name == "g_idx"):
            tensor = numpy_helper.from_array(array, name)
            if brain and array.dtype == np.float32:
                tensor = helper.make_tensor(name, TensorProto.BFLOAT16, array.shape, array.flatten().tolist())
            initializers.append(tensor)
            names.append(name)
            continue
        info = helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        graph_inputs.append(info)
        feeds[name] = array
        if brain and array.dtype == np.float32:
            nodes.append(helper.make_node("Cast", [name], [name + "b"], to=TensorProto.BFLOAT16))
            name += "b"
        names.append(name)
    while not names[-1]:
        names.pop()
    attrs: dict[str, Any] = {"K": weight.k, "N": weight.n, "bits": weight.bits, "block_size": weight.block}
    out = "yb" if brain else "y"
    nodes.append(helper.make_node("MatMulNBits", names, [out], domain="com.microsoft", name="node", **attrs))
    if brain:
        nodes.append(helper.make_node("Cast", ["yb"], ["y"], to=TensorProto.FLOAT))
    graph = helper.make_graph(nodes, "g", graph_inputs, [onnx.ValueInfoProto(name="y")], initializers)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10), feeds


def bound_of(x: Array, weight: Weight, exact: Array) -> Array:
    """How far a product may be from `exact`.

    A sum of K products in float32 in any order errs by K units of 2^-24 of the sum of magnitudes at most (tensor cores
    cut their addends off instead of rounding, twice that); the result is rounded once to the dtype: half a unit of it,
    and 2^-25 where float16 is denormal. cuBLASLt's way rounds no more often. Two units of both make the bound.
    """
    size = np.abs(x) @ np.abs(weight.numbers).T
    bound: Array = 2 * (ROUNDING[weight.dtype] * np.abs(exact) + 2 * max(weight.k, 8) * 2.0**-24 * size + 2.0**-25)
    bound += np.abs(x) @ weight.slack.T
    return bound


def check(
    make: MakeSession,
    lead: tuple[int, ...],
    weight: Weight,
    *,
    with_bias: bool = False,
    constant: bool = True,
) -> Array:
    """The node run twice, equal bit for bit and within `bound_of` of the exact product."""
    generator = np.random.default_rng(weight.seed + 1)
    x = rounded(generator.standard_normal((*lead, weight.k)), weight.dtype)
    bias = rounded(generator.standard_normal(weight.n), weight.dtype) if with_bias else None
    model, feeds = build(weight, x, bias=bias, constant=constant)
    session = make(model)
    (found,), (again,) = session.run(None, feeds), session.run(None, feeds)
    np.testing.assert_array_equal(found, again)
    exact = x @ weight.numbers.T
    bound = bound_of(x, weight, exact)
    if bias is not None:
        exact = exact + bias
        bound += 2 * ROUNDING[weight.dtype] * np.abs(exact)
    assert found.shape == exact.shape
    error = np.abs(found.astype(np.float64) - exact)
    worst = np.unravel_index(np.argmax(error - bound), error.shape) if error.size else ()
    assert (error <= bound).all(), f"at {worst}: {found[worst]} instead of {exact[worst]}, bound {bound[worst]}"
    return np.asarray(found)


@pytest.mark.parametrize("block", [16, 32, 64, 128, 256])
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks(ep_session: MakeSession, dtype: str, bits: int, block: int) -> None:
    for zeros in ("none", "codes", "float"):
        check(ep_session, (2, 3), Weight(72, 2 * block + 32, block, bits, dtype, zeros))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("m", "way"), WAYS, ids=lambda v: str(v).replace(" ", "-"))
def test_every_way(
    ep_session: MakeSession, monkeypatch: pytest.MonkeyPatch, m: int, way: str, dtype: str, bits: int
) -> None:
    # 300 rows end within a tile; 1000 along the sum within a step.
    weight = Weight(300, 1000, 64, bits, dtype)
    for grid in ("", " shared", " whole"):
        monkeypatch.setenv("CUVIL_TUNING", f"only:{way}{grid}")
        check(ep_session, (m,), weight, with_bias=grid == "")


@pytest.mark.parametrize("zeros", ["none", "codes"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("m", "columns"), DIRECT_WAYS)
def test_direct_ways(
    ep_session: MakeSession, monkeypatch: pytest.MonkeyPatch, m: int, columns: int, dtype: str, zeros: str
) -> None:
    """300 rows end within a tile; 1000 and 328 along the sum within a chunk, a piece and a unit."""
    monkeypatch.setenv("CUVIL_TUNING", f"only:direct c{columns}")
    for block in (32, 64, 128, 256):
        check(ep_session, (m,), Weight(300, 1000, block, 4, dtype, zeros), with_bias=block > 64)
    check(ep_session, (m,), Weight(41, 328, 512, 4, dtype, zeros))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("m", [1, 7, 16])
def test_direct_ways_of_large_products(
    ep_session: MakeSession, monkeypatch: pytest.MonkeyPatch, m: int, dtype: str
) -> None:
    """Blocks with several tiles; more of x than shared memory holds, by 14 warps and by 8."""
    columns = 8 if m <= 8 else 16
    monkeypatch.setenv("CUVIL_TUNING", f"only:direct c{columns}")
    if (m, dtype) in ((7, "bfloat16"), (16, "float16")):  # it takes seconds
        check(ep_session, (m,), Weight(4400, 2312, 128, 4, dtype))
    for warps in (14, 8):
        monkeypatch.setenv("CUVIL_TUNING", f"only:direct c{columns} w{warps}")
        check(ep_session, (m,), Weight(72, 14336, 128, 4, dtype))


@pytest.mark.parametrize("zeros", ["none", "codes", "float"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("m", "columns"), WGMMA_WAYS)
def test_every_way_of_sm_90(
    ep_session: MakeSession, monkeypatch: pytest.MonkeyPatch, m: int, columns: int, dtype: str, zeros: str
) -> None:
    """Groups as long as a step, shorter and longer; 1000 along the sum ends within a step and a unit."""
    if devices()[0].compute_capability != "9.0":
        pytest.skip("needs a GPU of compute capability 9.0")
    for block in (32, 128, 256):
        weight = Weight(300, 1000, block, 4, dtype, zeros)
        for grid in ("shared", "whole"):
            monkeypatch.setenv("CUVIL_TUNING", f"only:wgmma c{columns} wide {grid}")
            check(ep_session, (m,), weight, with_bias=grid == "shared")


@pytest.mark.parametrize("kernel", ["direct", "wgmma"])
def test_a_way_that_does_not_serve_is_an_error(
    ep_session: MakeSession, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    """Or its tests would pass with another kernel. Only mma has 8 bits, groups of 16 and odd sums."""
    monkeypatch.setenv("CUVIL_TUNING", f"only:{kernel}")
    weights = [
        Weight(64, 64, 32, 8, "float16"),
        Weight(64, 64, 16, 4, "float16"),
        Weight(64, 61, 32, 4, "float16"),
    ]
    if kernel == "direct":  # no zero points between codes
        weights.append(Weight(64, 64, 32, 4, "float16", "float"))
    for weight in weights:
        with pytest.raises(Exception, match=f"CUVIL_TUNING=only:{kernel} is no way to compute"):
            check(ep_session, (1 if kernel == "direct" else 32,), weight)


@given(data=st.data())
@quick
def test_any_shape(ep_session: MakeSession, data: st.DataObject) -> None:
    n, k = data.draw(st.integers(1, 300)), data.draw(st.integers(1, 700))
    m = data.draw(st.sampled_from([0, 1, 2, 5, 8, 9, 16, 31, 65, 129, 300]))
    weight = Weight(
        n,
        k,
        data.draw(st.sampled_from([16, 32, 64, 128, 256])),
        data.draw(st.sampled_from([2, 4, 8])),
        data.draw(st.sampled_from(DTYPES)),
        data.draw(st.sampled_from(["none", "codes", "float"])),
        data.draw(st.booleans()),
    )
    check(ep_session, (m,), weight, with_bias=data.draw(st.booleans()), constant=data.draw(st.booleans()))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [1, 4097])
def test_a_model_s_size(ep_session: MakeSession, m: int, dtype: str) -> None:
    check(ep_session, (m,), Weight(768, 1024, 128, 4, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [3, 100])
def test_places_in_any_order(ep_session: MakeSession, m: int, dtype: str) -> None:
    for constant in (True, False):
        check(ep_session, (m,), Weight(40, 500, 32, 4, dtype, "codes", True), constant=constant)


@pytest.mark.parametrize("m", [1, 20, 100, 600])
def test_measured_choice(ep_session: MakeSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, m: int) -> None:
    monkeypatch.setenv("CUVIL_TUNING", "on")
    monkeypatch.setenv("CUVIL_CACHE_DIR", str(tmp_path))
    check(ep_session, (m,), Weight(512, 1024, 128, 4, "float16"))
    (cache,) = (tmp_path / "tuning").glob("int4-*")
    assert cache.read_text().startswith("int4 f16 b4 1024x512 g7 z10 m")
    check(ep_session, (m,), Weight(512, 1024, 128, 4, "float16"))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("m", [2, 70])
def test_activations_that_are_no_numbers_stay_in_their_row(ep_session: MakeSession, m: int, dtype: str) -> None:
    weight = Weight(40, 96, 32, 4, dtype)
    x = np.random.default_rng(0).standard_normal((m, 96)).astype(np.float32)
    x = in_bfloat16(x) if dtype == "bfloat16" else x.astype(dtype)
    x[0, 5], x[-1, 95] = np.inf, np.nan
    model, feeds = build(weight, x)
    (found,) = ep_session(model).run(None, feeds)
    with np.errstate(invalid="ignore"):
        expected = x.astype(np.float64) @ weight.numbers.T  # 0 * inf is NaN
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_array_equal(np.isposinf(found), np.isposinf(expected))
    assert np.isfinite(found[1:-1]).all()


def test_no_rows(ep_session: MakeSession) -> None:
    for lead in ((0,), (2, 0), (0, 3)):
        assert check(ep_session, lead, Weight(8, 32, 32, 4, "float16")).size == 0


def test_captured(ep_session: MakeSession) -> None:
    """A replay computes with the activations of its own run, tiles that blocks share included."""
    weight = Weight(300, 2048, 128, 4, "float16")
    draws = np.random.default_rng(2).standard_normal((4, 3, 2048)).astype(np.float16)
    model, _ = build(weight, draws[0])
    plain, captured = ep_session(model), cuvil_onnx.InferenceSession(model, cuda_graph="always")
    for x in (*draws, *draws):
        np.testing.assert_array_equal(captured.run(None, {"A": x})[0], plain.run(None, {"A": x})[0])


def test_inputs_that_do_not_fit_are_named(ep_session: MakeSession) -> None:
    weight = Weight(8, 64, 32, 4, "float16")
    model, feeds = build(weight, np.ones((2, 64), np.float16), constant=False)
    feeds["scales"] = feeds["scales"][:, :1]
    del model.graph.input[2].type.tensor_type.shape.dim[:]
    with pytest.raises(Exception, match="input 2 has shape"):
        ep_session(model).run(None, feeds)
