"""The commands ``inspect``, ``diff`` and ``extract`` of the command line."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

DIFFERENCE_ALLOWED = 1e-3
"""``diff --run``: what outputs may differ by, relative to the largest value, as in ``compare`` for fp32."""


def register(commands: Any) -> None:
    """Adds the commands to the sub-parsers of ``cuvil``."""
    inspect = commands.add_parser("inspect", help="show what a model holds and what it costs")
    inspect.add_argument("model", type=Path, help="the .onnx file")
    inspect.add_argument(
        "--dim", action="append", default=[], metavar="NAME=SIZE", help="size of a free dimension: N=8, or x:2=640"
    )
    inspect.add_argument("--json", action="store_true", help="print JSON")
    inspect.set_defaults(run=_inspect)

    diff = commands.add_parser("diff", help="show what differs between two models")
    diff.add_argument("a", type=Path, help="an .onnx file")
    diff.add_argument("b", type=Path, help="another one")
    diff.add_argument("--run", dest="execute", action="store_true", help="compare outputs on generated inputs, too")
    diff.add_argument(
        "--tolerance",
        type=_tolerance,
        default=DIFFERENCE_ALLOWED,
        help=f"what outputs may differ by, relative to the largest value (default: {DIFFERENCE_ALLOWED:g})",
    )
    diff.add_argument("--json", action="store_true", help="print JSON")
    diff.set_defaults(run=_diff)

    extract = commands.add_parser("extract", help="write a part of a model as a model, for bug reports")
    extract.add_argument("model", type=Path, help="the .onnx file")
    extract.add_argument("output", type=Path, help="where to write the part")
    extract.add_argument("--node", action="append", nargs="+", default=[], metavar="NAME", help="nodes to take")
    extract.add_argument("--inputs", default="", metavar="A,B", help="values where the part begins")
    extract.add_argument("--outputs", default="", metavar="C,D", help="values where the part ends")
    extract.add_argument("--data", action="store_true", help="also write OUTPUT.npz: the inputs it gets in a whole run")
    extract.add_argument("--json", action="store_true", help="print JSON")
    extract.set_defaults(run=_extract)


def _tolerance(text: str) -> float:
    number = float(text)
    if not number >= 0:  # NaN too
        raise argparse.ArgumentTypeError(f"{text} is no tolerance of 0 or more")
    return number


def _inspect(args: argparse.Namespace) -> int:
    from cuvil_onnx.tools.inspect import inspect, render
    from cuvil_onnx.tools.read import parse_dims

    facts = inspect(args.model, parse_dims(args.dim))
    print(json.dumps(dataclasses.asdict(facts), indent=2) if args.json else render(facts))
    return 0


def _diff(args: argparse.Namespace) -> int:
    from cuvil_onnx.tools.diff import diff, render

    found = diff(args.a, args.b, run=args.execute)
    worst = max((found.outputs or {}).values(), default=0.0)
    print(json.dumps(_finite(dataclasses.asdict(found)), indent=2) if args.json else render(found))
    if worst <= args.tolerance:
        return 0
    print(f"cuvil: outputs differ by {worst:.2g} relative, {args.tolerance:g} is allowed", file=sys.stderr)
    return 1


def _finite(found: dict[str, Any]) -> dict[str, Any]:
    """JSON has no infinity: what cannot be compared by numbers is null."""
    outputs = found["outputs"]
    if outputs is not None:
        found["outputs"] = {name: None if value == float("inf") else value for name, value in outputs.items()}
    return found


def _extract(args: argparse.Namespace) -> int:
    from cuvil_onnx.tools.extract import extract

    made = extract(
        args.model,
        args.output,
        nodes=[name for group in args.node for name in group],
        inputs=_names(args.inputs),
        outputs=_names(args.outputs),
        data=args.data,
    )
    if args.json:
        print(json.dumps(dataclasses.asdict(made), indent=2, default=str))
        return 0
    print(f"{made.nodes} nodes, inputs {', '.join(made.inputs) or 'none'}, outputs {', '.join(made.outputs)}")
    print(f"written: {made.output}" + (f", {made.data}" if made.data else ""))
    return 0


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
