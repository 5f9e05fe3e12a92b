"""Python processes of a comparison: stock ONNX Runtime's apart from ours."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TIMEOUT_S = 600


def run_python(command: Sequence[str], *, stock: bool) -> subprocess.CompletedProcess[str]:
    """Runs this interpreter with ``command``.

    A stock process does not register our provider, and finds the folders of ``CUVIL_STOCK_PYTHONPATH`` first: so
    another build of ONNX Runtime (onnxruntime-gpu) can stand beside the one that cuvil uses.
    """
    env = dict(os.environ)
    package = str(Path(__file__).resolve().parent.parent.parent)
    path = [package, env.get("PYTHONPATH", "")]
    if stock:
        path.insert(0, env.get("CUVIL_STOCK_PYTHONPATH", ""))
        env["CUVIL_REGISTER"] = "0"
    env["PYTHONPATH"] = os.pathsep.join(p for p in path if p)
    return subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, env=env, timeout=TIMEOUT_S, check=False
    )


def run_job(module: str, job: dict[str, Any], folder: Path, *, stock: bool) -> dict[str, Any]:
    """Runs ``python -m module JOB RESULT``; a process that dies or hangs gives ``{"error": reason}``."""
    job_file, result_file = folder / "job.json", folder / "result.json"
    result_file.unlink(missing_ok=True)
    job_file.write_text(json.dumps(job))
    try:
        done = run_python(["-m", module, str(job_file), str(result_file)], stock=stock)
    except subprocess.TimeoutExpired:
        return {"error": f"no result within {TIMEOUT_S} s"}
    if not result_file.exists():
        tail = done.stderr.strip().splitlines()[-1:] or [""]
        return {"error": f"the process ended with {done.returncode}: {tail[0]}"[:500]}
    result: dict[str, Any] = json.loads(result_file.read_text())
    return result
