"""Exports of PyTorch modules, such as torchvision and transformers define. Without torch: MissingModelError.

Weights are random (no hub is asked): seeded, and the statistics of normalisation layers are those of a batch of
photographs, so that activations are of order one as in a trained network.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import onnx

from models import zoo

OPSET = 17


def build(
    make: Callable[[], tuple[Any, tuple[Any, ...]]], inputs: Sequence[str], dynamo: bool = False
) -> onnx.ModelProto:
    """The export of ``make()``, a module in evaluation mode with example inputs, the first axis of each dynamic.

    By the tracing exporter at opset 17 (what most files in circulation came from), or with ``dynamo`` by the exporter
    of torch 2.5 and newer at opset 18. The output is called ``output``.
    """
    try:
        import torch
    except ImportError:
        raise zoo.MissingModelError("install it with: pip install torch") from None
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        torch.backends.mha.set_fastpath_enabled(False)  # its fused op has no ONNX form
        try:
            module, examples = make()
        except ImportError as missing:
            raise zoo.MissingModelError(f"install it with: pip install {missing.name}") from None
        buffer = io.BytesIO()
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            if dynamo:
                program = _by_dynamo(module, examples, inputs)
                return program.model_proto  # type: ignore[no-any-return]
            torch.onnx.export(
                module,
                examples,
                buffer,
                opset_version=OPSET,
                input_names=list(inputs),
                output_names=["output"],
                dynamic_axes={name: {0: "N"} for name in (*inputs, "output")},
                dynamo=False,
            )
    return onnx.load_from_string(buffer.getvalue())


def _by_dynamo(module: Any, examples: tuple[Any, ...], inputs: Sequence[str]) -> Any:
    import torch

    batch = torch.export.Dim("N", min=1, max=64)
    return torch.onnx.export(
        module,
        examples,
        input_names=list(inputs),
        output_names=["output"],
        opset_version=18,
        dynamo=True,
        dynamic_shapes=tuple({0: batch} for _ in examples),
        verbose=False,
    )


def settle(module: Any, example: Any) -> Any:
    """The module in evaluation mode, the statistics of its batch normalisations taken from ``example``."""
    import torch

    norms = [m for m in module.modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)]
    module.eval()
    for norm in norms:
        norm.momentum = 1.0
        norm.train()
    if norms:
        module(example)
    return module.eval()


def tensor(array: Any) -> Any:
    """A NumPy array as a tensor."""
    import torch

    return torch.from_numpy(array)
