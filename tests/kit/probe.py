"""An actor that records what it gets and answers what it is told to."""

from __future__ import annotations

from collections import deque
from typing import Any, TypeVar

from samovar.runtime.kernel import Actor, ActorRef, Ask, ChildSpec

T = TypeVar("T")


class _ProbeActor(Actor[Any]):
    def __init__(self, probe: Probe) -> None:
        self._probe = probe

    async def started(self) -> None:
        self._probe.ctx = self.ctx

    async def receive(self, message: Any) -> None:
        self._probe.seen.append(message)
        if isinstance(message, Ask):
            if type(message) in self._probe.answers:
                self.ctx.reply(message, self._probe.answers[type(message)])
            else:
                self._probe.open.append(self.ctx.defer(message))


class Probe:
    """Stands in for an actor whose behaviour the test plays itself.

    ``seen`` holds every message in order of arrival; asks without a prepared answer wait in ``open``.
    """

    def __init__(self, child_id: str = "probe", capacity: int = 1000) -> None:
        self.seen: deque[Any] = deque()
        self.open: deque[Any] = deque()
        self.answers: dict[type, Any] = {}
        self.ctx: Any = None
        self.spec: ChildSpec[Any] = ChildSpec(child_id, lambda: _ProbeActor(self), capacity=capacity)

    @property
    def ref(self) -> ActorRef[Any]:
        return self.spec.ref

    def take(self, kind: type[T]) -> T:
        """Take the oldest message; it must be of ``kind``."""
        assert self.seen, f"{self.ref.path} saw nothing, expected {kind.__name__}"
        message = self.seen.popleft()
        assert isinstance(message, kind), f"{self.ref.path} saw {message!r}, expected {kind.__name__}"
        return message

    def take_nothing(self) -> None:
        """Assert that nothing (more) arrived."""
        assert not self.seen, f"{self.ref.path} saw {list(self.seen)!r}"
