"""Captured graphs by key, the least recently used dropped first.

ONNX Runtime's key for a captured graph is an integer (run option ``gpu_graph_id``). Here each key gets an id of its
own that is never reused, so that no entry can meet the graph of another one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Entry = TypeVar("Entry")

# Above the ids that people choose by hand, so that an explicit gpu_graph_id of the caller's never meets one of ours.
FIRST_ID = 1 << 20


class GraphCache(Generic[Entry]):
    """At most ``limit`` entries. ``release(id)`` is called for each that leaves, before the next is made.

    Keys that cannot be captured, and keys met once, are remembered too, up to eight times as many.
    """

    def __init__(self, limit: int, release: Callable[[int], None]) -> None:
        if not isinstance(limit, int) or limit < 1:
            raise ValueError(f"max_captured_graphs must be at least 1, got {limit!r}")
        self.limit = limit
        self._release = release
        self._entries: OrderedDict[Hashable, tuple[int, Entry]] = OrderedDict()
        self._refused: OrderedDict[Hashable, str] = OrderedDict()
        self._seen: OrderedDict[Hashable, str] = OrderedDict()
        self._next_id = FIRST_ID

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: Hashable) -> Entry | None:
        """The entry of a key, now the most recently used one."""
        found = self._entries.get(key)
        if found is None:
            return None
        self._entries.move_to_end(key)
        return found[1]

    def make_room(self) -> int:
        """Drops entries until one more fits and returns the id for it."""
        while len(self._entries) >= self.limit:
            _, (graph_id, _entry) = self._entries.popitem(last=False)
            self._release(graph_id)
        self._next_id += 1
        return self._next_id - 1

    def put(self, key: Hashable, graph_id: int, entry: Entry) -> None:
        self._entries[key] = (graph_id, entry)

    def abandon(self, graph_id: int) -> None:
        """Releases what a failed capture may have left under an id from `make_room`."""
        self._release(graph_id)

    def refuse(self, key: Hashable, reason: str) -> None:
        """Remembers that a key runs eagerly, and why."""
        self._remember(self._refused, key, reason)

    def refusal(self, key: Hashable) -> str | None:
        return self._refused.get(key)

    def refusals(self) -> list[str]:
        """The distinct reasons, oldest first."""
        return list(dict.fromkeys(self._refused.values()))

    def first_sight(self, key: Hashable) -> bool:
        """Whether a key is met for the first time (as far as remembered)."""
        if key in self._seen:
            self._seen.move_to_end(key)
            return False
        self._remember(self._seen, key, "")
        return True

    def clear(self) -> None:
        """Releases every graph and forgets every key."""
        while self._entries:
            _, (graph_id, _entry) = self._entries.popitem(last=False)
            self._release(graph_id)
        self._refused.clear()
        self._seen.clear()

    def _remember(self, table: OrderedDict[Hashable, str], key: Hashable, text: str) -> None:
        table[key] = text
        while len(table) > 8 * self.limit:
            table.popitem(last=False)
