"""The actors and messages that kernel tests play with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from samovar.runtime.kernel import Actor, Ask, Backoff, ChildSpec, RestartLimit, SupervisorSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


@dataclass(frozen=True, slots=True)
class Ping(Ask[int]):
    """Answered with its own value."""

    value: int = 0


@dataclass(frozen=True, slots=True)
class Note:
    """Only recorded."""

    value: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """Runs ``body`` in the handler."""

    body: Callable[[Worker], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Get(Ask[Any]):
    """Answered with what ``body`` returns in the handler."""

    body: Callable[[Worker], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Handle(Ask[Any]):
    """Left to ``body``: replies, defers, rejects or does not."""

    body: Callable[[Worker, Handle], Awaitable[None]]


@dataclass
class Log:
    """What happened to workers, in order: ("start" | "started" | "stopped" | "note", path, detail)."""

    entries: list[tuple[str, str, Any]] = field(default_factory=list)

    def add(self, what: str, path: str, detail: Any = None) -> None:
        self.entries.append((what, path, detail))

    def of(self, *kinds: str) -> list[str]:
        """Return the paths of the entries of these kinds, in order."""
        return [path for what, path, _ in self.entries if what in kinds]

    def details(self, what: str) -> list[Any]:
        return [detail for kind, _, detail in self.entries if kind == what]


class Worker(Actor[Any]):
    def __init__(self, log: Log, hooks: dict[str, Callable[[Worker], Awaitable[None]]]) -> None:
        self.log = log
        self.hooks = hooks

    async def started(self) -> None:
        self.log.add("start", self.ctx.path, self.ctx.incarnation)
        if "started" in self.hooks:
            await self.hooks["started"](self)
        self.log.add("started", self.ctx.path, self.ctx.incarnation)

    async def receive(self, message: Any) -> None:
        match message:
            case Ping():
                self.ctx.reply(message, message.value)
            case Run():
                await message.body(self)
            case Get():
                self.ctx.reply(message, await message.body(self))
            case Handle():
                await message.body(self, message)
            case _:
                self.log.add("note", self.ctx.path, getattr(message, "value", message))

    async def stopped(self) -> None:
        if "stopped" in self.hooks:
            await self.hooks["stopped"](self)
        self.log.add("stopped", self.ctx.path, self.ctx.incarnation)


def worker(
    child_id: str,
    log: Log | None = None,
    *,
    on_started: Callable[[Worker], Awaitable[None]] | None = None,
    on_stopped: Callable[[Worker], Awaitable[None]] | None = None,
    capacity: int = 100,
    **spec: Any,
) -> ChildSpec[Any]:
    hooks = {"started": on_started, "stopped": on_stopped}
    given = {name: hook for name, hook in hooks.items() if hook is not None}
    log = log if log is not None else Log()
    return ChildSpec(child_id, lambda: Worker(log, given), capacity=capacity, **spec)


STEADY = Backoff(initial_s=1.0, factor=1.0, max_s=1.0, jitter=0.0)
"""Restarts come exactly one second after the crash."""


def root(*children: Any, **spec: Any) -> SupervisorSpec:
    spec = {"backoff": STEADY, "limit": RestartLimit(5, 30.0), **spec}
    return SupervisorSpec("root", children, **spec)


async def boom(_: Worker) -> None:
    raise ValueError("boom")
