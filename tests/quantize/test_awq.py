"""AWQ: channels that matter are rounded finely, and the scales are folded away without changing the model."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import cuvil_onnx
from cuvil_onnx.quantize.grid import Grid
from cuvil_onnx.quantize.scheme import Layer, make_scheme
from cuvil_onnx.quantize.schemes.awq import MAX_RATIO, channel_scale
from tests.quantize.quantize_testing import graph, ops, rows, run, weight, weights_of
from tests.quantize.scheme_testing import GRIDS, activations, context, layer, output_noise, rounded, statistics

K, INNER = 64, 96


@pytest.mark.parametrize("grid", [g for g in GRIDS if g.bits == 4], ids=str)
@pytest.mark.parametrize("rounding", ["nearest", "gptq"])
def test_fewer_errors_than_without_scales(grid: Grid, rounding: str) -> None:
    item = layer()
    without = "rtn" if rounding == "nearest" else "gptq"
    assert output_noise(item, rounded("awq", grid, item, rounding=rounding)[0]) < output_noise(
        item, rounded(without, grid, item)[0]
    )


def test_a_channel_with_large_activations_gets_fine_steps() -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((1000, 128)).astype(np.float32)
    x[:, 17] *= 100
    item = Layer("layer", (random.standard_normal((128, 32)) * 0.1).astype(np.float32), statistics(x))
    (plain,), (made,) = rounded("rtn", Grid(4, 128), item), rounded("awq", Grid(4, 128), item)
    assert np.abs(made - item.weight)[17].mean() < 0.3 * np.abs(plain - item.weight)[17].mean()


def test_layers_of_one_input_share_a_scale() -> None:
    q = layer(128, 48)
    k = Layer("k", layer(128, 16, seed=1).weight, q.statistics)
    scale = make_scheme("awq", {}).input_scale([q, k], Grid(4, 64), context())
    assert scale is not None and scale.shape == (128,) and (scale > 0).all()
    both, plain = rounded("awq", Grid(4, 64), q, k), rounded("rtn", Grid(4, 64), q, k)
    before, after = (sum(output_noise(i, w) for i, w in zip((q, k), ws, strict=True)) for ws in (plain, both))
    assert after < before


def test_no_scale_where_it_gains_nothing() -> None:
    """Independent channels of one size, weights of one size: a scale could only do harm."""
    random = np.random.default_rng(1)
    x = random.choice([-1.0, 1.0], (400, 64)).astype(np.float32)
    item = Layer("layer", random.choice([-0.1, 0.1], (64, 32)).astype(np.float32), statistics(x))
    assert make_scheme("awq", {}).input_scale([item], Grid(4, 32), context()) is None
    assert make_scheme("awq", {}).input_scale([Layer("unseen", item.weight)], Grid(4, 32), context()) is None


def test_scales_stay_within_bounds() -> None:
    activation = np.array([0, 1e-20, 1, 1e20], np.float32)
    scale = channel_scale(activation, np.array([0, 1, 1e-3, 0.5], np.float32), 1.0, 0.5, np)
    assert np.isfinite(scale).all() and scale.min() > 0 and scale.max() / scale.min() <= MAX_RATIO * 1.001
    np.testing.assert_array_equal(channel_scale(np.zeros(3, np.float32), np.zeros(3, np.float32), 1.0, 0.0, np), 1)


def decoder_layer() -> onnx.ModelProto:
    """RMS norm -> q, k; LayerNormalization -> gate, up -> gate * up -> down: all places that scales are folded into."""
    return graph(
        f"""(float[M,{K}] x) => (float[M,{K}] y, float[M,{K}] r) {{
            square = Mul(x, x)
            mean = ReduceMean<axes=[-1]>(square)
            moved = Add(mean, epsilon)
            root = Sqrt(moved)
            normal = Div(x, root)
            scaled = Mul(normal, gain)
            q = MatMul(scaled, wq)
            k = MatMul(scaled, wk)
            r = Add(q, k)
            second = LayerNormalization<axis=-1>(r, gain2, bias2)
            gate = MatMul(second, wg)
            up = MatMul(second, wu)
            swish = Sigmoid(gate)
            h = Mul(swish, up)
            y = MatMul(h, wd)
        }}""",
        opset=17,
        epsilon=np.float32(1e-5),
        gain=np.abs(rows(K, seed=1)) + 0.2,
        gain2=np.abs(rows(K, seed=2)) + 0.2,
        bias2=rows(K, seed=3),
        **{name: weight(K, K, seed=i) for i, name in enumerate(("wq", "wk"))},
        **{name: weight(K, INNER, seed=i) for i, name in enumerate(("wg", "wu"), 4)},
        wd=weight(INNER, K, seed=6),
    )


def feeds() -> list[dict[str, np.ndarray]]:
    return [{"x": activations(64, K, seed)} for seed in range(4)]


@pytest.mark.parametrize("rounding", ["nearest", "gptq"])
def test_scales_are_folded_and_nothing_else_changes(rounding: str) -> None:
    """`verify` compares with the float model of W' = dequantized(W * s) / s, in which no scale was folded anywhere."""
    model = decoder_layer()
    result = cuvil_onnx.quantize(
        model,
        f"awq:rounding={rounding}",
        group_size=32,
        include=["*"],
        calibration=feeds(),
        verify=True,
        inputs=feeds(),
    )
    report = result.report.quantization
    assert report is not None and {item.scheme for item in report.layers} == {"awq"}
    assert any("inputs scaled" in item.note for item in report.layers)
    assert "passed" in str(result.report.verification) or "within" in str(result.report.verification)
    # No multiplication came on top.
    before, after = ops(model), ops(result.model)
    assert after["cuvil::MatMulInt4"] == 5 and after["Mul"] + after["Div"] <= before["Mul"] + before["Div"]


def test_folding_at_high_precision_keeps_the_outputs() -> None:
    """With 8 bits in small groups hardly anything is rounded: a scale folded wrongly would show in full."""
    model = decoder_layer()
    arguments = {"bits": 8, "group_size": 16, "symmetric": False, "include": ["*"]}
    result = cuvil_onnx.quantize(model, "awq", calibration=feeds(), **arguments)
    report = result.report.quantization
    assert report is not None and sum("inputs scaled" in item.note for item in report.layers) >= 2
    x = activations(32, K, seed=9)
    for want, got in zip(run(model, x=x), run(result.model, x=x), strict=True):
        # Steps of 1/255 of a group's range of some 4 deviations: 0.5 % of a weight, averaged over 64 terms.
        assert np.abs(got - want).max() < 0.03 * np.abs(want).max()


def test_a_tensor_with_another_reader_is_not_scaled() -> None:
    w = weight(K, K)
    model = graph(
        f"(float[M,{K}] x) => (float[M,{K}] y, float[M,{K}] scaled) {{ scaled = Mul(x, gain) y = MatMul(scaled, w) }}",
        gain=np.abs(rows(K)) + 0.1,
        w=w,
    )
    result = cuvil_onnx.quantize(model, "awq", group_size=32, include=["*"], calibration=feeds())
    x = activations(8, K, 7)
    y, scaled = run(result.model, x=x)
    np.testing.assert_array_equal(scaled, run(model, x=x)[1])
    (rounded_weight,) = weights_of(result.model)
    np.testing.assert_allclose(y, scaled.astype(np.float64) @ rounded_weight, rtol=1e-4, atol=1e-4)


def test_output_error_on_data_is_below_nearest() -> None:
    model, x = decoder_layer(), activations(200, K, 11)
    want = run(model, x=x)[0]
    noise = {}
    for scheme in ("rtn", "awq", "awq:rounding=gptq", "gptq", "autoround"):
        made = cuvil_onnx.quantize(model, scheme, group_size=32, include=["*"], calibration=feeds())
        noise[scheme] = float(np.square(run(made.model, x=x)[0] - want).sum())
    assert all(noise[s] < noise["rtn"] for s in noise if s != "rtn"), noise


def test_the_joint_configuration_rounds_to_its_group() -> None:
    config = {"awq": {"n_bits": 4, "q_group_size": 32}, "group": {"group_size": 16, "symmetric": True}}
    result = cuvil_onnx.quantize(decoder_layer(), config, include=["*"], calibration=feeds(), verify=True)
    report = result.report.quantization
    assert report is not None
    assert {(i.scheme, i.group_size, i.symmetric) for i in report.layers} == {("joint", 16, True)}
    # With equal grids the joint configuration is AWQ.
    same = {"awq": {"n_bits": 4, "q_group_size": 32}, "group": {"group_size": 32, "symmetric": False}}
    one = cuvil_onnx.quantize(decoder_layer(), same, include=["*"], calibration=feeds())
    two = cuvil_onnx.quantize(decoder_layer(), "awq", group_size=32, include=["*"], calibration=feeds())
    for a, b in zip(weights_of(one.model), weights_of(two.model), strict=True):
        np.testing.assert_array_equal(a, b)
