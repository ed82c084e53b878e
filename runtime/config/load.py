"""Loading: gather every source, read each value by its kind, merge, check, and say all that is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .checks import contradictions, unsupported
from .compounds import ListOf
from .errors import DEFAULT, ConfigError, Origin, Problem
from .kinds import Mismatch
from .literals import describe
from .sources import FlagValue, Gathered, Setting
from .tree import build

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path as FilePath

    from .schema import Config
    from .tree import Path


@dataclass(frozen=True, slots=True)
class Loaded:
    """A valid configuration, where each key came from, and what deserves a warning."""

    config: Config
    origins: Mapping[Path, Origin]
    warnings: tuple[Problem, ...]

    def origin(self, dotted: str) -> Origin:
        """Return where the key's value came from."""
        return self.origins.get(tuple(dotted.split(".")), DEFAULT)


def load(
    files: Iterable[FilePath] = (),
    environ: Mapping[str, str] | None = None,
    assignments: Iterable[str] = (),
    flags: Iterable[FlagValue] = (),
) -> Loaded:
    """Merge files in order, then ``environ``, then ``--set`` assignments, then flags; later wins per key.

    Lists and tables of names are replaced whole. ``environ`` None means no environment at all. Every
    value of every source is checked, also one that a later source replaces. Raises ConfigError with all
    problems at once.
    """
    gathered = Gathered()
    for path in files:
        gathered.add_file(path)
    gathered.add_environment(environ or {})
    gathered.add_assignments(assignments)
    gathered.add_flags(flags)
    return _settle(gathered)


def _settle(gathered: Gathered) -> Loaded:
    values: dict[Path, object] = {}
    origins: dict[Path, Origin] = {}
    problems = list(gathered.problems)
    for setting in gathered.settings:
        try:
            values[setting.spec.path] = _read(setting)
        except Mismatch as mismatch:
            problems.append(_problem(setting, mismatch))
        origins[setting.spec.path] = setting.origin
    if problems:
        raise ConfigError(problems)
    config = build(values)
    flagged = list(unsupported(config, origins))
    problems += [*contradictions(config, origins), *(problem for fatal, problem in flagged if fatal)]
    if problems:
        raise ConfigError(problems)
    return Loaded(config, origins, tuple(problem for fatal, problem in flagged if not fatal))


def _read(setting: Setting) -> object:
    """Read a setting; text is a TOML value, or else a plain string or a comma-separated list."""
    kind, text = setting.spec.kind, setting.text
    try:
        return kind.read(setting.raw)
    except Mismatch:
        if text is None or isinstance(setting.raw, list):
            raise
        if isinstance(kind, ListOf):
            return kind.read([item.strip() for item in text.split(",") if item.strip()])
        if isinstance(setting.raw, str):
            raise
        return kind.read(text)


def _problem(setting: Setting, mismatch: Mismatch) -> Problem:
    found = "a value of the wrong form (not shown)" if setting.spec.secret else describe(setting.raw)
    return Problem(setting.origin, setting.spec.dotted, found, mismatch.expected)
