"""A scripted ``Serving``, a request log that remembers, and a server on loopback for one test."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import TYPE_CHECKING, Any, TypeVar

import aiohttp
import uvloop
from samovar.actors.caching.tiers import ClearReport, DrainReport
from samovar.actors.requests import NO_REUSE, Admission, Admitted, GenerationRequest, PrefixReuse, Refused
from samovar.actors.spilling.spill_reports import FlushReport
from samovar.actors.stream import RequestStream
from samovar.runtime.engine.port import Cancelled, Delta, Finished, ModelInfo, Prefilled, TokenLogprob
from samovar.runtime.engine.prompt import PLAIN_REPLIES, Conversation, ReplyFormat
from samovar.runtime.http.cache_serving import (
    CacheEntry,
    CacheExplanation,
    CachePage,
    TierChoice,
)
from samovar.runtime.http.options import HttpOptions
from samovar.runtime.http.server import HttpServer
from samovar.runtime.http.serving import Readiness, RequestRecord

if TYPE_CHECKING:
    from samovar.runtime.http.access import Access
    from samovar.runtime.http.responses.store import ResponseStore

T = TypeVar("T")
Script = Callable[[RequestStream, GenerationRequest], Awaitable[None]]

HELLO = {"messages": [{"role": "user", "content": "Capital of France?"}]}
PROMPT_TOKENS = 7
READY = Readiness(ready=True, detail={"lanes": "up"})
INFO = ModelInfo("smollm2", 8192, 49152, "float32", 0.7, 1_700_000_000)


LIMIT_S = 15.0


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run on the event loop that ``samovar serve`` uses, for at most ``LIMIT_S``.

    The usual limit of a test does not reach into uvloop: its signal is only seen when the loop wakes.
    """

    async def limited() -> T:
        async with asyncio.timeout(LIMIT_S):
            return await work

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(limited())


def conversation(request: GenerationRequest) -> Conversation:
    assert isinstance(request.prompt, Conversation)
    return request.prompt


def finished(request_id: str, tokens: int = 3, reason: Any = "stop", text: str = "") -> Finished:
    return Finished(request_id, reason, text, PROMPT_TOKENS, tokens, 12.5, 30.0)


def logprob(token: int, text: str) -> TokenLogprob:
    return TokenLogprob(token, text, -0.25, ((token, text, -0.25), (token + 1, " Lyon", -1.5)))


async def say_paris(stream: RequestStream, request: GenerationRequest) -> None:
    """Three tokens, the last still held back at the end; never more than the request's limit."""
    stream.started_s = asyncio.get_running_loop().time()
    stream.push(Prefilled(request.id, PROMPT_TOKENS, PROMPT_TOKENS))
    limit = request.max_tokens or 3
    for token, text in enumerate(("It is", " Par")[:limit]):
        entries = (logprob(token, text),) if request.top_logprobs is not None else ()
        stream.push(Delta(request.id, text, (token,), entries))
        await asyncio.sleep(0)
    reason = "stop" if limit >= 3 else "length"
    if limit >= 3:
        stream.push(
            Delta(request.id, "", (2,), (logprob(2, "is"),) if request.top_logprobs is not None else ())
        )
    stream.push(finished(request.id, min(limit, 3), reason, "is" if limit >= 3 else ""))


@dataclass
class FakeServing:
    """Runs ``script`` for every admitted request. ``refuse`` may answer or raise instead.

    Where ``queued`` is given, every request waits for it before it is admitted or refused.
    """

    script: Script = say_paris
    refuse: Callable[[GenerationRequest], Admission | None] = lambda _: None
    ready: Readiness = READY
    reuse: PrefixReuse = NO_REUSE
    figures: Mapping[str, object] = field(default_factory=dict)
    queued: asyncio.Event | None = None
    reply: ReplyFormat = PLAIN_REPLIES
    in_reasoning: bool = False
    names: Sequence[str] = ("gpt-4o",)
    actors: tuple[str, ...] = ("serving/lanes/0", "serving/scheduler")
    requests: list[GenerationRequest] = field(default_factory=list)
    counted: list[GenerationRequest] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    crashed: list[str] = field(default_factory=list)
    cancel_seen: asyncio.Event = field(default_factory=asyncio.Event)
    arrivals: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    tasks: set[asyncio.Future[None]] = field(default_factory=set)

    def model(self) -> ModelInfo:
        return replace(INFO, reply=self.reply)

    def aliases(self) -> Sequence[str]:
        return self.names

    async def submit(self, request: GenerationRequest) -> Admission:
        self.requests.append(request)
        self.arrivals.release()
        refused = self.refuse(request)
        if self.queued is not None:
            await self.queued.wait()
        if refused is not None:
            return refused
        stream = RequestStream(request.id, lambda _: self._cancel(stream))
        task = asyncio.ensure_future(self.script(stream, request))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return Admitted(stream, PROMPT_TOKENS, self.reuse, self.in_reasoning)

    async def count_tokens(self, request: GenerationRequest) -> int | Refused:
        self.counted.append(request)
        refused = self.refuse(request)
        return refused if isinstance(refused, Refused) else PROMPT_TOKENS

    async def arrived(self) -> None:
        """Wait for one more request than the calls before."""
        await self.arrivals.acquire()

    def _cancel(self, stream: RequestStream) -> None:
        self.cancelled.append(stream.id)
        stream.push(Cancelled(stream.id))
        self.cancel_seen.set()

    def readiness(self) -> Readiness:
        return self.ready

    async def stats(self) -> Mapping[str, object]:
        return {"scheduler": {"admitted": len(self.requests)}, **self.figures}

    def tree(self) -> Sequence[Mapping[str, object]]:
        return [{"path": path, "state": "running"} for path in self.actors]

    def crash(self, path: str) -> bool:
        if path in self.actors:
            self.crashed.append(path)
        return path in self.actors


def entry(number: int = 0, **fields: Any) -> CacheEntry:
    known: dict[str, Any] = {
        "tier": "ram",
        "namespace": "",
        "tokens": 100 + number,
        "bytes": 4096,
        "durable": True,
        "trimmable": True,
        "reusable_from": 0,
        "idle_s": number * 1.5,
        "sessions": 1,
        "leases": 0,
    }
    return CacheEntry(**known | fields)


DURABLE = FlushReport(
    durable=True,
    flushed=2,
    missing=0,
    pending=0,
    pending_bytes=0,
    dropped=0,
    failed=0,
    entries=5,
    longest_durable_prefix_tokens=812,
    elapsed_ms=12.5,
    reason=None,
)
EXPLANATION = CacheExplanation(
    prompt_tokens=900,
    tier="ram",
    cached_tokens=512,
    ram_tokens=512,
    ssd_tokens=800,
    stored_tokens=700,
    diverged_at=800,
    boundary=890,
    reason="restore_slower",
    restore_ms=40.0,
    prefill_ms=20.5,
)


@dataclass
class FakeCache:
    """A cache that answers what it was given and remembers what it was asked. ``error`` is raised instead."""

    flushed: FlushReport = DURABLE
    held: Sequence[CacheEntry] = ()
    explanation: CacheExplanation | Refused = EXPLANATION
    sessions: set[str] = field(default_factory=set)
    error: Exception | None = None
    asked: list[tuple[object, ...]] = field(default_factory=list)

    def _note(self, *call: object) -> None:
        self.asked.append(call)
        if self.error is not None:
            raise self.error

    async def flush(self, timeout_s: float) -> FlushReport:
        self._note("flush", timeout_s)
        return self.flushed

    async def cache_page(self, tier: TierChoice, offset: int, limit: int) -> CachePage:
        self._note("page", tier, offset, limit)
        held = [item for item in self.held if tier in {"all", item.tier}]
        return CachePage(tuple(held[offset : offset + limit]), len(held), sum(item.bytes for item in held))

    async def clear_cache(self, tier: TierChoice) -> ClearReport:
        self._note("clear", tier)
        return ClearReport(3 if tier != "ssd" else 0, 4 if tier != "ram" else 0)

    async def explain(self, request: GenerationRequest) -> CacheExplanation | Refused:
        prompt = request.prompt
        shown = prompt.messages if isinstance(prompt, Conversation) else prompt
        self._note("explain", shown, request.session_id)
        return self.explanation

    async def drain_cache(self, timeout_s: float) -> DrainReport:
        self._note("drain", timeout_s)
        return DrainReport(7, 1, 2048)

    async def close_session(self, session_id: str) -> bool:
        self._note("close", session_id)
        return session_id in self.sessions


@dataclass
class RecordingLog:
    records: list[RequestRecord] = field(default_factory=list)
    waiters: list[tuple[int, asyncio.Future[None]]] = field(default_factory=list)

    def request_ended(self, record: RequestRecord) -> None:
        self.records.append(record)
        for count, waiter in self.waiters:
            if len(self.records) >= count and not waiter.done():
                waiter.set_result(None)

    async def wait(self, count: int) -> RequestRecord:
        """Wait for the count-th record and return it."""
        if len(self.records) < count:
            waiter = asyncio.get_running_loop().create_future()
            self.waiters.append((count, waiter))
            await waiter
        return self.records[count - 1]


@dataclass
class Reply:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        found = self.json()
        assert set(found) == {"error"}
        assert set(found["error"]) == {"message", "type", "code", "param"}
        return found["error"]

    def events(self) -> list[Any]:
        """The data of every event, parsed but for [DONE]; fails on anything that is not SSE framing."""
        text = self.body.decode()
        assert text.endswith("\n\n")
        found = []
        for block in text[:-2].split("\n\n"):
            assert "\n" not in block
            if block.startswith(":"):
                continue
            assert block.startswith("data: ")
            data = block.removeprefix("data: ")
            found.append(data if data == "[DONE]" else json.loads(data))
        return found


@dataclass
class Live:
    """A listening server with its fakes and a client session."""

    server: HttpServer
    serving: FakeServing
    log: RecordingLog
    session: aiohttp.ClientSession

    async def get(self, path: str, **kwargs: Any) -> Reply:
        return await self.send("GET", path, **kwargs)

    async def delete(self, path: str, **kwargs: Any) -> Reply:
        return await self.send("DELETE", path, **kwargs)

    async def post(self, body: object, path: str = "/v1/chat/completions", **kwargs: Any) -> Reply:
        headers = {"Content-Type": "application/json", **kwargs.pop("headers", {})}
        data = body if isinstance(body, (bytes, AsyncGenerator)) else BytesIO(json.dumps(body).encode())
        return await self.send("POST", path, data=data, headers=headers, **kwargs)

    async def send(self, method: str, path: str, **kwargs: Any) -> Reply:
        url = f"http://127.0.0.1:{self.server.port}{path}"
        async with self.session.request(method, url, **kwargs) as response:
            assert response.headers["x-request-id"]
            return Reply(response.status, response.headers, await response.read())


@asynccontextmanager
async def live(
    serving: FakeServing | None = None,
    cache: FakeCache | None = None,
    access: Access | None = None,
    responses: ResponseStore | None = None,
    **options: Any,
) -> AsyncGenerator[Live]:
    serving, log = serving or FakeServing(), RecordingLog()
    settings = HttpOptions(**({"port": 0} | options))
    server = HttpServer(serving, settings, log, cache=cache, access=access, responses=responses)
    await server.start()
    async with aiohttp.ClientSession() as session:
        try:
            yield Live(server, serving, log, session)
        finally:
            await server.close(0.0)


def chat(content: object = "Hi", **more: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": content}], **more}


def raw_chat(body: object, version: str = "1.1", headers: str = "") -> bytes:
    data = json.dumps(body).encode()
    head = f"POST /v1/chat/completions HTTP/{version}\r\nHost: localhost\r\n{headers}"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


@asynccontextmanager
async def raw(server: Live, data: bytes) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A bare connection that has sent ``data``; closed at the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.server.port)
    writer.write(data)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
