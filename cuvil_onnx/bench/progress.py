"""Progress of long work on standard error, so that standard output stays a table or JSON."""

from __future__ import annotations

import sys
import time
from typing import TextIO


class Progress:
    """A bar of ``total`` steps; one line each where the output is no terminal. Silent with ``enabled=False``."""

    def __init__(self, total: int, enabled: bool = True, stream: TextIO | None = None) -> None:
        self._total, self._done = max(total, 1), 0
        self._stream = stream if stream is not None else sys.stderr
        self._enabled = enabled
        self._start = time.monotonic()

    def step(self, what: str) -> None:
        """Says what begins now."""
        if not self._enabled:
            return
        if self._stream.isatty():
            filled = 24 * self._done // self._total
            bar = "█" * filled + "░" * (24 - filled)
            print(f"\r\x1b[2K{bar} {self._done}/{self._total} {what}", end="", file=self._stream, flush=True)
        else:
            print(f"[{self._done + 1}/{self._total}] {what}", file=self._stream, flush=True)
        self._done += 1

    def advance(self, done: int, what: str) -> None:
        """Says that ``what`` is finished, and ``done`` steps in all."""
        self._done = max(done - 1, 0)
        self.step(what)

    def finish(self) -> None:
        """Clears the bar."""
        if self._enabled and self._stream.isatty():
            print("\r\x1b[2K", end="", file=self._stream, flush=True)
