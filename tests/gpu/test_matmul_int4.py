"""cuvil::MatMulInt4 on the GPU against float64; its examples are tests of test_custom_ops.py, too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

import custom_ops
from custom_ops import activations, testing
from custom_ops.spec import Example
from tests.gpu.bounds import ROUNDING, rounded
from tests.gpu.single_op import Array, MakeSession, quick

KINDS = {"float32": ir.DataType.FLOAT, "float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}
CODES = {"i4": (ml_dtypes.int4, -8, 16), "u4": (ml_dtypes.uint4, 0, 16), "i8": (np.int8, -128, 256)}
CODES["u8"] = (np.uint8, 0, 256)
PARAMS = {"LeakyRelu": [0.1], "Elu": [1.0], "Clip": [-0.5, 0.75], "HardSigmoid": [0.2, 0.5]}
B, SCALES, ZERO_POINTS, OFFSETS = 1, 2, 3, 4


@pytest.fixture(autouse=True)
def first_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """No measuring: what is tested is the kernel, and every shape here would be measured for nothing."""
    monkeypatch.setenv("CUVIL_TUNING", "off")


@dataclass
class Node:
    """A product with a random weight of shape [*experts, k, n]."""

    lead: tuple[int, ...]
    k: int
    n: int
    group: int
    kind: str
    dtype: str
    zero: bool = False
    offset: bool = False
    bias: tuple[int, ...] | None = None
    residual: bool = False
    activation: str = ""
    experts: tuple[int, ...] = ()

    def check(self, make: MakeSession, *, constant: bool = True) -> None:
        """Runs it twice: equal bit for bit, and within twice the error that the arithmetic can have.

        The weights of `exact` are (code - zero) * scale + offset rounded to the dtype, as DequantizeLinear rounds them.
        So are the kernel's, or not at all where it scales sums: half a unit. A sum of K products in float32 errs by K
        units of 2^-24 of the sum of magnitudes at most (twice that on tensor cores, which cut addends off). Bias,
        residual and activation follow in float32, or as a pass of their own over results of cuBLASLt, which were
        rounded. Slopes of the activations are at most 1.5.
        """
        generator = np.random.default_rng(self.k)
        code_type, low, span = CODES[self.kind]
        groups = -(-self.k // self.group) if self.group else 1
        shape = (*self.experts, groups, self.n)
        codes = generator.integers(low, low + span, (*self.experts, self.k, self.n))
        scales = rounded(generator.uniform(0.5, 1.5, shape) / span, self.dtype)
        zeros = generator.integers(low, low + span, shape) if self.zero else None
        offsets = rounded(generator.uniform(-0.6, 0.1, shape), self.dtype) if self.offset else None
        x = rounded(generator.standard_normal((*self.lead, self.k)), self.dtype)
        bias = None if self.bias is None else rounded(generator.standard_normal(self.bias), self.dtype)

        def spread(values: Array) -> Array:
            return np.repeat(values, self.group or self.k, axis=-2)[..., : self.k, :]

        numbers = (codes - (spread(zeros) if zeros is not None else 0)) * spread(scales)
        weight = rounded(numbers + (spread(offsets) if offsets is not None else 0), self.dtype)
        product, size = np.asarray(x @ weight), np.abs(x) @ np.abs(weight)
        residual = rounded(generator.standard_normal(product.shape), self.dtype) if self.residual else None
        total = product + (0 if bias is None else bias) + (0 if residual is None else residual)
        attrs: dict[str, Any] = {"activation": self.activation, "activation_params": PARAMS.get(self.activation, [])}
        exact = np.asarray(activations.reference(self.activation, attrs["activation_params"], total))
        unit = ROUNDING[self.dtype]
        bound = 1.5 * ((2 * max(self.k, 8) * 2.0**-24 + unit) * size + unit * np.abs(total))
        bound += unit * np.abs(exact) + 2.0**-25
        added = sum(np.abs(v) for v in (bias, residual) if v is not None)
        bound = 2 * (bound + 2.0**-22 * (np.abs(total) + added))  # activations of the device's own functions

        def stored(values: Array | None) -> Array | None:
            if values is None:
                return None
            return (values.reshape(-1) if not self.group else values).astype(np.float32)

        arrays = (
            x.astype(np.float32),
            codes.astype(code_type),
            stored(scales),
            None if zeros is None else zeros.reshape(shape if self.group else (-1,)).astype(code_type),
            stored(offsets),
            None if bias is None else bias.astype(np.float32),
            None if residual is None else residual.astype(np.float32),
        )
        # ONNX Runtime's Python takes no arrays of 4-bit codes.
        weights = (B, SCALES, ZERO_POINTS, OFFSETS) if constant else (B, ZERO_POINTS) if self.kind[1] == "4" else ()
        example = Example("case", arrays, {"block_size": self.group, **attrs})
        case = testing.build(
            custom_ops.specs()["MatMulInt4"], example, opset=22, dtype=KINDS[self.dtype], constant=weights
        )
        session = make(case.model)
        (found,), (again,) = session.run(None, case.feeds), session.run(None, case.feeds)
        np.testing.assert_array_equal(found, again)
        assert found.shape == exact.shape
        error = np.abs(found.astype(np.float64) - exact)
        worst = np.unravel_index(np.argmax(error - bound), error.shape) if error.size else ()
        assert (error <= bound).all(), f"at {worst}: {found[worst]} instead of {exact[worst]}, bound {bound[worst]}"


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("group", [0, 16, 32, 64, 128, 256])
def test_groups(ep_session: MakeSession, group: int, kind: str, dtype: str) -> None:
    for zero, offset in ((False, False), (True, False), (True, True)):
        Node((2, 3), 2 * group + 40, 72, group, kind, dtype, zero, offset).check(ep_session)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("group", [8, 20, 48, 96, 100])
@pytest.mark.parametrize("rows", [3, 70])
def test_groups_of_other_sizes(ep_session: MakeSession, rows: int, group: int, dtype: str) -> None:
    Node((rows,), 3 * group + 7, 33, group, "u4", dtype, True).check(ep_session)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize("rows", [1, 9, 33, 70, 4097])
def test_rows(ep_session: MakeSession, rows: int, dtype: str) -> None:
    Node((rows,), 256, 130, 64, "i4", dtype, bias=(130,), residual=True, activation="Relu").check(ep_session)


@pytest.mark.parametrize("activation", list(activations.PARAMS))
@pytest.mark.parametrize("dtype", KINDS)
def test_activations(ep_session: MakeSession, dtype: str, activation: str) -> None:
    for bias in ((40,), (1,)):
        Node((2, 9), 64, 40, 32, "u4", dtype, True, bias=bias, residual=True, activation=activation).check(ep_session)


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize(("lead", "experts"), [((3, 4), (3,)), ((4,), (3,)), ((2, 3, 5), (3,)), ((2, 1, 5), (3,))])
def test_experts(ep_session: MakeSession, lead: tuple[int, ...], experts: tuple[int, ...], dtype: str) -> None:
    # 45 * 13 codes: every second matrix begins within a byte.
    for constant in (True, False):
        Node(lead, 45, 13, 16, "u4", dtype, True, experts=experts).check(ep_session, constant=constant)


@given(data=st.data())
@quick
def test_any_shape(ep_session: MakeSession, data: st.DataObject) -> None:
    n, k = data.draw(st.integers(1, 300)), data.draw(st.integers(1, 700))
    node = Node(
        (data.draw(st.sampled_from([0, 1, 2, 5, 8, 9, 16, 31, 65, 129, 300])),),
        k,
        n,
        data.draw(st.sampled_from([0, 16, 24, 32, 64, 128, 256])),
        data.draw(st.sampled_from(list(CODES))),
        data.draw(st.sampled_from(list(KINDS))),
        data.draw(st.booleans()),
        data.draw(st.booleans()),
        data.draw(st.sampled_from([None, (n,)])),
        data.draw(st.booleans()),
    )
    node.check(ep_session, constant=data.draw(st.booleans()))


def test_zero_points_of_a_wrong_shape_are_named(ep_session: MakeSession) -> None:
    codes, scales = np.zeros((64, 8), ml_dtypes.int4), np.ones((2, 8), np.float32)
    example = Example("case", (np.ones((2, 64), np.float32), codes, scales), {"block_size": 32})
    case = testing.build(custom_ops.specs()["MatMulInt4"], example, opset=22, dtype=ir.DataType.FLOAT, constant=(B,))
    case.model.graph.input[1].type.tensor_type.ClearField("shape")
    feeds = {**case.feeds, "input2": np.ones((1, 8), np.float32)}
    with pytest.raises(Exception, match=r"input 2 has shape \[1,8\]; \[2,8\] is required"):
        ep_session(case.model).run(None, feeds)
