"""Runs the GPU tests under compute-sanitizer, some tests of a file a process, and says which files are clean.

python -m tests.gpu.sanitize [--tool memcheck|racecheck|initcheck|synccheck] [--jobs 8] [--most N] [FILE ...]

As many --jobs as there are cores do well: a process uses one. Each test takes CUVIL_TEST_EXAMPLES random examples (1
here unless it is set), since programs are some ten times slower under the tool. Exit code 1 when an error was found, 2
when nothing was found but a process did not finish.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SKIPPED = "not 2_31 and not 16777216 and not 90_percent and not thousand and not a_fault"
"""Tests of sizes and speeds, which say nothing under the tool and take most of the time, and of a kernel that faults on
purpose."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What became of one file: ``state`` is "clean", "errors", "tests failed", "unfinished", "broken" or "no tests"."""

    file: str
    state: str
    details: tuple[str, ...] = ()


def verdict(file: str, output: str, finished: bool) -> Verdict:
    """Reads what the tool and pytest printed.

    Several processes may have reported; one error anywhere counts, whether or not the tests came to their end.
    """
    found = sum(int(n) for n in re.findall(r"ERROR SUMMARY: (\d+) error", output))
    found += sum(int(n) for n in re.findall(r"RACECHECK SUMMARY: (\d+) hazard", output))
    errors = tuple(
        dict.fromkeys(re.findall(r"^=+ ((?:Invalid|Program hit|Error: Race|Uninitialized).*)$", output, re.M))
    )
    failures = re.findall(r"(\d+) failed", output)
    if errors or (found and finished and not failures):
        return Verdict(file, "errors", errors[:5] or (f"{found} errors",))
    if not finished:
        return Verdict(file, "unfinished")
    if failures:
        return Verdict(file, "tests failed", tuple(re.findall(r"^FAILED (\S+)", output, re.M))[:5])
    if re.search(r"\d+ (passed|skipped)", output):
        return Verdict(file, "clean" if " passed" in output else "no tests")
    return Verdict(file, "broken", tuple(output.splitlines()[-4:]))  # pytest did not come to its summary


WORST_FIRST = ("errors", "tests failed", "broken", "unfinished", "clean", "no tests")


def merged(parts: Sequence[Verdict]) -> Verdict:
    """A file's verdict is that of its worst part."""
    state = min((p.state for p in parts), key=WORST_FIRST.index)
    details = dict.fromkeys(d for p in parts if p.state == state for d in p.details)
    return Verdict(parts[0].file, state, tuple(details)[:5])


def _environment() -> dict[str, str]:
    return {"CUVIL_TEST_EXAMPLES": "1", "CUVIL_SHARED_CARD": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ}


def parts_of(files: Sequence[Path], size: int, most: int | None = None) -> dict[str, list[list[str]]]:
    """The tests of each file (``most`` of them, spread over it), in parts of at most ``size``, by the file's name.

    Every part takes tests from all over the file, since neighbours take about as long.
    """
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-k", SKIPPED]
    command += ["-o", "addopts=--import-mode=importlib", *map(str, files)]
    done = subprocess.run(command, cwd=ROOT, env=_environment(), capture_output=True, text=True, check=False)
    tests: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        if "::" in line:
            tests.setdefault(Path(line.partition("::")[0]).stem, []).append(line)
    if not tests:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])
    parts = {}
    for name, every in tests.items():
        ids = every[:: -(-len(every) // most)] if most else every
        count = -(-len(ids) // size)
        parts[name] = [ids[k::count] for k in range(count)]
    return parts


def run(name: str, tests: Sequence[str], tool: str, limit: float) -> Verdict:
    """Some tests of one file in a process of their own."""
    command = ["compute-sanitizer", "--tool", tool, "--target-processes", "all", sys.executable, "-m", "pytest"]
    if tool == "memcheck":  # some tests run out of memory on purpose; that is no access out of bounds
        command[1:1] = ["--report-api-errors", "no"]
    command += [*tests, "-rf", "-p", "no:cacheprovider"]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit)
        return verdict(name, output, finished=True)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)  # the tool's children too
        output, _ = process.communicate()
        return verdict(name, output, finished=False)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="default: every file of tests/gpu")
    parser.add_argument("--tool", default="memcheck", choices=["memcheck", "racecheck", "initcheck", "synccheck"])
    parser.add_argument("--jobs", type=int, default=8, help="processes at a time")
    parser.add_argument("--tests", type=int, default=40, help="tests a process")
    parser.add_argument("--most", type=int, help="tests of a file, spread over it; default: all")
    parser.add_argument("--limit", type=float, default=300, help="seconds for a process")
    args = parser.parse_args(arguments)
    if not shutil.which("compute-sanitizer"):
        print("compute-sanitizer is not on PATH; it is part of the CUDA toolkit", file=sys.stderr)
        return 2
    parts = parts_of(args.files or sorted((ROOT / "tests" / "gpu").glob("test_*.py")), args.tests, args.most)
    states = set()
    verdicts: dict[str, list[Verdict]] = {name: [] for name in parts}
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        begun = [
            pool.submit(run, name, ids, args.tool, args.limit) for name, all_ids in parts.items() for ids in all_ids
        ]
        for done in concurrent.futures.as_completed(begun):
            found = verdicts[done.result().file]
            found.append(done.result())
            if len(found) < len(parts[found[0].file]):
                continue
            file = merged(found)
            print(f"{file.file:28} {file.state}", *file.details, sep="  ", flush=True)
            states.add(file.state)
    if states & {"errors", "tests failed", "broken"}:
        return 1
    return 2 if "unfinished" in states else 0


if __name__ == "__main__":
    sys.exit(main())
