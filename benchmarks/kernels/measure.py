"""Device time of one case for each contender, and the card's ceilings.

Every contender gets the same memory, rotated past the L2 cache: as many sets of inputs and outputs as make 256 MiB, at
least two. The runs over them are recorded into one CUDA graph, which is replayed between two events, so that nothing
of the host is in the figure. PyTorch makes the inputs and does the reference.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import onnxruntime

from benchmarks.kernels.cases import Case, Program
from cuvil_onnx.runtime.cuda_driver import Event, Stream, context
from cuvil_onnx.runtime.cuda_graph import record
from cuvil_onnx.runtime.providers import CUDA
from cuvil_onnx.runtime.registration import EP_NAME

_FOOTPRINT = 256 << 20  # four times the largest L2 of a current card
_LEAST_US, _SAMPLES = 1000.0, 15  # of one sample; the median of these is the figure
_ONNX = {"f16": 10, "f32": 1}


@dataclass
class Figures:
    """Microseconds a run; None where a contender could not run, with the reason in ``notes``."""

    ours: float | None = None
    stock: float | None = None
    torch: float | None = None
    error: float = float("nan")
    notes: tuple[str, ...] = ()


class Bench:
    """The card with PyTorch on it. Raises ImportError without PyTorch."""

    def __init__(self) -> None:
        import torch

        self.torch = torch
        torch.manual_seed(0)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        self.stream = Stream(context(0))
        self._torch_stream = torch.cuda.ExternalStream(self.stream.handle)
        self._types = {"f16": torch.float16, "f32": torch.float32}

    def ceilings(self) -> tuple[float, float]:
        """Bytes a second of a device-to-device copy (read plus written), and fp16 operations a second of a product."""
        torch = self.torch
        source = torch.zeros(1 << 28, dtype=torch.int16, device="cuda")
        target = torch.empty_like(source)
        # A memcpy may go to the copy engines, which reach two thirds of what a kernel that copies does on an H200.
        copies = [lambda: target.copy_(source), lambda: torch.bitwise_not(source, out=target)]
        copy = min(self._time_torch([copy]) for copy in copies)
        a, b = (torch.randn(8192, 8192, dtype=torch.float16, device="cuda") for _ in range(2))
        product = self._time_torch([lambda: torch.matmul(a, b)])
        return 2 * source.numel() * 2 / copy * 1e6, 2 * 8192.0**3 / product * 1e6

    def measure(self, case: Case, stock: bool = True) -> Figures:
        """The figures of a case."""
        torch = self.torch
        count = max(2, -(-_FOOTPRINT // case.nbytes))
        inputs = [[self._random(t.shape, t.dtype) for t in case.ours.inputs] for _ in range(count)]
        outputs = [self._empty(case.ours.output.shape, case.ours.output.dtype) for _ in range(count)]
        constants = [torch.from_numpy(c).cuda() for c in case.ours.constants.values() if c.dtype.kind == "f"]
        if case.channels_last:
            constants = [c.contiguous(memory_format=torch.channels_last) if c.dim() == 4 else c for c in constants]
        calls = [functools.partial(case.torch, torch, *tensors, *constants) for tensors in inputs]
        with torch.no_grad():
            want = calls[0]().float()
            figures, notes = Figures(), []
            contenders = [("ours", case.ours, EP_NAME)]
            if stock:
                contenders.append(("stock", case.stock or case.ours, CUDA))
            for key, program, provider in contenders:
                try:
                    setattr(figures, key, self._time_session(case, program, provider, inputs, outputs))
                except Exception as error:  # of whatever class: one contender less, the others count
                    notes.append(f"{key}: {' '.join(str(error).split())[:200]}")
                if key == "ours" and figures.ours is not None:
                    figures.error = float((outputs[0].float() - want).abs().max() / want.abs().max())
            figures.torch = self._time_torch(calls)
        figures.notes = tuple(notes)
        return figures

    def _random(self, shape: tuple[int, ...], dtype: str) -> Any:
        return self.torch.randn(shape, dtype=self._types[dtype], device="cuda")

    def _empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        return self.torch.zeros(shape, dtype=self._types[dtype], device="cuda")

    def _time_session(
        self, case: Case, program: Program, provider: str, inputs: list[list[Any]], outputs: list[Any]
    ) -> float:
        """A session of the provider on our stream; its runs are recorded as an application would."""
        if provider not in onnxruntime.get_available_providers():
            raise RuntimeError(f"{provider} is not in this onnxruntime")
        options = {"user_compute_stream": str(self.stream.handle)}
        model = case.optimized() if provider == EP_NAME else program.model()
        if provider == CUDA:
            options |= {"use_tf32": "0", "prefer_nhwc": str(int(case.channels_last))}
        settings = onnxruntime.SessionOptions()
        settings.log_severity_level = 3
        settings.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), settings, [provider], [options], enable_fallback=0
        )
        bindings = []
        for tensors, output in zip(inputs, outputs, strict=True):
            binding = session.io_binding()
            for spec, tensor in zip(program.inputs, tensors, strict=True):
                binding.bind_input(spec.name, "cuda", 0, _ONNX[spec.dtype], list(spec.shape), tensor.data_ptr())
            spec = program.output
            binding.bind_output(spec.name, "cuda", 0, _ONNX[spec.dtype], list(spec.shape), output.data_ptr())
            bindings.append(binding)
        run_options = onnxruntime.RunOptions()
        run_options.add_run_config_entry("gpu_graph_id", "-1")
        run_options.add_run_config_entry("disable_synchronize_execution_providers", "1")

        def run_all() -> None:
            for binding in bindings:
                session.run_with_iobinding(binding, run_options)

        self.torch.cuda.synchronize()
        with self.stream.context:
            run_all()
            run_all()
            self.stream.synchronize()
            graph = record(self.stream, run_all, relaxed=True)
            graph.instantiate()
            return self._median(lambda: graph.launch(self.stream)) / len(bindings)

    def _time_torch(self, calls: Sequence[Callable[[], Any]]) -> float:
        torch = self.torch
        torch.cuda.synchronize()
        with torch.cuda.stream(self._torch_stream):
            for call in calls:
                call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._torch_stream):
            kept = [call() for call in calls]  # results of their own: they rotate too
        with torch.cuda.stream(self._torch_stream), self.stream.context:
            time = self._median(graph.replay) / len(calls)
        del kept
        return time

    def _median(self, launch: Callable[[], object]) -> float:
        """Microseconds of one launch."""
        start, end = Event(self.stream.context), Event(self.stream.context)

        def sample(times: int) -> float:
            start.record(self.stream)
            for _ in range(times):
                launch()
            end.record(self.stream)
            return 1e3 * end.milliseconds_since(start) / times

        sample(1)
        times = max(1, min(200, round(_LEAST_US / max(sample(1), 1.0))))
        return statistics.median(sample(times) for _ in range(_SAMPLES))
