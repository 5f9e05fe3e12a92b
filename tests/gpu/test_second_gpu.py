"""A session on a GPU that is not the first one. Skipped where there is one GPU."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime as ort
import pytest

import cuvil_onnx
from cuvil_onnx.runtime.cuda_driver import context
from cuvil_onnx.runtime.devices import devices
from cuvil_onnx.runtime.registration import EP_NAME, unavailable_reason
from models import zoo
from tests.gpu.conftest import SHARED_CARD
from tests.runtime.small_models import affine

pytestmark = pytest.mark.skipif(unavailable_reason() is not None or len(devices()) < 2, reason="needs two NVIDIA GPUs")

B = np.arange(4, dtype=np.float32)


def rows(n, seed=0):
    return np.random.default_rng(seed).standard_normal((n, 4)).astype(np.float32)


@pytest.mark.parametrize("policy", ["never", "always"])
def test_device_id_chooses_the_gpu(policy):
    providers = [(EP_NAME, {"device_id": 1})]
    with cuvil_onnx.InferenceSession(affine(), providers=providers, cuda_graph=policy) as session:
        for seed in range(4):
            x = rows(5, seed)
            np.testing.assert_array_equal(session.run(None, {"x": x, "b": B})[0], np.maximum(x, 0) + B)


def test_plain_session_and_bound_values():
    session = ort.InferenceSession(affine().SerializeToString(), providers=[(EP_NAME, {"device_id": "1"})])
    x = rows(3)
    np.testing.assert_array_equal(session.run(None, {"x": x, "b": B})[0], np.maximum(x, 0) + B)


def test_memory_is_taken_on_that_gpu():
    if SHARED_CARD:
        pytest.skip("measures memory of a card that other tests use too")
    first, second = context(0).memory_info()[0], context(1).memory_info()[0]
    model = zoo.get("resnet50_light")
    with cuvil_onnx.InferenceSession(
        cuvil_onnx.optimize(model.build(), verify=False), providers=[(EP_NAME, {"device_id": 1})]
    ) as session:
        for seed in range(3):
            session.run(None, model.inputs(1, seed))
        assert second - context(1).memory_info()[0] > 50 << 20  # ResNet-50 has 100 MB of weights
        assert first - context(0).memory_info()[0] <= 4 << 20  # nothing but the driver's own


def test_two_gpus_side_by_side():
    """Sessions on both GPUs in turn: each keeps its buffers, streams and graphs."""
    sessions = [
        cuvil_onnx.InferenceSession(affine(), providers=[(EP_NAME, {"device_id": d})], cuda_graph="always")
        for d in range(2)
    ]
    for i in range(12):
        x = rows(2 + i % 3, i)
        for session in sessions:
            np.testing.assert_array_equal(session.run(None, {"x": x, "b": B})[0], np.maximum(x, 0) + B)
    for session in sessions:
        session.close()


def test_the_callers_current_context_stays():
    """Not even a context is made on the first GPU for threads that use none."""

    def contexts():
        before = current_context()
        ort.InferenceSession(affine().SerializeToString(), providers=[(EP_NAME, {"device_id": "1"})])
        return before, current_context()

    with ThreadPoolExecutor(1) as pool:
        before, after = pool.submit(contexts).result()
    assert before == after is None


def current_context():
    context = ctypes.c_void_p()
    assert ctypes.CDLL("libcuda.so.1").cuCtxGetCurrent(ctypes.byref(context)) == 0
    return context.value
