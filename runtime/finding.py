"""What a check of ``samovar doctor`` found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

State: TypeAlias = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One check's result: what was found and, unless all is well, how to mend it."""

    check: str
    state: State
    found: str
    mend: str = ""
