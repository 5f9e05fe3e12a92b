"""What the ``providers`` argument becomes."""

from __future__ import annotations

import pytest

from cuvil_onnx.runtime import providers

OURS, CPU = "CuvilExecutionProvider", "CPUExecutionProvider"


@pytest.fixture
def available(monkeypatch):
    monkeypatch.setattr(providers, "unavailable_reason", lambda: None)


@pytest.fixture
def unavailable(monkeypatch):
    monkeypatch.setattr(providers, "unavailable_reason", lambda: "no GPU")


def test_default(available):
    resolved = providers.resolve(None, None)
    assert resolved.names == [OURS, CPU]
    assert resolved.ours == {}
    assert resolved.cuda is None


def test_options_in_either_form(available):
    paired = providers.resolve([(OURS, {"device_id": 1}), CPU], None)
    apart = providers.resolve([OURS, CPU], [{"device_id": 1}, {}])
    assert paired == apart
    assert paired.ours == {"device_id": "1"}


def test_the_order_of_the_gpu_providers(available):
    cuda = "CUDAExecutionProvider"
    assert providers.resolve([OURS, cuda, CPU], None).ours_first
    assert not providers.resolve([cuda, OURS, CPU], None).ours_first
    assert providers.resolve([OURS, cuda, CPU], None).foreign == []
    assert providers.resolve([OURS, "TensorrtExecutionProvider", CPU], None).foreign == ["TensorrtExecutionProvider"]


def test_unavailable_leaves_the_rest(unavailable):
    resolved = providers.resolve([OURS, "CUDAExecutionProvider"], None)
    assert resolved.names == ["CUDAExecutionProvider"]
    assert resolved.fallback == "no GPU"
    assert providers.resolve([OURS], None).names == [CPU]


def test_availability_matters_only_to_those_who_ask_for_it(unavailable):
    assert providers.resolve([CPU], None).fallback is None


def test_bad_arguments(available):
    with pytest.raises(ValueError, match="same length"):
        providers.resolve([OURS], [{}, {}])
    with pytest.raises(ValueError, match="strings or"):
        providers.resolve([(OURS, 3)], None)
    with pytest.raises(ValueError, match="strings or"):
        providers.resolve([(OURS,)], None)
    with pytest.raises(ValueError, match="not a string"):
        providers.resolve(OURS, None)
    for options in ({0: {}}, 3):
        with pytest.raises(ValueError, match="should be a sequence"):
            providers.resolve([OURS], options)
    with pytest.raises(ValueError, match="must be dicts"):
        providers.resolve([OURS], [3])
    with pytest.raises(ValueError, match="Only string values"):
        providers.resolve([(OURS, {"device_id": 1})], [{"device_id": 0}])


def test_options_that_forbid_the_cpu_leave_it_out(available):
    """ONNX Runtime refuses the CPU by name together with session.disable_cpu_ep_fallback."""
    assert providers.resolve(None, None, no_cpu=True).names == [OURS]


def test_options_that_forbid_the_cpu_make_a_missing_gpu_an_error(unavailable):
    with pytest.raises(RuntimeError, match=r"disable_cpu_ep_fallback.*no GPU"):
        providers.resolve([OURS], None, no_cpu=True)


def test_option_values_are_read_by_the_providers_own_rule():
    assert providers.flag({"enable_cuda_graph": "True"}, "enable_cuda_graph", False)
    assert not providers.flag({"enable_cuda_graph": "0"}, "enable_cuda_graph", True)
    assert providers.flag({}, "enable_cuda_graph", True)
    with pytest.raises(ValueError, match="enable_cuda_graph='maybe'"):
        providers.flag({"enable_cuda_graph": "maybe"}, "enable_cuda_graph", True)
    assert providers.number({"device_id": "3"}, "device_id") == 3
    for text in ("first", "-1", "1.5", ""):
        with pytest.raises(ValueError, match="device_id="):
            providers.number({"device_id": text}, "device_id")
