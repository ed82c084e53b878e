"""Whether a restore is worth it, and what to tell a user who asks. Pure: the caller brings the clock."""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ...runtime.kernel import Rejected
from ...storage.container_errors import ContainerError
from .tiers import Explanation

if TYPE_CHECKING:
    from ...storage.entry import StoredEntry
    from ...storage.index import Match
    from ...storage.restore_cost import RestoreCost
    from .ram_tier import Entry
    from .tiers import MissReason, ResidencyOptions

TRANSIENT_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EINTR, errno.EAGAIN})
"""Troubles of the process, not of the file."""


class RestoreGate:
    """Weighs what SSD offers. Bounded: entries that are left alone are forgotten when their time is over."""

    def __init__(self, options: ResidencyOptions, cost: RestoreCost) -> None:
        self._options = options
        self._cost = cost
        self._shunned: dict[str, float] = {}

    def why_not(
        self, entry: StoredEntry, gain: int, prefill_tps: float | None, now_s: float
    ) -> MissReason | None:
        """Return why a file is not read to save prefilling ``gain`` tokens; None when it is worth it."""
        if gain < self._options.restore_min_tokens:
            return "below_restore_min"
        if self.shuns(entry, now_s):
            return "restore_failed"
        if not prefill_tps:
            return None  # nobody knows yet what prefilling costs
        restore_s = self._cost.estimate_s(entry.file_bytes, now_s)
        return "restore_slower" if restore_s > gain / prefill_tps else None

    def shuns(self, entry: StoredEntry, now_s: float) -> bool:
        """Whether a file is left alone for now."""
        return self._shunned.get(entry.id, 0.0) > now_s

    def shun(self, entry: StoredEntry, now_s: float, for_s: float) -> None:
        """Leave a file alone for a while, since reading it failed."""
        self._shunned = {name: until_s for name, until_s in self._shunned.items() if until_s > now_s}
        self._shunned[entry.id] = now_s + for_s

    def estimate_ms(self, entry: StoredEntry, now_s: float) -> float:
        """Return how long reading a file is expected to take."""
        return 1000.0 * self._cost.estimate_s(entry.file_bytes, now_s)


def servable(match: Match[StoredEntry] | None, limit: int) -> int:
    """Return how many tokens of at most ``limit`` a matched file serves."""
    if match is None:
        return 0
    return match.length if match.length <= limit else limit if match.entry.serves(limit) else 0


def is_harm(error: Exception | None) -> bool:
    """Whether a failed restore tells that the file is bad, rather than that the moment was.

    A deadline, a crash of the reader, or a model that cannot hold the state say nothing about the file.
    """
    cause = error.__cause__ if isinstance(error, Rejected) else None
    if isinstance(cause, OSError):
        return cause.errno not in TRANSIENT_ERRNOS
    return isinstance(cause, ContainerError) and not cause.retryable


@dataclass(frozen=True, slots=True)
class Candidates:
    """What both tiers have for a prompt of ``prompt_tokens``, of which ``shared`` are known.

    ``nothing``: why RAM has nothing, where it has nothing. ``ssd_failed``: the archive could not answer.
    """

    prompt_tokens: int
    ram: Match[Entry] | None
    ssd: Match[StoredEntry] | None
    shared: int
    nothing: MissReason
    ssd_failed: bool

    def explain(self, gate: RestoreGate, prefill_tps: float | None, now_s: float) -> Explanation:
        """Say what a take would lend, and why not more."""
        ram, ssd = self.ram, self.ssd
        in_ram = 0 if ram is None else ram.length
        in_ssd = servable(ssd, self.prompt_tokens - 1)
        reason: MissReason | None = "lookup_failed" if self.ssd_failed else None
        lent = ram
        if ssd is not None and in_ssd > in_ram:
            reason = gate.why_not(ssd.entry, in_ssd - in_ram, prefill_tps, now_s)
            lent = ssd if reason is None else ram
        return Explanation(
            prompt_tokens=self.prompt_tokens,
            tier="none" if lent is None else "ram" if lent is ram else "ssd",
            length=0 if lent is None else in_ram if lent is ram else in_ssd,
            stored_tokens=0 if lent is None else len(lent.entry.tokens),
            ram_tokens=in_ram,
            ssd_tokens=in_ssd,
            diverged_at=self.shared,
            reason=reason or (self.nothing if lent is None else None),
            restore_ms=None if ssd is None else gate.estimate_ms(ssd.entry, now_s),
        )
