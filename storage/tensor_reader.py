"""Reading a container's tensors into the caller's buffers, several at once.

One thread leaves a disk, and the memory that a GPU shares, waiting: it asks for one block at a time, copies
it, checks it. So threads share a large file, each with a handle of its own, and take tensor after tensor.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING, Final

from .checksums import ALGORITHMS, update_all
from .container_errors import ContainerChanged, CorruptTensor, RestoreCancelled
from .front import fill
from .fs import usable_cores
from .header import labels_of
from .layout import FRAME_BYTES, ZEROS, check_segments, parse_frame
from .tokens import ITEM_BYTES
from .transfer import blocks_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from .filesystem import Filesystem, OpenFile
    from .header import StoredCheckpoint

MOST_THREADS: Final = 8
"""Threads that share a file at most, the caller's among them; no more than there are cores.

Measured beside an H200, 268 MB in the page cache into new arrays that the GPU shares: 2.8, 4.7, 7.5, 11.0,
10.7 GB/s with 1, 2, 4, 8, 16 threads; from its virtual disk 1.8 to 2.2.
"""

SHARE_BYTES: Final = 4 << 20
"""From how many bytes on a thread is worth its start."""


def never() -> bool:
    """Return False: nothing cancels."""
    return False


def read_tensors(
    fs: Filesystem,
    path: Path,
    stored: StoredCheckpoint,
    targets: Sequence[Sequence[memoryview]],
    *,
    verify: bool = True,
    cancelled: Callable[[], bool] = never,
) -> int:
    """Fill writable views with the tensors of ``stored`` and return how many bytes those are. Blocks.

    With ``verify`` each tensor's hash, and the zeros before it, are checked. ``cancelled`` is asked between
    blocks of 1 MiB, by several threads where the file is large; none outlives the call. Raises CorruptTensor,
    TruncatedContainer, ContainerChanged, RestoreCancelled, SegmentMismatch, and OSErrors; the targets are
    rubbish after any.
    """
    sizes = [section.nbytes for section in stored.tensors]
    check_segments(path, targets, sizes)
    reading = _Reading(fs, path, stored, targets, verify=verify, cancelled=cancelled)
    shares = min(MOST_THREADS, usable_cores(), len(sizes), sum(sizes) // SHARE_BYTES)
    if shares > 1:
        with ThreadPoolExecutor(shares - 1, "restore") as others:
            for _ in range(shares - 1):
                others.submit(reading.work)
            reading.work()
    else:
        reading.work()
    reading.raise_failure()
    return sum(sizes)


class _Reading:
    """One call. ``work`` may run on several threads at once, and returns when nothing is left to do."""

    def __init__(
        self,
        fs: Filesystem,
        path: Path,
        stored: StoredCheckpoint,
        targets: Sequence[Sequence[memoryview]],
        *,
        verify: bool,
        cancelled: Callable[[], bool],
    ) -> None:
        self._fs = fs
        self._path = path
        self._stored = stored
        self._targets = targets
        self._verify = verify
        self._cancelled = cancelled
        self._todo = deque(range(len(targets)))
        self._failures: list[BaseException] = []

    def work(self) -> None:
        """Read tensors until all are taken or one has failed. Raises nothing."""
        try:
            file = self._fs.open(self._path)
            try:
                self._check_unchanged(file)
                while not self._failures and (place := self._next()) is not None:
                    self._fill(file, place)
            finally:
                file.close()
        except BaseException as error:  # noqa: BLE001 - it leaves from the caller's thread
            self._failures.append(error)

    def _next(self) -> int | None:
        try:
            return self._todo.popleft()
        except IndexError:  # another thread took the last one
            return None

    def raise_failure(self) -> None:
        """Raise what failed first, if anything did."""
        if self._failures:
            raise self._failures[0]

    def _check_unchanged(self, file: OpenFile) -> None:
        file_bytes = file.size()
        head = bytearray(min(file_bytes, FRAME_BYTES))
        fill(file, self._path, [memoryview(head)], 0)
        if parse_frame(self._path, head, file_bytes).digest != self._stored.header_digest:
            raise ContainerChanged(self._path, "another container took its place")

    def _fill(self, file: OpenFile, place: int) -> None:
        section = self._stored.tensors[place]
        start = self._stored.data_start + section.offset
        gap = memoryview(bytearray(start - self._end_before(place) if self._verify else 0))
        hasher = ALGORITHMS[self._stored.header.checksum]()
        offset = start - gap.nbytes
        before = [gap]
        for block in blocks_of(self._targets[place]):
            if self._failures:
                return
            offset = self._read(file, [*before, *block], offset)
            before = []
            if self._verify:
                update_all(hasher, block)
        self._read(file, before, offset)
        if gap != ZEROS[: gap.nbytes]:
            raise self._corrupt(place, "follows bytes that are not zero")
        if self._verify and hasher.digest() != section.digest:
            raise self._corrupt(place, "fails its hash")

    def _end_before(self, place: int) -> int:
        """Return where what lies before a tensor ends."""
        if place == 0:
            return self._stored.data_start + len(self._stored.header.spec.tokens) * ITEM_BYTES
        before = self._stored.tensors[place - 1]
        return self._stored.data_start + before.offset + before.nbytes

    def _read(self, file: OpenFile, pieces: list[memoryview], offset: int) -> int:
        if self._cancelled():
            raise RestoreCancelled(self._path)
        return fill(file, self._path, pieces, offset)

    def _corrupt(self, place: int, problem: str) -> CorruptTensor:
        labels = labels_of(self._stored.header.spec)
        return CorruptTensor(self._path, next(islice(labels, place, None)), problem)
