"""What tests.gpu.sanitize makes of the output of compute-sanitizer and pytest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.sanitize import Verdict, merged, parts_of, verdict

CLEAN = "========= COMPUTE-SANITIZER\n....\n4 passed in 2.0s\n========= ERROR SUMMARY: 0 errors\n"
INVALID = "========= Invalid __global__ read of size 4 bytes\n=========     at pad+0x10\n"


@pytest.mark.parametrize(
    ("output", "finished", "state"),
    [
        (CLEAN, True, "clean"),
        (CLEAN.replace("0 errors", "2 errors"), True, "errors"),
        (INVALID + CLEAN.replace("0 errors", "1 error"), True, "errors"),
        (INVALID, False, "errors"),
        (CLEAN, False, "unfinished"),
        ("FAILED tests/gpu/test_pad.py::test_a - x\n1 failed, 3 passed\n", True, "tests failed"),
        ("========= Error: the target did not start\n", True, "broken"),
        ("3 skipped in 0.1s\n========= ERROR SUMMARY: 0 errors\n", True, "no tests"),
        (CLEAN + "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n", True, "clean"),
        (CLEAN + "========= RACECHECK SUMMARY: 3 hazards displayed (3 errors, 0 warnings)\n", True, "errors"),
        ("========= Error: Race reported between Write access at a and Read access at b\n", False, "errors"),
    ],
)
def test_verdicts(output: str, finished: bool, state: str) -> None:
    assert verdict("test_pad", output, finished).state == state


def test_failures_are_named() -> None:
    output = "FAILED tests/gpu/test_pad.py::test_a - x\n1 failed, 3 passed\n"
    assert verdict("test_pad", output, True).details == ("tests/gpu/test_pad.py::test_a",)


def test_a_file_is_as_good_as_its_worst_part() -> None:
    parts = [Verdict("test_pad", "clean"), Verdict("test_pad", "unfinished"), Verdict("test_pad", "errors", ("read",))]
    assert merged(parts) == Verdict("test_pad", "errors", ("read",))
    assert merged(parts[:2]).state == "unfinished" and merged(parts[:1]).state == "clean"


def test_parts_hold_every_test_once() -> None:
    file = Path(__file__).parent / "gpu" / "test_pad.py"
    whole, parts = (parts_of([file], size)["test_pad"] for size in (1000, 3))
    assert len(whole) == 1 and len(whole[0]) > 3
    assert max(map(len, parts)) <= 3
    assert sorted(t for part in parts for t in part) == sorted(whole[0])


def test_a_sample_is_spread_over_the_file() -> None:
    file = Path(__file__).parent / "gpu" / "test_pad.py"
    whole = parts_of([file], 1000)["test_pad"][0]
    (some,) = parts_of([file], 1000, 4)["test_pad"]
    assert 2 <= len(some) <= 4 and some == whole[:: whole.index(some[1])]
