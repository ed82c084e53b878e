"""What happened, counted, and what was found wrong, with the moment and the way to see it again."""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

MOST_FINDINGS = 200


@dataclass(frozen=True)
class Finding:
    """Something that must not be. ``at_s``: since the run began."""

    at_s: float
    life: int
    what: str


@dataclass
class Tally:
    """Counts of one run. Any thread."""

    begun_s: float = field(default_factory=time.monotonic)
    life: int = 0
    requests: Counter[str] = field(default_factory=Counter[str])
    tiers: Counter[str] = field(default_factory=Counter[str])
    mishaps: Counter[str] = field(default_factory=Counter[str])
    notes: Counter[str] = field(default_factory=Counter[str])
    figures: Counter[str] = field(default_factory=Counter[str])
    vitals: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    findings: list[Finding] = field(default_factory=list[Finding])
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, counter: Counter[str], name: str, by: int = 1) -> None:
        with self.lock:
            counter[name] += by

    def wrong(self, what: str) -> None:
        """Note a finding, on the terminal at once."""
        with self.lock:
            found = Finding(round(time.monotonic() - self.begun_s, 1), self.life, what)
            if len(self.findings) < MOST_FINDINGS:
                self.findings.append(found)
        print(f"FOUND at {found.at_s} s, life {found.life}: {what}", flush=True)  # noqa: T201

    def lines(self) -> list[str]:
        """Return the summary."""
        groups = {
            "requests": self.requests,
            "prompts by tier": self.tiers,
            "mishaps": self.mishaps,
            "server": self.figures,
            "notes": self.notes,
        }
        lines = [
            f"{title}: " + ", ".join(f"{name} {count}" for name, count in sorted(group.items()))
            for title, group in groups.items()
        ]
        lines += [
            f"life {each['life']}: {each['figure']} grew by {each['grown']:.0f} (bound {each['bound']:.0f}) "
            f"over {each['requests']} requests, most {each['most']:.0f}"
            for each in self.vitals
        ]
        lines.append(f"findings: {len(self.findings) or 'none'}")
        return [*lines, *(f"  {each.at_s} s, life {each.life}: {each.what}" for each in self.findings)]

    def document(self) -> dict[str, Any]:
        """Return the summary as JSON."""
        counters = ("requests", "tiers", "mishaps", "figures", "notes")
        return {
            **{name: dict(sorted(getattr(self, name).items())) for name in counters},
            "vitals": self.vitals,
            "findings": [asdict(each) for each in self.findings],
        }
