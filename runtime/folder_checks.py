"""Checks of folders for ``samovar doctor``: may they be written, by whom read, on what do they lie, how fast.

Nothing is left behind: the speed is measured with a temporary file.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..storage.fs import sync_file
from .config.units import format_size
from .finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .config import Config

GIB: Final = 2**30
MIB: Final = 2**20
ENOUGH_MODEL_SPACE_BYTES: Final = GIB
PROBE_BYTES: Final = 32 * MIB
SLOW_DISK_MB_S = 50
MOUNT_S: Final = 5.0

_NETWORK: Final = re.compile(
    r"(nfs\d*|cifs|smb\w*|afpfs|webdav|9p|afs|ceph|gluster\w*|lustre|beegfs|fuse\.(sshfs|rclone|s3fs|gcsfuse|ceph\w*|"
    r"glusterfs))"
)
_MEMORY: Final = ("tmpfs", "ramfs")
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_MOUNT_LINE: Final = re.compile(r"^\S.* on (/.*) \((\w+)", re.MULTILINE)


def check_folders(config: Config) -> Iterator[Finding]:
    """See whether the model and cache folders can be made, have room, are safe and quick to write."""
    from .engine.models.store import default_model_root  # noqa: PLC0415 - its package loads OpenBLAS

    wanted = ENOUGH_MODEL_SPACE_BYTES
    yield check_folder("models", default_model_root(), "set XDG_CACHE_HOME", wanted_bytes=wanted)
    if (folder := config.cache.ssd.folder()) is not None:
        remedy = "set cache.ssd.dir or lower cache.ssd.free_floor"
        yield check_folder("disk cache", folder, remedy, wanted_share=config.cache.ssd.free_floor)
        yield from check_privacy("disk cache", folder)
        yield from check_medium("disk cache", folder, mounts())


def check_folder(
    check: str, folder: Path, remedy: str, *, wanted_bytes: int = 0, wanted_share: float = 0.0
) -> Finding:
    """Probe the folder, or the closest one above it that exists, for room and speed."""
    try:
        base = _existing(folder)
        usage = shutil.disk_usage(base)
        wanted_bytes = max(wanted_bytes, int(usage.total * wanted_share))
        if usage.free < wanted_bytes + PROBE_BYTES:
            found = f"{folder}: {usage.free / GIB:.1f} GiB free, {wanted_bytes / GIB:.1f} GiB wanted"
            return Finding(check, "warn", found, f"free some space, or {remedy}")
        speed_mb_s = _write_speed_mb_s(base)
    except OSError as error:
        mend = f"make it a folder you can write, or {remedy}"
        return Finding(check, "fail", f"{folder}: {error.strerror}", mend)
    found = f"{folder}: {usage.free / GIB:.1f} GiB free, writes {speed_mb_s:.0f} MB/s"
    if speed_mb_s < SLOW_DISK_MB_S:
        return Finding(check, "warn", found, f"saving {format_size(GIB)} would take long: {remedy}")
    return Finding(check, "ok", found)


def check_privacy(check: str, folder: Path) -> Iterator[Finding]:
    """See whether others can look into a folder that is there: what is cached are conversations."""
    try:
        status = folder.stat()
    except OSError:
        return  # not there yet, or told already
    if status.st_uid != os.geteuid():
        mend = "serve as that user, or choose a folder of your own with cache.ssd.dir"
        yield Finding(check, "warn", f"{folder} belongs to another user (id {status.st_uid})", mend)
    elif (mode := stat.S_IMODE(status.st_mode)) & 0o077:
        yield Finding(check, "warn", f"{folder} is open to others (mode {mode:o})", f"chmod 700 {folder}")


def check_medium(check: str, folder: Path, mounted: Sequence[tuple[str, str]]) -> Iterator[Finding]:
    """See whether the folder lies on something that keeps it, near by; ``mounted`` as ``mounts`` gives it."""
    try:
        place = _existing(folder).resolve()
    except OSError:
        return
    under = [(path, kind) for path, kind in mounted if place.is_relative_to(path)]
    kind = max(under, key=lambda mount: len(mount[0]), default=("", ""))[1]
    if _NETWORK.fullmatch(kind):
        mend = "set cache.ssd.dir to a local disk: locks and syncs over a network are slow and often untrue"
        yield Finding(check, "warn", f"{folder} is on a network file system ({kind})", mend)
    elif kind in _MEMORY:
        mend = "set cache.ssd.dir to a disk: this costs memory, and a restart of the machine empties it"
        yield Finding(check, "warn", f"{folder} is in memory ({kind})", mend)


def mounts() -> list[tuple[str, str]]:
    """Return mount points with the kinds of their file systems, later ones on top; empty where not known."""
    try:
        if sys.platform == "linux":
            return _mounts_of_linux(Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape"))
        listed = subprocess.run(["mount"], capture_output=True, text=True, check=False, timeout=MOUNT_S)  # noqa: S607
    except (OSError, subprocess.TimeoutExpired):
        return []
    return _MOUNT_LINE.findall(listed.stdout)


def _mounts_of_linux(table: str) -> list[tuple[str, str]]:
    """Read mountinfo: the mount point is the fifth field, the kind the first one behind " - "."""
    found: list[tuple[str, str]] = []
    for line in table.splitlines():
        mount, _, volume = line.partition(" - ")
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), mount.split(" ")[4])
        found.append((point, volume.split(" ")[0]))
    return found


def _existing(folder: Path) -> Path:
    """Return the folder, or the closest one above it that exists."""
    absolute = folder.absolute()
    return next(path for path in (absolute, *absolute.parents) if path.exists())


def _write_speed_mb_s(folder: Path) -> float:
    """Write, sync and remove a file of PROBE_BYTES; return decimal megabytes a second."""
    block = os.urandom(MIB)
    with tempfile.TemporaryDirectory(prefix=".samovar-doctor-", dir=folder) as name:
        path = Path(name) / "probe"
        begun_s = time.perf_counter()
        with path.open("wb") as file:
            for _ in range(PROBE_BYTES // MIB):
                file.write(block)
        sync_file(path)
        return PROBE_BYTES / 1e6 / (time.perf_counter() - begun_s)
