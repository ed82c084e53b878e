"""Readers bring checkpoints back from disk, one at a time each, on a pinned thread of their own.

That thread owns a stream of the engine: it allocates the buffers, fills them from the file and finishes the
checkpoint, while lanes go on. Readers share no queue with writers. Nothing is taken on trust: a file is read
for an entry only if its header names the same identity, namespace and token ids (never a hash alone).
"""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, TypeAlias, assert_never

from ..runtime.engine.errors import StateError
from ..runtime.kernel import Actor, Ask, AskTimeout, Overloaded
from ..storage.container_errors import ContainerError, RestoreCancelled
from .restoring import read_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..runtime.engine.checkpoint import Checkpoint, Restorer
    from ..runtime.kernel import ActorRef, Deferred, PinnedThread, ThreadPort
    from ..storage.entry import StoredEntry
    from ..storage.filesystem import Filesystem

JOB_LIMIT = 16
"""Jobs in a reader's hand, the running one included."""


@dataclass(frozen=True, slots=True)
class RestoreJob:
    """Read ``entry``. Ids are the asker's to keep distinct."""

    id: str
    entry: StoredEntry


@dataclass(frozen=True, slots=True)
class Restored:
    """A checkpoint that came back, bit for bit. ``elapsed_ms`` is the reader's time, without its queue."""

    checkpoint: Checkpoint
    elapsed_ms: float
    read_bytes: int


@dataclass(slots=True)
class ReaderCounts:
    """What a pool of readers has done. Outlives incarnations; loop thread."""

    restores: int = 0
    restored_bytes: int = 0
    restore_ms: float = 0.0
    restore_ms_last: float = 0.0
    cancelled: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Restore(Ask[Restored]):
    """Do a job."""

    job: RestoreJob


@dataclass(frozen=True, slots=True)
class CancelRestore:
    """Give a job up, at the next block if it is being read. Unknown ids are ignored."""

    job_id: str


@dataclass(frozen=True, slots=True)
class _Outcome:
    job_id: str
    restored: Restored | None
    error: Exception | None


@dataclass(frozen=True, slots=True)
class RestoresDone:
    """Jobs that have ended (from the thread alone)."""

    outcomes: tuple[_Outcome, ...]


@dataclass(frozen=True, slots=True)
class _Command:
    job: RestoreJob
    cancelled: threading.Event


@dataclass(frozen=True, slots=True)
class _Running:
    answer: Deferred[Restored]
    cancelled: threading.Event


ReaderMessage: TypeAlias = Restore | CancelRestore | RestoresDone


class ReaderActor(Actor[ReaderMessage]):
    """One reader of files of ``identity``.

    Refused with the cause: OSError (the file is gone, the disk fails), ContainerError (the file is bad, or
    another's), RestoreCancelled, StateError (the model cannot hold it), MemoryError. Anything else crashes
    the reader, and the asker gets ActorCrashed. ``verify`` False leaves out the tensors' hashes.
    """

    def __init__(
        self,
        restorer: Callable[[], Restorer],
        fs: Filesystem,
        identity: str,
        counts: ReaderCounts,
        *,
        verify: bool = True,
    ) -> None:
        self._restorer = restorer
        self._read = partial(read_entry, fs, identity, verify=verify)
        self._counts = counts
        self._running: dict[str, _Running] = {}
        self._thread: PinnedThread[_Command, _Outcome] | None = None

    async def started(self) -> None:
        """Start the thread and wait until its restorer is open. Raises what opening raises."""
        self.ctx.on_end(self._cancel_all)
        loop = asyncio.get_running_loop()
        opened: asyncio.Future[Exception | None] = loop.create_future()

        def body(port: ThreadPort[_Command, _Outcome]) -> None:
            restorer = self._restorer()
            try:
                restorer.open()
            except Exception as error:
                loop.call_soon_threadsafe(_settle, opened, error)
                raise
            loop.call_soon_threadsafe(_settle, opened, None)
            try:
                self._serve(port, restorer)
            finally:
                restorer.close()

        self._thread = self.ctx.run_thread("disk", body, lambda done: RestoresDone(tuple(done)))
        error = await opened
        if error is not None:
            raise error

    async def receive(self, message: ReaderMessage) -> None:
        """Pass jobs to the thread and outcomes to their askers."""
        match message:
            case Restore():
                self._take(message)
            case CancelRestore():
                running = self._running.get(message.job_id)
                if running is not None:
                    running.cancelled.set()
            case RestoresDone():
                for outcome in message.outcomes:
                    self._answer(outcome)
            case _:
                assert_never(message)

    def _take(self, message: Restore) -> None:
        job = message.job
        if self._thread is None:
            raise RuntimeError(f"{self.ctx.path} has no thread")
        if len(self._running) >= JOB_LIMIT or job.id in self._running:
            detail = f"{len(self._running)} restores in hand, job {job.id} among them or one too many"
            self.ctx.reject(message, Overloaded(self.ctx.path, "Restore", detail))
            return
        cancelled = threading.Event()
        self._running[job.id] = _Running(self.ctx.defer(message), cancelled)
        self._thread.send(_Command(job, cancelled))

    def _answer(self, outcome: _Outcome) -> None:
        answer = self._running.pop(outcome.job_id).answer
        counts, restored = self._counts, outcome.restored
        if restored is not None:
            counts.restores += 1
            counts.restored_bytes += restored.read_bytes
            counts.restore_ms += restored.elapsed_ms
            counts.restore_ms_last = restored.elapsed_ms
            answer.reply(restored)
        elif outcome.error is not None:
            if isinstance(outcome.error, RestoreCancelled):
                counts.cancelled += 1
            else:
                counts.failed += 1
            answer.reject(outcome.error)

    async def _cancel_all(self) -> None:
        for running in self._running.values():
            running.cancelled.set()

    def check_integrity(self) -> None:
        """Assert that the jobs in hand are within their limit. No I/O; between two messages."""
        assert len(self._running) <= JOB_LIMIT, f"{len(self._running)} jobs in hand"

    # -- the thread -------------------------------------------------------------------------------------

    def _serve(self, port: ThreadPort[_Command, _Outcome], restorer: Restorer) -> None:
        while not port.stopping:
            for command in port.wait():
                port.emit([self._do(command, restorer)])

    def _do(self, command: _Command, restorer: Restorer) -> _Outcome:
        job, begun = command.job, perf_counter()
        try:
            checkpoint, read_bytes = self._read(job.entry, restorer, command.cancelled.is_set)
        except (OSError, ContainerError, StateError, MemoryError) as error:
            return _Outcome(job.id, None, error)
        return _Outcome(job.id, Restored(checkpoint, 1000.0 * (perf_counter() - begun), read_bytes), None)


def _settle(opened: asyncio.Future[Exception | None], error: Exception | None) -> None:
    if not opened.done():
        opened.set_result(error)


class Readers:
    """The typed face of the pool: a job goes to the reader that has least to do. Loop thread."""

    def __init__(self, refs: Sequence[ActorRef[ReaderMessage]], counts: ReaderCounts) -> None:
        if not refs:
            raise ValueError("a pool of readers needs at least one")
        self.refs = tuple(refs)
        self.counts = counts
        self._loads = [0] * len(self.refs)
        self._places: dict[str, int] = {}

    async def restore(self, job: RestoreJob, timeout_s: float) -> Restored:
        """Read a checkpoint and verify it.

        Raises AskError; Rejected has as its cause what ReaderActor names. Whether the file is then
        quarantined (ContainerError), forgotten (FileNotFoundError) or left alone is the caller's to decide.
        Being cancelled, or a timeout, gives the job up.
        """
        chosen = min(range(len(self.refs)), key=self._loads.__getitem__)
        self._loads[chosen] += 1
        self._places[job.id] = chosen
        try:
            return await self.refs[chosen].ask(Restore(job), timeout_s)
        except (AskTimeout, asyncio.CancelledError):
            self.cancel(job.id)
            raise
        finally:
            self._loads[chosen] -= 1
            self._places.pop(job.id, None)

    def cancel(self, job_id: str) -> None:
        """Give a restore up; its asker gets Rejected with RestoreCancelled unless it is done already."""
        chosen = self._places.get(job_id)
        if chosen is not None:
            self.refs[chosen].tell(CancelRestore(job_id))
