"""The session without a GPU: ONNX Runtime's interface, checks before a run, fallback. With one: tests/gpu."""

from __future__ import annotations

import threading
import warnings

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument, InvalidProtobuf, NoSuchFile

import cuvil_onnx
from cuvil_onnx.runtime.providers import CuvilFallbackWarning
from tests.runtime.small_models import affine, identity

CPU = ["CPUExecutionProvider"]
X = np.array([[-1, 2, -3, 4], [5, -6, 7, -8]], np.float32)
B = np.arange(4, dtype=np.float32)
EXPECTED = np.maximum(X, 0) + B


@pytest.fixture(scope="module")
def session():
    return cuvil_onnx.InferenceSession(affine(), providers=CPU)


class Result:
    """Stands for what cuvil_onnx.optimize returns."""

    model = affine()
    report = "a report"


def test_every_form_of_model(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(affine(), path)
    for model in (str(path), path, affine().SerializeToString(), affine(), Result()):
        (z,) = cuvil_onnx.InferenceSession(model, providers=CPU).run(None, {"x": X, "b": B})
        np.testing.assert_array_equal(z, EXPECTED)


def test_a_thing_that_is_no_model():
    with pytest.raises(TypeError, match="not int"):
        cuvil_onnx.InferenceSession(3, providers=CPU)


def test_errors_of_loading_are_onnx_runtimes(tmp_path):
    with pytest.raises(NoSuchFile):
        cuvil_onnx.InferenceSession(tmp_path / "missing.onnx", providers=CPU)
    with pytest.raises(InvalidProtobuf):
        cuvil_onnx.InferenceSession(b"this is no model", providers=CPU)


def test_onnx_runtimes_interface(session):
    stock = onnxruntime.InferenceSession(affine().SerializeToString(), providers=CPU)
    assert [i.name for i in session.get_inputs()] == [i.name for i in stock.get_inputs()]
    assert [o.shape for o in session.get_outputs()] == [o.shape for o in stock.get_outputs()]
    assert session.get_providers() == CPU
    assert session.get_modelmeta().graph_name == "affine"
    assert session.get_session_options() is not None
    assert session.get_provider_options() == stock.get_provider_options()
    (value,) = session.run_with_ort_values(None, {n: onnxruntime.OrtValue.ortvalue_from_numpy(a) for n, a in FEED})
    np.testing.assert_array_equal(value.numpy(), EXPECTED)


FEED = [("x", X), ("b", B)]


def test_io_binding(session):
    binding = session.io_binding()
    binding.bind_cpu_input("x", X)
    binding.bind_cpu_input("b", B)
    binding.bind_output("z")
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(binding.copy_outputs_to_cpu()[0], EXPECTED)


def test_run_async(session):
    done, seen = threading.Event(), []

    def callback(results, user_data, error):
        seen.extend([results, user_data, error])
        done.set()

    session.run_async(None, {"x": X, "b": B}, callback, "mine")
    assert done.wait(30)
    np.testing.assert_array_equal(seen[0][0], EXPECTED)
    assert seen[1:] == ["mine", ""]


@pytest.mark.parametrize(
    "x",
    [X.tolist(), X[:, ::-1][:, ::-1], np.asfortranarray(X), onnxruntime.OrtValue.ortvalue_from_numpy(X)],
    ids=["list", "strided", "fortran", "ortvalue"],
)
def test_forms_of_input(session, x):
    np.testing.assert_array_equal(session.run(["z"], {"x": x, "b": B})[0], EXPECTED)


def test_bfloat16_in_and_out():
    x = np.array([1.5, -2, 3], ml_dtypes.bfloat16)
    (y,) = cuvil_onnx.InferenceSession(identity(TensorProto.BFLOAT16), providers=CPU).run(None, {"x": x})
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, x)


def test_strings_are_left_to_onnx_runtime():
    (y,) = cuvil_onnx.InferenceSession(identity(TensorProto.STRING), providers=CPU).run(None, {"x": ["a", "bc"]})
    assert list(y) == ["a", "bc"]


def test_an_overridable_initializer_may_be_fed():
    model = affine()
    model.graph.initializer.append(onnx.numpy_helper.from_array(B, "b"))
    session = cuvil_onnx.InferenceSession(model, providers=CPU)
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], EXPECTED)
    np.testing.assert_array_equal(session.run(None, {"x": X, "b": B * 0})[0], np.maximum(X, 0))


WRONG = {
    "missing": ({"x": X}, ValueError, r"Required inputs \(\['b'\]\) are missing"),
    "unknown name": ({"x": X, "b": B, "c": B}, InvalidArgument, "Invalid input name: c"),
    "type": ({"x": X.astype(np.float64), "b": B}, InvalidArgument, r"input: x.*\(tensor\(double\)\) , expected"),
    "rank": ({"x": X[0], "b": B}, InvalidArgument, "Invalid rank for input: x Got: 1 Expected: 2"),
    "dimension": ({"x": X[:, :3], "b": B}, InvalidArgument, "index: 1 Got: 3 Expected: 4"),
    "text": ({"x": "abc", "b": B}, InvalidArgument, "input x is no tensor"),
    "none": ({"x": None, "b": B}, InvalidArgument, "input x is no tensor"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_feeds_are_refused_before_anything_runs(session, case):
    feed, error, message = WRONG[case]
    with pytest.raises(error, match=message):
        session.run(None, feed)


def test_unknown_output_name(session):
    with pytest.raises(InvalidArgument, match="Invalid output name:q"):
        session.run(["q"], {"x": X, "b": B})


def test_outputs_of_earlier_runs_survive(session):
    (first,) = session.run(None, {"x": X, "b": B})
    session.run(None, {"x": X * 3, "b": B})
    np.testing.assert_array_equal(first, EXPECTED)


def test_output_device_gives_ortvalues(session):
    (value,) = session.run(None, {"x": X, "b": B}, output="device")
    assert isinstance(value, onnxruntime.OrtValue)
    np.testing.assert_array_equal(value.numpy(), EXPECTED)


def test_run_options_of_the_caller(session):
    options = onnxruntime.RunOptions()
    np.testing.assert_array_equal(session.run(None, {"x": X, "b": B}, options)[0], EXPECTED)
    assert options.get_run_config_entry("gpu_graph_id") == "-1"
    chosen = onnxruntime.RunOptions()
    chosen.add_run_config_entry("gpu_graph_id", "7")
    session.run(None, {"x": X, "b": B}, chosen)
    assert chosen.get_run_config_entry("gpu_graph_id") == "7"


def test_threads_get_their_own_results(session):
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(50):
            x = rng.standard_normal((rng.integers(1, 5), 4)).astype(np.float32)
            if not np.array_equal(session.run(None, {"x": x, "b": B})[0], np.maximum(x, 0) + B):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="cuda_graph must be one of"):
        cuvil_onnx.InferenceSession(affine(), cuda_graph="maybe")
    with pytest.raises(ValueError, match="output must be"):
        cuvil_onnx.InferenceSession(affine(), output="gpu")
    with pytest.raises(ValueError, match="at least 1"):
        cuvil_onnx.InferenceSession(affine(), max_captured_graphs=0)


def test_fallback_warns_once_and_says_why(monkeypatch):
    monkeypatch.setattr("cuvil_onnx.runtime.providers.unavailable_reason", lambda: "the reason")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        session = cuvil_onnx.InferenceSession(affine())
    assert [w.category for w in caught] == [CuvilFallbackWarning]
    assert "the reason" in str(caught[0].message)
    assert caught[0].filename == __file__
    assert session.get_providers() == CPU
    assert {n.reason for n in session.placement()} == {"the reason"}
    assert session.placement().cuda_graph == "eager: the reason"


def test_always_refuses_to_fall_back_silently(monkeypatch):
    monkeypatch.setattr("cuvil_onnx.runtime.providers.unavailable_reason", lambda: "the reason")
    with pytest.warns(CuvilFallbackWarning), pytest.raises(RuntimeError, match=r"always.*the reason"):
        cuvil_onnx.InferenceSession(affine(), cuda_graph="always")


def test_placement_names_nodes_and_reason(session):
    report = session.placement()
    assert [(n.node, n.op_type, n.provider) for n in report] == [
        ("relu", "Relu", CPU[0]),
        ("add", "Add", CPU[0]),
    ]
    assert report.counts() == {CPU[0]: 2}
    text = str(report)
    assert text.count("not among the session's providers") == 1
    assert "Relu 'relu', Add 'add'" in text


def test_devices_on_the_session_options_are_respected():
    options = onnxruntime.SessionOptions()
    cpu = [d for d in onnxruntime.get_ep_devices() if d.ep_name == CPU[0]]
    options.add_provider_for_devices(cpu, {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = cuvil_onnx.InferenceSession(affine(), options)
    np.testing.assert_array_equal(session.run(None, {"x": X, "b": B})[0], EXPECTED)


def test_closed_session_says_so():
    with cuvil_onnx.InferenceSession(affine(), providers=CPU) as session:
        pass
    with pytest.raises(RuntimeError, match="closed"):
        session.run(None, {"x": X, "b": B})


def test_a_failing_run_raises_and_is_not_repeated_on_other_providers():
    graph = helper.make_graph(
        [helper.make_node("Reshape", ["x", "s"], ["y"], name="bad_reshape")],
        "g",
        [helper.make_tensor_value_info("x", 1, ["N"]), helper.make_tensor_value_info("s", 7, [1])],
        [helper.make_tensor_value_info("y", 1, ["M"])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    session = cuvil_onnx.InferenceSession(model, providers=CPU)
    with pytest.raises(Exception, match="bad_reshape"):
        session.run(None, {"x": np.ones(4, np.float32), "s": np.array([3])})


def test_what_is_not_offered_says_so(session):
    with pytest.raises(NotImplementedError):
        session.set_providers(CPU)
    with pytest.raises(NotImplementedError):
        session.enable_fallback()
    with pytest.raises(AttributeError):
        session.no_such_thing  # noqa: B018


class Large:
    """Stands for an optimized model above 2 GB: its proto refers to files, only ``save`` writes all of it."""

    report = ""

    def __init__(self):
        self.model = affine()
        weight = onnx.numpy_helper.from_array(B, "b")
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value="elsewhere.bin")
        weight.ClearField("raw_data")
        self.model.graph.initializer.append(weight)

    def save(self, path):
        onnx.save(affine(), path)


def test_an_optimized_model_with_external_weights_goes_through_a_file():
    session = cuvil_onnx.InferenceSession(Large(), providers=CPU)
    np.testing.assert_array_equal(session.run(None, {"x": X, "b": B})[0], EXPECTED)
