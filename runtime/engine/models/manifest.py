"""What a converted model directory says about where it came from and what must be in it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, cast

import orjson

from ..errors import ChecksumMismatch, ModelUnreadable
from .fetch import sha256_of
from .progress import Progress, silent

if TYPE_CHECKING:
    from pathlib import Path

MANIFEST_NAME = "samovar.json"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class ManifestFile:
    """One file of the directory as it was at conversion."""

    name: str
    size_bytes: int
    mtime_ns: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """The record of a conversion. ``member`` is the source file's name as it was given to the store."""

    source: str
    member: str
    source_sha256: str
    created_s: int
    files: tuple[ManifestFile, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(file.size_bytes for file in self.files)

    def encode(self) -> bytes:
        """Return the file's content."""
        return orjson.dumps({"version": _VERSION, **asdict(self)}, option=orjson.OPT_INDENT_2)


def describe_files(folder: Path, progress: Progress = silent) -> tuple[ManifestFile, ...]:
    """Hash every file of ``folder``."""
    described: list[ManifestFile] = []
    for path in sorted(folder.iterdir()):
        status = path.stat()
        digest = sha256_of(path, progress)
        described.append(ManifestFile(path.name, status.st_size, status.st_mtime_ns, digest))
    return tuple(described)


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a converted directory. Raises ModelUnreadable when it is missing or broken."""
    path = folder / MANIFEST_NAME
    try:
        value = cast("dict[str, object]", orjson.loads(path.read_bytes()))
        if value.pop("version") != _VERSION:
            raise ModelUnreadable(f"{path}: written by another version of samovar")
        files = cast("list[dict[str, object]]", value.pop("files"))
        listed = tuple(ManifestFile(**file) for file in files)  # pyright: ignore[reportArgumentType]
        return Manifest(**value, files=listed)  # pyright: ignore[reportArgumentType]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelUnreadable(f"{path}: no readable manifest: {error}") from error


def verify_manifest(
    folder: Path, manifest: Manifest, *, full: bool = False, progress: Progress = silent
) -> None:
    """Check that every listed file is as it was at conversion.

    Cheap by default: size and time stamp; a file whose stamp alone differs (a copied folder) is hashed.
    ``full`` hashes everything. Raises ModelUnreadable for a missing file or a wrong size,
    ChecksumMismatch for other bytes.
    """
    for file in manifest.files:
        path = folder / file.name
        try:
            status = path.stat()
        except OSError as error:
            raise ModelUnreadable(f"{path}: missing from a converted model: {error}") from error
        if status.st_size != file.size_bytes:
            raise ModelUnreadable(f"{path}: expected {file.size_bytes} bytes, found {status.st_size}")
        if full or status.st_mtime_ns != file.mtime_ns:
            _verify_hash(path, file.sha256, progress)


def _verify_hash(path: Path, expected: str, progress: Progress) -> None:
    found = sha256_of(path, progress)
    if found != expected:
        raise ChecksumMismatch(f"{path}: damaged: expected SHA-256 {expected}, found {found}")
