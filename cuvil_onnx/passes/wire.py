"""Protobuf's wire format: what a field of a message looks like."""

from __future__ import annotations

import functools


@functools.lru_cache(1 << 14)
def varint(number: int) -> bytes:
    """A number that is not negative in protobuf's encoding: seven bits a byte, the lowest first."""
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*data, number])


def tag(number: int) -> bytes:
    """How a field of text, bytes or a message begins; its size in bytes and the bytes follow."""
    return varint(number << 3 | 2)


_SHORT = [bytes([size]) for size in range(128)]


def field(start: bytes, data: bytes) -> bytes:
    """A field that begins with ``start``, a :func:`tag`."""
    size = len(data)
    return start + (_SHORT[size] if size < 128 else varint(size)) + data


def text(start: bytes, value: str) -> bytes:
    """The same for text; nothing for an empty one, which is what a missing one means."""
    return field(start, value.encode()) if value else b""
