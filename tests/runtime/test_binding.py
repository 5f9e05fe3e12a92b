"""Bindings of the caller's: what identifies a captured graph, and what keeps one from being made."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest

from cuvil_onnx.runtime import binding as module
from cuvil_onnx.runtime.binding import BindingRunner, IOBinding
from cuvil_onnx.runtime.capture import OrtCapture
from cuvil_onnx.runtime.graph_cache import GraphCache
from cuvil_onnx.runtime.graph_runner import NotCapturable
from tests.runtime.small_models import affine


@pytest.fixture
def binding(monkeypatch):
    """A binding whose base class accepts device addresses without a device."""
    for name in ("bind_input", "bind_output", "bind_ortvalue_input", "bind_ortvalue_output"):
        monkeypatch.setattr(onnxruntime.IOBinding, name, lambda *_: None)
    session = onnxruntime.InferenceSession(affine().SerializeToString(), providers=["CPUExecutionProvider"])
    return IOBinding(session)


def fill(binding, x=0x1000, z=0x2000, rows=2):
    binding.bind_input("x", "cuda", 0, np.float32, [rows, 4], x)
    binding.bind_input("b", "cuda", 0, np.float32, [4], 0x3000)
    binding.bind_output("z", "cuda", 0, np.float32, [rows, 4], z)
    return binding.key()


def test_the_key_changes_with_addresses_shapes_and_comes_back(binding):
    first = fill(binding)
    assert fill(binding, x=0x1100) != first
    assert fill(binding, z=0x2100) != first
    assert fill(binding, rows=3) != first
    assert fill(binding) == first
    assert hash(fill(binding)) == hash(first)


def test_host_memory_and_open_outputs_are_not_captured(binding):
    fill(binding)
    binding.bind_output("z", "cuda")
    with pytest.raises(NotCapturable, match="'z' is not bound to a fixed"):
        binding.key()
    fill(binding)
    binding.bind_ortvalue_input("b", onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(4, np.float32)))
    with pytest.raises(NotCapturable, match="'b'"):
        binding.key()


def test_an_output_over_an_input_is_not_captured(binding):
    with pytest.raises(NotCapturable, match="'z' is bound to the memory of an input"):
        fill(binding, x=0x2000, z=0x2000)


@pytest.mark.parametrize("z", [0x2010, 0x1FF0], ids=["over its end", "over its start"])
def test_an_output_over_part_of_an_input_is_not_captured(binding, z):
    with pytest.raises(NotCapturable, match="'z' is bound to the memory of an input"):
        fill(binding, x=0x2000, z=z)
    fill(binding, x=0x2000, z=0x2020)  # [2, 4] of float: right behind it


def test_a_type_is_the_same_by_any_name(binding):
    keys = []
    for kind in (np.float32, np.dtype("float32"), 1):
        fill(binding)
        binding.bind_input("x", "cuda", 0, kind, [2, 4], 0x1000)
        keys.append(binding.key())
    assert keys[0] == keys[1] == keys[2]


def test_clearing_forgets(binding):
    first = fill(binding)
    binding.clear_binding_outputs()
    assert binding.key() != first


class Session:
    """Records the graph id of each run."""

    def __init__(self):
        self.ids, self.fail = [], False

    def run_with_iobinding(self, _binding, options):
        graph_id = int(options.get_run_config_entry("gpu_graph_id"))
        if self.fail and graph_id >= 0:
            raise RuntimeError("cannot capture")
        self.ids.append(graph_id)


def runner(session, policy, on_host=False):
    slot = SimpleNamespace(name="s", on_host=on_host)
    cache = GraphCache(4, lambda _id: None)
    signature = SimpleNamespace(inputs=[slot], outputs=[])
    return BindingRunner(session, signature, cache, policy, OrtCapture(session)), cache


def test_auto_runs_eagerly_first_and_then_with_one_id(binding):
    session = Session()
    run, cache = runner(session, "auto")
    fill(binding)
    for _ in range(3):
        run.run(binding)
    assert session.ids[0] == -1
    assert session.ids[1] == session.ids[2] >= 0
    assert len(cache) == 1


def test_other_addresses_get_another_id(binding):
    session = Session()
    run, _ = runner(session, "always")
    for x in (0x1000, 0x1100, 0x1000):
        fill(binding, x=x)
        run.run(binding)
    assert session.ids[0] == session.ids[2] != session.ids[1]


def test_a_failing_capture_falls_back_to_an_eager_run(binding):
    session = Session()
    session.fail = True
    run, cache = runner(session, "auto")
    fill(binding)
    for _ in range(4):
        run.run(binding)
    assert session.ids == [-1] * 4
    assert cache.refusals() == ["cannot capture"]


def test_models_that_read_an_input_on_the_host_are_not_captured(binding):
    session = Session()
    run, cache = runner(session, "auto", on_host=True)
    fill(binding)
    for _ in range(3):
        run.run(binding)
    assert session.ids == [-1] * 3
    assert cache.refusals() == ["'s' lives on the host"]
    with pytest.raises(RuntimeError, match=r"always.*'s' lives on the host"):
        runner(session, "always", on_host=True)[0].run(binding)


def test_ortvalues_on_the_host_have_no_place():
    assert module._ortvalue_place(onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(1))) is None
