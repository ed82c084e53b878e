"""Checking every file of an SSD cache folder to the last byte, and putting bad ones aside."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ...storage.container_errors import ContainerChanged, ContainerError
from ...storage.scan import OUTDATED, UNREADABLE, Found, Problem, Tally
from .cache_check import check_file
from .cache_survey import survey
from .cache_upkeep import put_aside

if TYPE_CHECKING:
    from pathlib import Path

    from ...storage.filesystem import Filesystem
    from ..progress import Report

_TRIES = 3


@dataclass(frozen=True, slots=True)
class Reading:
    """Progress in bytes (progress.Event)."""

    done: int
    total: int
    message: str
    stage: str = "verify"


@dataclass(frozen=True, slots=True)
class Bad:
    """A file that must not be used; ``done``: what was done about it."""

    problem: Problem
    done: Literal["left", "moved", "removed"] = "left"


@dataclass(slots=True)
class Verdict:
    """``outdated``: files of another version, which were not judged. ``vanished``: gone while we looked."""

    good: Tally = field(default_factory=Tally)
    bad: list[Bad] = field(default_factory=list[Bad])
    outdated: list[Problem] = field(default_factory=list[Problem])
    vanished: int = 0
    failures: list[str] = field(default_factory=list[str])

    @property
    def passed(self) -> bool:
        """Whether everything could be read and was found whole."""
        return not self.bad and not self.failures


def verify(fs: Filesystem, root: Path, report: Report, quarantine_bytes: int | None) -> Verdict:
    """Check every cache file beneath ``root``. Blocks. OSError when the root cannot be listed.

    ``quarantine_bytes`` (None: change nothing) says how much the quarantine may hold; bad files go there, and
    the caller holds the lock. A file that the disk cannot read is told and left where it is.
    """
    seen = survey(fs, root)
    verdict = Verdict(failures=list(seen.failures))
    bad: list[Problem] = []
    for problem in seen.problems():
        (verdict.outdated if problem.code in OUTDATED else bad).append(problem)
    found = sorted(seen.found(), key=lambda each: each.entry.path)
    progress = _Progress(found, report)
    for each in found:
        bad += _judge(fs, each, progress, verdict)
    for problem in sorted(bad, key=lambda each: each.path):
        verdict.bad.append(_treat(fs, root, problem, quarantine_bytes, verdict.failures))
    return verdict


class _Progress:
    """Adds up bytes over all files; a file that turns out bad half-way counts as read."""

    def __init__(self, found: list[Found], report: Report) -> None:
        self._total = sum(each.entry.file_bytes for each in found)
        self._message = f"{len(found)} files"
        self._report = report
        self._before = 0
        self._done = 0
        report(Reading(0, self._total, self._message))

    def begin(self) -> None:
        """Begin a file, or begin it again."""
        self._done = self._before

    def add(self, count: int) -> None:
        """Count bytes of this file."""
        self._done += count
        self._report(Reading(min(self._done, self._total), self._total, self._message))

    def end(self, file_bytes: int) -> None:
        """End a file of this size."""
        self._before += file_bytes
        self._done = self._before
        self._report(Reading(min(self._done, self._total), self._total, self._message))


def _judge(fs: Filesystem, found: Found, progress: _Progress, verdict: Verdict) -> list[Problem]:
    entry = found.entry
    try:
        _check(fs, entry.path, progress)
    except (FileNotFoundError, ContainerChanged):  # a server replaces and evicts while we read
        verdict.vanished += 1
    except ContainerError as error:
        return [_problem(found, error.code, error.problem)]
    except OSError as error:
        return [_problem(found, UNREADABLE, error.strerror or str(error))]
    else:
        verdict.good += Tally(1, entry.file_bytes)
    finally:
        progress.end(entry.file_bytes)
    return []


def _check(fs: Filesystem, path: Path, progress: _Progress) -> None:
    for attempt in range(_TRIES):
        progress.begin()
        try:
            check_file(fs, path, progress.add)
        except ContainerChanged:
            if attempt == _TRIES - 1:
                raise
        else:
            return


def _problem(found: Found, code: str, detail: str) -> Problem:
    entry = found.entry
    return Problem(found.identity, entry.path, code, entry.file_bytes, entry.last_used_s, detail)


def _treat(
    fs: Filesystem, root: Path, problem: Problem, quarantine_bytes: int | None, failures: list[str]
) -> Bad:
    if quarantine_bytes is None or problem.code == UNREADABLE:
        return Bad(problem)
    try:
        return Bad(problem, put_aside(fs, root, problem, quarantine_bytes))
    except OSError as error:
        failures.append(f"{problem.path} stays where it is: {error.strerror or error}")
        return Bad(problem)
