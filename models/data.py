"""Real inputs where a package ships some, plainly synthetic ones otherwise; deterministic either way."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from models import zoo

Array = npt.NDArray[Any]

SENTENCES = (
    "The ferry to the island leaves twice a day in winter.",
    "She repaired the old clock with a spring from a pocket watch.",
    "Heavy rain delayed the harvest by almost two weeks.",
    "A compiler turns a program into instructions a machine can run.",
    "The museum keeps the smaller paintings in a dark room.",
    "Nobody expected the bridge to be finished before summer.",
    "Bread needs flour, water, salt, and more patience than people think.",
    "The committee will publish its report on the first of March.",
)

_CLS, _SEP, _PAD = 101, 102, 0
_FIRST_WORD, _LAST_WORD = 1996, 28996  # whole words of BERT's uncased vocabulary lie in this range


def token_ids(batch: int, length: int, seed: int = 0) -> tuple[Array, Array]:
    """``input_ids`` and ``attention_mask``, int64 [batch, length], of sentences with padding on the right.

    The MiniLM package ships no vocabulary, so each word gets an id by its hash: sentence lengths, the special tokens
    and repeated words are as in real text, the meaning is not.
    """
    ids = np.full((batch, length), _PAD, np.int64)
    mask = np.zeros((batch, length), np.int64)
    for row in range(batch):
        words = SENTENCES[(row + seed) % len(SENTENCES)].lower().replace(",", " ,").replace(".", " .").split()
        tokens = [_CLS, *(_word_id(word) for word in words[: length - 2]), _SEP]
        ids[row, : len(tokens)] = tokens
        mask[row, : len(tokens)] = 1
    return ids, mask


def _word_id(word: str) -> int:
    digest = int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big")
    return _FIRST_WORD + digest % (_LAST_WORD - _FIRST_WORD)


def images(batch: int, height: int, width: int, seed: int = 0) -> Array:
    """Photographs, float32 [batch, 3, height, width] normalised with ImageNet's mean and deviation.

    From scikit-image when it is installed, else drawn: gradients, discs and stripes.
    """
    pictures = _photographs()
    rng = np.random.default_rng(seed)
    out = np.empty((batch, 3, height, width), np.float32)
    for i in range(batch):
        picture = pictures[(i + seed) % len(pictures)] if pictures else _drawing(rng)
        out[i] = _resize(picture, height, width).transpose(2, 0, 1)
    mean = np.array([0.485, 0.456, 0.406], np.float32).reshape(3, 1, 1)
    deviation = np.array([0.229, 0.224, 0.225], np.float32).reshape(3, 1, 1)
    return (out - mean) / deviation


def text_lines(batch: int, height: int, width: int, seed: int = 0) -> Array:
    """Pictures of lines of text, float32 [batch, 3, height, width] in -1..1, as PP-OCR's classifier takes them.

    Dark strokes on light paper, every second one turned by 180 degrees.
    """
    rng = np.random.default_rng(seed)
    out = np.ones((batch, 3, height, width), np.float32)
    for i in range(batch):
        for x in range(4, width - 8, 8):
            top, bottom = sorted(rng.integers(height // 6, height - height // 6, 2))
            out[i, :, top : bottom + 2, x : x + 2] = -0.8
            out[i, :, height // 2 : height // 2 + 2, x : x + rng.integers(3, 7)] = -0.7
        if i % 2:
            out[i] = out[i, :, ::-1, ::-1]
    return out


def page(batch: int, height: int, width: int, seed: int = 0) -> Array:
    """Crops of a scanned page of text, float32 [batch, 3, height, width] in -1..1; from scikit-image, else drawn."""
    try:
        from skimage import data

        scan = np.asarray(data.page(), np.float32) / 255
    except ImportError:
        return np.concatenate([text_lines(batch, 32, width, seed + i) for i in range(height // 32)], axis=2)
    rng = np.random.default_rng(seed)
    out = np.empty((batch, 3, height, width), np.float32)
    for i in range(batch):
        top, left = rng.integers(0, scan.shape[0] // 4), rng.integers(0, scan.shape[1] // 4)
        out[i] = _resize(scan[top : top + 140, left : left + 280, None], height, width).transpose(2, 0, 1)
    return out * 2 - 1


def speech(batch: int, samples: int, seed: int = 0) -> Array:
    """Speech at 16 kHz, float32 [batch, samples] in -1..1: a recording of pytest-audioeval (MIT) when it is there.

    Otherwise vowels: a gliding pitch, its harmonics weighted by two formants, and pauses.
    """
    try:
        recording = _recording(zoo.file_of_package("pytest-audioeval", "audio/en/quick_brown_fox.wav"))
    except zoo.MissingModelError:
        recording = _vowels()
    out = np.empty((batch, samples), np.float32)
    for i in range(batch):
        out[i] = np.resize(np.roll(recording, -((i + 3 * seed) * 7919 % len(recording))), samples)
    return out


def file_bytes(batch: int, head: int, tail: int, seed: int = 0) -> Array:
    """The first and last bytes of source files of this package, int32 [batch, head + tail], 256 beyond their ends."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    out = np.full((batch, head + tail), 256, np.int32)
    for i in range(batch):
        content = np.frombuffer(files[(i + seed) % len(files)].read_bytes().strip(), np.uint8)
        first, last = content[:head], content[-tail:]
        out[i, : len(first)] = first
        out[i, head + tail - len(last) :] = last
    return out


def _recording(path: Path) -> Array:
    """A WAV file of one channel at 16 kHz. Source: the RIFF WAVE format, Microsoft and IBM, 1991."""
    content, at, chunks = path.read_bytes(), 12, {}
    while at + 8 <= len(content):
        kind, size = struct.unpack_from("<4sI", content, at)
        chunks[kind] = content[at + 8 : at + 8 + size]
        at += 8 + size + size % 2
    kind, _, rate, _, _, bits = struct.unpack_from("<HHIIHH", chunks[b"fmt "])
    samples = np.frombuffer(chunks[b"data"], np.float32 if kind == 3 else f"<i{bits // 8}")
    sound = samples if kind == 3 else samples.astype(np.float32) / 2 ** (bits - 1)
    positions = np.arange(0, len(sound) - 1, rate / 16000)
    resampled: Array = np.interp(positions, np.arange(len(sound)), sound).astype(np.float32)
    return resampled


def _vowels() -> Array:
    t = np.arange(32000) / 16000
    pitch = 120 + 30 * np.sin(2 * np.pi * 1.5 * t)
    phase = 2 * np.pi * np.cumsum(pitch) / 16000
    sound = np.zeros_like(t)
    for harmonic in range(1, 25):
        frequency = harmonic * 120
        weight = sum(np.exp(-(((frequency - formant) / 200) ** 2)) for formant in (700, 1220))
        sound += weight * np.sin(harmonic * phase)
    return (0.15 * sound * (np.sin(2 * np.pi * 2 * t) > -0.5)).astype(np.float32)


def _photographs() -> list[Array]:
    try:
        from skimage import data
    except ImportError:
        return []
    return [np.asarray(data.astronaut(), np.float32) / 255, np.asarray(data.chelsea(), np.float32) / 255]


def _drawing(rng: np.random.Generator) -> Array:
    y, x = np.mgrid[0:256, 0:256].astype(np.float32) / 255
    picture = np.stack([x, y, 1 - x], axis=-1)
    for _ in range(6):
        cx, cy, radius = rng.uniform(0.1, 0.9, 3) * (1, 1, 0.3)
        picture[(x - cx) ** 2 + (y - cy) ** 2 < radius**2] = rng.uniform(0, 1, 3)
    picture[:, ::16] *= 0.7
    return picture


def _resize(picture: Array, height: int, width: int) -> Array:
    """Bilinear, corners aligned."""
    rows = np.linspace(0, picture.shape[0] - 1, height, dtype=np.float32)
    columns = np.linspace(0, picture.shape[1] - 1, width, dtype=np.float32)
    top, left = rows.astype(np.int64), columns.astype(np.int64)
    bottom, right = np.minimum(top + 1, picture.shape[0] - 1), np.minimum(left + 1, picture.shape[1] - 1)
    fy, fx = (rows - top)[:, None, None], (columns - left)[None, :, None]
    upper = picture[top][:, left] * (1 - fx) + picture[top][:, right] * fx
    lower = picture[bottom][:, left] * (1 - fx) + picture[bottom][:, right] * fx
    result: Array = upper * (1 - fy) + lower * fy
    return result
