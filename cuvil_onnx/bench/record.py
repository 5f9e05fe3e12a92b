"""Recorded results: one JSON file a benchmark run, and the newest value of each metric over all of them."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cuvil_onnx.errors import CuvilError
from cuvil_onnx.runtime import cuda_driver


@dataclass
class Record:
    """One run of a benchmark. Metric names are paths; times are medians in ms unless the name says otherwise."""

    name: str
    card: str
    versions: dict[str, str]
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)
    begun: datetime.datetime = field(default_factory=lambda: datetime.datetime.now(datetime.UTC).replace(microsecond=0))

    def add(self, metric: str, value: float, unit: str) -> None:
        self.metrics[metric] = {"value": float(f"{value:.6g}"), "unit": unit}

    def write(self, root: Path) -> Path:
        """Writes ``root/<card>/<name>_<date>.json`` and returns its path. May be called again with more metrics."""
        record = {
            "name": self.name,
            "date": self.begun.isoformat(),
            "commit": _commit(),
            "card": self.card,
            "driver": _driver(),
            "versions": self.versions,
            "command": " ".join(["python", "-m", f"benchmarks.{_program(Path(sys.argv[0]))}", *sys.argv[1:]]),
            "metrics": self.metrics,
        }
        path = root / card_folder(self.card) / f"{self.name}_{self.begun:%Y%m%d_%H%M%S}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        return path


def _program(file: Path) -> str:
    """The module that runs: a package runs its ``__main__``."""
    return file.parent.name if file.stem == "__main__" else file.stem


def card_folder(card: str) -> str:
    """The folder name of a card: ``NVIDIA H200`` -> ``h200``, ``CPU (Xeon, 2 cores)`` -> ``cpu``."""
    words = card.partition("(")[0].lower().replace("nvidia", "").replace("geforce", "").split()
    return "_".join(words) or "gpu"


def newest(folder: Path) -> dict[str, dict[str, Any]]:
    """The newest value of each metric in a card's folder, with ``unit``, ``date`` and ``card``."""
    metrics: dict[str, dict[str, Any]] = {}
    records = []
    for path in sorted(folder.glob("*.json")):
        if path.name != "summary.json":
            records.append(_read(path))
    for record in sorted(records, key=lambda r: str(r["date"])):
        for metric, entry in record["metrics"].items():
            metrics[metric] = {**entry, "date": record["date"], "card": record["card"]}
    return dict(sorted(metrics.items()))


def _read(path: Path) -> dict[str, Any]:
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        for key in ("date", "card", "metrics"):
            record[key]
    except (ValueError, KeyError) as error:
        raise CuvilError(f"{path}: not a recorded result: {error}") from None
    return record


def _commit() -> str:
    given = os.environ.get("CUVIL_COMMIT")
    if given:
        return given
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _driver() -> str:
    """The driver's release where it tells (``/proc``), else the CUDA version it supports."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
        return next(word for word in text.split() if word[0].isdigit() and "." in word)
    except (OSError, StopIteration):
        pass
    try:
        return f"CUDA {cuda_driver.driver().version()}"
    except cuda_driver.CudaError:
        return "none"
