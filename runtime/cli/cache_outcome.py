"""What ``samovar cache verify|gc|clear`` say they found and did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...storage.scan import Tally
from . import cache_text as text
from .cache_listing import problem_facts, problem_line
from .cache_upkeep import Swept
from .cache_usage import tally_facts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .cache_verify import Bad, Verdict


def verdict(root: Path, found: Verdict) -> dict[str, object]:
    """Return what ``verify --json`` prints."""
    return {
        "dir": str(root),
        "good": tally_facts(found.good),
        "bad": [{**problem_facts(bad.problem), "done": bad.done} for bad in found.bad],
        "outdated": [problem_facts(problem) for problem in found.outdated],
        "vanished": found.vanished,
        "failures": found.failures,
    }


def verdict_lines(root: Path, found: Verdict) -> Iterator[str]:
    """Yield what ``verify`` prints: each bad file with its reason, then the sum."""
    yield from (_bad_line(bad) for bad in found.bad)
    yield from (f"not checked, {problem_line(problem)}" for problem in found.outdated)
    yield from (f"failed: {text.printable(failure)}" for failure in found.failures)
    if found.vanished:
        yield f"{found.vanished} left while they were read"
    yield f"{text.tally('file/files', found.good)} whole, {len(found.bad)} bad in {root}"


def _bad_line(bad: Bad) -> str:
    done = {"left": "", "moved": " (moved to the quarantine)", "removed": " (removed: too large to keep)"}
    return f"{problem_line(bad.problem)}{done[bad.done]}"


def nothing(root: Path) -> dict[str, object]:
    """Return what ``gc --json`` and ``clear --json`` print where there is no cache."""
    none = Tally()
    return swept(root, Swept(none, none, none, none, none, ()))


def swept(root: Path, done: Swept) -> dict[str, object]:
    """Return what ``gc --json`` and ``clear --json`` print."""
    return {
        "dir": str(root),
        "removed": {
            "entries": tally_facts(done.entries),
            "temporary": tally_facts(done.temporary),
            "unusable": tally_facts(done.unusable),
            "quarantine": tally_facts(done.quarantine),
        },
        "left": tally_facts(done.left),
        "failures": list(done.failures),
    }


def swept_lines(root: Path, done: Swept) -> Iterator[str]:
    """Yield what ``gc`` and ``clear`` print: what went, what would not go, what is left."""
    parts = (
        ("entry/entries", done.entries),
        ("temporary file/temporary files", done.temporary),
        ("unusable file/unusable files", done.unusable),
        ("file of the quarantine/files of the quarantine", done.quarantine),
    )
    yield from (f"removed {text.tally(what, of)}" for what, of in parts if of.files)
    yield from (f"not removed: {text.printable(failure)}" for failure in done.failures)
    yield f"{text.tally('file/files', done.left)} left in {root}"
