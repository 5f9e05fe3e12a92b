"""The ``cuvil`` command: ``optimize``, ``compare``, ``info``, and those of ``cuvil_onnx.tools``.

Exit codes: 0 done, 1 done but the result is not good (a comparison that exceeds its tolerance), 2 an error, told in
one line on standard error. Progress goes to standard error too, so that ``--json`` output can be piped.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cuvil_onnx
from cuvil_onnx.errors import CuvilError, VerificationError
from cuvil_onnx.tools.commands import register as register_tools
from cuvil_onnx.tools.quantize import SPEC_HELP
from cuvil_onnx.tools.quantize import register as register_quantize
from cuvil_onnx.tools.side_files import check_side_file, write_text

# What a comparison may differ from fp32 on the CPU, relative to the largest output: the bounds for models of
# this size (reassociated fp32 sums; fp16 and bf16 activations, with 11 and 8 bits of mantissa).
TOLERANCES = {"fp32": 1e-3, "fp16": 2e-2, "bf16": 1e-1}


LAYERS_DRAWN = 40


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns the exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        with _terminable():
            code = int(args.run(args))
            sys.stdout.flush()  # here, where a closed pipe is caught
            return code
    except BrokenPipeError:  # whoever read our output has seen enough (`| head`): as a program that SIGPIPE ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (CuvilError, OSError) as error:
        message = str(error)
    except KeyboardInterrupt:
        message = "interrupted"
    except MemoryError:
        message = "out of memory"
    except ImportError as error:
        message = f"a package is missing: {error}"
    except Exception as error:
        if os.environ.get("CUVIL_DEBUG"):
            raise
        message = f"internal error, please report it (CUVIL_DEBUG=1 shows where): {type(error).__name__}: {error}"
    print(f"cuvil: {' '.join(message.split())}", file=sys.stderr)
    return 2


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM ends the work as Ctrl-C does: temporary folders and the processes of a comparison go with it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cuvil", description="Makes ONNX models fast on NVIDIA GPUs.")
    parser.add_argument("--version", action="version", version=cuvil_onnx.__version__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    optimize = commands.add_parser("optimize", help="fuse, fold and convert a model, and write the result")
    optimize.add_argument("model", type=Path, help="the .onnx file; it is never changed")
    optimize.add_argument("-o", "--output", type=Path, help="where to write (default: MODEL.cuvil.onnx beside it)")
    _add_optimize_options(optimize)
    optimize.add_argument("--quantize", metavar="SPEC", help=f"quantize weights: {SPEC_HELP}")
    optimize.add_argument("--verify", action="store_true", help="refuse a result that differs from the original")
    optimize.add_argument("--explain", action="store_true", help="show which rewrites nearly matched, and why not")
    optimize.add_argument("--html", type=Path, metavar="FILE.html", help="write the report as a page with pictures")
    _add_common(optimize)
    optimize.set_defaults(run=_optimize)

    compare = commands.add_parser("compare", help="measure a model against stock ONNX Runtime")
    compare.add_argument("model", type=Path, help="the .onnx file")
    _add_optimize_options(compare)
    compare.add_argument("--inputs", type=Path, metavar="FILE.npz", help="arrays by input name (default: random)")
    compare.add_argument(
        "--dim", action="append", default=[], metavar="NAME=SIZE", help="size of a free dimension: N=8, or x:2=640"
    )
    compare.add_argument("--chart", type=Path, metavar="FILE.svg", help="write a bar chart")
    compare.add_argument("--seconds", type=_seconds, default=3.0, help="time for each variant (default: 3)")
    compare.add_argument("--cpu", action="store_true", help="compare on the CPU even where a GPU is usable")
    _add_common(compare)
    compare.set_defaults(run=_compare)

    info = commands.add_parser("info", help="show devices, library, versions and caches")
    info.add_argument("--json", action="store_true", help="print JSON")
    info.set_defaults(run=_info)
    register_tools(commands)
    register_quantize(commands, _steps, _draw_errors)
    return parser


def _add_optimize_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--precision", choices=["fp32", "fp16", "bf16"], default="fp32", help="inside of the model")
    parser.add_argument("--level", choices=["none", "basic", "all"], default="all", help="how much to rewrite")
    parser.add_argument("--layout", choices=["auto", "nchw", "nhwc"], default="auto", help="layout of convolutions")
    parser.add_argument("--skip", action="append", default=[], metavar="NAME", help="leave out a rule or pass")
    parser.add_argument("--only", action="append", metavar="NAME", help="apply only this rule or pass (repeatable)")
    parser.add_argument(
        "--allow-unknown-ops", action="store_true", help="accept operators that the installed onnxruntime lacks"
    )


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def _seconds(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no time above 0")
    return number


def _optimize(args: argparse.Namespace) -> int:
    from cuvil_onnx.bench.progress import Progress

    output = args.output or args.model.with_suffix(".cuvil.onnx")
    check_side_file("--html", args.html, args.model, output)
    bar = Progress(1, not args.quiet)
    bar.step(f"optimizing {args.model}")
    result = cuvil_onnx.optimize(args.model, verify=args.verify or None, quantize=args.quantize, **_options(args))
    _check_ops(result, args)
    result.save(output)
    if args.html:
        result.report.save_html(args.html, args.model.name)
    bar.finish()
    if args.json:
        print(json.dumps({"output": str(output), **result.report.as_dict()}, indent=2))
        return 0
    print(result)
    if args.explain:
        print(result.report.explain())
    print(f"written: {output}" + (f", {args.html}" if args.html else ""))
    return 0


def _steps(enabled: bool) -> Callable[[int, int, str], None]:
    """A bar for work that tells how many of how many steps are done."""
    from cuvil_onnx.bench.progress import Progress

    bars: list[Progress] = []

    def step(done: int, total: int, what: str) -> None:
        if not bars:
            bars.append(Progress(total, enabled))
        bars[0].advance(done, what)
        if done == total:
            bars[0].finish()

    return step


def _check_ops(result: Any, args: argparse.Namespace) -> None:
    from cuvil_onnx.unknown_ops import unknown_ops

    unknown = [] if args.allow_unknown_ops else unknown_ops(result.model)
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise CuvilError(
            f"{args.model}: the installed onnxruntime knows no operator {unknown[0]}{more} "
            "(--allow-unknown-ops keeps such nodes as they are)"
        )


def _options(args: argparse.Namespace) -> dict[str, Any]:
    only = set(args.only) if args.only else None
    return {
        "precision": args.precision,
        "level": args.level,
        "layout": args.layout,
        "skip": set(args.skip),
        "only": only,
    }


def _compare(args: argparse.Namespace) -> int:
    import onnx

    from cuvil_onnx.bench import feeds, table
    from cuvil_onnx.bench.compare import UnfitInputsError, compare
    from cuvil_onnx.tools.read import parse_dims

    check_side_file("--chart", args.chart, args.model, args.inputs)
    optimized = _optimized_to_compare(args)
    _check_ops(optimized, args)
    model = onnx.load(args.model)
    feed = feeds.load_feed(args.inputs, model) if args.inputs else feeds.make_feed(model, parse_dims(args.dim))
    gpu = None if args.cpu else gpu_name()
    try:
        result = compare(
            model,
            optimized,
            feed,
            name=args.model.stem,
            precision=args.precision,
            gpu=gpu,
            budget_s=args.seconds,
            progress=not args.quiet,
        )
    except UnfitInputsError as error:
        advice = "" if args.inputs else " (they are random: --inputs FILE.npz gives the model fitting ones)"
        raise CuvilError(f"{error}{advice}") from None
    if args.chart:
        _write_chart(args.chart, result)
    print(json.dumps(result.as_dict(), indent=2) if args.json else table.render(result))
    return _verdict(result)


def _optimized_to_compare(args: argparse.Namespace) -> Any:
    """As users get it: 16 bits with what they would spoil in float32. Differences are for the comparison to show."""
    if args.precision != "fp32":
        try:
            return cuvil_onnx.optimize(args.model, **_options(args))
        except VerificationError:
            pass
    return cuvil_onnx.optimize(args.model, verify=False, **_options(args))


def gpu_name() -> str | None:
    """The name of the GPU that the provider would use; None, and why on standard error, without a usable one."""
    from cuvil_onnx.runtime.devices import devices
    from cuvil_onnx.runtime.registration import unavailable_reason

    reason = unavailable_reason()
    if reason is None:
        return devices()[0].name
    print(f"cuvil: comparing on the CPU: {reason}", file=sys.stderr)
    return None


def _write_chart(path: Path, result: Any) -> None:
    from cuvil_onnx.bench.chart import Bar, bar_chart

    bars = [Bar(row.key, row.label, row.result.p50) for row in result.rows]
    write_text(path, bar_chart(f"{result.model} {result.precision} on {result.device}: median latency", [("", bars)]))


def _draw_errors(path: Path, summary: Any) -> None:
    """The errors of quantized weights as bars, the largest first."""
    from cuvil_onnx.bench.chart import Bar, bar_chart

    worst = sorted(summary.layers, key=lambda layer: -layer.relative_error)[:LAYERS_DRAWN]
    bars = [Bar("cuvil", layer.name[-36:], 100 * layer.relative_error) for layer in worst]
    more = f", the {len(worst)} largest of {len(summary.layers)}" if len(worst) < len(summary.layers) else ""
    write_text(path, bar_chart(f"{summary.label}: relative errors of weights{more}", [("", bars)], "%"))


def _verdict(result: Any) -> int:
    ours = [row for row in result.rows if row.key.startswith("cuvil")]
    if not ours:
        print("cuvil: the optimized model could not be measured", file=sys.stderr)
        return 1
    worst = max(row.max_rel_err for row in ours)
    if worst <= TOLERANCES[result.precision]:
        return 0
    allowed = TOLERANCES[result.precision]
    print(f"cuvil: outputs differ by {worst:.2g} relative, {allowed:g} is allowed", file=sys.stderr)
    return 1


def _info(args: argparse.Namespace) -> int:
    from cuvil_onnx.runtime.info import gather, render

    facts = gather()
    print(json.dumps(facts, indent=2) if args.json else render(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
