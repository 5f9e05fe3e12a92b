"""Packed weights of 4 and 8 bits without a GPU: the layout against the tensor cores' operand, the order of groups, and
how tiles are shared out."""

from __future__ import annotations

import pathlib
import subprocess
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.fixture(scope="module")
def tool(compile_cpp: Callable[..., pathlib.Path]) -> pathlib.Path:
    sources = ["tests/csrc/int4_tool.cc", "csrc/plan/group_order.cc"]
    return compile_cpp(sources, ["-O1", "-fsanitize=undefined,address", "-fno-sanitize-recover=undefined"])


def ask(tool: pathlib.Path, command: str, *numbers: int, data: bytes = b"") -> bytes:
    done = subprocess.run([str(tool), command, *map(str, numbers)], input=data, capture_output=True)
    assert done.returncode in (0, 1), done.stderr.decode()
    if done.returncode:
        raise ValueError(done.stderr.decode())
    return done.stdout


def lists(answer: bytes) -> list[list[int]]:
    return [[int(w) for w in line.split()] for line in answer.decode().splitlines()]


def bit_packed(codes: np.ndarray, bits: int) -> bytes:
    """Codes one after the other, the first in the lowest bits of a byte."""
    flat = codes.reshape(-1, 1) >> np.arange(bits) & 1
    return np.packbits(flat.reshape(-1).astype(np.uint8), bitorder="little").tobytes()


def unpack(packed: bytes, bits: int, rows: int, depth: int) -> np.ndarray:
    """The codes that mma.sync m16n8k16 sees, from the PTX manual's picture of operand A and the documented order.

    Register r of lane 4g + q holds row g (r even) or g + 8 and columns 2q, 2q + 1 (r < 2) or 8 more. The columns of the
    two steps are the unit's places in their order.
    """
    row_units, depth_units = -(-rows // 32), -(-depth // 32)
    words = np.frombuffer(packed, np.uint32).reshape(row_units, depth_units, bits // 4, 32, 4)
    codes = np.full((row_units * 32, depth_units * 32), -1)
    for lane in range(32):
        g, q = divmod(lane, 4)
        for tile in range(2):
            for step in range(2):
                for r in range(4):
                    for half in range(2):
                        row = 16 * tile + g + 8 * (r % 2)
                        place = 16 * step + 8 * (r // 2) + 2 * q + half
                        if bits == 4:
                            word = words[:, :, 0, lane, 2 * tile + step] >> (4 * r + 16 * half) & 15
                        else:
                            word = words[:, :, tile, lane, 2 * step + r // 2] >> (16 * (r % 2) + 8 * half) & 255
                        codes[row::32, place::32] = word
    assert (codes >= 0).all()
    return codes


@pytest.mark.parametrize(("source_bits", "bits"), [(2, 4), (4, 4), (8, 8)])
@pytest.mark.parametrize(("rows", "depth"), [(32, 32), (64, 96), (1, 1), (33, 45), (70, 31)])
def test_columns_in_blocks(tool: pathlib.Path, rows: int, depth: int, source_bits: int, bits: int) -> None:
    """MatMulNBits: a column's codes one after the other, filled up to a block; other blocks' codes are not read."""
    pitch = -(-depth // 16) * 16
    codes = np.random.default_rng(0).integers(0, 1 << source_bits, (rows, pitch))
    packed = ask(tool, "pack", source_bits, 0, pitch, 1, 0, bits, rows, depth, 0, data=bit_packed(codes, source_bits))
    found = unpack(packed, bits, rows, depth)
    np.testing.assert_array_equal(found[:rows, :depth], codes[:, :depth])
    assert (found[rows:] == 0).all() and (found[:, depth:] == 0).all()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("signed", [False, True])
def test_rows_of_one_of_several_matrices(tool: pathlib.Path, bits: int, signed: bool) -> None:
    """MatMulInt4: [E, K, N], the second matrix beginning within a byte; signed codes are moved by half the range."""
    depth, columns = 37, 21
    low = -(1 << (bits - 1)) if signed else 0
    codes = np.random.default_rng(1).integers(low, low + (1 << bits), (3, depth, columns))
    flip = 1 << (bits - 1) if signed else 0
    data = bit_packed(codes & ((1 << bits) - 1), bits)
    packed = ask(tool, "pack", bits, flip, 1, columns, depth * columns, bits, columns, depth, 0, data=data)
    np.testing.assert_array_equal(unpack(packed, bits, columns, depth)[:columns, :depth], codes[1].T + flip)


def test_ordered_places(tool: pathlib.Path) -> None:
    codes = np.random.default_rng(2).integers(0, 16, (5, 48))
    order = np.array([*range(47, -1, -3), *[-1] * 16], np.int32)
    data = bit_packed(codes, 4) + order.tobytes()
    found = unpack(ask(tool, "pack", 4, 0, 48, 1, 0, 4, 5, 32, 1, data=data), 4, 5, 32)
    np.testing.assert_array_equal(found[:5, :16], codes[:, order[:16]])
    assert (found[:5, 16:32] == 0).all()


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 6), max_size=80), st.sampled_from([8, 16, 32]))
def test_groups_are_brought_together(tool: pathlib.Path, group_of: list[int], size: int) -> None:
    places, groups = lists(ask(tool, "order", 7, size, data=" ".join(map(str, group_of)).encode()))
    assert len(places) == size * len(groups)
    assert sorted(p for p in places if p >= 0) == list(range(len(group_of)))
    for i, place in enumerate(places):
        assert place < 0 or group_of[place] == groups[i // size]
    counts = np.bincount(group_of, minlength=7)
    assert len(groups) == sum(-(-int(c) // size) for c in counts)  # no more than needed


def test_a_group_that_does_not_exist_is_named(tool: pathlib.Path) -> None:
    with pytest.raises(ValueError, match=r"group of place 1 is 7; \[0, 7\) is required"):
        ask(tool, "order", 7, 16, data=b"0 7 1")


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 12), st.integers(1, 30), st.data())
def test_steps_are_shared_evenly(tool: pathlib.Path, tiles: int, steps: int, data: st.DataObject) -> None:
    total = tiles * steps
    blocks = data.draw(st.integers(1, total))
    begin, owners, slots = lists(ask(tool, "schedule", tiles, steps, blocks))
    assert begin[0] == 0 and begin[-1] == total
    lengths = np.diff(begin)
    assert lengths.min() >= 1 and lengths.max() - lengths.min() <= 1
    assert owners == np.repeat(np.arange(blocks), lengths).tolist()
    parts = np.array(slots).reshape(-1, 3)
    for tile in range(tiles):
        assert parts[parts[:, 0] == tile, 1].tolist() == sorted(set(owners[tile * steps : (tile + 1) * steps]))
    # Where a tile has several blocks, each part has a place of its own among two a block.
    shared = [p for p in parts if (parts[:, 0] == p[0]).sum() > 1]
    places = [int(p[2]) for p in shared]
    assert len(set(places)) == len(places) and all(int(p[2]) // 2 == p[1] for p in shared)
