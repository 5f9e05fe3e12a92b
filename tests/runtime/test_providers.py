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
    assert resolved.alone


def test_options_in_either_form(available):
    paired = providers.resolve([(OURS, {"device_id": 1}), CPU], None)
    apart = providers.resolve([OURS, CPU], [{"device_id": 1}, {}])
    assert paired == apart
    assert paired.ours == {"device_id": "1"}


def test_another_gpu_provider_rules_capture_out(available):
    assert not providers.resolve([OURS, "CUDAExecutionProvider", CPU], None).alone


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
