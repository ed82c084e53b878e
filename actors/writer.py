"""Writers bring checkpoints to disk, one at a time each, on a thread of their own.

A writer knows neither the index nor what is worth writing: it gets a reservation and a checkpoint, and
answers when the file has its final name, durably. No MLX: it reads the checkpoint's host views.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, assert_never

from ..runtime.kernel import Actor, Ask, Overloaded
from ..storage.container import write_container
from ..storage.container_errors import ContainerError
from ..storage.reservation import publish

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..runtime.engine.checkpoint import Checkpoint
    from ..runtime.kernel import ActorRef, Deferred, PinnedThread, ThreadPort
    from ..storage.container import Checksum, StoredCheckpoint
    from ..storage.filesystem import Filesystem
    from ..storage.reservation import Reservation

JOB_LIMIT = 4
"""Jobs in a writer's hand, the running one included. Durability never sends more than there are writers."""


class WriteCancelled(Exception):
    """Nobody wants the file any more; nothing was published."""

    code = "write_cancelled"
    retryable = True


@dataclass(frozen=True, slots=True)
class WriteJob:
    """Write ``checkpoint`` under ``reservation``, for the directory of ``identity``.

    ``cancelled`` is set, from any thread, when the file must not get its final name any more.
    """

    reservation: Reservation
    checkpoint: Checkpoint
    identity: str
    cancelled: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class Write(Ask["StoredCheckpoint"]):
    """Do a job; answered when the file is durable under its final name."""

    job: WriteJob


@dataclass(frozen=True, slots=True)
class _Outcome:
    number: int
    stored: StoredCheckpoint | None
    error: Exception | None


@dataclass(frozen=True, slots=True)
class WritesDone:
    """Jobs that have ended (from the thread alone)."""

    outcomes: tuple[_Outcome, ...]


_Command: TypeAlias = "tuple[int, WriteJob]"
WriterMessage: TypeAlias = Write | WritesDone


def checkpoint_writer(
    fs: Filesystem, clock: Callable[[], float], checksum: Checksum = "xxh3-128"
) -> Callable[[WriteJob], StoredCheckpoint]:
    """Return what a WriterActor does with a job: write, sync, rename, sync the folder.

    ``clock`` gives Unix seconds. Raises OSError, ContainerError, WriteCancelled; the reservation is then to
    be abandoned, which removes whatever is left.
    """

    def write(job: WriteJob) -> StoredCheckpoint:
        if job.cancelled.is_set():
            raise WriteCancelled("cancelled before it began")
        checkpoint, path = job.checkpoint, job.reservation.temp_path
        stored = write_container(
            fs,
            path,
            job.identity,
            checkpoint.spec,
            checkpoint.segments(),
            checksum=checksum,
            created_s=clock(),
        )
        if job.cancelled.is_set():
            with contextlib.suppress(OSError):
                fs.unlink(path)
            raise WriteCancelled("cancelled while it was written")
        publish(fs, job.reservation)
        return stored

    return write


class WriterActor(Actor[WriterMessage]):
    """One writer. ``write`` runs on its thread.

    OSError, ContainerError and WriteCancelled out of it refuse the job; anything else crashes the writer,
    and the job's asker gets ActorCrashed. When the writer ends, the job in hand is cancelled: it publishes
    nothing unless it was at it already.
    """

    def __init__(self, write: Callable[[WriteJob], StoredCheckpoint]) -> None:
        self._write = write
        self._jobs: dict[int, tuple[WriteJob, Deferred[StoredCheckpoint]]] = {}
        self._numbers = 0
        self._thread: PinnedThread[_Command, _Outcome] | None = None

    async def started(self) -> None:
        """Start the thread."""
        self.ctx.on_end(self._cancel_all)
        self._thread = self.ctx.run_thread("disk", self._body, lambda done: WritesDone(tuple(done)))

    async def receive(self, message: WriterMessage) -> None:
        """Pass jobs to the thread and outcomes to their askers."""
        match message:
            case Write():
                self._take(message)
            case WritesDone():
                for outcome in message.outcomes:
                    self._answer(outcome)
            case _:
                assert_never(message)

    def _take(self, message: Write) -> None:
        if self._thread is None:
            raise RuntimeError(f"{self.ctx.path} has no thread")
        if len(self._jobs) >= JOB_LIMIT:
            busy = Overloaded(self.ctx.path, "Write", f"{len(self._jobs)} jobs in hand")
            self.ctx.reject(message, busy)
            return
        self._numbers += 1
        self._jobs[self._numbers] = (message.job, self.ctx.defer(message))
        self._thread.send((self._numbers, message.job))

    def _answer(self, outcome: _Outcome) -> None:
        _, answer = self._jobs.pop(outcome.number)
        if outcome.stored is not None:
            answer.reply(outcome.stored)
        elif outcome.error is not None:
            answer.reject(outcome.error)

    async def _cancel_all(self) -> None:
        for job, _ in self._jobs.values():
            job.cancelled.set()

    def check_integrity(self) -> None:
        """Assert that the jobs in hand are within their limit and were numbered. No I/O; between messages."""
        assert len(self._jobs) <= JOB_LIMIT, f"{len(self._jobs)} jobs in hand"
        assert all(number <= self._numbers for number in self._jobs), "a job that was never taken"

    def _body(self, port: ThreadPort[_Command, _Outcome]) -> None:
        while not port.stopping:
            for number, job in port.wait():
                port.emit([self._do(number, job)])

    def _do(self, number: int, job: WriteJob) -> _Outcome:
        try:
            return _Outcome(number, self._write(job), None)
        except (OSError, ContainerError, WriteCancelled) as error:
            return _Outcome(number, None, error)


class Writers:
    """The typed face of the pool: a job goes to the writer that has least to do. Loop thread."""

    def __init__(self, refs: Sequence[ActorRef[WriterMessage]]) -> None:
        if not refs:
            raise ValueError("a pool of writers needs at least one")
        self.refs = tuple(refs)
        self._loads = [0] * len(self.refs)

    def __len__(self) -> int:
        return len(self.refs)

    async def write(self, job: WriteJob, timeout_s: float) -> StoredCheckpoint:
        """Write a checkpoint durably under its final name; committing it is the caller's.

        Raises AskError; Rejected has the OSError, ContainerError or WriteCancelled as its cause. After an
        error, or when this is cancelled, set ``cancelled`` and abandon the reservation: the file may come.
        """
        chosen = min(range(len(self.refs)), key=self._loads.__getitem__)
        self._loads[chosen] += 1
        try:
            return await self.refs[chosen].ask(Write(job), timeout_s)
        finally:
            self._loads[chosen] -= 1
