"""What is done to a server while clients talk to it."""

from __future__ import annotations

import signal
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .server import Setback

if TYPE_CHECKING:
    import random
    from pathlib import Path

    from .server import Server

GROUPS = {
    "lanes": ("serving/lanes/0",),
    "serving": ("serving/residency", "serving/scheduler", "serving/lanes"),
    "storage": ("storage/archive", "storage/durability", "storage/writers", "storage/readers"),
    "writers": ("storage/writers/0", "storage/writers/1"),
    "readers": ("storage/readers/0", "storage/readers/1"),
    "root": ("monitor", "storage", "serving", "http"),
}
LIMITS = {
    "lanes": (8, 60.0),
    "serving": (2, 220.0),
    "storage": (3, 60.0),
    "writers": (3, 60.0),
    "readers": (3, 60.0),
    "root": (3, 1000.0),
}
"""Crashes in seconds: below what a supervisor gives up at (runtime/app.py, runtime/tiers.py)."""
GOOD, OTHER, BROKEN = '[model]\naliases = ["tea"]\n', '[model]\naliases = ["milk"]\n', "[model\n"


@dataclass
class Mishaps:
    """Troubles for one life of a server. ``clears`` counts what took files from the disk tier."""

    server: Server
    chance: random.Random
    config: Path
    clears: int = 0
    _crashes: dict[str, deque[float]] = field(default_factory=dict[str, "deque[float]"])

    def happen(self) -> None:
        """Do one of them. Setback when the server was in no state to answer."""
        acts = {
            self.crash: 6,
            self.reload: 2,
            self.clear_ram: 2,
            self.clear_disk: 1,
            self.drain: 2,
        }
        (act,) = self.chance.choices(list(acts), weights=list(acts.values()))
        act()

    def crash(self, group: str | None = None) -> None:
        """Crash an actor, unless its supervisor would give up."""
        group = group or self.chance.choice([*GROUPS, "lanes", "serving", "storage"])
        path = self.chance.choice(GROUPS[group])
        most, window_s = LIMITS[group]
        past = self._crashes.setdefault(group, deque())
        now_s = time.monotonic()
        while past and past[0] < now_s - window_s:
            past.popleft()
        if len(past) >= most:
            return
        past.append(now_s)
        self._count(f"crash {path}")
        self.server.trouble(deaf=path == "http", lane=path.startswith("serving"))
        self.server.ask("crash", "POST", f"/admin/actors/{path}/crash")

    def reload(self) -> None:
        """Change the configuration, or break it, and send SIGHUP."""
        self.config.write_text(self.chance.choice((GOOD, OTHER, BROKEN)))
        self._count("SIGHUP")
        self.server.process.signal(signal.SIGHUP)

    def clear_ram(self) -> None:
        self._clear("ram")

    def clear_disk(self) -> None:
        self._clear(self.chance.choice(("ssd", "all")))

    def _clear(self, tier: str) -> None:
        self.clears += tier != "ram"
        self._count(f"clear {tier}")
        self.server.ask("clear", "DELETE", f"/admin/cache?tier={tier}")

    def drain(self) -> None:
        self._count("drain")
        self.server.ask("drain", "POST", "/admin/drain")

    def flush(self) -> bool:
        """Flush; whether the server says that everything is durable."""
        troubled = self.server.troubled(time.monotonic())
        status, report = self.server.ask("flush", "POST", "/admin/cache/flush", expected=(200, 503))
        tally = self.server.tally
        if status == 503 and "durable" not in report:
            if not troubled:
                tally.wrong(f"flush: {report}")
            raise Setback(str(report))
        if report["durable"] != (status == 200) or report["durable"] != (report["reason"] is None):
            tally.wrong(f"a flush contradicts itself: {status} {report}")
        tally.count(
            tally.notes, "flush " + ("durable" if report["durable"] else f"not durable: {report['reason']}")
        )
        return report["durable"]

    def _count(self, name: str) -> None:
        self.server.tally.count(self.server.tally.mishaps, name)
