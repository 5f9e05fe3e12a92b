"""Files that a command writes besides its model: charts and pages."""

from __future__ import annotations

from pathlib import Path

from cuvil_onnx.errors import OutputError
from cuvil_onnx.passes.write import atomically, check_target


def check_side_file(option: str, path: Path | None, *others: Path | None) -> None:
    """Before long work: OutputError when ``path`` cannot be written, or is one of the command's ``others``."""
    if path is None:
        return
    check_target(path)
    for other in others:
        if other is not None and (path.resolve() == other.resolve() or _same_file(path, other)):
            raise OutputError(f"{option} {path}: is {other}, which this command reads or writes; choose another path")


def write_text(path: Path, text: str) -> None:
    """Writes a file completely or not at all; OutputError when that is impossible."""
    atomically(path, lambda file: file.write(text.encode("utf-8", "replace")))


def _same_file(a: Path, b: Path) -> bool:
    try:
        return a.samefile(b)
    except OSError:  # one of them is not there yet
        return False
