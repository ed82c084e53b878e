"""One cache directory through several lives, each killed in another way, and what must hold after each."""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from samovar.runtime.cli.cache_verify import verify
from samovar.storage.fs import OsFilesystem

from .kill_book import Book
from .kill_life import Died, Life
from .kill_plan import Ending, endings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROOMY, TIGHT = 2 << 30, 2 << 20
ROUNDS = 8


@dataclass
class Tally:
    """What the lives of worlds came to. ``missed``: points that no life reached; it was killed at rest."""

    kills: Counter[str] = field(default_factory=Counter[str])
    missed: Counter[str] = field(default_factory=Counter[str])
    terms: int = 0
    checked: int = 0
    evictions: int = 0
    orphans: int = 0

    def note(self, life: Life) -> None:
        """Add a life that has ended."""
        self.checked += life.checked
        self.evictions += life.evictions

    def add(self, other: Tally) -> None:
        self.kills += other.kills
        self.missed += other.missed
        self.terms += other.terms
        self.checked += other.checked
        self.evictions += other.evictions
        self.orphans += other.orphans

    def lines(self) -> Iterator[str]:
        """Yield the summary."""
        yield (
            f"{self.kills.total()} kills, {self.terms} orderly ends; "
            f"{self.checked} acknowledged prompts asked again, "
            f"{self.orphans} half-written files left by kills, {self.evictions} evictions"
        )
        for name, count in sorted(self.kills.items()):
            missed = f", {self.missed[name]} of them at rest: not reached" if self.missed[name] else ""
            yield f"{count:4} {name}{missed}"


class World:
    """Every fourth one has an SSD cap that makes it evict all the time: there nothing must survive."""

    def __init__(self, folder: Path, seed: int, number: int) -> None:
        self._chance = chance = random.Random(f"work {seed} {number}")
        self._folder = folder
        self._root = folder / "kv"
        self._tight = number % 4 == 3
        self._endings = endings(seed, number)
        self._book = Book(chance)
        self._spawned = 0
        token_bytes = 2048 if self._tight else chance.choice((16, 256, 2048))
        self._arguments = ["--token-bytes", str(token_bytes)]
        if chance.random() < 0.25:
            self._arguments.append("--untrimmable")
        for setting in self._settings():
            self._arguments += ["--set", setting]
        self.tally = Tally()

    def _settings(self) -> tuple[str, ...]:
        chance = self._chance
        return (
            "server.port=0",
            f"cache.ssd.dir={self._root}",
            f"cache.ssd.max={self._cap >> 20}MiB",
            "cache.ssd.free_floor=0%",
            "cache.ssd.restore_min_tokens=1",
            f"cache.ssd.verify={chance.choice(('fast', 'full'))}",
            f"cache.ssd.writers={chance.randint(1, 3)}",
            f"cache.ssd.write_behind={chance.choice(('true', 'true', 'false'))}",
            "cache.ram.min_tokens=4",
            f"cache.ram.max={chance.choice(('256KiB', '1GiB'))}",
            "cache.ram.hard_max=4GiB",
        )

    @property
    def _cap(self) -> int:
        return TIGHT if self._tight else ROOMY

    def run(self) -> None:
        """Live through all endings, then check everything once more."""
        following = self._spawn()
        try:
            waiting = deque(self._endings)
            while waiting:
                ending = waiting.popleft()
                life, following = following, self._spawn()
                if not self._live_out(life, ending) and ending.moment == "shutdown":
                    waiting.appendleft(replace(ending, delay_s=ending.delay_s / 2))  # it was over by then
            with following as life:
                life.go("")
                self._begin(life)
                life.terminate(must=not self._tight)
            self.tally.note(life)
            self._check_files()
            assert self.tally.checked, "nothing was ever acknowledged"
        finally:
            following.__exit__()

    def _spawn(self) -> Life:
        """Start the process of the next life: it imports while the present one works."""
        self._spawned += 1
        return Life(self._book, self._folder / f"go-{self._spawned}", self._arguments)

    def _live_out(self, life: Life, ending: Ending) -> bool:
        """Live a life to its end; whether it was killed."""
        killed = False
        with life:
            life.go(ending.order)
            try:
                self._live(life, ending)
                self.tally.terms += 1
            except Died:
                killed = True
                self.tally.kills[ending.name] += 1
                self._book.note_death()
        self.tally.note(life)
        self._check_files()
        return killed

    def _live(self, life: Life, ending: Ending) -> None:
        if ending.moment == "start":
            with life.killed_within(ending.delay_s):
                self._begin(life)
                self._work(life, ROUNDS)
        life.wait_ready()
        if ending.moment == "restore":
            with life.killed_within(ending.delay_s):
                life.check_acknowledged(must=not self._tight)
        self._begin(life)
        match ending.moment:
            case "point":
                self._work(life, ROUNDS)
                self.tally.missed[ending.name] += 1
            case "any":
                with life.killed_within(ending.delay_s):
                    self._work(life, ROUNDS)
            case "flush":
                self._work(life, 1)
                self._talk(life, flush=False)
                with life.killed_within(ending.delay_s):
                    life.flush(must=not self._tight)
            case "shutdown" | "sigterm":
                self._work(life, 2)
                delay_s = ending.delay_s if ending.moment == "shutdown" else None
                life.terminate(delay_s, must=not self._tight)
                return
            case _:
                self._work(life, 2)
                life.chat(self._book.next_prompt())
        life.kill()

    def _begin(self, life: Life) -> None:
        """Check all that a start promises."""
        life.wait_ready()
        self._check_swept()
        life.check_figures(still=not self._tight)
        life.check_acknowledged(must=not self._tight)
        life.check_forgone()
        life.check_figures(still=not self._tight)

    def _work(self, life: Life, rounds: int) -> None:
        for _ in range(rounds):
            self._talk(life, flush=self._chance.random() < 0.5)
            life.check_figures(still=False)

    def _talk(self, life: Life, *, flush: bool) -> None:
        prompts = [self._book.next_prompt() for _ in range(self._chance.randint(1, 3))]
        life.round(prompts, flush=flush, must=not self._tight)

    # -- the files, looked at from outside

    def _check_swept(self) -> None:
        left = [path.name for path in self._root.glob("*/tmp/*")]
        assert not left, f"orphans are left after a start: {left}"

    def _check_files(self) -> None:
        """Check that nothing under a final name is torn, and that all of it is within the cap."""
        if not self._root.exists():
            return
        verdict = verify(OsFilesystem(), self._root, lambda _: None, None)
        assert verdict.passed, verdict
        assert not verdict.outdated, verdict
        self.tally.orphans += len(list(self._root.glob("*/tmp/*")))
        assert self._bytes() <= self._cap, "the directory is above its cap"

    def _bytes(self) -> int:
        files = (path for kind in ("kv", "tmp") for path in self._root.rglob(f"*.{kind}"))
        return sum(path.stat().st_size for path in files)
