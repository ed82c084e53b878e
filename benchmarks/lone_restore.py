"""A lone restore through a ReaderActor against the same read made at once in the calling thread.

    python -m benchmarks.lone_restore [--megabytes 100] [--rounds 9] [--json PATH]

The bytes are those of the scripted engine's states. Goal: at most 1.1 times the synchronous one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import statistics
import tempfile
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from samovar.actors.reader import ReaderActor, ReaderCounts, Readers, RestoreJob
from samovar.actors.restoring import read_entry
from samovar.runtime.kernel import ActorSystem, ChildSpec, SupervisorSpec
from samovar.storage.container import write_container
from samovar.storage.directory import CheckpointDirectory
from samovar.storage.fs import OsFilesystem
from samovar.storage.identity import Identity
from samovar.storage.room import Limits
from samovar.storage.tokens import TokenIds

from tests.kit.states import FakeRestorer, FakeState

TOKENS = 2_000


async def measure(folder: Path, megabytes: int, rounds: int) -> float:
    fs, identity = OsFilesystem(), Identity("bench", {})
    directory = CheckpointDirectory(fs, folder, identity, Limits(0, 0.0))
    directory.open()
    state = FakeState.of(TokenIds.of(range(TOKENS)), megabytes * 1_000_000 // TOKENS, trims=True)
    held = directory.reserve(state.spec)
    stored = write_container(fs, held.temp_path, identity.id, state.spec, state.segments(), created_s=0.0)
    directory.publish(fs, held)
    directory.commit(held, stored)
    (entry,) = directory.entries()
    counts = ReaderCounts()
    spec = ChildSpec("reader", lambda: ReaderActor(FakeRestorer, fs, identity.id, counts), capacity=16)
    readers = Readers([spec.ref], counts)
    system = ActorSystem(SupervisorSpec("root", [spec]))
    await system.start()
    ratios: list[float] = []
    for turn in range(rounds + 1):
        begun = time.perf_counter()
        read_entry(fs, identity.id, entry, FakeRestorer(), threading.Event().is_set, verify=True)
        alone = time.perf_counter() - begun
        begun = time.perf_counter()
        await readers.restore(RestoreJob(str(turn), entry), 60.0)
        if turn:
            ratios.append((time.perf_counter() - begun) / alone)
    await system.stop()
    directory.close()
    return statistics.median(ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ratio = asyncio.run(measure(Path(folder), args.megabytes, args.rounds))
    print(f"lone restore through the actor / synchronous: {ratio:.3f} (goal <= 1.1)")
    if args.json:
        args.json.write_text(json.dumps(record(ratio, args), indent=2) + "\n")


def record(ratio: float, args: argparse.Namespace) -> dict[str, object]:
    return {
        "benchmark": "lone_restore",
        "command": f"python -m benchmarks.lone_restore --megabytes {args.megabytes} --rounds {args.rounds}",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"cores": os.cpu_count(), "arch": platform.machine()},
        "ratio": round(ratio, 4),
    }


if __name__ == "__main__":
    main()
