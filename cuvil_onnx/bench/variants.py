"""What is compared: stock ONNX Runtime as users call it, at its best, and cuvil."""

from __future__ import annotations

from dataclasses import dataclass

from cuvil_onnx.runtime.registration import EP_NAME

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"

Providers = list[tuple[str, dict[str, str]]]


@dataclass(frozen=True)
class Variant:
    """One row: ``key`` names it in results, ``label`` in tables; variants of one ``key`` compete, the fastest stays.

    ``instead_of``: the label of a variant in whose place this one is measured, should that one fail.
    """

    key: str
    label: str
    model: str
    providers: Providers
    ours: bool
    bound: bool
    instead_of: str = ""


def on_gpu(
    given: str, stock: list[tuple[str, str]], optimized: str, *, has_conv: bool, precision: str
) -> list[Variant]:
    """The variants of a machine with a GPU. ``stock`` are the models of :mod:`cuvil_onnx.bench.prepare`.

    Stock ORT multiplies float32 in TF32 (10 bits of mantissa) unless told otherwise, cuvil in float32: in that
    precision a row of ours does as stock ORT.
    """
    cpu: tuple[str, dict[str, str]] = (CPU, {})
    variants = [Variant("stock_default", "stock ORT, CUDA EP, run()", given, [(CUDA, {}), cpu], False, False)]
    for label, path in stock:
        for nhwc in ("0", "1") if has_conv else ("0",):
            options = {"enable_cuda_graph": "1", "prefer_nhwc": nhwc}
            details = f"{label}{', NHWC' if nhwc == '1' else ''}"
            name = f"stock ORT at best ({details})"
            variants.append(Variant("stock_best", name, path, [(CUDA, options), cpu], False, True))
            # Its CUDA Graph refuses models with a node on the CPU.
            eager: Providers = [(CUDA, {"prefer_nhwc": nhwc}), cpu]
            label_eager = f"stock ORT at best ({details}, no CUDA Graph)"
            variants.append(Variant("stock_best", label_eager, path, eager, False, True, instead_of=name))
    ours: Providers = [(EP_NAME, {}), cpu]
    variants.append(Variant("cuvil_run", "cuvil, run()", optimized, ours, True, False))
    variants.append(Variant("cuvil", "cuvil, I/O binding", optimized, ours, True, True))
    if precision == "fp32":
        tf32: Providers = [(EP_NAME, {"use_tf32": "1"}), cpu]
        variants.append(Variant("cuvil_tf32", "cuvil, I/O binding, TF32 as stock", optimized, tf32, True, True))
    return variants


def on_cpu(given: str, optimized: str) -> list[Variant]:
    """The variants without a GPU: what the rewriting alone brings on the CPU provider."""
    providers: Providers = [(CPU, {})]
    return [
        Variant("stock_default", "stock ORT, CPU EP", given, providers, False, False),
        Variant("cuvil", "cuvil-optimized, CPU EP", optimized, providers, False, False),
    ]
