"""Soaks a real server: ``python -m tests.soak.run [--minutes M] [--seed N] [--model NAME] [--json PATH]``.

Clients over every API, growing conversations, crashes of actors, SIGHUPs, SIGKILLs and SIGTERMs on one cache
directory, both tiers always full. What must hold is in life.py, visits.py and watch.py. All that is drawn
follows from the seed; how clients and mishaps meet does not, since time is real.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import disk
from .book import Book
from .life import ENDINGS, Life, Promised
from .mishaps import GOOD
from .profile import PROFILES, Profile, profile
from .tally import Tally

SERVE = ("-m", "samovar.runtime.cli")
SHORTEST_S, LONGEST_S = 6.0, 30.0


class Soak:
    """A cache directory and the lives of servers on it. ``serve``: Python's arguments that start Samovar."""

    def __init__(self, load: Profile, seed: int, folder: Path, serve: tuple[str, ...] = SERVE) -> None:
        self.tally, self.root = Tally(), folder / "kv"
        self._load, self._seed, self._folder, self._serve = load, seed, folder, serve
        self._chance = random.Random(f"soak {seed}")
        self.book, self._promised = Book(load), Promised()
        self._config = folder / "samovar.toml"
        self._model = load.model(folder)

    def for_minutes(self, minutes: float) -> None:
        """Live one long life, half of the time, to see memory; then short ones; then verify the files."""
        until_s = time.monotonic() + 60.0 * minutes
        self.live().run(30.0 * minutes, "flush and kill", judged=True)
        while (left_s := until_s - time.monotonic()) > SHORTEST_S:
            ending = self._chance.choice(ENDINGS)
            self.live().run(min(left_s, self._chance.uniform(SHORTEST_S, LONGEST_S)), ending)
        self.finish()

    def live(self) -> Life:
        """Start the next server."""
        self.tally.life += 1
        self._config.write_text(GOOD)
        command = [*self._serve, "serve", self._model, "--config", str(self._config)]
        for setting in self._load.settings(self.root):
            command += ["--set", setting]
        chance = random.Random(f"{self._seed} {self.tally.life}")
        return Life(
            tally=self.tally,
            book=self.book,
            promised=self._promised,
            root=self.root,
            command=command,
            seed=f"{self._seed} {self.tally.life}",
            chance=chance,
            config=self._config,
        )

    def finish(self) -> None:
        """End one more server in order, and read everything that it left."""
        self.live().run(0.5, "term")
        disk.check_whole(self.root, self.tally)
        if (size := disk.kept_bytes(self.root)) > self._load.ssd_bytes:
            self.tally.wrong(f"{size} bytes of files are more than the cap")
        if left := disk.left_over(self.root):
            self.tally.wrong(f"left in the end: {left}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--model", choices=sorted(PROFILES), default="smollm2")
    parser.add_argument("--json", type=Path, help="add the run to the list in this file")
    options = parser.parse_args(arguments)
    again = (
        f"python -m tests.soak.run --minutes {options.minutes} --seed {options.seed} --model {options.model}"
    )
    print(again, flush=True)  # noqa: T201
    with tempfile.TemporaryDirectory(prefix="samovar-soak-") as folder:
        soak = Soak(profile(options.model), options.seed, Path(folder))
        soak.for_minutes(options.minutes)
    print("\n".join([*soak.tally.lines(), f"again: {again}"]))  # noqa: T201
    if options.json is not None:
        record(options.json, {"again": again} | soak.tally.document() | {"lives": soak.tally.life})
    return bool(soak.tally.findings)


def record(path: Path, run: dict[str, Any]) -> None:
    """Add a run to the file's list."""
    runs = json.loads(path.read_text())["runs"] if path.exists() else []
    runs.append({"at": datetime.now(UTC).isoformat(timespec="seconds")} | run)
    kept = json.loads(path.read_text()) if path.exists() else {"command": "python -m tests.soak.run"}
    path.write_text(json.dumps(kept | {"runs": runs}, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
