"""The table of captured graphs."""

from __future__ import annotations

import pytest

from cuvil_onnx.runtime.graph_cache import FIRST_ID, GraphCache


def make(limit=2):
    released = []
    return GraphCache(limit, released.append), released


def add(cache, key):
    graph_id = cache.make_room()
    cache.put(key, graph_id, f"graph of {key}")
    return graph_id


def test_least_recently_used_leaves_first_and_is_released():
    cache, released = make()
    first, second = add(cache, "a"), add(cache, "b")
    assert cache.get("a") == "graph of a"  # now "b" is the older one
    add(cache, "c")
    assert released == [second]
    assert cache.get("b") is None
    assert cache.get("a") == "graph of a"
    assert first != second


def test_room_is_made_before_the_new_graph_is_captured():
    cache, released = make(limit=1)
    first = add(cache, "a")
    cache.make_room()
    assert released == [first]
    assert len(cache) == 0


def test_ids_are_never_reused():
    cache, _ = make(limit=1)
    ids = [add(cache, key) for key in "abcabc"]
    assert len(set(ids)) == len(ids)
    assert min(ids) >= FIRST_ID


def test_refusals_keep_their_reasons_and_stay_bounded():
    cache, _ = make(limit=1)
    for i in range(100):
        cache.refuse(i, f"reason {i % 2}")
    assert cache.refusal(99) == "reason 1"
    assert cache.refusal(0) is None
    assert sorted(cache.refusals()) == ["reason 0", "reason 1"]


def test_first_sight_is_true_once():
    cache, _ = make()
    assert cache.first_sight("k")
    assert not cache.first_sight("k")


def test_clear_releases_everything():
    cache, released = make(limit=3)
    ids = [add(cache, key) for key in "abc"]
    cache.refuse("d", "no")
    cache.clear()
    assert released == ids
    assert cache.refusal("d") is None
    assert len(cache) == 0


def test_abandon_releases_a_failed_capture():
    cache, released = make()
    graph_id = cache.make_room()
    cache.abandon(graph_id)
    assert released == [graph_id]


def test_limit_must_be_positive():
    with pytest.raises(ValueError, match="at least 1"):
        make(limit=0)
