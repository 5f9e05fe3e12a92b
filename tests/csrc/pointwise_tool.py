"""Drives program_tool.cc: programs in, plans, sources and compiled kernels out."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

SOURCES = [
    "tests/csrc/program_tool.cc",
    *(
        f"csrc/jit/{name}.cc"
        for name in (
            "program",
            "pw_op",
            "specialise",
            "codegen",
            "compiler",
            "prelude_memory",
            "prelude_arithmetic",
            "prelude_math",
        )
    ),
    "csrc/libs/nvrtc.cc",
    "csrc/libs/dynlib.cc",
]

# ONNX TensorProto.DataType.
NUMBERS = {
    "f32": 1,
    "u8": 2,
    "i8": 3,
    "u16": 4,
    "i16": 5,
    "i32": 6,
    "i64": 7,
    "bool": 9,
    "f16": 10,
    "f64": 11,
    "u32": 12,
    "u64": 13,
    "bf16": 16,
    "string": 8,
}


@dataclass
class Job:
    """One program on inputs of (dtype, shape)."""

    inputs: Sequence[tuple[str, Sequence[int]]]
    code: Sequence[str]
    outputs: Sequence[int]
    aligned: bool = True
    sm: int = 0  # compile for this architecture
    sms: int = 132
    source: pathlib.Path | None = None
    image: pathlib.Path | None = None

    def text(self) -> str:
        lines = [f"input {NUMBERS[t]} {','.join(map(str, shape))}" for t, shape in self.inputs]
        lines += [f"code {c}" for c in self.code]
        lines += [f"output {o}" for o in self.outputs]
        lines += [f"aligned {int(self.aligned)}", f"sm {self.sm}", f"sms {self.sms}"]
        lines += [f"source {self.source}"] if self.source else []
        lines += [f"image {self.image}"] if self.image else []
        return "\n".join([*lines, "end", ""])


def nvrtc_directory() -> str | None:
    """The directory of pip's NVRTC, or None."""
    spec = importlib.util.find_spec("nvidia")
    for base in (spec.submodule_search_locations if spec else None) or ():
        for library in sorted(pathlib.Path(base).glob("*/lib/libnvrtc.so.1?")):
            return str(library.parent)
    return None


class Tool:
    """A built program_tool."""

    def __init__(self, executable: pathlib.Path) -> None:
        self._executable = executable

    def run(self, jobs: Sequence[Job]) -> list[str]:
        """One line a job: "ok <facts>" or "error <message>"."""
        environment = os.environ | {"CUVIL_LIBRARY_PATH": nvrtc_directory() or ""}
        text = "".join(job.text() for job in jobs)
        done = subprocess.run([self._executable], input=text, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert len(lines) == len(jobs)
        return lines

    def facts(self, job: Job) -> dict[str, str]:
        """The facts of one job that must succeed."""
        (line,) = self.run([job])
        assert line.startswith("ok "), line
        return dict(part.split("=", 1) for part in line.split()[1:])
