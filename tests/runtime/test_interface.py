"""The edges of the session's interface: odd arguments, the end of its life, what it leaves of the caller's objects."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import weakref

import ml_dtypes
import numpy as np
import onnx_graphsurgeon
import onnxruntime
import pytest
from onnx import TensorProto
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

import cuvil_onnx
from cuvil_onnx.runtime import stream_pool
from cuvil_onnx.runtime.opening import Opened
from cuvil_onnx.runtime.placement import assignment
from tests.runtime import fake_gpu
from tests.runtime.small_models import affine, identity

CPU = ["CPUExecutionProvider"]
X = np.array([[-1, 2, -3, 4]], np.float32)
FEED = {"x": X, "b": np.arange(4, dtype=np.float32)}
EXPECTED = np.maximum(X, 0) + FEED["b"]


@pytest.fixture
def session():
    return cuvil_onnx.InferenceSession(affine(), providers=CPU)


@pytest.mark.parametrize("output", ["numpy", "device"])
def test_an_output_named_twice_comes_twice(session, output):
    first, second = session.run(["z", "z"], FEED, output=output)
    np.testing.assert_array_equal(np.asarray(first if output == "numpy" else first.numpy()), EXPECTED)
    assert type(first) is type(second)


def test_names_of_outputs_may_be_any_iterable():
    graph = onnx_graphsurgeon.import_onnx(affine())
    graph.outputs.append(graph.nodes[0].outputs[0].to_variable(np.float32, ["N", 4]))
    session = cuvil_onnx.InferenceSession(graph, providers=CPU)
    for names in (["y"], ("y",), {"y": 1}.keys(), np.array(["y"]), (name for name in ["y"])):
        (y,) = session.run(names, FEED)
        np.testing.assert_array_equal(y, np.maximum(X, 0))
    assert len(session.run(np.array(["y", "z"]), FEED)) == 2


def test_an_output_named_twice_comes_twice_in_bfloat16():
    session = cuvil_onnx.InferenceSession(identity(TensorProto.BFLOAT16), providers=CPU)
    x = np.array([1, 2], ml_dtypes.bfloat16)
    for y in session.run(["y", "y"], {"x": x}):
        np.testing.assert_array_equal(y, x)


def test_arguments_of_another_kind_are_told(session):
    with pytest.raises(TypeError, match="not a string"):
        session.run("z", FEED)
    for feed in (None, [X]):
        with pytest.raises(TypeError, match="map input names"):
            session.run(None, feed)
    counts = cuvil_onnx.InferenceSession(identity(TensorProto.UINT8), providers=CPU)
    with pytest.raises(InvalidArgument, match="input x is no tensor"):
        counts.run(None, {"x": [300]})
    with pytest.raises(ValueError, match="max_captured_graphs"):
        cuvil_onnx.InferenceSession(affine(), max_captured_graphs="3")


def test_foreign_byte_order_is_refused(session):
    """ONNX Runtime itself reads such an array as if it were native."""
    with pytest.raises(InvalidArgument, match="data type for input: x"):
        session.run(None, {**FEED, "x": X.astype(">f4")})


def test_a_closed_session_says_so_whatever_is_asked(session):
    session.close()
    session.close()
    calls = [
        lambda: session.run(None, FEED),
        lambda: session.run_async(None, FEED, print, None),
        lambda: session.run_with_ort_values(None, {}),
        lambda: session.run_with_iobinding(None),
        session.__enter__,
        session.placement,
        session.io_binding,
        session.get_inputs,
        lambda: session.get_modelmeta(),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match="the session is closed"):
            call()


def test_a_session_is_neither_copied_nor_pickled(session):
    """A copy would give the same stream and graphs back a second time."""
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="make another one"):
            make(session)


def test_the_last_reference_frees_it():
    """GPU memory must not wait for the garbage collector."""
    session = cuvil_onnx.InferenceSession(affine(), providers=CPU)
    inner = weakref.ref(session._session)
    gc.disable()
    try:
        del session
        assert inner() is None
    finally:
        gc.enable()


def test_the_callers_options_serve_many_sessions(capfd):
    options = onnxruntime.SessionOptions()
    for _ in range(2):
        cuvil_onnx.InferenceSession(affine(), options, providers=CPU)
    assert "already exists" not in capfd.readouterr().err  # what ONNX Runtime says of an entry that is set twice


def test_options_that_forbid_the_cpu_are_obeyed(monkeypatch):
    monkeypatch.setattr("cuvil_onnx.runtime.providers.unavailable_reason", lambda: "the reason")
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with pytest.raises(RuntimeError, match="the reason"):
        cuvil_onnx.InferenceSession(affine(), options)


def test_onnx_runtimes_own_binding_and_argument_name():
    session = cuvil_onnx.InferenceSession(path_or_bytes=affine().SerializeToString(), providers=CPU)
    binding = onnxruntime.IOBinding(session)
    for name, value in FEED.items():
        binding.bind_cpu_input(name, value)
    binding.bind_output("z")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], EXPECTED)


def test_a_graphsurgeon_graph():
    graph = onnx_graphsurgeon.import_onnx(affine())
    (z,) = cuvil_onnx.InferenceSession(graph, providers=CPU).run(None, FEED)
    np.testing.assert_array_equal(z, EXPECTED)


def test_a_chosen_graph_id_is_refused_where_replay_would_return_stale_memory(session):
    """`run` binds other memory each time; a graph would go on with what it was captured with."""
    session._graphs = object()  # as on a GPU
    options = onnxruntime.RunOptions()
    options.add_run_config_entry("gpu_graph_id", "7")
    with pytest.raises(ValueError, match="run_with_iobinding"):
        session.run(None, FEED, options)
    session.run(None, FEED, onnxruntime.RunOptions())


def test_close_lets_go_of_everything_even_when_the_gpu_fails(session, monkeypatch):
    returned = []
    monkeypatch.setattr(stream_pool, "give_back", returned.append)
    stream = fake_gpu.Stream()
    stream.synchronize = lambda: (_ for _ in ()).throw(RuntimeError("an illegal memory access"))
    session._graphs, session._stream = object(), stream
    session._opened = Opened(session._session, stream, pooled=True)
    with pytest.raises(RuntimeError, match="illegal"):
        session.close()
    assert returned == [stream]
    session.close()
    assert returned == [stream]
    with pytest.raises(RuntimeError, match="closed"):
        session.run(None, FEED)


WITHOUT_ORT = """
import sys
sys.modules["onnxruntime"] = None
import cuvil_onnx
try:
    cuvil_onnx.InferenceSession
except ImportError as error:
    print(error)
"""


def test_without_onnxruntime_the_import_works_and_a_session_says_what_to_install():
    done = subprocess.run([sys.executable, "-c", WITHOUT_ORT], capture_output=True, text=True, check=True)
    assert "InferenceSession needs onnxruntime" in done.stdout
    assert ".[gpu]" in done.stdout


def test_an_older_onnxruntime_cannot_tell_where_nodes_run():
    with pytest.raises(NotImplementedError, match="does not tell where nodes run"):
        assignment(object(), {}, "")
