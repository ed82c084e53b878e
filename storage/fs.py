"""The only module of Samovar that makes ``os`` file calls: durable writes, folder sync, locks, vectors.

Durability: what a function here reports as written survives a crash of the machine, because the file
is synced before its rename and the folder after it. Any thread; every function blocks on the disk.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from .filesystem import FileEntry, Space

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from types import TracebackType

PRIVATE_FILE_MODE = 0o600
PRIVATE_FOLDER_MODE = 0o700
STAGING_PREFIX = ".staging-"
_LOCK_POLL_S = 0.05
_MAX_SEGMENTS: Final = max(16, os.sysconf("SC_IOV_MAX"))
_MAX_CALL_BYTES: Final = 1 << 30  # Linux moves 2 GiB at most in one call, macOS refuses more


class FileLocked(OSError):
    """Another holder has the lock; trying again later may help."""

    code = "file_locked"
    retryable = True


def usable_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def make_private_folder(path: Path) -> None:
    """Create ``path`` and its missing parents; the folder itself is 0700 when it is new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=PRIVATE_FOLDER_MODE, exist_ok=True)


def sync_descriptor(descriptor: int) -> None:
    """Force an open file to the medium: ``F_FULLFSYNC`` on macOS, where fsync stops at the drive's cache."""
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fsync(descriptor)


def sync_file(path: Path) -> None:
    """Force a closed file's bytes to the medium."""
    _sync_path(path, os.O_RDONLY)


def sync_folder(path: Path) -> None:
    """Force a folder's entries to the medium, so that a rename or a new file in it survives a crash."""
    _sync_path(path, os.O_RDONLY | os.O_DIRECTORY)


def _sync_path(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        sync_descriptor(descriptor)
    finally:
        os.close(descriptor)


def write_atomically(path: Path, data: bytes, *, mode: int = PRIVATE_FILE_MODE) -> None:
    """Replace ``path`` by ``data``: afterwards, and after any crash, it holds all of old or all of new.

    The folder must exist. On an error nothing is left behind and the old file is untouched.
    """
    descriptor, name = tempfile.mkstemp(prefix=STAGING_PREFIX, dir=path.parent)
    staged = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            sync_descriptor(file.fileno())
        staged.replace(path)
    except BaseException:
        staged.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


@contextlib.contextmanager
def staged_folder(destination: Path) -> Generator[Path]:
    """Yield an empty folder that becomes ``destination`` when the block ends well, and vanishes otherwise.

    Every file in it is synced before the rename, so ``destination`` is whole or absent at any moment. A
    process killed inside the block leaves only a folder that ``sweep_staging`` removes. ``destination``
    must not exist; its parent is created.
    """
    make_private_folder(destination.parent)
    staged = Path(tempfile.mkdtemp(prefix=STAGING_PREFIX, dir=destination.parent))
    try:
        yield staged
        for path in sorted(staged.rglob("*"), reverse=True):
            if path.is_dir():
                sync_folder(path)
            else:
                sync_file(path)
        sync_folder(staged)
        staged.rename(destination)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    sync_folder(destination.parent)


def sweep_staging(folder: Path) -> int:
    """Remove what killed writers left in ``folder`` and return how many entries that was.

    Only the one writer of the folder may call it: a living writer's staging looks the same.
    """
    swept = 0
    for path in folder.glob(f"{STAGING_PREFIX}*"):
        remove_tree(path)
        swept += 1
    return swept


def remove_tree(path: Path) -> None:
    """Remove a file or a folder with everything in it; nothing there is no error."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class FileLock:
    """An exclusive lock on a file, between processes and between threads; freed when its holder dies.

    ``with FileLock.acquire(path):`` The file stays behind, empty of meaning, since removing it would
    let two holders lock two files of one name.
    """

    __slots__ = ("_descriptor", "path")

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor: int | None = descriptor

    @classmethod
    def acquire(cls, path: Path, *, timeout_s: float = 0.0) -> Self:
        """Take the lock, waiting up to ``timeout_s`` seconds for another holder.

        Raises FileLocked, naming the path and the holder's process id, when the time is up.
        """
        deadline_s = time.monotonic() + timeout_s
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE_FILE_MODE)
        try:
            while not _try_lock(descriptor):
                _check_deadline(path, descriptor, deadline_s)
                time.sleep(_LOCK_POLL_S)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(path, descriptor)

    def release(self) -> None:
        """Give the lock up. Idempotent."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _check_deadline(path: Path, descriptor: int, deadline_s: float) -> None:
    if time.monotonic() >= deadline_s:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        raise FileLocked(f"{path} is locked by process {holder}")


class OsFile:
    """An open file of the operating system (storage/filesystem.py ``OpenFile``)."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor: int | None = descriptor

    def write(self, segments: Sequence[memoryview], offset: int) -> int:
        """Write from ``offset`` on in as few calls as the system allows; fewer bytes when one came short."""
        total = 0
        for batch, size in _batches(segments):
            written = os.pwritev(self._open(), batch, offset + total)
            total += written
            if written < size:
                break
        return total

    def read(self, segments: Sequence[memoryview], offset: int) -> int:
        """Fill from ``offset`` on in as few calls as the system allows; fewer bytes when one came short."""
        total = 0
        for batch, size in _batches(segments):
            count = os.preadv(self._open(), batch, offset + total)
            total += count
            if count < size:
                break
        return total

    def size(self) -> int:
        """Return the file's length in bytes."""
        return os.fstat(self._open()).st_size

    def sync(self) -> None:
        """Force data and length to the medium."""
        sync_descriptor(self._open())

    def close(self) -> None:
        """Close the file. Idempotent, also after an error, which leaves."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def _open(self) -> int:
        if self._descriptor is None:
            raise OSError(errno.EBADF, "the file is closed")
        return self._descriptor


def _batches(segments: Sequence[memoryview]) -> Iterable[tuple[Sequence[memoryview], int]]:
    """Return lists that one call may take, and their bytes."""
    total = sum([segment.nbytes for segment in segments])
    if len(segments) <= _MAX_SEGMENTS and total <= _MAX_CALL_BYTES:
        return ((segments, total),)
    return _several_batches(segments)


def _several_batches(segments: Sequence[memoryview]) -> Generator[tuple[list[memoryview], int]]:
    batch: list[memoryview] = []
    size = 0
    for piece in _cut(segments):
        if len(batch) == _MAX_SEGMENTS or size + piece.nbytes > _MAX_CALL_BYTES:
            yield batch, size
            batch, size = [], 0
        batch.append(piece)
        size += piece.nbytes
    if size:
        yield batch, size


def _cut(segments: Sequence[memoryview]) -> Generator[memoryview]:
    for segment in segments:
        for start in range(0, segment.nbytes, _MAX_CALL_BYTES):
            yield segment[start : start + _MAX_CALL_BYTES]


class OsFilesystem:
    """The operating system's file system (storage/filesystem.py ``Filesystem``). Any thread."""

    def create(self, path: Path) -> OsFile:
        """Create a new private file for writing; FileExistsError when there is one."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        return OsFile(os.open(path, flags, PRIVATE_FILE_MODE))

    def open(self, path: Path) -> OsFile:
        """Open a file for reading; FileNotFoundError when there is none. A pipe does not make it wait."""
        return OsFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))

    def prefetch(self, path: Path, size_bytes: int) -> None:
        """Have the system begin to read a file's first bytes, where it takes such hints; macOS does not."""
        if not hasattr(os, "posix_fadvise"):
            return
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                os.posix_fadvise(descriptor, 0, size_bytes, os.POSIX_FADV_WILLNEED)
            finally:
                os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Rename, replacing ``target`` atomically."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        path.unlink()

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()

    def make_folder(self, path: Path) -> None:
        """Create a private folder and its missing parents, each synced into the folder above it."""
        missing = [folder for folder in (path, *path.parents) if not folder.is_dir()]
        for folder in reversed(missing):
            folder.mkdir(mode=PRIVATE_FOLDER_MODE, exist_ok=True)  # another thread may be making it too
            sync_folder(folder.parent)

    def list(self, path: Path) -> list[FileEntry]:
        """Return what is in a folder; empty without one. Links are not followed, the vanished left out."""
        try:
            with os.scandir(path) as entries:
                return list(_described(entries))
        except FileNotFoundError:
            return []

    def sync_folder(self, path: Path) -> None:
        """Force a folder's entries to the medium."""
        sync_folder(path)

    def touch(self, path: Path, mtime_s: float) -> None:
        """Set a file's time of last use."""
        os.utime(path, (mtime_s, mtime_s))

    def space(self, path: Path) -> Space:
        """Return the room on the volume, as far as this user may have it."""
        figures = os.statvfs(path)
        return Space(figures.f_bavail * figures.f_frsize, figures.f_blocks * figures.f_frsize)

    def lock(self, path: Path) -> FileLock:
        """Take an exclusive lock, at once or not at all: FileLocked names path and holder."""
        return FileLock.acquire(path)


def _described(entries: Iterable[os.DirEntry[str]]) -> Generator[FileEntry]:
    for entry in entries:
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        yield FileEntry(entry.name, entry.is_dir(follow_symlinks=False), status.st_size, status.st_mtime)
