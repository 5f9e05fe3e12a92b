"""Writes docs/operators.md: what each operator of CuvilExecutionProvider takes, asked of the provider, and what was
measured.

python -m tests.conformance.operators            # writes it and tests/conformance/claimed.txt
python -m tests.conformance.operators --check    # exit code 1 when one of them is out of date
python -m tests.conformance.operators --gaps     # prints why cases that stock ONNX Runtime passes are not taken

Needs no GPU: the provider's library is built for the fake device, from the tree that `dev.py build` made.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import onnx

from tests.conformance import contrib
from tests.conformance.cases import cases
from tests.conformance.fake_library import RegisteredOp, build, build_tree, registered_ops
from tests.conformance.page import Row, heading, page
from tests.conformance.probes import TYPES, probes, retyped
from tests.conformance.survey import Survey, survey
from tests.conformance.workers import run_all

ROOT = Path(__file__).resolve().parents[2]
PAGE, CLAIMED = ROOT / "docs" / "operators.md", ROOT / "tests" / "conformance" / "claimed.txt"
COMMAND = "python -m tests.conformance.operators"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, fail when something is out of date")
    parser.add_argument("--gaps", action="store_true", help="print what is missing, and write nothing")
    parser.add_argument("--jobs", type=int)
    args = parser.parse_args(arguments)
    library = find_library()
    if library is None:
        print("no build tree: run `python3 dev.py build`, or set CUVIL_BUILD_TREE", file=sys.stderr)
        return 2
    os.environ["CUVIL_CONFORMANCE_LIBRARY"] = str(library)
    found = survey(list(cases()), compute=False, jobs=args.jobs)
    if args.gaps:
        for alone, total, cause, names in found.gaps():
            print(f"{alone:4} {total:4}  {cause} | {' '.join(names[:3])}")
        return 0
    files = {
        PAGE: page(found, rows(found, library, args.jobs), versions()),
        CLAIMED: "".join(f"{name}\n" for name in sorted(found.claimed)),
    }
    lost = [n for n in CLAIMED.read_text(encoding="utf-8").split() if n in found.refusals or n in found.errors]
    if args.check and heading(versions()) not in PAGE.read_text(encoding="utf-8"):
        # A newer ONNX Runtime runs the cases as later opsets, whose schemas the provider may not know yet.
        print("other versions of onnx or ONNX Runtime than the page was written with: nothing is compared")
        return 0
    if args.check and lost:
        print("no longer taken:", *lost, file=sys.stderr)
    stale = [p for p, text in files.items() if not p.is_file() or p.read_text(encoding="utf-8") != text]
    for path in stale:
        if args.check:
            print(f"{path.relative_to(ROOT)} is out of date: run {COMMAND}", file=sys.stderr)
        else:
            path.write_text(files[path], encoding="utf-8")
            print(f"wrote {path.relative_to(ROOT)}")
    return 1 if args.check and stale else 0


def find_library() -> Path | None:
    """The library on the fake device: CUVIL_CONFORMANCE_LIBRARY, else brought up to date."""
    if given := os.environ.get("CUVIL_CONFORMANCE_LIBRARY"):
        return Path(given)
    tree = build_tree()
    return build(tree) if tree else None


def versions() -> dict[str, str]:
    """What the page depends on besides this repository."""
    found: dict[str, str] = run_all(["versions"], _versions, 1)["versions"]
    return found


def rows(found: Survey, library: Path, jobs: int | None = None) -> list[Row]:
    """One row for each registered op."""
    entries: dict[str, list[RegisteredOp]] = defaultdict(list)
    for entry in registered_ops(library):
        entries[entry.name].append(entry)
    types = run_all(list(entries), _types_of, jobs or min(8, os.cpu_count() or 1))
    total: dict[str, list[str]] = defaultdict(list)
    for name in found.stock_pass:
        total[cases()[name].op].append(name)
    claimed = set(found.claimed)
    return [Row(op, e, types[op], [n for n in total[op] if n in claimed], len(total[op])) for op, e in entries.items()]


def _versions(_: str) -> dict[str, str]:
    import onnxruntime

    return {"onnx": onnx.__version__, "onnxruntime": onnxruntime.__version__}


def _types_of(op: str) -> dict[str, list[int]]:
    """Accepted element types by type parameter; empty where there is nothing to ask with."""
    from tests.conformance.provider import lowered, takes

    if op.startswith("cuvil::"):
        return {"T": [t for t in TYPES[:4] if _takes_example(op.removeprefix("cuvil::"), t)]}
    if op.startswith(f"{contrib.DOMAIN}::"):
        models = {t: contrib.model(op.removeprefix(f"{contrib.DOMAIN}::"), t) for t in TYPES}
        return {"T": [t for t, m in models.items() if m is not None and takes(m.SerializeToString())]}
    taken: dict[str, set[int]] = {}
    for probe in _probes().get(op, []):
        if all(probe.type in taken.get(p, ()) for p in probe.parameters):
            continue
        model = retyped(probe)
        if model is not None and takes(lowered(model).SerializeToString()):
            for parameter in probe.parameters:
                taken.setdefault(parameter, set()).add(probe.type)
    return {parameter: sorted(types, key=TYPES.index) for parameter, types in sorted(taken.items())}


def _takes_example(op: str, kind: int) -> bool:
    import onnx_ir as ir

    from custom_ops import specs, testing
    from tests.conformance.provider import takes

    spec = specs()[op]
    for example in spec.examples():
        case = testing.build(spec, example, opset=max(17, example.opset), dtype=ir.DataType(kind))
        if takes(case.model.SerializeToString()):
            return True
    return False


@functools.lru_cache(maxsize=1)
def _probes() -> dict[str, list[Any]]:
    by_op: dict[str, list[Any]] = defaultdict(list)
    for probe in probes(list(cases().values())):
        by_op[probe.op].append(probe)
    return by_op


if __name__ == "__main__":
    sys.exit(main())
