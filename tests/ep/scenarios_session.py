"""``cuvil_onnx.InferenceSession`` on the provider's core: its streams, buffers, graphs and threads, on the fake device,
where nothing happens before somebody waits for it and device memory is unreadable by the host."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort

from tests.ep.harness import CHAIN_MODEL, EP, chain, expect, fake_scenario, floats, model, node, on_gpu, used_bytes


def session(data: bytes = CHAIN_MODEL, **arguments: Any) -> Any:
    """A session of ours; the fake library stands for the provider's and for the CUDA driver's."""
    import cuvil_onnx
    from cuvil_onnx.runtime import cuda_driver, registration

    library, load = sys.argv[1], ctypes.CDLL
    registration.get_library_path = lambda **_: library  # type: ignore[assignment]
    cuda_driver.ctypes = SimpleNamespace(  # type: ignore[assignment]
        **{**vars(ctypes), "CDLL": lambda name: load(library if name == "libcuda.so.1" else name)}
    )
    made = cuvil_onnx.InferenceSession(data, **arguments)
    assert made.get_providers()[0] == EP, cuvil_onnx.register()
    return made


def feed(n: int, seed: int) -> dict[str, np.ndarray]:
    return {"x": floats(n, 8, seed=seed), "w": floats(n, 8, seed=seed + 1000)}


def check(got: np.ndarray, fed: dict[str, np.ndarray]) -> None:
    np.testing.assert_array_equal(got, chain(fed["x"], fed["w"]))


@fake_scenario
def session_replays_whatever_the_order_of_shapes() -> None:
    for policy, graphs in (("auto", 2), ("always", 2), ("never", 0)):
        sizes = (1, 3, 1000, 3, 2 if policy == "always" else 0)  # no element cannot be captured, and "always" says so
        with session(cuda_graph=policy, max_captured_graphs=2) as sess:
            kept = []
            for i in range(40):
                fed = feed(sizes[i % 5], i)
                kept.append((sess.run(None, fed)[0], fed))
            for got, fed in kept:
                check(got, fed)
            assert sess.captured_graphs == graphs, sess.placement()


@fake_scenario
def session_keeps_device_tensors_on_the_device() -> None:
    with session(cuda_graph="always") as sess:
        kept = []
        for i in range(10):
            fed = feed(4, i)
            (got,) = sess.run(None, {n: on_gpu(a) for n, a in fed.items()})
            assert got.device_name() != "cpu"
            kept.append((got, fed))
            (host,) = sess.run(None, {"x": on_gpu(fed["x"]), "w": fed["w"]}, output="numpy")
            check(host, fed)
        for got, fed in kept:
            check(got.numpy(), fed)
        first, second = sess.run(["y", "y"], fed, output="device")
        check(first.numpy(), fed)
        check(second.numpy(), fed)
        (view,) = sess.run(None, fed, output="device", reuse_outputs=True)
        sess.run(None, feed(4, 77))
        check(view.numpy(), feed(4, 77))
    check(view.numpy(), feed(4, 77))  # its memory outlives the session
    with session(cuda_graph="never") as sess:
        first, second = sess.run(["y", "y"], {n: on_gpu(a) for n, a in fed.items()})
        check(second.numpy(), fed)


@fake_scenario
def session_waits_for_the_stream_of_a_producer() -> None:
    """The producer's copy has not happened when the session is called: its stream is only named."""
    from cuvil_onnx.runtime.cuda_driver import Stream, context

    for policy in ("always", "never"):
        with session(cuda_graph=policy) as sess:
            for i in range(4):
                fed = feed(4, i)
                x = on_gpu(np.zeros_like(fed["x"]))
                source = on_gpu(fed["x"])
                with context(0):
                    producer = Stream(context(0))
                    producer.copy_on_device(x.data_ptr(), source.data_ptr(), fed["x"].nbytes)
                    array = SimpleNamespace(
                        __cuda_array_interface__={
                            "typestr": "<f4",
                            "shape": (4, 8),
                            "data": (x.data_ptr(), False),
                            "stream": producer.handle,
                            "version": 3,
                        }
                    )
                (got,) = sess.run(None, {"x": array, "w": fed["w"]}, output="numpy")
                check(got, fed)


@fake_scenario
def session_captures_bindings_by_address() -> None:
    with session(cuda_graph="always", max_captured_graphs=2) as sess:
        places = [(on_gpu(floats(4, 8)), on_gpu(floats(4, 8)), on_gpu(floats(4, 8))) for _ in range(3)]
        for i in range(30):
            x, w, y = places[i % 3]
            fed = feed(4, i)
            x.update_inplace(fed["x"])
            w.update_inplace(fed["w"])
            binding = sess.io_binding()
            binding.bind_ortvalue_input("x", x)
            binding.bind_ortvalue_input("w", w)
            binding.bind_ortvalue_output("y", y)
            sess.run_with_iobinding(binding)
            check(y.numpy(), fed)
        assert sess.captured_graphs == 2
        for i in range(3):  # an output over an input is written once a run, never by warm-ups
            x, w, _ = places[0]
            fed = feed(4, i)
            x.update_inplace(fed["x"])
            w.update_inplace(fed["w"])
            binding = sess.io_binding()
            binding.bind_ortvalue_input("x", x)
            binding.bind_ortvalue_input("w", w)
            binding.bind_ortvalue_output("y", x)
            expect(RuntimeError, ["memory of an input"], lambda b=binding: sess.run_with_iobinding(b))


@fake_scenario
def session_serves_threads_while_graphs_are_evicted() -> None:
    wrong: list[Any] = []
    with session(cuda_graph="always", max_captured_graphs=1) as sess:

        def work(seed: int) -> None:
            try:
                for i in range(60):
                    fed = feed(1 + (seed + i) % 3, 100 * seed + i)
                    if not np.array_equal(sess.run(None, fed)[0], chain(fed["x"], fed["w"])):
                        wrong.append((seed, i))
            except Exception as error:
                wrong.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong, wrong[:3]


@fake_scenario
def session_gives_its_memory_back() -> None:
    """At `close`, and with the last reference: not when the garbage collector comes by."""
    gc.disable()
    settled = 0
    for i in range(8):
        sess = session(cuda_graph="always")
        for n in (100, 2000):
            check(sess.run(None, feed(n, i))[0], feed(n, i))
        if i % 2:
            sess.close()
        del sess
        settled = settled or used_bytes()
        assert used_bytes() <= settled, (i, used_bytes(), settled)


@fake_scenario
def session_goes_on_after_a_capture_that_cannot_be() -> None:
    data = model([node("Synchronises", ["x"], "y")], {"x": ["n", 8]})
    with session(data) as sess:
        for i in range(5):
            x = floats(4, 8, seed=i)
            np.testing.assert_array_equal(sess.run(None, {"x": x})[0], 2 * x)
        assert sess.captured_graphs == 0
        assert "eager for some inputs" in sess.placement().cuda_graph, sess.placement().cuda_graph
    with session(data, cuda_graph="always") as sess:
        for _ in range(3):
            try:
                sess.run(None, {"x": floats(4, 8)})
            except Exception:
                continue
            raise AssertionError("a capture that cannot be was reported as one")
        assert sess.captured_graphs == 0
    with session(cuda_graph="always") as sess:  # on the same stream, which the failures gave back
        for i in range(3):
            check(sess.run(None, feed(3, i))[0], feed(3, i))


@fake_scenario
def session_refuses_a_graph_id_for_arrays() -> None:
    options = ort.RunOptions()
    options.add_run_config_entry("gpu_graph_id", "7")
    with session() as sess:
        expect(ValueError, ["run_with_iobinding"], lambda: sess.run(None, feed(2, 0), options))
        options = ort.RunOptions()
        check(sess.run(None, feed(2, 0), options)[0], feed(2, 0))


@fake_scenario
def session_options_of_the_caller_serve_several_sessions() -> None:
    """Each session has a stream and a file of its own: nothing of one may reach the next through shared options."""
    options = ort.SessionOptions()
    made = [session(sess_options=options, cuda_graph="always") for _ in range(2)]
    assert len({sess._stream.handle for sess in made}) == 2
    for i in range(4):
        for sess in made:
            check(sess.run(None, feed(3, i))[0], feed(3, i))
    expect(
        RuntimeError,
        ["user_compute_stream"],
        lambda: options.get_session_config_entry("ep.cuvilexecutionprovider.user_compute_stream"),
    )


@fake_scenario
def session_closes_while_another_thread_runs() -> None:
    for _ in range(10):
        sess = session(cuda_graph="always")
        errors: list[str] = []
        started = threading.Event()

        def work(sess: Any = sess, errors: list[str] = errors, started: threading.Event = started) -> None:
            try:
                for i in range(1000):
                    check(sess.run(None, feed(1 + i % 3, i))[0], feed(1 + i % 3, i))
                    started.set()
            except Exception as error:
                errors.append(str(error))

        thread = threading.Thread(target=work)
        thread.start()
        started.wait()
        sess.close()
        thread.join()
        assert errors == ["the session is closed"], errors


@fake_scenario
def session_options_that_are_wrong_are_told() -> None:
    for options, words in (
        ({"bogus": 1}, ["bogus", "device_id"]),
        ({"max_captured_graphs": 0, "enable_cuda_graph": "maybe"}, ["enable_cuda_graph"]),
        ({"device_id": 7}, []),
        ({"device_id": "first"}, ["device_id", "first"]),
        ({"user_compute_stream": "mine"}, ["user_compute_stream", "mine"]),
    ):
        try:
            session(providers=[(EP, options), "CPUExecutionProvider"])
        except Exception as error:
            text = str(error)
        else:
            raise AssertionError(f"{options} was accepted")
        assert all(word in text for word in words), text
    with session() as sess:
        check(sess.run(None, feed(3, 0))[0], feed(3, 0))


@fake_scenario
def session_captures_while_other_threads_copy_and_run() -> None:
    """What other threads put on the device meanwhile must happen, and not become part of a graph."""
    wrong: list[Any] = []
    stop = threading.Event()
    # A capture makes a hundred calls that give up the interpreter; threads that never sleep take its turn each time.
    sys.setswitchinterval(1e-5)
    with session(cuda_graph="always", max_captured_graphs=1) as sess:

        def guarded(work: Any) -> threading.Thread:
            def body() -> None:
                try:
                    seed = 0
                    while not stop.is_set():
                        seed += 1
                        work(seed)
                except Exception as error:
                    wrong.append(error)

            thread = threading.Thread(target=body)
            thread.start()
            return thread

        def copies(seed: int) -> None:
            value = on_gpu(floats(5, 8, seed=seed))
            value.update_inplace(floats(5, 8, seed=seed + 1))
            np.testing.assert_array_equal(value.numpy(), floats(5, 8, seed=seed + 1))

        def binds(seed: int) -> None:
            fed = feed(6, seed)
            binding = ort.IOBinding(sess)
            for name, array in fed.items():
                binding.bind_cpu_input(name, array)
            binding.bind_output("y")
            sess.run_with_iobinding(binding)
            check(binding.copy_outputs_to_cpu()[0], fed)

        def runs_later(seed: int) -> None:
            fed, done, seen = feed(7, seed), threading.Event(), []
            sess.run_async(None, fed, lambda results, _data, error: (seen.append((results, error)), done.set()), None)
            assert done.wait(60)
            assert not seen[0][1], seen[0][1]
            check(seen[0][0][0], fed)

        threads = [guarded(work) for work in (copies, binds, runs_later)]
        try:
            for i in range(150):
                fed = feed(1 + i % 3, i)
                check(sess.run(None, fed)[0], fed)
        finally:
            stop.set()
            for thread in threads:
                thread.join()
    assert not wrong, wrong[:3]


@fake_scenario
def session_passes_large_tensors_without_staging() -> None:
    """Above the limit arrays go to the device from the caller's own memory, which may be gone after the call."""
    from cuvil_onnx.runtime import buffers

    buffers._STAGING_LIMIT = 64
    with session(cuda_graph="always") as sess:
        kept = []
        for i in range(6):
            fed = feed(100, i)
            kept.append((sess.run(None, {n: a.copy() for n, a in fed.items()})[0], fed))
        for got, fed in kept:
            check(got, fed)


@fake_scenario
def session_runs_on_the_callers_stream() -> None:
    """Work that the caller put there before is done before, and the stream stays the caller's."""
    from cuvil_onnx.runtime import stream_pool
    from cuvil_onnx.runtime.cuda_driver import Stream, context

    session().close()
    stream = Stream(context(0))
    options = {"user_compute_stream": stream.handle}
    for policy in ("always", "never"):
        with session(cuda_graph=policy, providers=[(EP, options), "CPUExecutionProvider"]) as sess:
            for i in range(4):
                fed = feed(4, i)
                x, source = on_gpu(np.zeros_like(fed["x"])), on_gpu(fed["x"])
                with context(0):
                    stream.copy_on_device(x.data_ptr(), source.data_ptr(), fed["x"].nbytes)
                check(sess.run(None, {"x": x, "w": fed["w"]}, output="numpy")[0], fed)
    assert all(free.handle != stream.handle for free in stream_pool._free[0])
