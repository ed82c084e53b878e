"""How long an entry that is not durable is kept from the disk while nobody needs it there. Pure policy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ...storage.residence import Resident

PROVISIONAL_S: Final = 2.0
"""How long a provisional checkpoint is not written unless it is asked for: a short reply supersedes it."""
PROVISIONAL_LIMIT_S: Final = 60.0
"""How much longer at the most, however little of it is new."""
REWRITE_S: Final = 60.0
"""How long a file that was withdrawn a second time is not written again; doubles each time.

Where SSD holds less than RAM, two entries would otherwise push each other out of it for ever.
"""
REWRITE_LIMIT_S: Final = 3600.0


def due_s(entry: Resident[Any]) -> float:
    """Return when a withheld entry is announced although nobody asked.

    Writing a provisional one costs all its bytes, and protects the work on its tokens that are not durable:
    so it waits as many times longer as all of it is more than those. One that cannot be shortened does not,
    since nothing supersedes it: waiting would save no write. Nor does one that is durable to its last token,
    which costs none.
    """
    new_tokens = len(entry.tokens) - entry.durable_prefix
    if not (entry.provisional and entry.trimmable and new_tokens):
        return entry.withheld_until_s
    longer_s = PROVISIONAL_S * entry.durable_prefix / new_tokens
    return entry.withheld_until_s + min(longer_s, PROVISIONAL_LIMIT_S)


def rewrite_s(withdrawals: int) -> float:
    """Return how long an entry waits whose file was withdrawn, after ``withdrawals`` (1 or more) before."""
    return min(REWRITE_S * 2.0 ** min(withdrawals - 1, 16), REWRITE_LIMIT_S)
