"""What can be wrong with a configuration, and where it was written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

OriginKind: TypeAlias = Literal["default", "file", "env", "set", "flag"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from: a file (with its line where known), a variable, ``--set`` or a flag."""

    kind: OriginKind
    name: str = ""
    line: int | None = None

    def __str__(self) -> str:
        match self.kind:
            case "default":
                return "default"
            case "file":
                return self.name if self.line is None else f"{self.name}:{self.line}"
            case "env":
                return f"environment {self.name}"
            case "set":
                return f"--set {self.name}".rstrip()
            case "flag":
                return self.name


DEFAULT = Origin("default")


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault. ``found`` never shows a secret; ``hint`` says how to mend it, where that is known."""

    origin: Origin
    key: str
    found: str
    expected: str
    hint: str = ""

    def __str__(self) -> str:
        named = not self.key or (self.origin.kind == "set" and self.origin.name == self.key)
        where = str(self.origin) if named else f"{self.origin}: {self.key}"
        hint = f" ({self.hint})" if self.hint else ""
        return f"{where}: found {self.found}; expected {self.expected}{hint}"


class ConfigError(Exception):
    """The configuration cannot be used. ``problems`` holds every fault that was found, at least one."""

    code = "config_error"
    retryable = False

    def __init__(self, problems: Sequence[Problem]) -> None:
        assert problems
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))
