"""What the store of responses keeps, and when it lets go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from samovar.runtime.http.responses.store import ResponseStore, StoredResponse, StoreLimits

EMPTY_BYTES = StoredResponse("", b"", b"", b"").size_bytes


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def entry(name: str, size: int = 10, *items: str) -> StoredResponse:
    return StoredResponse(name, b"b" * size, b"[]", b"[]", items)


def test_what_is_too_large_is_not_kept_and_pushes_nothing_out() -> None:
    store = ResponseStore(StoreLimits(size_bytes=2 * EMPTY_BYTES))
    assert store.put(entry("small"))
    assert not store.put(entry("huge", 2 * EMPTY_BYTES))
    assert store.get("huge") is None
    assert store.get("small") is not None


def test_limits_of_zero_keep_nothing() -> None:
    for limits in (StoreLimits(responses=0), StoreLimits(size_bytes=0), StoreLimits(ttl_s=0.0)):
        store = ResponseStore(limits)
        assert not store.put(entry("a"))
        assert len(store) == store.size_bytes == 0


def test_the_least_recently_used_goes_first() -> None:
    store = ResponseStore(StoreLimits(responses=2))
    store.put(entry("a"))
    store.put(entry("b"))
    assert store.get("a") is not None
    store.put(entry("c"))
    assert store.figures()["evictions"] == 1
    assert store.get("b") is None
    assert store.get("a") is not None
    assert store.get("c") is not None


def test_what_nobody_asks_for_expires_and_a_use_prolongs() -> None:
    clock = Clock()
    store = ResponseStore(StoreLimits(ttl_s=10.0), clock)
    store.put(entry("asked"))
    store.put(entry("forgotten", 10, "msg_1"))
    clock.now_s = 6.0
    assert store.get("asked") is not None
    clock.now_s = 10.0
    assert store.get("forgotten") is None
    assert store.holder("msg_1") is None
    assert store.figures()["entries"] == len(store) == 1
    assert store.figures()["evictions"] == 0
    clock.now_s = 16.0
    assert not store.delete("asked")
    assert store.size_bytes == 0


def test_items_lead_to_the_newest_response_that_has_them() -> None:
    store = ResponseStore()
    store.put(entry("first", 10, "msg_1"))
    store.put(entry("second", 10, "msg_1", "msg_2"))
    holder = store.holder("msg_1")
    assert holder is not None
    assert holder.id == "second"
    assert store.delete("first")
    assert store.holder("msg_1") is not None
    assert store.delete("second")
    assert store.holder("msg_1") is None


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 3000), st.integers(0, 4))))
def test_no_limit_is_ever_passed(steps: list[tuple[str, int, int]]) -> None:
    clock = Clock()
    limits = StoreLimits(responses=3, size_bytes=3 * EMPTY_BYTES, ttl_s=5.0)
    store = ResponseStore(limits, clock)
    held: dict[str, float] = {}
    for name, size, wait_s in steps:
        clock.now_s += wait_s
        if store.put(entry(name, size)):
            held[name] = clock.now_s
        assert len(store) <= limits.responses
        assert store.size_bytes <= limits.size_bytes
        assert (store.size_bytes == 0) == (len(store) == 0)
    clock.now_s += limits.ttl_s
    assert not any(store.get(name) for name in held)
    assert store.size_bytes == 0
