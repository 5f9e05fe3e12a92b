"""The dependency law of docs/architecture.md, so that a shortcut between layers fails here and not in review."""

from __future__ import annotations

import ast
import pathlib
import re

import onnx
import pytest

import custom_ops

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Package -> the packages of this project that it must not import.
FORBIDDEN_IMPORTS = {
    "cuvil_onnx/rewrite": (
        "cuvil_onnx.rules",
        "cuvil_onnx.passes",
        "cuvil_onnx.runtime",
        "cuvil_onnx.bench",
        "cuvil_onnx.tools",
        "cuvil_onnx.api",
        "custom_ops",
    ),
    "cuvil_onnx/rules": ("cuvil_onnx.runtime", "cuvil_onnx.bench", "cuvil_onnx.tools", "cuvil_onnx.api", "onnxruntime"),
    "cuvil_onnx/passes": (
        "cuvil_onnx.runtime",
        "cuvil_onnx.bench",
        "cuvil_onnx.tools",
        "cuvil_onnx.api",
        "cuvil_onnx.rules",
    ),
    "cuvil_onnx/runtime": (
        "cuvil_onnx.rules",
        "cuvil_onnx.passes",
        "cuvil_onnx.rewrite",
        "cuvil_onnx.bench",
        "cuvil_onnx.tools",
    ),
    "cuvil_onnx/tools": ("cuvil_onnx.runtime", "cuvil_onnx.bench", "cuvil_onnx.rules"),
    "custom_ops": ("cuvil_onnx",),
}

# Directory -> include prefixes that its files must not name.
FORBIDDEN_INCLUDES = {
    "csrc/core": ("onnxruntime", "ops/", "ep/", "kernels/", "jit/", "libs/", "device/"),
    "csrc/device": ("onnxruntime", "ops/", "ep/", "kernels/", "jit/", "libs/"),
    "csrc/plan": ("onnxruntime", "cuda", "ops/", "ep/", "kernels/", "jit/", "libs/", "device/"),
    "csrc/kernels": ("onnxruntime", "ops/", "ep/", "jit/", "libs/"),
    "csrc/jit": ("onnxruntime", "ops/", "ep/"),
    "csrc/libs": ("onnxruntime", "ops/", "ep/", "kernels/"),
    "csrc/ep": ("kernels/", "jit/", "libs/"),
}

# A launcher that allocates or synchronises cannot be captured, and stalls the host when it is not.
ALLOCATES_OR_SYNCHRONISES = re.compile(
    r"\bcuda(Malloc|Free|HostAlloc|DeviceSynchronize|StreamSynchronize|EventSynchronize|MemGetInfo|GetDevice)\w*\("
)


def imported_modules(source: str) -> set[str]:
    """Absolute names of what a module imports; `from a import b` counts as both a and a.b."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def files(directory: str, *suffixes: str) -> list[pathlib.Path]:
    return sorted(p for p in (ROOT / directory).rglob("*") if p.suffix in suffixes)


@pytest.mark.parametrize("package", FORBIDDEN_IMPORTS)
def test_python_layers(package: str) -> None:
    sources = files(package, ".py")
    assert sources, f"{package} holds no Python file: the law guards nothing"
    for path in sources:
        for name in imported_modules(path.read_text()):
            bad = [f for f in FORBIDDEN_IMPORTS[package] if name == f or name.startswith(f + ".")]
            assert not bad, f"{path.relative_to(ROOT)} imports {name}"


@pytest.mark.parametrize("directory", FORBIDDEN_INCLUDES)
def test_native_layers(directory: str) -> None:
    sources = files(directory, ".h", ".cc", ".cu", ".cuh")
    assert sources, f"{directory} holds no source: the law guards nothing"
    for path in sources:
        for include in re.findall(r'#include\s+["<]([^">]+)[">]', path.read_text()):
            assert not include.startswith(FORBIDDEN_INCLUDES[directory]), f"{path.relative_to(ROOT)} includes {include}"


def test_launchers_neither_allocate_nor_synchronise() -> None:
    for path in files("csrc/kernels", ".cu", ".cuh"):
        found = ALLOCATES_OR_SYNCHRONISES.search(path.read_text())
        assert not found, f"{path.relative_to(ROOT)} calls {found.group(0) if found else ''}"


def op_names() -> set[str]:
    """Every op type of ONNX and of the domain cuvil."""
    return {schema.name for schema in onnx.defs.get_all_schemas()} | set(custom_ops.specs())


def test_the_ep_and_the_engine_name_no_op() -> None:
    # How a graph gives one value two names, and how it holds a constant: structure, whatever the ops around it.
    names = op_names() - {"Identity", "Constant"}
    for directory, suffixes in (("csrc/ep", (".h", ".cc", ".cu")), ("cuvil_onnx/rewrite", (".py",))):
        for path in files(directory, *suffixes):
            quoted = set(re.findall(r'["\']([A-Z]\w+)["\']', _code(path)))
            assert not quoted & names, f"{path.relative_to(ROOT)} names the ops {sorted(quoted & names)}"


def _code(path: pathlib.Path) -> str:
    """A file's text without comments and docstrings, where naming an op as an example is fine."""
    text = path.read_text()
    if path.suffix != ".py":
        return re.sub(r"//[^\n]*", "", text)
    return re.sub(r'""".*?"""|#[^\n]*', "", text, flags=re.S)
