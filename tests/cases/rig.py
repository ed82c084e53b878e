"""A whole server in the test's own event loop: tree, HTTP on loopback, engine and disk as the test likes."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import aiohttp
import uvloop
from samovar.runtime.app import build_tree
from samovar.runtime.config import Logging, load
from samovar.runtime.ending import end_in_order
from samovar.runtime.http.actor import GetAddress
from samovar.runtime.kernel import ActorSystem
from samovar.runtime.logs import configure_logging, reset_logging
from samovar.runtime.observer import LogObserver
from samovar.storage.fs import OsFilesystem

from tests.http.fakes import RecordingLog
from tests.kit.tiny import TinyEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence

    from samovar.runtime.app import Engine, Tree
    from samovar.runtime.http.serving import RequestLog, RequestRecord
    from samovar.storage.filesystem import Filesystem

T = TypeVar("T")
LIMIT_S = 55.0
POLL_S = 0.002
SETTINGS = (
    "server.port=0",
    "server.fault_injection=true",
    "cache.ssd.dir=off",
    "cache.ram.min_tokens=4",
    "cache.ssd.restore_min_tokens=1",
    "cache.ssd.free_floor=0%",
)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run on the loop that ``samovar serve`` uses, for a limited time."""

    async def limited() -> T:
        async with asyncio.timeout(LIMIT_S):
            return await work

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(limited())


def tiny(family: str = "llama", **options: Any) -> TinyEngine:
    """A tiny model of a family; options are the backend's. It publishes everything from 4 tokens on."""
    return TinyEngine(family).with_options(**({"publish_min_tokens": 4} | options))


@dataclass(frozen=True)
class Answer:
    """A reply and what its usage says of it."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    cached: int
    tier: str
    miss_reason: str | None
    finish_reason: str

    @classmethod
    def of(cls, body: dict[str, Any]) -> Answer:
        (choice,) = body["choices"]
        return cls._with(choice["message"]["content"], choice["finish_reason"], body["usage"])

    @classmethod
    def streamed(cls, events: Sequence[Any]) -> Answer:
        assert events[-1] == "[DONE]", events[-1]
        chunks = [event["choices"][0] for event in events[:-1] if event["choices"]]
        text = "".join(chunk["delta"].get("content") or "" for chunk in chunks)
        return cls._with(text, chunks[-1]["finish_reason"], events[-2]["usage"])

    @classmethod
    def _with(cls, text: str, finish_reason: str, usage: dict[str, Any]) -> Answer:
        extra = usage["samovar"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        assert cached == extra["cached_tokens"]
        assert (cached == 0) == (extra["tier"] == "none")
        assert cached < usage["prompt_tokens"]
        return cls(
            text,
            usage["prompt_tokens"],
            usage["completion_tokens"],
            cached,
            extra["tier"],
            extra["miss_reason"],
            finish_reason,
        )

    @property
    def whole(self) -> int:
        """The most that a repetition of its prompt can reuse."""
        return self.prompt_tokens - 1

    @property
    def fed(self) -> int:
        """How many tokens the model was fed at least: all but the last one that it gave."""
        return self.prompt_tokens + self.completion_tokens - 1


@dataclass
class Server:
    """A running server and a client of it."""

    tree: Tree
    system: ActorSystem
    session: aiohttp.ClientSession
    base: str
    records: list[RequestRecord]

    async def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Make a request; return status and parsed body."""
        async with self.session.request(method, self.base + path, json=body) as response:
            return response.status, await response.json()

    async def talk(self, content: str | Sequence[dict[str, str]], **fields: Any) -> Answer:
        """Send a conversation; it must be answered."""
        status, body = await self.call("POST", "/v1/chat/completions", _body(content, fields))
        assert status == 200, body
        return Answer.of(body)

    async def stream(self, content: str | Sequence[dict[str, str]], **fields: Any) -> Answer:
        """Send a conversation and read the stream to its end."""
        return Answer.streamed([event async for event in self.events(content, **fields)])

    async def events(self, content: str | Sequence[dict[str, str]], **fields: Any) -> AsyncIterator[Any]:
        """Yield the events of a streamed reply. Closing the iterator hangs up."""
        body = _body(content, fields | {"stream": True, "stream_options": {"include_usage": True}})
        url = self.base + "/v1/chat/completions"
        async with self.session.post(url, json=body) as response:
            assert response.status == 200, await response.read()
            async for line in response.content:
                if line.startswith(b"data: "):
                    data = line[6:].strip()
                    yield "[DONE]" if data == b"[DONE]" else json.loads(data)

    async def flush(self) -> dict[str, Any]:
        """Flush; it must be durable."""
        status, report = await self.call("POST", "/admin/cache/flush")
        assert (status, report["durable"]) == (200, True), report
        return report

    async def clear(self, tier: str) -> None:
        status, _ = await self.call("DELETE", f"/admin/cache?tier={tier}")
        assert status == 200

    async def to_disk(self) -> None:
        """Let everything leave RAM for the disk."""
        status, report = await self.call("POST", "/admin/drain")
        assert (status, report["remaining"]) == (200, 0), report

    async def explain(self, content: str | Sequence[dict[str, str]]) -> dict[str, Any]:
        status, body = await self.call("POST", "/admin/cache/explain", _body(content, {}))
        assert status == 200, body
        return body

    async def stats(self) -> Any:
        return (await self.call("GET", "/stats"))[1]

    async def part(self, name: str) -> Any:
        return (await self.stats())[name]

    async def prefilled(self) -> int:
        """Return how many prompt tokens were prefilled so far; lane figures are a moment old at most."""
        return sum(lane["prefilled_tokens"] for lane in await self.part("lanes"))

    async def until(self, condition: Callable[[Any], bool], patience_s: float = 15.0) -> Any:
        """Look at the figures of ``/stats`` until the condition holds; return them."""
        until_s = asyncio.get_running_loop().time() + patience_s
        while not condition(stats := await self.tree.serving.stats()):
            assert asyncio.get_running_loop().time() < until_s, f"it never came to that: {stats}"
            await asyncio.sleep(POLL_S)
        return stats

    async def end(self, timeout_s: float = 30.0) -> int:
        """Do what SIGTERM does; return the exit code."""
        code = await self.tree_end(timeout_s)
        await self.system.stop()
        return code

    async def tree_end(self, timeout_s: float) -> int:
        """Do what SIGTERM does up to the stop of the tree; return the exit code."""
        return await end_in_order(self.tree, timeout_s)


@asynccontextmanager
async def serving(
    engine: Engine | None = None,
    fs: Filesystem | None = None,
    *settings: str,
    log: RequestLog | None = None,
) -> AsyncIterator[Server]:
    """Run a server. Leaving stops it without a flush, and no lease may be left."""
    config = load([], {}, [*SETTINGS, *settings], []).config
    records = RecordingLog()
    tree = build_tree(config, engine or tiny(), log or records, fs or OsFilesystem())
    system = ActorSystem(tree.root, observer=LogObserver())
    tree.serving.system = system
    await system.start()
    base = await tree.http.ref.ask(GetAddress(), 5.0)
    await tree.recall_history()
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(LIMIT_S)) as session:
            server = Server(tree, system, session, base, records.records)
            yield server
            if not system.closing and tree.tiers is not None:
                await server.until(lambda stats: stats["scheduler"]["running"] == 0)
                figures = await tree.tiers.residency.figures(5.0)
                assert figures.leases == figures.waiting == figures.restoring == 0, figures
    finally:
        await system.stop()
        tree.close()


def _body(content: str | Sequence[dict[str, str]], fields: dict[str, Any]) -> dict[str, Any]:
    messages = [user(content)] if isinstance(content, str) else list(content)
    return {"messages": messages, **fields}


def user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def system(content: str) -> dict[str, str]:
    return {"role": "system", "content": content}


@dataclass
class Log:
    """What was logged so far."""

    stream: io.StringIO = field(default_factory=io.StringIO)

    def lines(self, event: str | None = None) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        return [line for line in found if event is None or line["event"] == event]

    def warnings(self) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["level"] in {"warning", "error"}]


@contextmanager
def logged() -> Iterator[Log]:
    """Collect the log's lines."""
    log = Log()
    configure_logging(Logging(level="info", format="json"), log.stream)
    try:
        yield log
    finally:
        reset_logging()
