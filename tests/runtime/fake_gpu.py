"""A pretended GPU in host memory: enough of stream, memory and capturing session to test the runners without a card.

The fake session captures as ONNX Runtime does: a graph keeps the addresses bound when it was captured and never looks
at a binding again, so a runner that changes addresses or shapes under a graph gets wrong numbers here too.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import numpy as np


class Memory:
    def __init__(self, _context, size):
        self._storage = np.full(max(size, 1), 0xAB, np.uint8)
        self.size = size
        self.address = self._storage.ctypes.data

    def array(self, dtype, shape):
        return np.ndarray(shape, dtype, buffer=self._storage[: self.size].data)


class Context:
    ordinal = 0

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return None


class Stream:
    def __init__(self):
        self.context = Context()
        self.handle = 1234
        self.synchronized = 0

    def synchronize(self):
        self.synchronized += 1

    def copy(self, target, source, size):
        ctypes.memmove(target, source, size)

    copy_to_device = copy_to_host = copy_on_device = copy


def at(address, dtype, shape):
    count = int(np.prod(shape, dtype=np.int64))
    memory = (ctypes.c_ubyte * (count * np.dtype(dtype).itemsize)).from_address(address)
    return np.frombuffer(memory, dtype).reshape(shape)


class Binding:
    def __init__(self):
        self.inputs, self.outputs = {}, {}

    def bind_input(self, name, device, device_id, kind, shape, address):
        assert (device, device_id, kind) == ("cuda", 0, 1)
        self.inputs[name] = at(address, np.float32, shape)

    def bind_output(self, name, device, device_id, kind, shape, address):
        assert (device, device_id, kind) == ("cuda", 0, 1)
        self.outputs[name] = at(address, np.float32, shape)

    def bind_ortvalue_input(self, name, value):
        self.inputs[name] = value.numpy()

    def bind_ortvalue_output(self, name, value):
        self.outputs[name] = at(value.data_ptr(), np.float32, value.shape())


class Session:
    """y = 2 * x, or y = x[:n] with an input ``n`` in host memory. Counts what happened."""

    def __init__(self, *, static=False, host_input=False):
        dims = [2, 3] if static else ["N", 3]
        x = SimpleNamespace(name="x", type="tensor(float)", shape=dims)
        n = SimpleNamespace(name="n", type="tensor(int64)", shape=[1])
        y = SimpleNamespace(name="y", type="tensor(float)", shape=["M", 3])
        self._inputs, self._outputs = ([x, n] if host_input else [x]), [y]
        self.graphs, self.released, self.eager_runs, self.replays = {}, [], 0, 0
        self.fail_capture = False

    def get_inputs(self):
        return self._inputs

    def get_outputs(self):
        return self._outputs

    def get_overridable_initializers(self):
        return []

    def get_input_memory_infos(self):
        return [SimpleNamespace(name="Cpu" if i.name == "n" else "Cuvil") for i in self._inputs]

    def get_output_memory_infos(self):
        return [SimpleNamespace(name="Cuvil")]

    @staticmethod
    def compute(feed):
        return 2 * (feed["x"][: int(feed["n"][0])] if "n" in feed else feed["x"])

    def run(self, names, feed, _options):
        self.eager_runs += 1
        return [self.compute(feed) for _ in names]

    def io_binding(self):
        return Binding()

    def run_with_iobinding(self, binding, options):
        graph_id = int(options.get_run_config_entry("gpu_graph_id"))
        assert graph_id >= 0
        if graph_id not in self.graphs:
            if self.fail_capture:
                raise RuntimeError("cannot capture:\n a node syncs")
            frozen = {n: int(v[0]) for n, v in binding.inputs.items() if n == "n"}
            self.graphs[graph_id] = (binding.inputs["x"], frozen, binding.outputs["y"])
        else:
            self.replays += 1
        x, frozen, y = self.graphs[graph_id]
        y[...] = 2 * x[: frozen["n"]] if frozen else 2 * x

    def release_captured_graph(self, graph_id):
        self.released.append(graph_id)
        self.graphs.pop(graph_id, None)
