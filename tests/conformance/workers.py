"""Runs a function over many names in forked processes: a crash or a lost GPU costs one name and not the rest."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any


class Lost(Exception):
    """Raised by the function: the name's result is this text, and the process is of no more use."""


def run_all(names: Sequence[str], function: Callable[[str], Any], jobs: int, seconds: float = 60) -> dict[str, Any]:
    """`function(name)` for each name; its result, or "crashed: ..." where the process died or took longer.

    Forks: whatever cannot live in a child (CUDA, sessions) must first be made inside `function`.
    """
    results: dict[str, Any] = {}
    waiting = [list(names[i::jobs]) for i in range(jobs)]
    running = [_Worker(todo, function) for todo in waiting if todo]
    while running:
        ready = wait([w.pipe for w in running], timeout=seconds)
        for worker in [w for w in running if w.pipe in ready or not ready]:
            try:
                if not ready:  # nobody had anything to say for so long
                    os.kill(worker.process.pid or 0, signal.SIGKILL)
                name, result, goes_on = worker.pipe.recv()
            except EOFError:
                name, result, goes_on = worker.todo[0], f"crashed: exit code {worker.exit_code()}", False
            results[name] = result
            worker.todo.remove(name)
            if worker.todo and goes_on:
                continue
            running.remove(worker)
            worker.exit_code()
            if worker.todo:
                running.append(_Worker(worker.todo, function))
    return results


class _Worker:
    def __init__(self, todo: list[str], function: Callable[[str], Any]) -> None:
        self.todo = todo
        self.pipe, theirs = multiprocessing.Pipe(duplex=False)
        fork = multiprocessing.get_context("fork")
        self.process = fork.Process(target=_work, args=(list(todo), function, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def exit_code(self) -> int | None:
        self.process.join()
        return self.process.exitcode


def _work(todo: list[str], function: Callable[[str], Any], pipe: Connection) -> None:
    for name in todo:
        try:
            pipe.send((name, function(name), True))
        except Lost as lost:
            pipe.send((name, str(lost), False))
            break
    pipe.close()
    os._exit(0)  # a lost device makes orderly ends hang or crash
