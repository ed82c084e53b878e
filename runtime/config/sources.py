"""The four places a setting can come from, each read into the same flat list.

A source yields ``Setting``s (path, raw value, origin) and ``Problem``s; it does not know kinds. Later
sources win over earlier ones. Relative paths in values are relative to the working directory.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, cast

from .errors import Origin, Problem
from .lines import key_lines
from .literals import describe, parse_value
from .tree import KeySpec, SectionSpec, all_keys, root

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path as FilePath

    from .tree import Path

ENV_PREFIX = "SAMOVAR__"
_SYNTAX_LINE = re.compile(r"\s*\(at line (\d+), column \d+\)|\s*\(at end of document\)")


@dataclass(frozen=True, slots=True)
class Setting:
    """A raw value for one key. ``text`` is what a variable, ``--set`` or flag said before TOML read it."""

    spec: KeySpec
    raw: object
    origin: Origin
    text: str | None = None


@dataclass(frozen=True, slots=True)
class FlagValue:
    """A command-line flag that was given: its name as typed (``--port``), the key it sets, its text."""

    name: str
    key: str
    text: str


class Gathered:
    """Settings in the order of precedence, weakest first, and the faults found on the way."""

    def __init__(self) -> None:
        self.settings: list[Setting] = []
        self.problems: list[Problem] = []

    def add_file(self, path: FilePath) -> None:
        """Read a TOML file; a missing, unreadable or malformed one is a problem."""
        origin = Origin("file", str(path))
        try:
            text = path.read_bytes().decode()
        except OSError as error:
            self._refuse(origin, "", error.strerror or str(error), "a readable TOML file")
        except UnicodeDecodeError as error:
            self._refuse(origin, "", f"bytes that are not UTF-8 (at byte {error.start})", "TOML in UTF-8")
        else:
            self._add_document(path, text)

    def add_environment(self, environ: Mapping[str, str]) -> None:
        """Take every variable that starts with ``SAMOVAR__``, in order of name."""
        for name in sorted(environ):
            if name.startswith(ENV_PREFIX):
                path = tuple(name.removeprefix(ENV_PREFIX).lower().split("__"))
                self._place(path, environ[name], Origin("env", name))

    def add_assignments(self, assignments: Iterable[str]) -> None:
        """Take ``a.b=value`` strings."""
        for assignment in assignments:
            dotted, sign, text = assignment.partition("=")
            origin = Origin("set", dotted.strip())
            if not sign or not dotted.strip():
                self._refuse(Origin("set"), "", describe(assignment), "KEY=VALUE, like server.port=8081")
            else:
                self._place(tuple(dotted.strip().split(".")), text.strip(), origin)

    def add_flags(self, flags: Iterable[FlagValue]) -> None:
        """Take flags."""
        for flag in flags:
            self._place(tuple(flag.key.split(".")), flag.text, Origin("flag", flag.name))

    def _add_document(self, path: FilePath, text: str) -> None:
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            self._refuse_syntax(path, str(error), text.count("\n") + 1)
            return
        lines = key_lines(text)
        self._walk(root(), document, lambda at: _file_origin(path, lines, at))

    def _place(self, path: Path, text: str, origin: Origin) -> None:
        member = self._find(path, origin)
        if isinstance(member, KeySpec):
            self.settings.append(Setting(member, parse_value(text), origin, text))
        elif isinstance(member, SectionSpec):
            self._walk(member, parse_value(text), lambda _at: origin)

    def _find(self, path: Path, origin: Origin) -> KeySpec | SectionSpec | None:
        here: KeySpec | SectionSpec = root()
        for depth, name in enumerate(path):
            if not isinstance(here, SectionSpec) or name not in here.members:
                owner = here if isinstance(here, SectionSpec) else root()
                self._refuse_unknown(owner, path[: depth + 1] if owner is here else path, origin)
                return None
            here = here.members[name]
        return here

    def _walk(self, spec: SectionSpec, raw: object, origin_of: Callable[[Path], Origin]) -> None:
        if not isinstance(raw, dict):
            expected = "a table with " + ", ".join(spec.members)
            self._refuse(origin_of(spec.path), ".".join(spec.path), describe(raw), expected)
            return
        for name, value in cast("dict[str, object]", raw).items():
            path = (*spec.path, name)
            member = spec.members.get(name)
            if member is None:
                self._refuse_unknown(spec, path, origin_of(path))
            elif isinstance(member, SectionSpec):
                self._walk(member, value, origin_of)
            else:
                self.settings.append(Setting(member, value, origin_of(path)))

    def _refuse(self, origin: Origin, key: str, found: str, expected: str, hint: str = "") -> None:
        self.problems.append(Problem(origin, key, found, expected, hint))

    def _refuse_unknown(self, owner: SectionSpec, path: Path, origin: Origin) -> None:
        known = ", ".join(owner.members)
        where = f"[{'.'.join(owner.path)}]" if owner.path else "a section"
        self._refuse(
            origin, ".".join(path), "an unknown key", f"a key of {where}: {known}", _suggestion(owner, path)
        )

    def _refuse_syntax(self, path: FilePath, message: str, last_line: int) -> None:
        at = _SYNTAX_LINE.search(message)
        line = int(at[1]) if at and at[1] else last_line
        reason = _SYNTAX_LINE.sub("", message)
        self._refuse(Origin("file", str(path), line), "", "TOML that cannot be read", f"valid TOML: {reason}")


def _file_origin(path: FilePath, lines: Mapping[Path, int], at: Path) -> Origin:
    """Return the origin of ``at``: its own line, else that of the closest table around it."""
    while at and at not in lines:
        at = at[:-1]
    return Origin("file", str(path), lines.get(at))


def _suggestion(owner: SectionSpec, path: Path) -> str:
    """Guess which key was meant: a neighbour by spelling, else the same name elsewhere."""
    name = path[-1]
    if close := get_close_matches(name, owner.members, n=1):
        return f'did you mean "{".".join((*owner.path, close[0]))}"?'
    dotted = {spec.dotted: spec for spec in all_keys()}
    namesakes = [key for key, spec in dotted.items() if spec.path[-1] == name]
    close = namesakes or get_close_matches(".".join(path), dotted, n=1, cutoff=0.7)
    return f'did you mean "{close[0]}"?' if close else ""
