from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from samovar.actors.caching.tiers import EntryFigures
from samovar.actors.requests import PrefixReuse, Refused
from samovar.runtime.engine.prompt import GivenIds, PlainText
from samovar.runtime.http.cache_page import page_of
from samovar.runtime.http.serving import Readiness
from samovar.runtime.kernel import ActorCrashed, ActorGone
from samovar.storage.entry import StoredEntry
from samovar.storage.tokens import TokenIds

from .fakes import DURABLE, EXPLANATION, PROMPT_TOKENS, FakeCache, FakeServing, chat, entry, live, run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .fakes import Live, Reply

    Call = Callable[[Live], Awaitable[Reply]]

CALLS: dict[str, Call] = {
    "flush": lambda server: server.post({}, "/admin/cache/flush"),
    "list": lambda server: server.get("/admin/cache"),
    "clear": lambda server: server.delete("/admin/cache?tier=all"),
    "explain": lambda server: server.post(chat(), "/admin/cache/explain"),
    "drain": lambda server: server.post({}, "/admin/drain"),
    "close": lambda server: server.post({"session_id": "s"}, "/admin/sessions/close"),
}


def asked(call: Call, cache: FakeCache | None, serving: FakeServing | None = None, **options: Any) -> Reply:
    async def scenario() -> Reply:
        async with live(serving, cache, **options) as server:
            return await call(server)

    return run(scenario())


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_without_a_cache_there_is_nothing_to_administer(call: Call) -> None:
    reply = asked(call, None)
    assert (reply.status, reply.error["code"], reply.error["type"]) == (501, "no_cache", "server_error")


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_administration_needs_an_admin_key(call: Call) -> None:
    cache = FakeCache()
    reply = asked(call, cache, api_keys=("api",), admin_keys=("admin",))
    assert (reply.status, reply.error["code"]) == (401, "invalid_api_key")
    assert cache.asked == []


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ActorCrashed("serving/residency", "Drain", "boom"), 503, "actor_crashed"),
        (ActorGone("storage/durability", "Flush", "stopped with the archive"), 503, "actor_gone"),
        (ValueError("secret /srv/path"), 500, "internal_error"),
    ],
)
def test_a_part_that_fails_is_told_by_id(call: Call, error: Exception, status: int, code: str) -> None:
    reply = asked(call, FakeCache(error=error))
    assert (reply.status, reply.error["code"]) == (status, code)
    assert b"secret" not in reply.body


@pytest.mark.parametrize(
    ("method", "path", "body", "code", "param"),
    [
        ("POST", "/admin/cache/flush", {"timeout": 3}, "unknown_parameter", "timeout"),
        ("POST", "/admin/cache/flush", {"timeout_s": "3"}, "invalid_value", "timeout_s"),
        ("POST", "/admin/cache/flush", {"timeout_s": -1}, "invalid_value", "timeout_s"),
        ("POST", "/admin/cache/flush", {"timeout_s": 1e9}, "invalid_value", "timeout_s"),
        ("POST", "/admin/cache/flush", [], "invalid_json", None),
        ("POST", "/admin/drain", {"timeout_s": True}, "invalid_value", "timeout_s"),
        ("POST", "/admin/drain", {"tier": "ram"}, "unknown_parameter", "tier"),
        ("POST", "/admin/sessions/close", {}, "missing_required_parameter", "session_id"),
        ("POST", "/admin/sessions/close", {"session_id": None}, "missing_required_parameter", "session_id"),
        ("POST", "/admin/sessions/close", {"session_id": 7}, "invalid_value", "session_id"),
        ("POST", "/admin/sessions/close", {"session_id": ""}, "invalid_value", "session_id"),
        ("POST", "/admin/sessions/close", {"session_id": "s" * 257}, "invalid_value", "session_id"),
        ("POST", "/admin/sessions/close", {"session_id": "s", "x": 1}, "unknown_parameter", "x"),
        ("POST", "/admin/cache/explain", {"prompt": ["a", "b"]}, "invalid_value", "prompt"),
        ("POST", "/admin/cache/explain", {"prompt": [49152]}, "invalid_value", "prompt[0]"),
        ("POST", "/admin/cache/explain", {"messages": []}, "invalid_value", "messages"),
        ("POST", "/admin/cache/explain", {}, "missing_required_parameter", "messages"),
        ("POST", "/admin/cache/explain", chat(temperatur=1), "unknown_parameter", "temperatur"),
        ("DELETE", "/admin/cache", None, "missing_required_parameter", "tier"),
        ("DELETE", "/admin/cache?tier=disk", None, "invalid_value", "tier"),
        ("DELETE", "/admin/cache?tier=RAM", None, "invalid_value", "tier"),
        ("DELETE", "/admin/cache?tier=7", None, "invalid_value", "tier"),
        ("DELETE", "/admin/cache?tier=ram&tier=ssd", None, "invalid_value", "tier"),
        ("DELETE", "/admin/cache?tier=ram&all=1", None, "unknown_parameter", "all"),
        ("GET", "/admin/cache?limit=0", None, "invalid_value", "limit"),
        ("GET", "/admin/cache?limit=1001", None, "invalid_value", "limit"),
        ("GET", "/admin/cache?limit=ten", None, "invalid_value", "limit"),
        ("GET", "/admin/cache?offset=-1", None, "invalid_value", "offset"),
        ("GET", f"/admin/cache?offset={'9' * 50}", None, "invalid_value", "offset"),
        ("GET", "/admin/cache?page=2", None, "unknown_parameter", "page"),
        ("GET", "/admin/cache?tier=", None, "invalid_value", "tier"),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_done(
    method: str, path: str, body: object, code: str, param: str | None
) -> None:
    async def scenario() -> None:
        cache = FakeCache()
        async with live(None, cache) as server:
            reply = await (server.post(body, path) if method == "POST" else server.send(method, path))
            assert reply.status == 400
            assert (reply.error["code"], reply.error["param"]) == (code, param)
        assert cache.asked == []

    run(scenario())


@pytest.mark.parametrize(
    ("prompt", "asked"),
    [("Once", PlainText("Once")), ([5, 6], GivenIds((5, 6))), (["Once"], PlainText("Once"))],
)
def test_a_completions_body_is_explained_too(prompt: object, asked: object) -> None:
    async def scenario() -> None:
        cache = FakeCache()
        async with live(None, cache) as server:
            reply = await server.post({"prompt": prompt, "session_id": "s", "n": 2}, "/admin/cache/explain")
            assert (reply.status, reply.json()["cached_tokens"]) == (200, 512)
        assert cache.asked == [("explain", asked, "s")]

    run(scenario())


@pytest.mark.parametrize("path", ["/admin/cache/flush", "/admin/drain", "/admin/cache/explain"])
def test_other_methods_are_refused(path: str) -> None:
    assert asked(lambda server: server.get(path), FakeCache()).status == 405


def test_a_flush_that_is_not_durable_says_how_much_and_why() -> None:
    failed = replace(DURABLE, durable=False, pending=2, pending_bytes=1 << 20, reason="the disk is full")
    reply = asked(CALLS["flush"], FakeCache(flushed=failed))
    body = reply.json()
    assert reply.status == 503
    assert reply.headers["Retry-After"] == "1"
    assert (body["durable"], body["pending"], body["pending_bytes"]) == (False, 2, 1 << 20)
    assert body["reason"] == "the disk is full"
    assert body["error"]["code"] == "not_durable"
    assert "the disk is full" in body["error"]["message"]


def test_a_durable_flush_tells_its_figures() -> None:
    reply = asked(CALLS["flush"], FakeCache())
    assert reply.status == 200
    assert reply.json() == {
        "durable": True,
        "flushed": 2,
        "missing": 0,
        "pending": 0,
        "pending_bytes": 0,
        "dropped": 0,
        "failed": 0,
        "entries": 5,
        "longest_durable_prefix_tokens": 812,
        "elapsed_ms": 12.5,
        "reason": None,
    }


@pytest.mark.parametrize("path", ["/admin/cache/flush", "/admin/drain"])
def test_the_time_limit_is_optional_as_is_the_body(path: str) -> None:
    async def scenario() -> None:
        cache = FakeCache()
        async with live(None, cache) as server:
            assert (await server.send("POST", path)).status == 200
            assert (await server.post({}, path)).status == 200
            assert (await server.post({"timeout_s": 2.5}, path)).status == 200
            assert (await server.post({"timeout_s": 0}, path)).status == 200
        assert [call[1] for call in cache.asked] == [60.0, 60.0, 2.5, 0.0]

    run(scenario())


def test_entries_are_listed_a_page_at_a_time() -> None:
    async def scenario() -> None:
        held = [entry(n) for n in range(5)] + [entry(9, tier="ssd", sessions=None, leases=None)]
        async with live(None, FakeCache(held=held)) as server:
            first = (await server.get("/admin/cache?limit=2")).json()
            assert [found["tokens"] for found in first["entries"]] == [100, 101]
            assert (first["total"], first["bytes"], first["next_offset"]) == (6, 6 * 4096, 2)
            last = (await server.get("/admin/cache?limit=4&offset=4")).json()
            assert [found["tokens"] for found in last["entries"]] == [104, 109]
            assert last["next_offset"] is None
            beyond = (await server.get("/admin/cache?offset=60")).json()
            assert (beyond["entries"], beyond["next_offset"]) == ([], None)
            assert (await server.get("/admin/cache?tier=ssd")).json()["total"] == 1

    run(scenario())


def test_an_entry_tells_no_text_and_no_token_ids() -> None:
    reply = asked(CALLS["list"], FakeCache(held=[entry(1, idle_s=1.23456)]))
    assert reply.json()["entries"] == [
        {
            "tier": "ram",
            "namespace": "",
            "tokens": 101,
            "bytes": 4096,
            "durable": True,
            "trimmable": True,
            "reusable_from": 0,
            "idle_s": 1.235,
            "sessions": 1,
            "leases": 0,
        }
    ]


@pytest.mark.parametrize(
    ("tier", "removed"),
    [("ram", {"ram": 3, "ssd": 0}), ("ssd", {"ram": 0, "ssd": 4}), ("all", {"ram": 3, "ssd": 4})],
)
def test_a_tier_is_cleared(tier: str, removed: dict[str, int]) -> None:
    reply = asked(lambda server: server.delete(f"/admin/cache?tier={tier}"), FakeCache())
    assert (reply.status, reply.json()) == (200, {"tier": tier, "removed": removed})


@pytest.mark.parametrize(
    ("ready", "code"),
    [(Readiness(ready=False), "not_ready"), (Readiness(ready=True, draining=True), "draining")],
)
def test_nothing_is_explained_while_no_request_is_taken(ready: Readiness, code: str) -> None:
    cache = FakeCache()
    reply = asked(CALLS["explain"], cache, FakeServing(ready=ready))
    assert (reply.status, reply.error["code"]) == (503, code)
    assert cache.asked == []


def test_a_prompt_that_would_be_refused_is_refused_here_too() -> None:
    refused = Refused("template_error", "roles must alternate", param="messages")
    reply = asked(CALLS["explain"], FakeCache(explanation=refused))
    assert (reply.status, reply.error["code"], reply.error["param"]) == (400, "template_error", "messages")


def test_explain_says_where_and_why_not_more() -> None:
    async def scenario() -> None:
        cache, serving = FakeCache(), FakeServing()
        async with live(serving, cache) as server:
            body = chat("Hello", session_id="s1", stream=True, temperature=0.5)
            reply = (await server.post(body, "/admin/cache/explain")).json()
        assert cache.asked == [("explain", ({"role": "user", "content": "Hello"},), "s1")]
        assert serving.requests == []
        assert reply == {
            "prompt_tokens": 900,
            "tier": "ram",
            "cached_tokens": 512,
            "ram_tokens": 512,
            "ssd_tokens": 800,
            "stored_tokens": 700,
            "diverged_at": 800,
            "boundary": 890,
            "reason": "restore_slower",
            "restore_ms": 40.0,
            "prefill_ms": 20.5,
            "message": "Prefilling is estimated to be faster than reading from SSD.",
        }

    run(scenario())


@pytest.mark.parametrize(("reason", "message"), [(None, None), ("a_new_word", "a_new_word")])
def test_a_reason_without_words_is_given_as_it_stands(reason: str | None, message: str | None) -> None:
    reply = asked(CALLS["explain"], FakeCache(explanation=replace(EXPLANATION, reason=reason)))
    assert (reply.json()["reason"], reply.json()["message"]) == (reason, message)


def test_draining_tells_what_stays() -> None:
    reply = asked(CALLS["drain"], FakeCache())
    assert (reply.status, reply.json()) == (200, {"demoted": 7, "remaining": 1, "remaining_bytes": 2048})


def test_a_session_is_closed_once() -> None:
    cache = FakeCache(sessions={"s"})
    assert asked(CALLS["close"], cache).json() == {"session_id": "s", "closed": True}
    reply = asked(lambda server: server.post({"session_id": "t"}, "/admin/sessions/close"), cache)
    assert (reply.status, reply.json()) == (200, {"session_id": "t", "closed": False})


# -- what is told of reuse --------------------------------------------------------------------------------

RESTORED = PrefixReuse("ssd", 6, 3.14159, "restore_slower", 7)


@pytest.mark.parametrize("stream", [False, True])
def test_usage_and_log_tell_what_was_reused(stream: bool) -> None:
    async def scenario() -> None:
        async with live(FakeServing(reuse=RESTORED)) as server:
            more = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
            reply = await server.post(chat(**more))
            usage = reply.events()[-2]["usage"] if stream else reply.json()["usage"]
            assert usage["prompt_tokens"] == PROMPT_TOKENS
            assert usage["prompt_tokens_details"] == {"cached_tokens": 6}
            own = usage["samovar"]
            assert (own["tier"], own["cached_tokens"], own["restore_ms"]) == ("ssd", 6, 3.142)
            assert own["miss_reason"] == "restore_slower"
            assert set(own) == {
                *("tier", "cached_tokens", "restore_ms", "queue_ms", "prefill_ms", "ttft_ms", "miss_reason")
            }
            record = await server.log.wait(1)
            assert (record.tier, record.cached_tokens, record.restore_ms) == ("ssd", 6, 3.14159)
            assert (record.miss_reason, record.diverged_at) == ("restore_slower", 7)

    run(scenario())


def test_a_request_that_was_not_admitted_has_no_reuse_in_its_record() -> None:
    async def scenario() -> None:
        async with live(FakeServing(refuse=lambda _: Refused("queue_full", "full"))) as server:
            await server.post(chat())
            record = await server.log.wait(1)
            assert (record.tier, record.cached_tokens, record.restore_ms, record.miss_reason) == (None,) * 4

    run(scenario())


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_a_degraded_part_is_told_and_harms_nothing_else(path: str) -> None:
    ready = Readiness(
        ready=True, degraded="ssd: writes fail (No space left on device)", detail={"lanes": "up"}
    )
    reply = asked(lambda server: server.get(path), None, FakeServing(ready=ready))
    assert reply.status == 200
    assert reply.json()["ready"] is True
    assert reply.json()["detail"] == {"lanes": "up", "degraded": ready.degraded}


def test_nothing_is_said_of_degradation_while_all_is_well() -> None:
    assert asked(lambda server: server.get("/health"), None).json()["detail"] == {"lanes": "up"}


# -- pages ------------------------------------------------------------------------------------------------


def resident(tokens: int, idle_s: float) -> EntryFigures:
    return EntryFigures(
        namespace="n",
        tokens=tokens,
        bytes=10,
        trimmable=False,
        reusable_from=4,
        durable=False,
        leases=2,
        sessions=1,
        idle_s=idle_s,
    )


def stored(tokens: int, last_used_s: float) -> StoredEntry:
    ids = TokenIds.of(range(tokens))
    return StoredEntry("id", Path("id.kv"), "n", ids, 100, True, 0, last_used_s)


@dataclass
class Tiers:
    ram: tuple[EntryFigures, ...] = (resident(1, 5.0), resident(2, 1.0))
    ssd: tuple[StoredEntry, ...] = (stored(3, 997.0), stored(4, 900.0), stored(5, 2000.0))


@pytest.mark.parametrize(
    ("tier", "offset", "limit", "tokens", "whole"),
    [
        ("all", 0, 10, [5, 2, 3, 1, 4], (5, 320)),
        ("all", 1, 2, [2, 3], (5, 320)),
        ("ram", 0, 10, [2, 1], (2, 20)),
        ("ssd", 1, 10, [3, 4], (3, 300)),
        ("ssd", 3, 10, [], (3, 300)),
    ],
)
def test_pages_go_from_the_newest_to_the_oldest(
    tier: Any, offset: int, limit: int, tokens: list[int], whole: tuple[int, int]
) -> None:
    tiers = Tiers()
    page = page_of(tiers.ram, tiers.ssd, tier, offset=offset, limit=limit, now_s=1000.0)
    assert [found.tokens for found in page.entries] == tokens
    assert (page.total, page.bytes) == whole


def test_both_tiers_tell_what_they_know() -> None:
    tiers = Tiers()
    page = page_of(tiers.ram, tiers.ssd, "all", offset=0, limit=3, now_s=1000.0)
    future, in_ram, on_disk = page.entries
    assert future.idle_s == 0.0  # a clock that was set back
    assert in_ram == entry(
        namespace="n",
        tokens=2,
        bytes=10,
        durable=False,
        trimmable=False,
        reusable_from=4,
        idle_s=1.0,
        sessions=1,
        leases=2,
    )
    assert on_disk == entry(
        tier="ssd",
        namespace="n",
        tokens=3,
        bytes=100,
        idle_s=3.0,
        sessions=None,
        leases=None,
    )
