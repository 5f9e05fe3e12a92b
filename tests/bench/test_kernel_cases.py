"""The kernel benchmark's cases and arithmetic; the measuring itself needs a GPU."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest

from benchmarks.kernels.__main__ import TOLERANCE, add_metrics, regressions
from benchmarks.kernels.cases import _convolution, all_cases
from benchmarks.kernels.measure import Figures
from cuvil_onnx.bench.record import Record

CASES = {case.name: case for case in all_cases()}


def shapes(value):
    return tuple(d.dim_value for d in value.type.tensor_type.shape.dim)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_models_are_valid_and_have_the_declared_output(case):
    for program in filter(None, (case.ours, case.stock)):
        model = program.model()
        onnx.checker.check_model(model)
        model.graph.output[0].type.tensor_type.ClearField("shape")
        inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        assert shapes(inferred.graph.output[0]) == program.output.shape


def test_names_are_unique():
    assert len(CASES) == len(all_cases())


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_one_kernel_is_measured_and_not_a_chain(case):
    """What the optimizer leaves is one node: layouts cancelled, bias and activation fused."""
    model = case.optimized()
    onnx.checker.check_model(model)
    assert len(model.graph.node) == 1, [n.op_type for n in model.graph.node]


def test_a_convolution_in_nhwc_is_the_given_one():
    case = _convolution(2, 8, 6, 16, 3)
    x = np.random.default_rng(0).standard_normal((2, 6, 6, 8), np.float32).astype(np.float16)
    given, ours = (
        onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})[
            0
        ]
        for model in (case.ours.model(), case.optimized())
    )
    np.testing.assert_allclose(ours, given, atol=4e-3)  # an fp16 rounding of values up to 4


def test_memory_bound_cases_exceed_the_cache():
    for case in CASES.values():
        assert case.flops or case.nbytes >= 64 << 20, case.name


def measured(us):
    record = Record("kernels", "NVIDIA H200", {})
    case = CASES["gelu/f16_8192x8192"]
    row = add_metrics(record, case, Figures(ours=us, stock=2 * us, torch=us / 2, error=1e-4), (4e12, 8e14))
    return record, row


def test_rates_follow_from_bytes_and_time():
    record, row = measured(100.0)
    metrics = {m.rpartition("/")[2]: e["value"] for m, e in record.metrics.items()}
    assert metrics["gb_s"] == pytest.approx(2 * 2 * 8192**2 / 100e-6 / 1e9, rel=1e-4)
    assert metrics["pct_roof"] == pytest.approx(100 * metrics["gb_s"] / 4000, rel=1e-4)
    assert (metrics["x_stock"], metrics["x_torch"]) == (2, 0.5)
    assert row[4:6] == ["2.00", "0.50"]


def test_a_kernel_without_a_time_has_no_ratio():
    record = Record("kernels", "NVIDIA H200", {})
    add_metrics(record, CASES["gelu/f16_8192x8192"], Figures(torch=5.0), (4e12, 8e14))
    assert list(record.metrics) == ["kernel/gelu/f16_8192x8192/us_torch"]


def test_only_our_own_times_can_regress():
    recorded = {m: e["value"] for m, e in measured(100.0)[0].metrics.items()}
    assert regressions(measured(100.0 * (TOLERANCE - 0.01))[0], recorded) == []
    slower = regressions(measured(100.0 * (TOLERANCE + 0.01))[0], recorded)
    assert len(slower) == 1
    assert slower[0].startswith("kernel/gelu/f16_8192x8192/us: 109.0 us, recorded 100.0")
    assert regressions(measured(1000.0)[0], {}) == []
