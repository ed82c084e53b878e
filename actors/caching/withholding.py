"""How long an entry that is not durable is kept from the disk while nobody needs it there. Pure policy.

A state is written whole, and the next turn of its conversation supersedes it. So writing one costs all its
bytes, protects the work on those of its tokens that are not durable yet, and is in vain if it is superseded
soon: it waits as many times longer as all of it is more than what is new, counted from when the first of that
was published. A new prompt is written at once; an agent's turn that adds a hundredth waits for the next ones,
until what is at stake is worth a write, and at most a minute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ...storage.residence import Resident

PROVISIONAL_S: Final = 2.0
"""How long what a row publishes before its end is not written unless it is asked for: a short reply
supersedes it."""
DEFER_S: Final = 2.0
"""How long a state of which one half is durable and the other new is not written."""
DEFER_LIMIT_S: Final = 60.0
"""How long a state is not written at the most for what is durable of it, however little is new."""
DEFER_SHARE: Final = 0.25
"""How much of RAM's cap may wait so; beyond that states are written at once, but for provisional ones.

Replays of recorded agents whose states all find room in RAM write 12 to 14 times their distinct bytes so, and
30 times where only provisional states wait. Where few of them find room, half of RAM in place of a quarter
would cost 0.006 of the hits.
"""
REWRITE_S: Final = 60.0
"""How long a file that was withdrawn a second time is not written again; doubles each time.

Where SSD holds less than RAM, two entries would otherwise push each other out of it for ever.
"""
REWRITE_LIMIT_S: Final = 3600.0


def due_s(entry: Resident[Any]) -> float:
    """Return when a withheld entry is announced although nobody asked.

    One that cannot be shortened does not wait for what is durable of it, since nothing supersedes it: that
    would save no write. Nor does one that is durable to its last token, which costs none.
    """
    new_tokens = len(entry.tokens) - entry.durable_prefix
    if not (entry.deferred and entry.trimmable and new_tokens):
        return entry.withheld_until_s
    return entry.withheld_until_s + min(DEFER_S * entry.durable_prefix / new_tokens, DEFER_LIMIT_S)


def rewrite_s(withdrawals: int) -> float:
    """Return how long an entry waits whose file was withdrawn, after ``withdrawals`` (1 or more) before."""
    return min(REWRITE_S * 2.0 ** min(withdrawals - 1, 16), REWRITE_LIMIT_S)
