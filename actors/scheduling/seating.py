"""Giving rows to requests: the prefix that each borrows, the lane that takes it, and what it leaves behind.

Part of ``scheduler.py``, in whose handlers all of it runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from ...runtime.engine.checkpoint import Prefix
from ...runtime.engine.port import Cancelled, Failed, Finished
from ...storage.tokens import TokenIds
from ..requests import Admitted, PrefixReuse
from ..stream import RequestStream
from .backlog import Prefilling
from .intake import Waiting
from .ledger import Running

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from ...runtime.engine.port import ModelInfo
    from ...runtime.kernel import Context
    from ..residency import Residency, Taken
    from ..scheduler import SchedulerMessage
    from .backlog import Backlog
    from .ledger import Asked, Ledger
    from .places import Place, Places
    from .resuming import Resuming

TAKE_S: Final = 300.0


@dataclass(frozen=True, slots=True)
class Borrowed:
    """What residency said for a request about to run (from a task); None when it could not be asked."""

    request_id: str
    taken: Taken | None


@dataclass(slots=True)
class _Borrowing:
    """A request for which a row of ``place`` is kept while residency looks for its prefix."""

    who: Waiting | Running
    place: Place
    task: asyncio.Task[Taken]


class Seating:
    """The rows of one incarnation. ``gone`` is told of a lane that takes no messages."""

    def __init__(
        self,
        ctx: Context[SchedulerMessage],
        places: Places,
        backlog: Backlog[Waiting],
        resuming: Resuming,
        ledger: Ledger,
        *,
        residency: Residency | None,
        model: ModelInfo,
        publish_min_tokens: int,
        cancel: Callable[[str], None],
        gone: Callable[[Place], None],
    ) -> None:
        self._ctx = ctx
        self._places = places
        self._backlog = backlog
        self._resuming = resuming
        self._ledger = ledger
        self._residency = residency
        self._model = model
        self._publish_min_tokens = publish_min_tokens
        self._ask_to_cancel = cancel
        self._gone = gone
        self._borrowing: dict[str, _Borrowing] = {}

    @property
    def unadmitted(self) -> list[Waiting]:
        """The requests that have a row and wait for their prefix, but no stream yet."""
        return [each.who for each in self._borrowing.values() if isinstance(each.who, Waiting)]

    @property
    def running(self) -> int:
        """How many requests have a row, or had one and wait for the next."""
        return len(self._ledger) + len(self.unadmitted)

    @property
    def kv_bytes(self) -> int:
        """What the states of all of them may come to take."""
        return self._ledger.kv_bytes + sum(waiting.asked.kv_bytes for waiting in self.unadmitted)

    def seat(self, who: Waiting | Running, place: Place) -> None:
        """Ask for the longest prefix there is; a row of ``place`` is kept meanwhile."""
        asked = who.asked
        if self._residency is None:
            self._start(who, place, None)
            return
        tokens = asked.tokens
        if isinstance(who, Running):
            if who.mark is not None:
                place.trial = asked.id
            tokens = TokenIds.of([*tokens.tolist(), *who.stream.emitted])
        self._announce(asked, 0)
        place.kept[asked.id] = asked
        work = self._residency.take(
            tokens,
            asked.row.namespace,
            asked.request.session_id,
            self._ledger.prefill_tps,
            self._ctx.self,
            TAKE_S,
        )
        task = self._ctx.spawn(
            work, lambda taken: Borrowed(asked.id, taken), lambda _: Borrowed(asked.id, None)
        )
        self._borrowing[asked.id] = _Borrowing(who, place, task)

    def _announce(self, asked: Asked, cached: int) -> None:
        """Let others wait for what this request is about to prefill."""
        tokens = asked.tokens[:-1]
        if len(tokens) - cached >= self._publish_min_tokens:
            prefilling = Prefilling(tokens, asked.row.namespace, cached, self._model.trims)
            self._backlog.began(asked.id, prefilling)
        else:
            self._backlog.published(asked.id)

    def borrowed(self, request_id: str, taken: Taken | None) -> None:
        """Run a request with what residency gave, or from nothing when it could not be asked."""
        borrowing = self._borrowing.pop(request_id, None)
        if borrowing is not None:
            del borrowing.place.kept[request_id]
            self._start(borrowing.who, borrowing.place, taken)
        elif taken is not None and taken.lease is not None:
            self._let_go(request_id, taken.lease.id)  # cancelled while this answer was on its way

    def _start(self, who: Waiting | Running, place: Place, taken: Taken | None) -> None:
        """Hand a request to a lane, with its stream and the prefix that it borrowed."""
        lease = None if taken is None else taken.lease
        running = self._admit(who, taken) if isinstance(who, Waiting) else who
        if running is None:
            self._let_go(who.asked.id, None if lease is None else lease.id)
            return
        running.lease_id = None if lease is None else lease.id
        if self._residency is not None:
            self._announce(running.asked, 0 if lease is None else lease.length)
        row = replace(
            running.asked.row,
            emitted=tuple(running.stream.emitted),
            prefix=None if lease is None else Prefix(lease.checkpoint, lease.length),
        )
        if not self._places.has_room(place):  # it was lost meanwhile
            self.strand(running)
        elif place.lane.start(row, running.stream, self._ctx.self, running.asked.request.session_id):
            self._put_on(running, place, 0 if lease is None else lease.length)
        else:
            self._gone(place)
            self.strand(running)

    def _admit(self, waiting: Waiting, taken: Taken | None) -> Running | None:
        """Answer a client and take its request into the ledger; None when the client has left."""
        asked = waiting.asked
        stream = RequestStream(asked.id, self._ask_to_cancel)
        admitted = Admitted(stream, len(asked.tokens), self._reuse(taken), asked.in_reasoning)
        if not waiting.answer.reply(admitted):
            self._ledger.counts.cancelled += 1
            return None
        stream.submitted_s, stream.started_s = waiting.asked.arrived_s, self._ctx.now_s()
        running = Running(asked, stream)
        self._ledger.admit(running)
        return running

    def _put_on(self, running: Running, place: Place, cached: int) -> None:
        """Note that a lane has taken a request."""
        running.stream.prefill_left = len(running.asked.tokens) + running.stream.emitted_tokens - cached
        running.lane = place.lane.ref.path
        self._ledger.counts.resumed += running.starts > 0
        running.starts += 1
        place.rows[running.id] = running

    def _reuse(self, taken: Taken | None) -> PrefixReuse:
        if taken is None:
            reason = "cache_off" if self._residency is None else "cache_unavailable"
            return PrefixReuse("none", 0, 0.0, reason)
        return PrefixReuse(taken.tier, taken.length, taken.restore_ms, taken.miss_reason, taken.diverged_at)

    def _let_go(self, request_id: str, lease_id: int | None) -> None:
        """Nobody needs to wait for this request any more, and nothing of it is borrowed."""
        self._backlog.published(request_id)
        if lease_id is not None and self._residency is not None:
            self._residency.release(lease_id)

    def cancel(self, request_id: str) -> None:
        """Drop a request whose client has left, wherever it is."""
        place, running = self._places.holding(request_id), self._ledger.get(request_id)
        if running is not None:
            running.stream.cancelled = True
        if place is not None:
            place.lane.cancel(request_id)
            return
        borrowing = self._borrowing.pop(request_id, None)
        if borrowing is not None:
            # Its client has left. A restore that nobody else wants ends with the task.
            borrowing.task.cancel()
            del borrowing.place.kept[request_id]
            self._backlog.published(request_id)
        if running is not None:
            self._resuming.drop(request_id)
            self.end(running, Cancelled(request_id))
        elif borrowing is not None:
            self._ledger.counts.cancelled += 1

    def strand(self, running: Running) -> None:
        """Let a request without a lane wait for one, unless it needs none."""
        self._let_go(running.id, running.lease_id)
        running.lease_id = None
        running.stream.attempt += 1
        if (terminal := running.stream.terminal) is not None:
            self.end(running, terminal)
        elif running.stream.cancelled:
            self.end(running, Cancelled(running.id))
        else:
            self._resuming.add(running)

    def end(self, running: Running, event: Finished | Cancelled | Failed) -> None:
        """Forget a request, with ``event`` as its last unless it has had one."""
        running.stream.push(event)
        self._let_go(running.id, running.lease_id)
        self._ledger.close(running)

    def check_integrity(self) -> None:
        """Assert that every running request is in exactly one place, and no lane is overfull."""
        kept = {request_id: place for place in self._places for request_id in place.kept}
        assert kept == {request_id: each.place for request_id, each in self._borrowing.items()}
        placed = [running for place in self._places for running in place.rows.values()]
        for running in placed:
            assert self._ledger.get(running.id) is running, running.id
        on_lanes = [running.id for running in placed]
        assert len(on_lanes) == len(set(on_lanes)), on_lanes
        for running in self._ledger:
            found = (running.id in on_lanes) + (running.id in kept) + (running.id in self._resuming)
            assert found == 1, f"{running.id} is in {found} places"
        for place in self._places:
            assert place.taken <= self._places.batch, place.lane.ref.path
            trials = sum(running.mark is not None for running in place.rows.values())
            assert trials <= 1, f"{trials} suspects on {place.lane.ref.path}"
