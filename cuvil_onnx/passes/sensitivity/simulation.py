"""Runs a float32 model with each rounding of a 16-bit execution switched on or off, on ONNX Runtime's CPU.

ONNX Runtime's own fp16 on the CPU will not do: it computes neighbouring nodes in float32 and leaves out the casts
between them, where a GPU rounds what each kernel writes.

One session serves all combinations. A value goes through an If on a boolean input of the model, with Casts to 16 bits
and back in one branch (a Where takes three times as long); weights are inputs of the model, given as they are or
rounded. So a combination costs one run, and memory holds the caller's weights and one rounded copy.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from cuvil_onnx.passes.precision import SATURATION, narrow
from cuvil_onnx.passes.precision_plan import Plan
from cuvil_onnx.passes.sensitivity.sites import Sites, float_values
from cuvil_onnx.passes.shapes import weightless_proto
from cuvil_onnx.rewrite.graph import GraphContext

Array = npt.NDArray[Any]


class Simulation:
    """One session over the model of a context; ``probes`` are values as a certain reader gets them.

    Raises (like ``run``) whatever ONNX Runtime raises when it cannot load or run the model.
    """

    def __init__(
        self,
        ctx: GraphContext,
        plan: Plan,
        sites: Sites,
        target: ir.DataType,
        probes: Sequence[tuple[ir.Value, ir.Node]] = (),
    ) -> None:
        self._ctx = ctx
        self._plan = plan
        self._sites = sites
        self._target = target
        self._prefix = _unused_prefix(ctx)
        self._count = 0
        self._rounded: dict[ir.Value, Array] = {}
        self._gates: list[str] = []
        self._gate_of: dict[int, str] = {}
        self._weights: dict[int, list[tuple[str, Array, Array]]] = {}
        self._renamed: dict[tuple[ir.Value, int | None], str] = {}
        self._raw: dict[ir.Value, str] = {}
        self._measured = float_values(ctx, plan)
        self._names = [v.name or "" for v in ctx.model.graph.outputs]
        proto = self._build()
        for value, reader in probes:
            name = self._renamed.get((value, sites.unit_of.get(reader)), value.name or "")
            self._names.append(name)
            if all(name != known.name for known in proto.graph.output):
                proto.graph.output.append(onnx.ValueInfoProto(name=name))
        self._constants = self._given(proto)
        self._session = _session(proto)
        self._inputs = {i.name for i in self._session.get_inputs()}

    def run(self, feeds: Mapping[str, Any], active: Collection[int]) -> list[Array]:
        """The model's outputs, then the probes, with the sites in ``active`` rounding."""
        return list(self._session.run(self._names, self._feed(feeds, active)))

    def reference(self, feeds: Mapping[str, Any]) -> tuple[list[Array], dict[ir.Value, tuple[int, ...]]]:
        """The same without any rounding, and the sizes of all float values in that run."""
        names = [self._shape_name(i) for i in range(len(self._measured))]
        found = self._session.run([*self._names, *names], self._feed(feeds, ()))
        shapes = found[len(self._names) :]
        sizes = {v: tuple(int(d) for d in shape) for v, shape in zip(self._measured, shapes, strict=True)}
        return list(found[: len(self._names)]), sizes

    def _feed(self, feeds: Mapping[str, Any], active: Collection[int]) -> dict[str, Any]:
        given = {name: array for name, array in feeds.items() if name in self._inputs}
        given.update(self._constants)
        chosen = set(active)
        for index, gate in self._gate_of.items():
            given[gate] = np.asarray(index in chosen)
        for index, weights in self._weights.items():
            for name, exact, rounded in weights:
                given[name] = rounded if index in chosen else exact
        return given

    def _build(self) -> onnx.ModelProto:
        """The model with a switch at every site."""
        proto = weightless_proto(self._ctx.model)
        graph = proto.graph
        self._hold_packed(graph)
        nodes, originals = list(graph.node), list(self._ctx.model.graph)
        del graph.node[:], graph.value_info[:]
        behind: dict[ir.Node | None, list[onnx.NodeProto]] = {}
        results = self._plan.results()
        values: dict[ir.Value, list[int]] = {}
        for index, site in enumerate(self._sites.all):
            if site.value is not None:
                values.setdefault(site.value, []).append(index)
            elif site.weights:
                self._weights[index] = self._switch_weights(index, graph)
        for value, indices in values.items():
            computed = value in results
            self._raw[value] = self._fresh("raw") if computed else value.name or ""
            behind.setdefault(value.producer(), []).extend(self._switch(value, indices, computed))
        for gate in self._gates:
            graph.input.append(onnx.helper.make_tensor_value_info(gate, onnx.TensorProto.BOOL, []))
        graph.node.extend(behind.get(None, ()))
        for made, node in zip(nodes, originals, strict=True):
            self._rename(made, node, results)
            graph.node.append(made)
            graph.node.extend(behind.get(node, ()))
        for i, value in enumerate(self._measured):
            raw = self._raw.get(value, value.name or "")
            graph.node.append(onnx.helper.make_node("Shape", [raw], [self._shape_name(i)]))
            graph.output.append(onnx.ValueInfoProto(name=self._shape_name(i)))
        return proto

    def _hold_packed(self, graph: onnx.GraphProto) -> None:
        """Gives the constants of 4 bits back, which ONNX Runtime's Python takes from nobody."""
        for name, value in self._ctx.model.graph.initializers.items():
            tensor = value.const_value
            info = next((i for i in graph.input if i.name == name), None) if _is_packed(tensor) else None
            if tensor is not None and info is not None:
                graph.input.remove(info)
                data = onnx.TensorProto(name=name, data_type=int(tensor.dtype), dims=list(tensor.shape.numpy()))
                data.raw_data = tensor.tobytes()
                graph.initializer.append(data)

    def _switch_weights(self, index: int, graph: onnx.GraphProto) -> list[tuple[str, Array, Array]]:
        """Declares inputs for the constants of a site, for its unit alone."""
        (unit,) = self._sites.all[index].needs
        found = []
        for value in self._sites.all[index].weights:
            exact = self._ctx.constant(value, max_elements=None)
            assert exact is not None, "weights of a site are constants"
            name = self._renamed[value, unit] = self._fresh("weight")
            graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, list(exact.shape)))
            if value not in self._rounded:
                self._rounded[value] = narrow(exact, self._target).astype(np.float32)
            found.append((name, exact, self._rounded[value]))
        return found

    def _switch(self, value: ir.Value, indices: Sequence[int], computed: bool) -> list[onnx.NodeProto]:
        """The nodes that round a value when they should, one for each of its sites."""
        make = onnx.helper.make_node
        raw, nodes = self._raw[value], []
        for index in indices:
            reader = self._sites.all[index].reader
            gate = self._gate_of[index] = self._fresh("gate")
            self._gates.append(gate)
            name = value.name or "" if reader is None else self._fresh("value")
            self._renamed[value, reader] = name
            source, half, rounded, exact = raw, self._fresh("half"), self._fresh("rounded"), self._fresh("exact")
            steps = []
            if value in self._plan.saturating and not computed:
                source = self._fresh("clipped")
                steps = self._clip(raw, source)
            steps.append(make("Cast", [source], [half], to=int(self._target)))
            steps.append(make("Cast", [half], [rounded], to=onnx.TensorProto.FLOAT))
            branches = {
                "then_branch": _branch(steps, rounded),
                "else_branch": _branch([make("Identity", [raw], [exact])], exact),
            }
            nodes.append(make("If", [gate], [name], **branches))
        return nodes

    def _clip(self, source: str, result: str) -> list[onnx.NodeProto]:
        make, limit = onnx.helper.make_node, SATURATION[self._target]
        if self._ctx.opset() < 11:
            return [make("Clip", [source], [result], min=-limit, max=limit)]
        names = [self._fresh("limit"), self._fresh("limit")]
        tensors = [onnx.numpy_helper.from_array(np.array(sign * limit, np.float32)) for sign in (-1, 1)]
        constants = [make("Constant", [], [n], value=t) for n, t in zip(names, tensors, strict=True)]
        return [*constants, make("Clip", [source, *names], [result])]

    def _rename(self, made: onnx.NodeProto, node: ir.Node, results: set[ir.Value]) -> None:
        """Connects a node with the switches of what it reads and computes."""
        places = self._plan.half.get(node)
        if places is not None:
            unit = self._sites.unit_of[node]
            for i in places.inputs:
                value = node.inputs[i]
                if value is not None and value in self._raw:  # not rounded for who only moves it
                    made.input[i] = self._renamed.get((value, unit), self._raw[value])
                elif value is not None and (value, unit) in self._renamed:
                    made.input[i] = self._renamed[value, unit]
        for i, value in enumerate(node.outputs):
            if value in self._raw and value in results:
                made.output[i] = self._raw[value]

    def _given(self, proto: onnx.ModelProto) -> dict[str, Array]:
        """The constants that became inputs of the model and are read as they are."""
        inputs = {v.name for v in self._ctx.model.graph.inputs}
        wanted = {i.name for i in proto.graph.input} - inputs
        found = {}
        for name, value in self._ctx.model.graph.initializers.items():
            if name in wanted and value.const_value is not None:
                found[name] = value.const_value.numpy()
        return found

    def _fresh(self, hint: str) -> str:
        self._count += 1
        return f"{self._prefix}{hint}_{self._count}"

    def _shape_name(self, index: int) -> str:
        return f"{self._prefix}shape_{index}"


def _branch(nodes: Sequence[onnx.NodeProto], result: str) -> onnx.GraphProto:
    return onnx.helper.make_graph(nodes, "branch", [], [onnx.ValueInfoProto(name=result)])


def _is_packed(tensor: ir.TensorProtocol | None) -> bool:
    return tensor is not None and tensor.dtype.bitwidth == 4


def _unused_prefix(ctx: GraphContext) -> str:
    """A beginning that no name of the model has (names taken from the context would change those of later nodes)."""
    names = {v.name for g in ctx.graphs for n in g for v in n.outputs if v.name}
    names |= {v.name for v in ctx.model.graph.inputs if v.name} | set(ctx.model.graph.initializers)
    prefix = "simulated_"
    while any(name.startswith(prefix) for name in names):
        prefix += "_"
    return prefix


def _session(model: onnx.ModelProto) -> Any:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # many short runs beside other work
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
