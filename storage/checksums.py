"""128-bit checksums, and hashing that overlaps with the transfer of the next block.

Measured on two cores with the file in the page cache: a read of 1 MiB takes 170 µs and its hash 35 to 110 µs,
so hashing on the thread that reads costs up to a third, on a second thread next to nothing. xxhash and
blake3 both release the interpreter's lock while they hash more than a few KiB.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, Protocol, Self, TypeAlias

import xxhash
from blake3 import blake3

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

Checksum: TypeAlias = Literal["xxh3-128", "blake3-128"]
DIGEST_BYTES: Final = 16
DIGEST_DIGITS: Final = 2 * DIGEST_BYTES
THREADED_BYTES: Final = 8 << 20
"""From how many bytes on a second thread pays for its start."""

MAX_WAITING_JOBS: Final = 2
"""Hash jobs that wait at most, so that a block is hashed while a core still has it in its cache."""

Job: TypeAlias = Callable[[], None]


class Hasher(Protocol):
    """A running 128-bit checksum. One thread at a time."""

    def update(self, data: memoryview, /) -> None:
        """Add bytes."""
        ...

    def digest(self) -> str:
        """Return 32 lower-case hexadecimal digits for what was added so far."""
        ...


class _Xxh3:
    """XXH3 of 128 bits, big-endian as in its canonical form."""

    __slots__ = ("_state",)

    def __init__(self) -> None:
        self._state = xxhash.xxh3_128()

    def update(self, data: memoryview, /) -> None:
        self._state.update(data)

    def digest(self) -> str:
        return self._state.hexdigest()


class _Blake3:
    """The first 128 bits of BLAKE3: slower, and nobody can make two inputs of one sum on purpose."""

    __slots__ = ("_state",)

    def __init__(self) -> None:
        self._state = blake3()

    def update(self, data: memoryview, /) -> None:
        self._state.update(data)

    def digest(self) -> str:
        return self._state.hexdigest(DIGEST_BYTES)


ALGORITHMS: Final[dict[Checksum, Callable[[], Hasher]]] = {"xxh3-128": _Xxh3, "blake3-128": _Blake3}


def digest_of(checksum: Checksum, pieces: Iterable[memoryview]) -> str:
    """Return the checksum, as 32 hexadecimal digits, of the pieces, one after the other."""
    hasher = ALGORITHMS[checksum]()
    update_all(hasher, pieces)
    return hasher.digest()


def update_all(hasher: Hasher, pieces: Iterable[memoryview]) -> None:
    """Add the pieces one after the other."""
    for piece in pieces:
        hasher.update(piece)


class HashLane:
    """Runs hash jobs in order, on a thread of its own when ``threaded``, else at once on the caller's.

    ``with HashLane(...) as lane:`` The thread ends with the block. A caller that is too far ahead does the
    next job itself, so a machine without an idle core loses little. The first failing job's error leaves
    from the next ``run`` or ``finish``, and the jobs after it are skipped. Used by one thread.
    """

    __slots__ = ("_error", "_jobs", "_running", "_thread", "_wakes")

    def __init__(self, *, threaded: bool) -> None:
        self._jobs: deque[Job] = deque()
        self._running = threading.Lock()  # held while a job runs: they share hashers, their order counts
        self._wakes: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="hash", daemon=True) if threaded else None

    def run(self, job: Job) -> None:
        """Have ``job`` run after those before it."""
        if self._thread is None:
            job()
            return
        self._jobs.append(job)
        if self._wakes.empty():  # a thread that has not come to run yet needs no second call
            self._wakes.put(item=True)
        while len(self._jobs) > MAX_WAITING_JOBS:
            self._run_next()
        self._raise_failure()

    def finish(self) -> None:
        """Return when every job has run."""
        while self._jobs:
            self._run_next()
        self._end()
        self._raise_failure()

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._jobs.clear()  # of no use after an error, and there are none after finish
        self._end()

    def _end(self) -> None:
        if self._thread is not None:
            self._wakes.put(item=False)
            self._thread.join()

    def _raise_failure(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        while self._wakes.get():
            while self._jobs:
                self._run_next()

    def _run_next(self) -> None:
        with self._running:
            try:
                job = self._jobs.popleft()
            except IndexError:  # the other thread took it
                return
            try:
                if self._error is None:
                    job()
            except BaseException as error:  # noqa: BLE001 - it leaves from the thread that waits for it
                self._error = error
