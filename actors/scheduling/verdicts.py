"""Who crashed a lane: pure policy, and a memory of those who did (DESIGN §6, ADR 0008).

A step that raises names the rows that it was about. A row that is the only suspect twice is convicted. Where
there are several, they go on one at a time: each is cleared once it gets further than where it was, and the
one that crashes again is the one. So two crashes convict, and nobody else ends with it.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ...runtime.engine.errors import LaneStepFailed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...runtime.engine.port import RowRequest
    from ...storage.tokens import TokenIds
    from ..stream import RequestStream
    from .ledger import Running

CONVICTED_S: Final = 180.0
"""How long a convicted request is refused when it is sent again."""
CONVICTS: Final = 256
CONVICTING_CRASHES: Final = 2
_CAUSE_CHARS: Final = 160
_PATHS: Final = re.compile(r"\S*[/\\]\S*")
_CLASSES: Final = re.compile(r"\b[\w.]*(?:Error|Exception)\b(?:: )?")


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a request had got when its lane was lost: ``emitted`` tokens, or not through its prompt."""

    emitted: int
    prefilling: bool

    def passed(self, stream: RequestStream) -> bool:
        """Whether the request has got further on a later lane."""
        if stream.ended or len(stream.emitted) > self.emitted:
            return True
        return self.prefilling and stream.prefill_left == 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """``convicted`` has crashed a lane twice. ``suspects`` have to get past their marks, one at a time."""

    convicted: Running | None
    suspects: tuple[tuple[Running, Mark], ...] = ()


def judge(rows: Sequence[Running], error: BaseException | None) -> Verdict:
    """Say who of a lost lane's ``rows`` is to blame for ``error``; counts the crash for an only suspect.

    An error that names no rows, or that is no step's (an injected crash, a supervisor's stop), suspects
    nobody.
    """
    if not isinstance(error, LaneStepFailed):
        return Verdict(None)
    named = [running for running in rows if running.id in error.rows and not running.stream.ended]
    tried = [running for running in named if running.mark is not None]
    suspects = tried or named
    if len(suspects) == 1:
        only = suspects[0]
        only.crashes = CONVICTING_CRASHES if tried else only.crashes + 1
        if only.crashes >= CONVICTING_CRASHES:
            return Verdict(only)
    prefilling = error.phase == "prefill"
    return Verdict(
        None, tuple((running, Mark(len(running.stream.emitted), prefilling)) for running in suspects)
    )


def told(error: BaseException | None) -> str:
    """Return a cause as a client may read it: one line, short, without names of files and classes."""
    line = str(error).splitlines()[0] if error is not None and str(error) else ""
    line = _CLASSES.sub("", _PATHS.sub("…", line)).strip(": ")
    return line[:_CAUSE_CHARS] or "no reason is known"


def fingerprint(tokens: TokenIds, row: RowRequest) -> bytes:
    """Return what the same request has again when it is sent again: its prompt, and its sampling as asked."""
    rest = repr((row.namespace, row.sampling)).encode()
    return hashlib.blake2b(tokens.to_bytes() + rest, digest_size=16).digest()


class Convicts:
    """Remembers convicted requests for CONVICTED_S seconds, the last CONVICTS of them."""

    def __init__(self) -> None:
        self._causes: OrderedDict[bytes, tuple[float, str]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._causes)

    def add(self, fingerprint: bytes, cause: str, now_s: float) -> None:
        """Remember a request and what it did."""
        self._causes[fingerprint] = now_s + CONVICTED_S, cause
        self._causes.move_to_end(fingerprint)
        while len(self._causes) > CONVICTS:
            self._causes.popitem(last=False)

    def cause(self, fingerprint: bytes, now_s: float) -> str | None:
        """Return what the same request did a moment ago; None when it is not known for anything."""
        while self._causes and next(iter(self._causes.values()))[0] <= now_s:
            self._causes.popitem(last=False)
        known = self._causes.get(fingerprint)
        return None if known is None else known[1]
