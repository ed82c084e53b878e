"""One life of a server process: what is done to it, what is looked at while it rests, and how it ends."""

from __future__ import annotations

import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

from . import disk, ways
from .floor import Floor
from .mishaps import Mishaps
from .server import Server, Setback
from .visits import check, explained
from .watch import Counters, Vitals

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence
    from pathlib import Path

    from .book import Book, Talk
    from .tally import Tally

ENDINGS = ("kill", "flush and kill", "flush and kill", "term", "term and kill")
READY_S = 180.0
SETTLES_S = 40.0
ENDS_S = 90.0
TICK_S = 0.5
ASKED_AGAIN = 6
PROMISED = 12
PASSING_ERRORS = {"ActorCrashed", "ActorGone", "AskTimeout", "Overloaded"}
STILL = {
    "scheduler": ("queued", "running"),
    "prompt_cache": ("leases", "waiting", "restoring"),
    "ssd_cache": ("pending_snapshots", "pending_spills"),
}


class Promised:
    """What a flush said is on disk, and what lay there then."""

    def __init__(self) -> None:
        self.talks: list[Talk] = []
        self.files: disk.Stored = frozenset()


class Died(Exception):
    """The process ended of its own accord."""


class Life:
    """A server on ``root`` from its start to its end."""

    def __init__(
        self, *, tally: Tally, book: Book, promised: Promised, root: Path, command: list[str], seed: str,
        chance: random.Random, config: Path,
    ) -> None:  # fmt: skip
        self._tally, self._book, self._promised, self._root = tally, book, promised, root
        self._chance = chance
        self.server = Server(tally, command)
        self.mishaps = Mishaps(self.server, chance, config)
        self._floor = Floor(self.server, book, seed)
        self._counters = Counters(tally)
        self._log_read = 0

    def run(self, seconds: float, ending: str, *, crashes: Sequence[str] = (), judged: bool = False) -> None:
        """Live for about ``seconds`` from when it is ready, then end it. ``crashes``: of groups, at once.

        ``judged``: memory, descriptors and threads must stay flat after the first third, crashes or not.
        """
        try:
            with self._floor:
                self._begin()
                self._floor.open()
                for group in crashes:
                    self.mishaps.crash(group)
                until_s = time.monotonic() + seconds
                while time.monotonic() < until_s:
                    self._bout(min(self._chance.uniform(2.0, 5.0), until_s - time.monotonic()))
                    self._rest()
                self._end(ending)
                self.server.dying = True
        except Died:
            self._tally.wrong(f"the server ended by itself with {self.server.process.process.returncode}")
        finally:
            self.server.dying = True
            self.server.process.__exit__()
            self._floor.open()
        self._read_log()
        self._counters.add_up()
        if judged:
            self._vitals.judge(self._book.profile.bounds, self._tally)

    # -- the start

    def _begin(self) -> None:
        self.server.process.wait_line("ready", READY_S)
        self.server.process.wait_ready()
        self._vitals = Vitals(self.server.process.process.pid)
        if left := disk.left_over(self._root):
            self._tally.wrong(f"left after a start: {left}")
        self._look()
        for talk in self._chance.sample(self._promised.talks, min(ASKED_AGAIN, len(self._promised.talks))):
            self._kept(talk)

    def _kept(self, talk: Talk) -> None:
        """Ask for what was promised to be on disk: it is there, unless the cap took it, and right."""
        recorded = talk.reply
        assert recorded is not None
        seen = explained(self.server, talk)
        whole = recorded.prompt_tokens - 1
        if seen["prompt_tokens"] != recorded.prompt_tokens:
            self._tally.count(self._tally.notes, "promised, rendered to other ids")
            return
        reply = (ways.chat if talk.messages else ways.completion)(self.server, talk)
        gone = disk.vanished(self._promised.files, disk.stored(self._root))
        check(self.server, talk, reply, "promised")
        if reply.cached_tokens == whole:
            self._tally.count(self._tally.notes, f"promised, from {reply.tier}")
        elif any(length >= whole for length in gone):
            self._tally.count(self._tally.notes, "promised, evicted by the cap")
        elif reply.miss_reason == "restore_slower":
            self._tally.count(self._tally.notes, "promised, sooner prefilled")
        else:
            self._tally.wrong(f"promised {whole} tokens on disk, and it is {reply} after {seen}")

    # -- busy

    def _bout(self, seconds: float) -> None:
        """Let the clients in for a while, and let something happen to the server now and then."""
        self._floor.open()
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            time.sleep(TICK_S)
            self._alive()
            try:
                self._look()
                if self._chance.random() < 0.3:
                    self._happen()
                if self._chance.random() < 0.1:
                    self.mishaps.flush()
            except Setback:
                continue

    def _happen(self) -> None:
        before = self.mishaps.clears
        try:
            self.mishaps.happen()
        finally:
            if self.mishaps.clears != before:
                self._promised.talks = []

    def _look(self) -> None:
        self._counters.look(self.server.ask("stats", "GET", "/stats")[1])

    def _alive(self) -> None:
        if self.server.process.process.poll() is not None:
            raise Died

    # -- at rest

    def _rest(self) -> None:
        self._floor.close()
        self._settle()
        self._vitals.sample(self.server.requests)
        if left := disk.left_over(self._root):
            self._tally.wrong(f"files at rest: {left}")
        if (size := disk.kept_bytes(self._root)) > self._book.profile.ssd_bytes:
            self._tally.wrong(f"{size} bytes of files are more than the cap")
        self._read_log()
        try:
            self._alone()
            if self._chance.random() < 0.4:
                self._promise()
        except Setback:
            self._tally.count(self._tally.notes, "a rest was disturbed")

    def _settle(self) -> None:
        """Wait until nothing goes on: no rows, leases, restores or writes, and every actor running."""
        until_s, busy = time.monotonic() + SETTLES_S, ["not asked"]
        while busy and time.monotonic() < until_s:
            self._alive()
            try:
                self._look()
                busy = self._busy(self.server.ask("tree", "GET", "/admin/tree")[1]["actors"])
            except Setback:
                continue
            time.sleep(0.1 if busy else 0.0)
        if busy:
            self._tally.wrong(f"it does not come to rest: {busy}")

    def _busy(self, actors: list[dict[str, Any]]) -> list[str]:
        stats = self._counters.stats
        if any(stats.get(part) is None for part in STILL):
            return ["figures are missing"]
        going = [f"{part}.{key}" for part, keys in STILL.items() for key in keys if stats[part][key]]
        going += [f"lane {lane['id']} has {lane['rows']} rows" for lane in stats["lanes"] if lane["rows"]]
        return going + [actor["path"] for actor in actors if actor["state"] != "running"]

    def _alone(self) -> None:
        """Ask again for two replies, by any way, from any tier, with nobody else in the batch."""
        for _ in range(2):
            talk = self._book.draw(self._chance)
            if talk is None:
                return
            if self._chance.random() < 0.15:
                self.mishaps.clear_ram()
            way = self._chance.choice(ways.ways_of(talk))
            check(self.server, talk, way(self.server, talk), f"alone, {way.__name__}")

    def _promise(self) -> None:
        """Flush at rest, and take down what is on disk then."""
        if not self.mishaps.flush():
            return
        found = []
        for talk in self._book.newest(PROMISED):
            seen = explained(self.server, talk)
            assert talk.reply is not None
            if seen["prompt_tokens"] == talk.reply.prompt_tokens == seen["ssd_tokens"] + 1:
                found.append(talk)
        self._promised.talks, self._promised.files = found, disk.stored(self._root)
        self._tally.count(self._tally.notes, "promises", len(found))

    # -- the end

    def _end(self, ending: str) -> None:
        self._tally.count(self._tally.mishaps, f"end by {ending}")
        if ending == "flush and kill":
            self._rest()
            try:
                self._promise()
            except Setback:
                self._tally.count(self._tally.notes, "a rest was disturbed")
        self._floor.open()
        time.sleep(self._chance.uniform(0.0, 0.6))
        self._alive()
        self.server.dying = True
        process = self.server.process
        if ending.startswith("term"):
            process.signal(signal.SIGTERM)
            if ending == "term":
                self._ended_orderly()
                return
            time.sleep(self._chance.uniform(0.0, 0.4))
        process.process.kill()
        process.end(ENDS_S)

    def _ended_orderly(self) -> None:
        try:
            code = self.server.process.end(ENDS_S)
        except subprocess.TimeoutExpired:
            self._tally.wrong(f"it has not ended {ENDS_S:.0f} s after SIGTERM")
            return
        if code != 0:
            self._tally.wrong(f"SIGTERM ended it with {code}")
        if left := disk.left_over(self._root):
            self._tally.wrong(f"left after an orderly end: {left}")

    def _read_log(self) -> None:
        """Look for errors that nobody made on purpose."""
        lines = self.server.process.lines
        fresh, self._log_read = lines[self._log_read :], len(lines)
        for line in fresh:
            if is_trouble(line):
                self._tally.wrong(f"the log says: {str(line)[:1500]}")


def is_trouble(line: dict[str, Any] | str) -> bool:
    """Whether a log line tells of what no mishap explains. Requests are judged by their clients."""
    if isinstance(line, str):
        return bool(line.strip())
    match line.get("event"):
        case "actor_failed":
            return "InjectedCrash" not in str(line.get("error"))
        case "supervisor_gave_up":  # a supervisor that was crashed itself
            return "InjectedCrash" not in str(line.get("last_failure"))
        case "request_error":  # what the client was told of as a 503
            return line["exception"][0]["exc_type"] not in PASSING_ERRORS
        case "request" | "reload_refused":
            return False
        case _:
            return line.get("level") in {"error", "critical"}
