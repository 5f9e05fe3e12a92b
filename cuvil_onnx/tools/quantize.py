"""The command ``cuvil quantize``, and the option ``--quantize`` of ``cuvil optimize``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cuvil_onnx.errors import OptionError
from cuvil_onnx.tools.side_files import check_side_file

SPEC_HELP = "such as rtn, awq:w4a16:g128 or rtn:g32:sym:clip=1 (scheme:bits:group:sym/asym:option=value)"


Bar = Callable[[int, int, str], None]
"""Shows that so many of so many steps are done, and what the last one was."""


def register(commands: Any, make_bar: Callable[[bool], Bar], draw: Callable[[Path, Any], None]) -> None:
    """Adds the command to the sub-parsers of ``cuvil``.

    Args:
        commands: the sub-parsers.
        make_bar: ``make_bar(enabled)`` gives what shows the progress.
        draw: ``draw(path, summary)`` writes a chart of the errors.
    """
    parser = commands.add_parser("quantize", help="store a model's weights in 4 or 8 bits")
    parser.add_argument("model", type=Path, help="the .onnx file; it is never changed")
    parser.add_argument("-o", "--output", type=Path, help="where to write (default: MODEL.int4.onnx beside it)")
    parser.add_argument("--scheme", default="rtn", metavar="SPEC", help=f"{SPEC_HELP}; default: rtn")
    parser.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help="take the weights of a .gguf file, or of the folder of an AWQ or GPTQ checkpoint, instead of a scheme's",
    )
    parser.add_argument("--bits", type=int, choices=[4, 8], help="of a weight (default: 4)")
    parser.add_argument("--group-size", type=int, metavar="N", help="rows that share a scale, -1: all (default: 128)")
    parser.add_argument(
        "--symmetric", action=argparse.BooleanOptionalAction, help="no zero points (default: at 8 bits)"
    )
    parser.add_argument(
        "--calibration", metavar="DATA", help="a text file, .npz file or folder, for schemes that look at activations"
    )
    parser.add_argument("--include", action="append", default=[], metavar="PATTERN", help="only these nodes or weights")
    parser.add_argument("--exclude", action="append", default=[], metavar="PATTERN", help="not these nodes or weights")
    parser.add_argument(
        "--override", action="append", default=[], metavar="PATTERN=BITS", help="4, 8 or 16 (unchanged) bits for some"
    )
    parser.add_argument(
        "--embeddings",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="let a table that is also a product's weight share its codes (default: yes)",
    )
    parser.add_argument("--format", choices=["cuvil", "matmulnbits"], default="cuvil", help="how to write products")
    parser.add_argument("--seed", type=int, default=0, help="of random numbers (default: 0)")
    parser.add_argument("--verify", action="store_true", help="refuse a result that differs from what the codes say")
    parser.add_argument("--chart", type=Path, metavar="FILE.svg", help="write a bar chart of the weights' errors")
    parser.add_argument("--list", action=_ListSchemes, help="list the schemes and their options")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.set_defaults(run=lambda args: _quantize(args, make_bar(not args.quiet), draw))


class _ListSchemes(argparse.Action):
    """Prints the schemes and ends, as --help does."""

    def __init__(self, option_strings: list[str], dest: str, **others: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **others)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from cuvil_onnx.quantize.scheme import scheme_types

        for name, kind in scheme_types().items():
            options = ", ".join(f"{key}={value}" for key, value in kind.defaults.items())
            data = " (needs --calibration)" if kind.calibrated else ""
            print(f"{name}: {kind.summary}{data}" + (f"\n    options: {options}" if options else ""))
        parser.exit()


def _quantize(args: argparse.Namespace, bar: Bar, draw: Callable[[Path, Any], None]) -> int:
    import cuvil_onnx

    output = args.output or args.model.with_suffix(".int4.onnx")
    check_side_file("--chart", args.chart, args.model, output, args.weights)
    if args.weights is not None:
        from cuvil_onnx.quantize.sources.importing import from_gguf, from_safetensors

        take: Callable[..., Any] = from_gguf if args.weights.suffix.lower() == ".gguf" else from_safetensors
        imported = take(args.model, args.weights, output=output)
        if args.chart:
            draw(args.chart, imported.report.quantization)
        return _show(imported, output, args.json)
    result = cuvil_onnx.quantize(
        args.model,
        args.scheme,
        bits=args.bits,
        group_size=args.group_size,
        symmetric=args.symmetric,
        calibration=args.calibration,
        include=args.include,
        exclude=args.exclude,
        overrides=_overrides(args.override),
        embeddings=args.embeddings,
        format=args.format,
        seed=args.seed,
        verify=args.verify or None,
        output=output,
        progress=bar,
    )
    if args.chart:
        draw(args.chart, result.report.quantization)
    return _show(result, output, args.json)


def _show(result: Any, output: Path, as_json: bool) -> int:
    """Prints the account of a quantization."""
    if as_json:
        print(json.dumps({"output": str(output), **result.report.as_dict()}, indent=2))
        return 0
    assert result.report.quantization is not None
    print(result.report.quantization.table())
    if result.report.verification:
        print(f"verified: {result.report.verification}")
    print(f"written: {output}")
    return 0


def _overrides(given: list[str]) -> dict[str, int]:
    found = {}
    for text in given:
        pattern, _, bits = text.rpartition("=")
        if not pattern or not bits.isdigit():
            raise OptionError(f"--override {text}: PATTERN=BITS is required")
        found[pattern] = int(bits)
    return found
