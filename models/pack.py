"""Carries the zoo's packaged models to a machine that reaches no package registry.

python -m models.pack OUT [MODEL ...] [--half] [--limit MB]    write OUT/models-1.tar.xz, models-2.tar.xz ...
python -m models.pack --unpack FOLDER ARCHIVE ...              unpack them; then set CUVIL_MODELS=FOLDER

``--half`` stores float32 weights as float16: the archives take half the room, and the unpacked weights are rounded to
11 bits, which is another model of the same structure (its reference on the CPU is computed from the same weights).
A file that exceeds the limit is cut into parts, which lie in archives of their own.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import io
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from models import zoo

_HALF = "float16 in the archive"  # doc_string of a weight that was rounded
_SMALLEST = 1024  # elements; fewer are not worth rounding
_PART = ".part"


def files(names: list[str]) -> dict[str, Path]:
    """The .onnx files of the packages that the models come from, by their path inside the package."""
    found: dict[str, Path] = {}
    for package in sorted({zoo.get(name).package or "" for name in names} - {""}):
        try:
            listed = importlib.metadata.files(package) or []
        except importlib.metadata.PackageNotFoundError:
            print(f"left out: {package} is not installed", file=sys.stderr)
            continue
        found |= {str(PurePosixPath(f)): Path(str(f.locate())) for f in listed if f.suffix == ".onnx"}
    return found


def halve(content: bytes) -> bytes:
    """The model with its large float32 weights stored as float16, marked as such."""
    model = onnx.load_from_string(content)
    for tensor in _weights(model):
        if tensor.data_type == TensorProto.FLOAT and not tensor.doc_string:
            values = numpy_helper.to_array(tensor)
            if values.size >= _SMALLEST and np.abs(values).max() < np.finfo(np.float16).max:
                tensor.CopyFrom(numpy_helper.from_array(values.astype(np.float16), tensor.name))
                tensor.doc_string = _HALF
    return bytes(model.SerializeToString())


def restore(content: bytes) -> bytes:
    """Undoes :func:`halve`, but for the rounding."""
    model = onnx.load_from_string(content)
    for tensor in _weights(model):
        if tensor.doc_string == _HALF:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    return bytes(model.SerializeToString())


def _weights(model: onnx.ModelProto) -> Iterator[TensorProto]:
    yield from model.graph.initializer
    for node in model.graph.node:
        if node.op_type == "Constant":
            yield from (a.t for a in node.attribute if a.name == "value")


def pack(out: Path, names: list[str], half: bool, limit: int) -> list[Path]:
    """Writes the archives, each of at most ``limit`` bytes before compression, and returns them."""
    out.mkdir(parents=True, exist_ok=True)
    archives: list[list[tuple[str, bytes]]] = [[]]
    for name, path in sorted(files(names).items(), key=lambda item: item[1].stat().st_size):
        content = halve(path.read_bytes()) if half else path.read_bytes()
        pieces = [content[at : at + limit] for at in range(0, len(content), limit)]
        for i, piece in enumerate(pieces):
            if archives[-1] and sum(len(c) for _, c in archives[-1]) + len(piece) > limit:
                archives.append([])
            archives[-1].append((name if len(pieces) == 1 else f"{name}{_PART}{i}", piece))
    written = []
    for i, members in enumerate(archives, 1):
        written.append(out / f"models-{i}.tar.xz")
        with tarfile.open(written[-1], "w:xz", preset=1) as archive:
            for name, content in members:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return written


def unpack(folder: Path, archives: list[Path]) -> list[Path]:
    """Lays the models of the archives into the folder, parts joined and weights restored, and returns their paths."""
    contents: dict[str, dict[int, bytes]] = {}
    for path in archives:
        with tarfile.open(path) as archive:
            for member in archive.getmembers():
                name, _, part = member.name.partition(_PART)
                file = archive.extractfile(member)
                assert file is not None
                contents.setdefault(name, {})[int(part or 0)] = file.read()
    written = []
    for name, parts in contents.items():
        if sorted(parts) != list(range(len(parts))):
            raise zoo.MissingModelError(f"{name}: a part is missing, give all archives")
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(restore(b"".join(parts[i] for i in range(len(parts)))))
        written.append(target)
    return written


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="OUT", help="folder to write into")
    parser.add_argument("names", nargs="*", help="models (default: all that come in packages), or archives")
    parser.add_argument("--unpack", action="store_true", help="unpack the archives into the folder")
    parser.add_argument("--half", action="store_true", help="store weights as float16")
    parser.add_argument("--limit", type=int, default=55, help="MB an archive, before compression")
    args = parser.parse_args()
    if args.unpack:
        written = unpack(args.folder, [Path(name) for name in args.names])
    else:
        written = pack(args.folder, args.names or list(zoo.all_models()), args.half, args.limit << 20)
    for path in written:
        print(f"{path} {path.stat().st_size / 2**20:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
