"""The zoo's models on a real GPU: entirely in the provider, captured, and right. Skipped without one."""

from __future__ import annotations

import threading

import numpy as np
import onnxruntime
import pytest

import cuvil_onnx
from cuvil_onnx.bench.accuracy import largest_difference
from cuvil_onnx.runtime.cuda_driver import context
from cuvil_onnx.runtime.registration import EP_NAME, unavailable_reason
from models import zoo
from tests.gpu.conftest import SHARED_CARD
from tests.gpu.whole_models import BOUNDS, Case

pytestmark = pytest.mark.skipif(unavailable_reason() is not None, reason=str(unavailable_reason()))

MODELS = ("tiny", "ppocr_cls", "minilm", "resnet50_light", "resnet50")


@pytest.fixture(scope="module", params=[(m, p) for m in MODELS for p in BOUNDS], ids=lambda p: "-".join(p))
def case(request):
    made = Case(*request.param)
    yield made
    made.session.close()


def test_every_node_but_shape_arithmetic_is_in_the_provider(case):
    assert case.elsewhere() == [], str(case.session.placement())


def test_right_before_and_after_capture(case):
    for seed in range(6):
        case.check(1, seed)
    assert case.session.captured_graphs == 1, case.session.placement().cuda_graph


def test_two_shapes_alternating(case):
    if len(case.entry.batches) < 2:
        pytest.skip("the model has one shape")
    for i in range(8):
        case.check(case.entry.batches[i % 2], i)


def test_the_model_as_given_is_right_too(case):
    """Without the optimizer: standard ops alone, as in a session of plain ONNX Runtime."""
    if case.precision != "fp32":
        pytest.skip("the given model is fp32")
    with cuvil_onnx.InferenceSession(case.entry.build()) as session:
        feed = case.entry.inputs(1, 0)
        want = dict(zip(case.names, case.reference.run(case.names, feed), strict=True))
        for _ in range(4):
            got = dict(zip(case.names, session.run(case.names, feed), strict=True))
            assert largest_difference(got, want)[1] <= case.bound


@pytest.mark.parametrize("name", ["minilm", "ppocr_cls", "resnet50"])
def test_a_thousand_replays_two_threads_flat_memory(name):
    """Changing inputs from two threads: every result equals, bit for bit, that of its first run."""
    case = Case(name, "fp16")
    feeds = [case.entry.inputs(1, seed) for seed in range(8)]
    for _ in range(2):
        expected = [case.session.run(case.names, feed) for feed in feeds]
    before, wrong = context(0).memory_info()[0], []

    def work(offset):
        for i in range(500):
            k = (i + offset) % len(feeds)
            got = case.session.run(case.names, feeds[k])
            if not all(np.array_equal(g, w) for g, w in zip(got, expected[k], strict=True)):
                wrong.append((offset, i))

    threads = [threading.Thread(target=work, args=(3 * t,)) for t in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert case.session.captured_graphs == 1
    # Replays allocate nothing; the driver may still take one 2 MiB block for itself.
    if not SHARED_CARD:
        assert before - context(0).memory_info()[0] <= 4 << 20
    case.session.close()


def test_cpu_fallback_switched_off_accepts_the_convolutional_model():
    """ONNX Runtime's own proof: creation fails when a node would land on the CPU."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    optimized = cuvil_onnx.optimize(zoo.get("resnet50_light").build(), verify=False)
    with cuvil_onnx.InferenceSession(optimized, options, providers=[EP_NAME]) as session:
        feed = zoo.get("resnet50_light").inputs(1, 0)
        assert np.isfinite(session.run(None, feed)[0]).all()
