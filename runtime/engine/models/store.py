"""The models of this machine: a source in, an MLX model directory out.

Converted models live under one root, one folder each, and are made once: a lock keeps two processes
from converting the same one, and a folder is there whole or not at all. Any thread; everything blocks.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import sys
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, assert_never, cast

from ....storage.fs import (
    STAGING_PREFIX,
    FileLock,
    FileLocked,
    make_private_folder,
    remove_tree,
    sweep_staging,
)
from ..errors import ChecksumMismatch, ModelFetchFailed, ModelNotFound, ModelUnreadable
from .fetch import fetched_pypi_file
from .hub import fetch_hub_repository
from .manifest import MANIFEST_NAME, Manifest, read_manifest, verify_manifest
from .progress import Progress, silent
from .sources import ALIASES, Alias, GgufFile, HubRepository, LocalDirectory, ModelSource, PypiFile

if TYPE_CHECKING:
    from collections.abc import Generator

LOCK_NAME = ".lock"
LOCK_LIMIT_S = 1800.0
_WRITTEN = frozenset(
    ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def default_model_root() -> Path:
    """Return the folder for converted models in the user's cache folder of this platform."""
    if base := os.environ.get("XDG_CACHE_HOME"):
        cache = Path(base)
    elif sys.platform == "darwin":
        cache = Path.home() / "Library" / "Caches"
    else:
        cache = Path.home() / ".cache"
    return cache / "samovar" / "models"


@dataclass(frozen=True, slots=True)
class StoredModel:
    """One converted model. ``aliases`` are the short names that lead to it."""

    name: str
    path: Path
    manifest: Manifest
    aliases: tuple[str, ...]


class ModelStore:
    """Makes models ready under ``root`` (the user's cache folder by default), which it creates when needed.

    Errors: ModelNotFound, ModelUnreadable, ModelFetchFailed (retryable), ChecksumMismatch.
    """

    def __init__(self, root: Path | None = None) -> None:
        self.root = default_model_root() if root is None else root.absolute()

    def resolve(self, source: ModelSource, progress: Progress = silent) -> Path:
        """Return the MLX model directory of ``source``, fetching and converting it if it is not there yet.

        What is there is checked cheaply (sizes and time stamps) and never fetched again.
        """
        match source:
            case LocalDirectory(path):
                return check_model_directory(path)
            case HubRepository(repository):
                return check_model_directory(fetch_hub_repository(repository, progress))
            case Alias(_, target):
                return self._converted(target, progress)
            case PypiFile() | GgufFile():
                return self._converted(source, progress)
            case _:
                assert_never(source)

    def list(self) -> tuple[StoredModel, ...]:
        """Return the converted models, by name; folders without a readable manifest are left out."""
        found: list[StoredModel] = []
        for path in sorted(self.root.glob("*/")):
            if path.name.startswith(STAGING_PREFIX):
                continue
            with contextlib.suppress(ModelUnreadable):
                aliases = tuple(
                    alias for alias, target in ALIASES.items() if _folder_name(target) == path.name
                )
                found.append(StoredModel(path.name, path, read_manifest(path), aliases))
        return tuple(found)

    def verify(self, name: str, *, full: bool = False, progress: Progress = silent) -> None:
        """Check a converted model against its manifest; ``full`` reads and hashes every byte."""
        path = self._path_of(name)
        verify_manifest(path, read_manifest(path), full=full, progress=progress)

    def folder_of(self, name: str) -> Path:
        """Return the folder of a converted model, whole or damaged, by its name or an alias.

        Raises ModelNotFound, also for a folder that no conversion made.
        """
        path = self._path_of(name)
        if path.is_symlink() or not _is_converted(path):
            raise ModelNotFound(f"{path} is no converted model: it has no {MANIFEST_NAME}; it stays as it is")
        return path

    def remove(self, name: str) -> None:
        """Delete a converted model. Raises ModelNotFound, as ``folder_of``."""
        path = self.folder_of(name)
        with self._locked():
            remove_tree(path)

    def _path_of(self, name: str) -> Path:
        folder = _folder_name(ALIASES[name]) if name in ALIASES else name
        path = self.root / folder
        if path.parent != self.root or folder.startswith(".") or not path.is_dir():
            present = sorted(path.name for path in self.root.glob("[!.]*/"))
            raise ModelNotFound(f"no converted model {name!r} in {self.root}; there are {present or 'none'}")
        return path

    def _converted(self, source: PypiFile | GgufFile, progress: Progress) -> Path:
        path = self.root / _folder_name(source)
        if not path.exists():
            with self._locked():
                if not path.exists():  # another process may have made it while this one waited
                    self._make(source, path, progress)
        self._check(source, path, progress)
        return path

    def _make(self, source: PypiFile | GgufFile, path: Path, progress: Progress) -> None:
        from .gguf import convert_gguf  # noqa: PLC0415 - MLX is not needed for a model that is there

        sweep_staging(self.root)
        match source:
            case GgufFile(file):
                convert_gguf(file, path, source=str(file), progress=progress)
            case PypiFile():
                with fetched_pypi_file(source, self.root, progress) as fetched:
                    convert_gguf(
                        fetched.path, path, source=str(source), member=fetched.member, progress=progress
                    )

    def _check(self, source: PypiFile | GgufFile, path: Path, progress: Progress) -> None:
        mend = f"remove it with 'samovar models rm {path.name}' to have it made again"
        try:
            manifest = read_manifest(path)
            verify_manifest(path, manifest, progress=progress)
        except (ModelUnreadable, ChecksumMismatch) as error:
            raise type(error)(f"{error}; {mend}") from error
        if isinstance(source, GgufFile):
            return
        if source.file not in (manifest.member, PurePosixPath(manifest.member).name):
            raise ModelUnreadable(f"{path} holds {manifest.member}, not {source.file}; {mend}")
        if source.file_sha256 not in (None, manifest.source_sha256):
            raise ChecksumMismatch(
                f"{path} was made from another file: expected SHA-256 {source.file_sha256}, "
                f"found {manifest.source_sha256}; {mend}"
            )

    @contextlib.contextmanager
    def _locked(self) -> Generator[None]:
        make_private_folder(self.root)
        try:
            lock = FileLock.acquire(self.root / LOCK_NAME, timeout_s=LOCK_LIMIT_S)
        except FileLocked as error:
            raise ModelFetchFailed(f"another process works on {self.root}: {error}") from error
        with lock:
            yield


def _is_converted(path: Path) -> bool:
    """Whether a conversion made the folder: its manifest says so or, if that is lost, all else in there."""
    names = {each.name for each in path.iterdir()}
    return MANIFEST_NAME in names or (bool(names) and names <= _WRITTEN)


def check_model_directory(path: Path) -> Path:
    """Return ``path`` if it looks like an MLX model directory; ModelUnreadable says what is missing."""
    try:
        config = cast("object", json.loads((path / "config.json").read_bytes()))
    except FileNotFoundError as error:
        raise ModelUnreadable(f"{path} is no model directory: it has no config.json") from error
    except (OSError, ValueError) as error:
        raise ModelUnreadable(f"{path}: config.json cannot be read: {error}") from error
    if not isinstance(config, dict) or "model_type" not in config:
        raise ModelUnreadable(f"{path}: config.json names no model_type")
    if not any(path.glob("model*.safetensors")):
        raise ModelUnreadable(f"{path} is no MLX model directory: it has no model*.safetensors")
    return path


def _folder_name(source: PypiFile | GgufFile) -> str:
    """Return one name for all ways of writing a wheel's file, and a new one when a local file changes."""
    match source:
        case PypiFile():
            package = re.sub(r"[-_.]+", "-", source.package).lower()
            return _safe(f"{package}-{source.version}-{PurePosixPath(source.file).stem}")
        case GgufFile(path):
            try:
                status = path.stat()
            except OSError as error:
                raise ModelNotFound(f"cannot read {path}: {error}") from error
            identity = f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}"
            return _safe(f"{path.stem}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}")


def _safe(name: str) -> str:
    return _UNSAFE.sub("_", name).lstrip(".") or "model"
