"""Conv and cuvil::FusedConv on the GPU against float64, through every way that the engine has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

import custom_ops
from custom_ops import activations, testing
from custom_ops.ops.fused_conv import conv
from custom_ops.spec import Example
from tests.gpu.bounds import assert_sum_of_products, rounded
from tests.gpu.single_op import MakeSession, model, quick, reference, sample

KINDS = {"float32": ir.DataType.FLOAT, "float16": ir.DataType.FLOAT16, "bfloat16": ir.DataType.BFLOAT16}
PARAMS = {"LeakyRelu": [0.1], "Elu": [1.0], "Clip": [-0.5, 0.75], "HardSigmoid": [0.2, 0.5]}

# X, W and attributes that differ from the defaults.
CONVOLUTIONS: dict[str, tuple[list[int], list[int], dict[str, Any]]] = {
    "3x3": ([2, 16, 9, 11], [24, 16, 3, 3], {"pads": [1, 1, 1, 1]}),
    "1x1": ([2, 32, 7, 7], [16, 32, 1, 1], {}),
    "1x1 strided": ([2, 16, 8, 9], [8, 16, 1, 1], {"strides": [2, 2]}),
    "7x7 of three channels": ([1, 3, 30, 30], [16, 3, 7, 7], {"strides": [2, 2], "pads": [3, 3, 3, 3]}),
    "odd channels": ([1, 5, 9, 9], [7, 5, 3, 3], {}),
    "grouped": ([2, 16, 9, 9], [32, 4, 3, 3], {"group": 4, "pads": [1, 1, 1, 1]}),
    "depthwise": ([2, 24, 9, 9], [24, 1, 3, 3], {"group": 24, "pads": [1, 1, 1, 1]}),
    "depthwise 5x5 strided": ([1, 16, 13, 12], [16, 1, 5, 5], {"group": 16, "strides": [2, 2], "pads": [2, 2, 2, 2]}),
    "depthwise multiplied": ([1, 8, 9, 9], [16, 1, 3, 3], {"group": 8}),
    "dilated": ([1, 8, 14, 14], [8, 8, 3, 3], {"dilations": [2, 3], "pads": [2, 3, 2, 3]}),
    "asymmetric pads": ([1, 8, 10, 9], [8, 8, 3, 3], {"pads": [0, 1, 2, 0], "strides": [2, 1]}),
    "asymmetric depthwise": ([1, 8, 10, 9], [8, 1, 3, 3], {"pads": [0, 0, 1, 1], "strides": [2, 2], "group": 8}),
    "1-D": ([2, 8, 31], [12, 8, 5], {"pads": [2, 2], "strides": [2]}),
    "1-D asymmetric": ([2, 8, 31], [12, 8, 4], {"pads": [3, 0]}),
    "3-D": ([1, 4, 6, 7, 8], [8, 4, 3, 3, 3], {"pads": [1, 1, 1, 1, 1, 1]}),
    "one output pixel": ([3, 8, 5, 5], [8, 8, 5, 5], {}),
    "one padded pixel": ([3, 8, 3, 3], [8, 8, 5, 5], {"pads": [1, 1, 1, 1]}),
    "1x1 of one pixel": ([3, 24, 1, 1], [16, 24, 1, 1], {}),
}


@pytest.fixture(autouse=True)
def first_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """No measuring unless a test asks for it: that would compile ten plans for each of many shapes."""
    monkeypatch.setenv("CUVIL_TUNING", "off")


def attributes(w: list[int], changes: dict[str, Any]) -> dict[str, Any]:
    n = len(w) - 2
    base = {"kernel_shape": w[2:], "strides": [1] * n, "pads": [0] * 2 * n, "dilations": [1] * n, "group": 1}
    return {**base, **changes}


def run(make: MakeSession, arrays: list[np.ndarray | None], attrs: dict[str, Any], dtype: str, constant: bool) -> Any:
    bfloat16 = dtype == "bfloat16"
    inputs = [None if a is None else a.astype(np.float32 if bfloat16 else dtype) for a in arrays]
    initializers = [1, 2] if constant and not bfloat16 else []
    opset = 22 if bfloat16 else 17  # the first whose Conv takes bfloat16
    session = make(model("Conv", inputs, attrs, bfloat16=bfloat16, constant=initializers, opset=opset))
    feeds = {f"x{i}": a for i, a in enumerate(inputs) if a is not None and i not in initializers}
    (first,), (second,) = session.run(None, feeds), session.run(None, feeds)
    np.testing.assert_array_equal(first, second)
    return first


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_conv(ep_session: MakeSession, name: str, bias: bool, dtype: str) -> None:
    x_shape, w_shape, changes = CONVOLUTIONS[name]
    check_conv(ep_session, x_shape, w_shape, attributes(w_shape, changes), bias, dtype, constant=not bias)


def check_conv(
    make: MakeSession,
    x_shape: list[int],
    w_shape: list[int],
    attrs: dict[str, Any],
    bias: bool,
    dtype: str,
    *,
    constant: bool,
) -> None:
    x = rounded(sample(x_shape, np.float64, 1), dtype)
    w = rounded(sample(w_shape, np.float64, 2), dtype)
    b = rounded(sample(w_shape[:1], np.float64, 3), dtype) if bias else None
    add = 0.0 if b is None else b.reshape(-1, *[1] * (len(w_shape) - 2))
    found = run(make, [x, w, b], attrs, dtype, constant)
    exact = conv(x, w, attrs) + add
    magnitude = conv(np.abs(x), np.abs(w), attrs) + np.abs(add)
    # cuDNN may have no fused kernel for these channels-first tensors: the sum without bias is rounded then.
    between = np.abs(exact) + np.abs(add) if bias else 0.0
    assert_sum_of_products(found, exact, magnitude, int(np.prod(w_shape[1:])), dtype, between)


@given(data=st.data())
@quick
def test_convolutions_of_any_shape(ep_session: MakeSession, data: st.DataObject) -> None:
    rank, group = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))

    def values(low: int, high: int, count: int = rank) -> list[int]:
        return data.draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    kernel, dilations = values(1, 4), values(1, 2)
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    size = [e + extra for e, extra in zip(extents, values(0, 6), strict=True)]
    n, per_group, out = values(1, 4, 3)
    changes = {"strides": values(1, 3), "dilations": dilations, "pads": values(0, 2, 2 * rank), "group": group}
    w_shape = [out * group, per_group, *kernel]
    bias, constant = data.draw(st.booleans()), data.draw(st.booleans())
    dtype = data.draw(st.sampled_from(["float32", "float16"]))
    attrs = attributes(w_shape, changes)
    check_conv(ep_session, [n, per_group * group, *size], w_shape, attrs, bias, dtype, constant=constant)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_auto_pad(ep_session: MakeSession, auto_pad: str) -> None:
    x, w = sample([1, 8, 10, 9], np.float64, 1), sample([8, 8, 3, 4], np.float64, 2)
    attrs = attributes([8, 8, 3, 4], {"strides": [2, 1]})
    del attrs["pads"]
    found = run(ep_session, [x, w, None], {**attrs, "auto_pad": auto_pad}, "float32", True)
    # Rows: 5 outputs need (5 - 1) * 2 + 3 - 10 = 1 zero; columns: 9 outputs need 3.
    pads = {"SAME_UPPER": [0, 1, 1, 2], "SAME_LOWER": [1, 2, 0, 1], "VALID": [0, 0, 0, 0]}[auto_pad]
    x, w = rounded(x, "float32"), rounded(w, "float32")
    exact, magnitude = conv(x, w, {**attrs, "pads": pads}), conv(np.abs(x), np.abs(w), {**attrs, "pads": pads})
    assert_sum_of_products(found, exact, magnitude, 96, "float32")


def test_a_batch_of_none_is_empty(ep_session: MakeSession) -> None:
    arrays = [np.zeros((0, 4, 8, 8)), sample([6, 4, 3, 3])]
    found = run(ep_session, arrays, attributes([6, 4, 3, 3], {}), "float32", True)
    assert found.shape == (0, 6, 6, 6)


def test_channels_that_do_not_fit_are_named(ep_session: MakeSession) -> None:
    x, w = sample([1, 4, 8, 8]), sample([6, 3, 3, 3])
    m = model("Conv", [x, w], attributes([6, 3, 3, 3], {}))
    for value in m.graph.input:
        value.type.tensor_type.ClearField("shape")
    with pytest.raises(Exception, match="X has 4 channels"):
        ep_session(m).run(None, {"x0": x, "x1": w})


# No library has them in its epilogue.
UNFUSED = ["HardSigmoid", "HardSwish", "Mish"]


def check_fused(
    make: MakeSession,
    name: str,
    operands: str,
    activation: str,
    layout: str,
    dtype: str,
    constant: bool = True,
    two_passes: bool | None = None,
) -> None:
    """`two_passes`: the bound is that of a way whose epilogue is a pass of its own; by default where it may be one.

    That is everywhere but in channels-last with an activation that cuDNN and cuBLASLt have.
    """
    x_shape, w_shape, changes = CONVOLUTIONS[name]
    check_fused_shape(
        make, x_shape, w_shape, attributes(w_shape, changes), operands, activation, layout, dtype, constant, two_passes
    )


def check_fused_shape(
    make: MakeSession,
    x_shape: list[int],
    w_shape: list[int],
    attrs: dict[str, Any],
    operands: str,
    activation: str,
    layout: str,
    dtype: str,
    constant: bool,
    two_passes: bool | None,
) -> None:
    x, w = sample(x_shape, np.float64, 1), sample(w_shape, np.float64, 2) / np.sqrt(np.prod(w_shape[1:]))
    bias = sample(w_shape[:1], np.float64, 3) if "b" in operands else None
    channels = -1, *[1] * (len(w_shape) - 2)
    product = conv(x, w, attrs)
    z = sample(product.shape, np.float64, 4) if "z" in operands else None
    added = [a for a in (None if bias is None else bias.reshape(channels), z) if a is not None]
    addends = sum((np.abs(a) for a in added), np.zeros_like(product))
    magnitude = conv(np.abs(x), np.abs(w), attrs) + addends
    if two_passes is None:
        two_passes = layout == "NCHW" or activation in UNFUSED
    # Whether the product alone, with Z or with the bias is rounded: it is the whole sum less some of the addends.
    between = np.abs(sum(added, product)) + addends if two_passes else np.zeros_like(product)

    def lay(a: np.ndarray | None) -> Any:
        return a if a is None or layout == "NCHW" else np.ascontiguousarray(np.moveaxis(a, 1, -1))

    all_attrs = {**attrs, "layout": layout, "activation": activation, "activation_params": PARAMS.get(activation, [])}
    example = Example("case", (lay(x), w, bias, lay(z)), all_attrs)
    case = testing.build(custom_ops.specs()["FusedConv"], example, opset=20, dtype=KINDS[dtype])
    m = case.model
    feeds = dict(case.feeds)
    if constant:  # weights that are packed once when the session is built
        m.graph.initializer.append(onnx.numpy_helper.from_array(feeds.pop("input1"), "input1"))
        kept = [v for v in m.graph.input if v.name != "input1"]
        del m.graph.input[:]
        m.graph.input.extend(kept)
    session = make(m)
    (found,), (again,) = session.run(None, feeds), session.run(None, feeds)
    np.testing.assert_array_equal(found, again)
    # The activations' slopes are at most 1.5 (HardSwish): errors before them hardly grow.
    terms = int(np.prod(w_shape[1:]))
    expected = np.asarray(case.expected[0])
    assert_sum_of_products(found, expected, 1.5 * lay(magnitude), terms, dtype, 1.5 * lay(between))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("operands", ["", "z"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_fused_conv(ep_session: MakeSession, name: str, operands: str, layout: str, dtype: str) -> None:
    check_fused(ep_session, name, operands, "Relu", layout, dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("activation", list(activations.PARAMS))
@pytest.mark.parametrize("name", ["3x3", "1x1"])
def test_activations(ep_session: MakeSession, name: str, activation: str, layout: str, dtype: str) -> None:
    check_fused(ep_session, name, "bz", activation, layout, dtype)


@given(data=st.data())
@quick
def test_fused_convolutions_of_any_shape(ep_session: MakeSession, data: st.DataObject) -> None:
    """Small images on purpose: results of one row or one pixel have strides that name no layout."""

    def values(low: int, high: int, count: int = 2) -> list[int]:
        return data.draw(st.lists(st.integers(low, high), min_size=count, max_size=count))

    kernel, group = values(1, 4), data.draw(st.integers(1, 2))
    size = [k + extra for k, extra in zip(kernel, values(0, 3), strict=True)]
    n, per_group, out = data.draw(st.integers(1, 3)), *[8 * v for v in values(1, 2)]
    w_shape = [out * group, per_group, *kernel]
    attrs = attributes(w_shape, {"strides": values(1, 2), "pads": values(0, 1) * 2, "group": group})
    operands, activation = data.draw(st.sampled_from(["", "b", "z", "bz"])), data.draw(st.sampled_from(["", "Relu"]))
    layout, dtype = data.draw(st.sampled_from(["NCHW", "NHWC"])), data.draw(st.sampled_from(["float32", "float16"]))
    x_shape = [n, per_group * group, *size]
    check_fused_shape(ep_session, x_shape, w_shape, attrs, operands, activation, layout, dtype, True, True)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_weights_that_are_no_constants(ep_session: MakeSession, layout: str) -> None:
    check_fused(ep_session, "3x3", "bz", "Relu", layout, "float16", constant=False)


# Ways of the engine, and what each must be able to do. cuDNN decides itself which fused graphs it takes: those are
# tested where it does.
WAYS = [
    ("gemm", ["1x1", "one output pixel", "1x1 of one pixel"], True),
    ("cudnn:plain", list(CONVOLUTIONS), True),
    ("cudnn:rb", list(CONVOLUTIONS), False),
]
WAYS += [("depthwise", ["depthwise", "depthwise 5x5 strided", "asymmetric depthwise"], True)]
WAYS += [("cudnn:plain:pad", ["asymmetric pads", "asymmetric depthwise", "1-D asymmetric"], True)]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    ("way", "name", "required"), [(way, name, required) for way, names, required in WAYS for name in names]
)
def test_each_way(
    ep_session: MakeSession,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
    name: str,
    required: bool,
    layout: str,
    dtype: str,
) -> None:
    monkeypatch.setenv("CUVIL_TUNING", f"only:{way}")
    try:
        # The product in NCHW has the bias along its rows, which is no epilogue of cuBLASLt.
        two_passes = "plain" in way or (way == "gemm" and layout == "NCHW" and name == "1x1")
        check_fused(ep_session, name, "bz", "Relu", layout, dtype, two_passes=two_passes)
    except AssertionError:
        raise
    except Exception as error:
        if required or "has no plan" not in str(error):
            raise
        pytest.skip(f"{way} is not offered here")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("name", ["3x3", "1x1", "asymmetric pads"])
def test_the_fastest_way_is_remembered(
    ep_session: MakeSession, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, layout: str
) -> None:
    monkeypatch.setenv("CUVIL_TUNING", "on")
    monkeypatch.setenv("CUVIL_CACHE_DIR", str(tmp_path))
    check_fused(ep_session, name, "bz", "Relu", layout, "float16", two_passes=True)  # whichever is faster
    (file,) = (tmp_path / "tuning").glob("cudnn-*.txt")
    remembered = file.read_text()
    assert remembered.count("\n") == 1
    check_fused(ep_session, name, "bz", "Relu", layout, "float16", two_passes=True)
    assert file.read_text() == remembered
    for plan in (tmp_path / "cudnn").glob("*.plan"):  # another plan's, or half of one: compiled anew
        plan.write_bytes(plan.read_bytes()[:-100])
    check_fused(ep_session, name, "bz", "Relu", layout, "float16", two_passes=True)
    file.write_text(remembered.split("\t")[0] + "\tcudnn:rb:a999\n")
    check_fused(ep_session, name, "bz", "Relu", layout, "float16", two_passes=True)  # a choice that is gone: anew
    assert "a999" not in file.read_text()


@pytest.mark.parametrize("name", ["7x7 of three channels", "odd channels"])
@pytest.mark.parametrize("way", ["cudnn:plain:c8", "cudnn:plain:c4", "cudnn:rb:c8"])
def test_channels_filled_up_to_a_vector(
    ep_session: MakeSession, monkeypatch: pytest.MonkeyPatch, way: str, name: str
) -> None:
    if way.endswith("c4") and CONVOLUTIONS[name][0][1] >= 4:
        pytest.skip("more than four channels already")
    monkeypatch.setenv("CUVIL_TUNING", f"only:{way}")
    check_fused(ep_session, name, "bz", "Relu", "NHWC", "float16", two_passes="plain" in way)


# X, W and attributes. W is [C, K / group, kernel...].
TRANSPOSED: dict[str, tuple[list[int], list[int], dict[str, Any]]] = {
    "2x2 strided": ([1, 8, 7, 9], [8, 6, 2, 2], {"strides": [2, 2]}),
    "3x3 padded": ([2, 8, 6, 5], [8, 4, 3, 3], {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}),
    "grouped": ([1, 8, 5, 5], [8, 3, 3, 3], {"group": 4, "dilations": [2, 1]}),
    "uneven pads": ([1, 4, 6, 7], [4, 6, 3, 4], {"strides": [2, 3], "pads": [0, 2, 1, 0]}),
    "output shape": ([1, 4, 6, 7], [4, 4, 3, 3], {"strides": [2, 2], "output_shape": [12, 14]}),
    "output shape beyond": ([1, 4, 3, 3], [4, 2, 3, 3], {"strides": [3, 2], "output_shape": [10, 8]}),
    "same upper": ([1, 4, 6, 7], [4, 4, 3, 3], {"strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    "1-D": ([2, 4, 9], [4, 6, 4], {"strides": [2], "pads": [1, 1]}),
    "3-D": ([1, 4, 3, 4, 5], [4, 4, 2, 2, 2], {"strides": [2, 2, 2]}),
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("name", TRANSPOSED)
def test_conv_transpose(ep_session: MakeSession, name: str, bias: bool, dtype: str) -> None:
    x_shape, w_shape, attrs = TRANSPOSED[name]
    outputs = w_shape[1] * attrs.get("group", 1)
    arrays = [sample(x_shape, np.float64, 1), sample(w_shape, np.float64, 2)]
    arrays += [sample([outputs], np.float64, 3)] if bias else []
    inputs = [a.astype(dtype) for a in arrays]
    feeds = {f"x{i}": a for i, a in enumerate(inputs)}
    (found,) = ep_session(model("ConvTranspose", inputs, attrs)).run(None, feeds)
    # ONNX Runtime in float32 on the rounded values; its own error is within the bound's margin.
    wide = [a.astype(np.float32) for a in inputs]
    (exact,) = reference(model("ConvTranspose", wide, attrs), dict(zip(feeds, wide, strict=True)))
    sizes = [np.abs(a) for a in wide]
    (magnitude,) = reference(model("ConvTranspose", sizes, attrs), dict(zip(feeds, sizes, strict=True)))
    # The bias is always added in a second pass.
    between = np.abs(exact) + np.abs(wide[2]).reshape(-1, *[1] * (len(x_shape) - 2)) if bias else 0.0
    assert_sum_of_products(found, exact, magnitude, int(np.prod(w_shape) // w_shape[1]), dtype, between)
