"""The disk cache of compiled kernels: what it believes, where it lives, and that it never stands in the way."""

from __future__ import annotations

import os
import pathlib
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

SOURCES = ["tests/csrc/cache_tool.cc", "csrc/core/cache_dir.cc", "csrc/core/keyed_file.cc", "csrc/jit/cubin_cache.cc"]
SOURCES += ["csrc/jit/compiler.cc", "csrc/libs/nvrtc.cc", "csrc/libs/dynlib.cc"]

Tool = Callable[..., str]


@pytest.fixture
def tool(compile_cpp, tmp_path: pathlib.Path) -> Tool:
    executable = compile_cpp(SOURCES)

    def run(*arguments: str, **variables: str) -> str:
        environment = {"PATH": os.environ["PATH"], **(variables or {"CUVIL_CACHE_DIR": str(tmp_path / "cache")})}
        done = subprocess.run([executable, *arguments], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


def files(tmp_path: pathlib.Path) -> list[pathlib.Path]:
    return list((tmp_path / "cache" / "pointwise").iterdir())


def test_what_is_written_is_read(tool: Tool, tmp_path: pathlib.Path) -> None:
    assert tool("read", "a") == "miss"
    tool("write", "a", "image of a")
    tool("write", "b", "image of b")
    assert tool("read", "a") == "hit image of a"
    assert tool("read", "b") == "hit image of b"
    assert tool("read", "c") == "miss"
    assert len(files(tmp_path)) == 2


def test_only_the_user_may_read_and_write(tool: Tool, tmp_path: pathlib.Path) -> None:
    tool("write", "a", "image")
    (file,) = files(tmp_path)
    assert file.stat().st_mode & 0o077 == 0 and file.parent.stat().st_mode & 0o077 == 0


def test_any_damage_is_a_miss(tool: Tool, tmp_path: pathlib.Path) -> None:
    tool("write", "a", "image")
    (file,) = files(tmp_path)
    content = file.read_bytes()
    for i in range(len(content)):
        file.write_bytes(content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :])
        assert tool("read", "a") == "miss", f"byte {i}"
    for size in range(len(content)):
        file.write_bytes(content[:size])
        assert tool("read", "a") == "miss", f"{size} bytes"
    file.write_bytes(content + b"more")
    assert tool("read", "a") == "miss"
    tool("write", "a", "image")
    assert file.read_bytes() == content


def test_a_file_of_another_key_is_a_miss(tool: Tool, tmp_path: pathlib.Path) -> None:
    # As a collision of the file name's hash would look.
    tool("write", "a", "image of a")
    (first,) = files(tmp_path)
    tool("write", "b", "image of b")
    (second,) = set(files(tmp_path)) - {first}
    second.write_bytes(first.read_bytes())
    assert tool("read", "b") == "miss"


def test_concurrent_writers_leave_one_whole_file(tool: Tool, tmp_path: pathlib.Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: tool("write", "a", f"image {i}" * 1000), range(24)))
    assert tool("read", "a").startswith("hit image ")
    assert [f.suffix for f in files(tmp_path)] == [".cubin"]


def test_where_it_lives(tool: Tool, tmp_path: pathlib.Path) -> None:
    base = str(tmp_path)
    assert tool("dir", "x", CUVIL_CACHE_DIR=base, XDG_CACHE_HOME="/nowhere") == f"{base}/x"
    assert tool("dir", "x", XDG_CACHE_HOME=base, HOME="/nowhere") == f"{base}/cuvil_onnx/x"
    assert tool("dir", "x", HOME=base) == f"{base}/.cache/cuvil_onnx/x"
    assert tool("dir", "x", UNRELATED="1") == "none"


def test_an_unusable_directory_is_no_error(tool: Tool, tmp_path: pathlib.Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    assert tool("dir", "x", CUVIL_CACHE_DIR=str(blocked)) == "none"
    assert tool("write", "a", "image", CUVIL_CACHE_DIR=str(blocked)) == ""
    assert tool("read", "a", CUVIL_CACHE_DIR=str(blocked)) == "miss"
