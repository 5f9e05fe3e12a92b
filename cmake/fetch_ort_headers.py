"""Lays out ONNX Runtime's C headers (API >= 27), which no pip package holds, in a directory.

Looks in this order: ORT_INCLUDE_DIR, the system's include directories, a copy fetched earlier, then (on Debian) the
libonnxruntime-dev package of the archive that this machine already uses, then ONNX Runtime's release archive.
Prints the directory found. Standard library only, so that it runs before anything is installed.

    python fetch_ort_headers.py DESTINATION
"""

from __future__ import annotations

import hashlib
import io
import lzma
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator

MIN_API = 27
RELEASE = "1.27.1"
RELEASE_URL = (
    f"https://github.com/microsoft/onnxruntime/releases/download/v{RELEASE}/onnxruntime-linux-x64-{RELEASE}.tgz"
)
SYSTEM = ("/usr/include/onnxruntime", "/usr/local/include/onnxruntime", "/usr/include", "/usr/local/include")


def api_version(directory: pathlib.Path) -> int:
    """ORT_API_VERSION of the headers in `directory`; 0 when they are not there or lack the plugin EP API."""
    header = directory / "onnxruntime_c_api.h"
    if not header.is_file() or not (directory / "onnxruntime_ep_c_api.h").is_file():
        return 0
    found = re.search(r"#define\s+ORT_API_VERSION\s+(\d+)", header.read_text(errors="replace"))
    return int(found.group(1)) if found else 0


def _installed() -> Iterator[pathlib.Path]:
    if os.environ.get("ORT_INCLUDE_DIR"):
        yield pathlib.Path(os.environ["ORT_INCLUDE_DIR"])
    yield from map(pathlib.Path, SYSTEM)


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as reply:
        return bytes(reply.read())


def _debian_sites() -> list[str]:
    """The archives that apt uses here, so that no address is written down."""
    if not shutil.which("apt-get"):
        return []
    shown = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)"], capture_output=True, text=True, check=False
    )
    return list(dict.fromkeys(line for line in shown.stdout.split() if line.startswith("http")))


def _deb_headers(deb: bytes) -> Iterator[tuple[str, bytes]]:
    """(name, content) of each header in a Debian package (an `ar` archive that holds data.tar.xz)."""
    position = 8
    while position < len(deb):
        name, size = deb[position : position + 16].decode().strip(), int(deb[position + 48 : position + 58])
        body = deb[position + 60 : position + 60 + size]
        position += 60 + size + size % 2
        if name.startswith("data.tar"):
            yield from _tar_headers(body)


def _tar_headers(data: bytes) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive:
            parts = pathlib.PurePosixPath(member.name).parts
            content = archive.extractfile(member) if member.isfile() and member.name.endswith(".h") else None
            if content and "include" in parts:
                yield parts[-1], content.read()


def _from_debian() -> Iterator[tuple[str, bytes]]:
    for site in _debian_sites():
        try:
            index = lzma.decompress(_get(f"{site}/dists/experimental/main/binary-amd64/Packages.xz")).decode()
        except (OSError, lzma.LZMAError):
            continue
        entry = next((e for e in index.split("\n\n") if e.startswith("Package: libonnxruntime-dev\n")), "")
        fields = dict(line.split(": ", 1) for line in entry.splitlines() if ": " in line and line[0] != " ")
        if "Filename" not in fields:
            continue
        deb = _get(f"{site}/{fields['Filename']}")
        if hashlib.sha256(deb).hexdigest() != fields["SHA256"]:
            raise OSError("libonnxruntime-dev does not match the checksum in the archive's index")
        yield from _deb_headers(deb)
        return


def _from_release() -> Iterator[tuple[str, bytes]]:
    yield from _tar_headers(_get(RELEASE_URL))


def locate(destination: pathlib.Path) -> pathlib.Path:
    """The directory of headers of API >= 27, fetching them into `destination` when none is installed.

    Raises:
        SystemExit: nothing usable was found; the message says what was tried.
    """
    for directory in (*_installed(), destination):
        if api_version(directory) >= MIN_API:
            return directory
    tried = []
    for source in (_from_debian, _from_release):
        try:
            headers = list(source())
        except (OSError, tarfile.TarError, lzma.LZMAError) as error:
            tried.append(f"{source.__name__[6:]}: {error}")
            continue
        destination.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=destination.parent) as scratch:
            staged = pathlib.Path(scratch) / "headers"
            staged.mkdir()
            for name, content in headers:
                (staged / name).write_bytes(content)
            if api_version(staged) >= MIN_API:
                shutil.rmtree(destination, ignore_errors=True)
                staged.rename(destination)
                return destination
        tried.append(f"{source.__name__[6:]}: no headers of API >= {MIN_API}")
    raise SystemExit(
        f"ONNX Runtime headers of API >= {MIN_API} were not found; set ORT_INCLUDE_DIR. Tried: {'; '.join(tried)}"
    )


if __name__ == "__main__":
    print(locate(pathlib.Path(sys.argv[1])))
