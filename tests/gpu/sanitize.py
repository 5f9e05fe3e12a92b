"""Runs the GPU tests under compute-sanitizer, a file a process, and says which are clean.

python -m tests.gpu.sanitize [--tool memcheck|racecheck|initcheck|synccheck] [--jobs 8] [--limit 300] [FILE ...]

Each test takes CUVIL_TEST_EXAMPLES random examples (1 here unless it is set), since programs are some ten times slower
under the tool. Exit code 1 when an error was found, 2 when nothing was found but a file did not finish.
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

SKIPPED = "not 2_31 and not 16777216 and not 90_percent and not thousand"
"""Tests of sizes and speeds, which say nothing under the tool and take most of the time."""


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


def run(file: Path, tool: str, limit: float) -> Verdict:
    """One test file in a process of its own."""
    command = ["compute-sanitizer", "--tool", tool, "--target-processes", "all", sys.executable, "-m", "pytest"]
    if tool == "memcheck":  # some tests run out of memory on purpose; that is no access out of bounds
        command[1:1] = ["--report-api-errors", "no"]
    command += [str(file), "-q", "-rf", "-p", "no:cacheprovider", "-k", SKIPPED]
    env = {"CUVIL_TEST_EXAMPLES": "1", "CUVIL_SHARED_CARD": "1", "OPENBLAS_NUM_THREADS": "1", **os.environ}
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=limit)
        return verdict(file.stem, output, finished=True)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)  # the tool's children too
        output, _ = process.communicate()
        return verdict(file.stem, output, finished=False)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="default: every file of tests/gpu")
    parser.add_argument("--tool", default="memcheck", choices=["memcheck", "racecheck", "initcheck", "synccheck"])
    parser.add_argument("--jobs", type=int, default=8, help="files at a time")
    parser.add_argument("--limit", type=float, default=300, help="seconds for a file")
    args = parser.parse_args(arguments)
    if not shutil.which("compute-sanitizer"):
        print("compute-sanitizer is not on PATH; it is part of the CUDA toolkit", file=sys.stderr)
        return 2
    files = args.files or sorted((ROOT / "tests" / "gpu").glob("test_*.py"))
    states = set()
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        begun = [pool.submit(run, file, args.tool, args.limit) for file in files]
        for done in concurrent.futures.as_completed(begun):
            result = done.result()
            print(f"{result.file:28} {result.state}", *result.details, sep="  ", flush=True)
            states.add(result.state)
    if states & {"errors", "tests failed", "broken"}:
        return 1
    return 2 if "unfinished" in states else 0


if __name__ == "__main__":
    sys.exit(main())
