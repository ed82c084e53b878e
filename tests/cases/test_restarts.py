"""Scenarios of starts and stops: what is found again, what is refused, counted, trimmed and left alone."""

from __future__ import annotations

import asyncio
import signal
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from samovar.storage import entry as naming
from samovar.storage.container import read_header, write_container
from samovar.storage.directory import CheckpointDirectory
from samovar.storage.entry import namespace_folder
from samovar.storage.fs import OsFile, OsFilesystem
from samovar.storage.identity import Identity
from samovar.storage.room import Limits
from samovar.storage.spec import CheckpointSpec, LayerSpec, TensorSpec
from samovar.storage.tokens import TokenIds

from tests.actors.storage_tree import Gate
from tests.app.process import ServerProcess, fake
from tests.kit.disk import FaultDisk
from tests.kit.engine import FakeEngine
from tests.kit.states import SIGNATURE, FakeState
from tests.kit.stored import spec_of, store, write_published

from .rig import Log, Server, assistant, logged, run, serving, system, tiny, user

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

pytestmark = pytest.mark.timeout(60)

ROOT = Path("/cache")
# One writer: with more, a prompt that is committed after its reply is kept beside it.
DISK = (
    "cache.ssd.dir=/cache",
    "cache.ssd.writers=1",
    "cache.ram.min_tokens=16",
    "cache.ssd.restore_min_tokens=16",
)


@dataclass
class Model(FakeEngine):
    """A scripted engine whose identity the test chooses; one token is ``token_bytes`` of state."""

    context_length: int = 8000
    name: str = "fake"
    fields: dict[str, str] = field(default_factory=dict)

    def identity(self) -> Identity:
        return Identity(self.name, self.fields or {"model": self.name})


@asynccontextmanager
async def started(
    disk: FaultDisk, engine: FakeEngine | None = None, *settings: str
) -> AsyncIterator[tuple[Server, Log]]:
    """Serve the scripted engine on a disk and collect the log."""
    with logged() as log:
        async with serving(engine or Model(), disk, *DISK, *settings) as server:
            yield server, log


def kv_files(disk: FaultDisk, identity: str = "") -> dict[Path, bytes]:
    """Return checkpoint files in use with their bytes; temporary ones have another suffix."""
    return {
        path: data
        for path, data in disk.files().items()
        if path.suffix == ".kv" and "quarantine" not in path.parts and identity in str(path)
    }


def total_bytes(disk: FaultDisk) -> int:
    return sum(map(len, disk.files().values()))


def stored_tokens(disk: FaultDisk) -> list[int]:
    return sorted(len(read_header(disk, path).header.spec.tokens) for path in kv_files(disk))


# --- second starts that must be refused ---------------------------------------------------------------


def test_b047_a_second_server_is_refused_and_a_dead_ones_lock_is_free(tmp_path: Path) -> None:
    """B047: the same directory, the same model or not: exit code 2, the holder named; SIGKILL frees it."""
    setting = f"cache.ssd.dir={tmp_path / 'kv'}"
    with fake(setting) as first:
        first.wait_ready()
        with fake(setting) as second:
            assert second.end(30.0) == 2
            told = " ".join(map(str, second.lines))
            assert str(tmp_path / "kv") in told
            assert str(first.process.pid) in told
        assert first.chat("still here?", max_tokens=2)[0] == 200
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
    with fake(setting) as third:
        third.wait_ready()


def test_b047_two_lanes_that_publish_one_prefix_leave_one_file() -> None:
    """B047: the same prompt runs on both lanes at once."""

    async def scenario() -> None:
        disk, engine = FaultDisk(), Model(gated=True)
        async with started(disk, engine, "lanes.count=2", "lanes.batch=1") as (server, _):
            prompt = "a prompt of forty characters, not more.."
            both = [asyncio.ensure_future(server.talk(prompt, max_tokens=8)) for _ in range(2)]
            await server.until(lambda stats: [lane["rows"] for lane in stats["lanes"]] == [1, 1])
            engine.allow(200)
            assert {answer.text for answer in await asyncio.gather(*both)} == {
                "".join(f"97.{n} " for n in range(8))
            }
            await server.flush()
            assert len(kv_files(disk)) == 1
            assert (await server.part("ssd_cache"))["entries"] == 1

    run(scenario())


def test_b047_a_prompt_that_is_committed_after_its_reply_is_not_kept_beside_it() -> None:
    """B047: two writers; the longer state is durable first, so the shorter file serves nothing."""
    disk = FaultDisk()
    directory = CheckpointDirectory(disk, ROOT, Identity("fake"), Limits(0, 0.0))
    directory.open()
    prompt, whole = spec_of(range(20)), spec_of(range(30))
    held = directory.reserve(prompt)
    stored = write_published(disk, directory, held, prompt, 1.0)
    store(disk, directory, whole)
    directory.commit(held, stored)
    assert directory.covers(prompt.tokens, "")
    assert [len(entry.tokens) for entry in directory.entries()] == [30]
    assert len(kv_files(disk)) == 1


# --- stops --------------------------------------------------------------------------------------------


def test_b005_two_quick_rounds_lose_and_rewrite_nothing() -> None:
    """B005: 50 chats over one system turn, stop; 5 more, stop; all 55 are there, and old files untouched."""

    def chat(number: int) -> list[dict[str, str]]:
        return [system("You are brief. "), user(f"question {number:03} of many, please")]

    async def scenario() -> None:
        disk = FaultDisk()
        async with started(disk) as (server, _):
            await asyncio.gather(*[server.talk(chat(n), max_tokens=3) for n in range(50)])
            assert await server.end() == 0
        first = kv_files(disk)
        assert len(first) == 50
        begun = disk.count
        async with started(disk) as (server, log):
            assert log.lines("cache_opened")[0]["entries"] == 50
            for number in range(50, 55):
                await server.talk(chat(number), max_tokens=3)
            assert await server.end() == 0
            written = [each for each in disk.log if each.kind == "rename" and each.index > begun]
            assert len(written) <= 2 * 5  # each new prompt and its reply, at most
        second = kv_files(disk)
        assert len(second) == 55
        assert first.items() <= second.items()
        async with started(disk) as (server, log):
            assert log.lines("cache_opened")[0]["entries"] == 55
            assert not log.warnings()
            for number in (0, 25, 52):
                answer = await server.talk(chat(number), max_tokens=3)
                assert (answer.tier, answer.cached) == ("ssd", answer.whole)

    run(scenario())


def test_b007_every_file_commits_alone_and_health_answers_meanwhile() -> None:
    """B007: 20 dirty checkpoints, a disk that lets a few through; the deadline wins, the process dies."""

    async def scenario() -> None:
        disk = FaultDisk()
        async with started(disk) as (server, log):
            gate = Gate(disk, "sync")
            try:
                for number in range(20):
                    await server.talk(f"{number:02} little bottles on the wall", max_tokens=1)
                ending = asyncio.ensure_future(server.tree_end(0.0))
                gate.allow(9)
                await server.until(lambda _: len(kv_files(disk)) >= 5)
                status, health = await server.call("GET", "/health")
                assert (status, bool(health)) == (200, True)
                assert (await server.call("GET", "/ready"))[0] == 503
                assert await ending == 1
                after = disk.kill()
            finally:
                gate.open()
            (told,) = log.lines("flush_incomplete")
            assert told["pending"] >= 10
            assert told["reason"]
        assert [path for path in after.files() if "tmp" in path.parts]
        async with started(after) as (server, log):
            (opened,) = log.lines("cache_opened")
            assert opened["entries"] >= 5
            assert opened["swept"] >= 1
            assert not [path for path in after.files() if "tmp" in path.parts]
            found = [await server.talk(f"{n:02} little bottles on the wall", max_tokens=1) for n in range(20)]
            assert sum(answer.tier == "ssd" for answer in found) == opened["entries"]

    run(scenario())


def test_b008_the_longest_is_written_first_and_what_it_covers_not_at_all() -> None:
    """B008: 1, 40 and 1500 tokens and an ancestor of the last, and time for one file."""
    deep = "frontier " * 166

    async def scenario() -> None:
        disk = FaultDisk()
        settings = ("cache.ssd.write_behind=false", "cache.ssd.writers=1", "cache.ram.min_tokens=1")
        async with started(disk, Model(), *settings) as (server, log):
            gate = Gate(disk, "sync")
            try:
                for content in ("ab", "forty characters of no great importance..", deep[:700], deep):
                    await server.talk(content, max_tokens=1)
                ending = asyncio.ensure_future(server.tree_end(0.0))
                gate.allow(1)
                assert await ending == 1
                after = disk.kill()
            finally:
                gate.open()
            (told,) = log.lines("flush_incomplete")
            assert told["pending"] == 2  # those of 1 and 40 tokens: the ancestor is covered
            assert told["reason"]
        assert stored_tokens(after) == [len(deep)]
        async with started(after) as (server, _):
            answer = await server.talk([user(deep), assistant(""), user("and now?")], max_tokens=1)
            assert (answer.tier, answer.cached) == ("ssd", len(deep))

    run(scenario())


# --- whose files they are ---------------------------------------------------------------------------


@pytest.mark.parametrize("changed", ["weights", "kv_scheme", "config", "tokenizer", "mlx", "compute_dtype"])
def test_b035_another_identity_starts_cold_and_leaves_the_old_files_alone(changed: str) -> None:
    """B035: the field that differs is named. What changes which: tests/engine/state/test_identity.py."""
    fields = dict.fromkeys(("weights", "kv_scheme", "config", "tokenizer", "mlx", "compute_dtype"), "1")
    old, new = Model(name="one", fields=fields), Model(name="two", fields=fields | {changed: "2"})
    prompt = "the very same prompt under the same name"

    async def scenario() -> None:
        disk = FaultDisk()
        async with started(disk, old) as (server, _):
            await server.talk(prompt, max_tokens=2)
            assert await server.end() == 0
        before = kv_files(disk)
        async with started(disk, new) as (server, log):
            answer = await server.talk(prompt, max_tokens=2)
            assert (answer.tier, answer.cached) == ("none", 0)
            assert log.lines("cache_opened")[0]["foreign_bytes"] > 0
            assert await server.end() == 0
        assert kv_files(disk, "/one/") == before
        assert len(kv_files(disk, "/two/")) == 1
        async with started(disk, old) as (server, _):
            answer = await server.talk(prompt, max_tokens=2)
            assert (answer.tier, answer.cached) == ("ssd", answer.whole)

    run(scenario())


@pytest.mark.parametrize("cap", ["1100KB", "20GiB"])
def test_b035_the_log_names_the_field_that_differs(cap: str) -> None:
    """B035: after a change of the model nothing is found, and an operator can read why."""

    async def scenario() -> None:
        disk = FaultDisk()
        async with started(disk, Model(name="one", fields={"weights": "1", "mlx": "1"})) as (server, _):
            for number in range(12):
                await server.talk(f"{number} green bottles on the wall", max_tokens=2)
            assert await server.end() == 0
        now = Model(name="two", fields={"weights": "1", "mlx": "2"})
        async with started(disk, now, f"cache.ssd.max={cap}") as (_, log):
            assert [line for line in log.lines() if "'mlx'" in str(line) and "'weights'" not in str(line)]

    run(scenario())


def test_b037_keys_do_not_depend_on_the_hash_seed_of_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B037: PYTHONHASHSEED 1, 2 and none over one directory: full reuse each time."""
    settings = (
        f"cache.ssd.dir={tmp_path / 'kv'}",
        "cache.ram.min_tokens=4",
        "cache.ssd.restore_min_tokens=4",
    )
    reused = []
    for seed in ("1", "2", None):
        if seed is None:
            monkeypatch.delenv("PYTHONHASHSEED", raising=False)
        else:
            monkeypatch.setenv("PYTHONHASHSEED", seed)
        with fake(*settings) as server:
            reused.append(_talk_and_stop(server.wait_ready()))
    assert reused == [("none", 0), ("ssd", 23), ("ssd", 23)]


def _talk_and_stop(server: ServerProcess) -> tuple[str, int]:
    usage = server.talk([user("twenty-four characters..")], max_tokens=2)["usage"]["samovar"]
    server.signal()
    assert server.end(30.0) == 0
    return usage["tier"], usage["cached_tokens"]


def test_b038_a_digest_that_tells_nothing_apart_mixes_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """B038: every name collides; tokens are compared where something is found, so every reply is right."""
    monkeypatch.setattr(naming, "digest", lambda data: "0" * 32)
    contents = [f"{number} green bottles on the wall" for number in range(8)]

    async def scenario() -> None:
        disk = FaultDisk()
        for expected in (["none"] * 8, ["ssd"] * 8):
            async with serving(tiny(), disk, *DISK) as server, serving(None, None, "cache.ram.max=0") as off:
                for content, tier in zip(contents, expected, strict=True):
                    answer = await server.talk(content, max_tokens=6)
                    assert (answer.tier, answer.cached) == (tier, answer.whole if tier == "ssd" else 0)
                    assert answer.text == (await off.talk(content, max_tokens=6)).text
                assert await server.end() == 0
            assert len({path.stem.partition("-")[0] for path in kv_files(disk)}) == 1

    run(scenario())


# --- room ---------------------------------------------------------------------------------------------


def test_b050_the_cap_is_the_roots_whoever_filled_it() -> None:
    """B050: model A, then B, restarts, then 3 MB of others: never above the cap, nothing foreign lost."""

    async def fill(disk: FaultDisk, engine: Model, first: int, count: int) -> Any:
        async with started(disk, engine, "cache.ssd.max=5MB") as (server, log):
            assert total_bytes(disk) <= 5_000_000
            for number in range(first, first + count):
                await server.talk(f"{number:03} " + "x" * 50, max_tokens=1)
                await server.call("POST", "/admin/cache/flush")
                assert total_bytes(disk) <= 5_000_000
            stats = await server.part("ssd_cache")
            return stats, log.lines("cache_opened")[0]

    async def scenario() -> None:
        disk = FaultDisk()
        one, two = (Model(name=name, token_bytes=16_000) for name in ("one", "two"))
        await fill(disk, one, 0, 2)
        ours = kv_files(disk, "/one/")
        assert sum(map(len, ours.values())) > 1_500_000
        for restart in range(3):
            stats, opened = await fill(disk, two, 4 * restart, 4)
            assert kv_files(disk, "/one/") == ours
            assert stats["foreign_bytes"] >= sum(map(len, ours.values()))
            assert stats["evictions"] > 0
            assert opened["foreign_bytes"] == stats["foreign_bytes"]
        for path in ours:
            disk.unlink(path)
        foreign = {ROOT / "old-format" / f"{n}.safetensors": bytes(1_000_000) for n in range(3)}
        for path, data in foreign.items():
            disk.put(path, data)
        stats, _ = await fill(disk, two, 50, 4)
        assert {path: disk.files()[path] for path in foreign} == foreign
        assert stats["foreign_bytes"] >= 3_000_000

    run(scenario())


def test_b052_a_lowered_cap_is_kept_at_the_start_without_traffic() -> None:
    """B052: 4 MB written, SIGKILL, a cap of 2 MB: the least recently used went, by the stored order."""

    async def scenario() -> None:
        disk = FaultDisk()
        async with started(disk, Model(token_bytes=10_000)) as (server, _):
            for number in range(6):
                await server.talk(f"{number:03} " + "x" * 50, max_tokens=1)
                await server.flush()
            await server.to_disk()
            await server.talk("000 " + "x" * 50, max_tokens=1)  # the oldest is used again
            await server.flush()
            assert (await server.part("ssd_cache"))["bytes"] > 3_500_000
        disk = disk.kill()
        async with started(disk, Model(token_bytes=10_000), "cache.ssd.max=2MB") as (server, log):
            assert total_bytes(disk) <= 2_000_000
            files = await server.part("ssd_cache")
            assert files["bytes"] <= 2_000_000
            assert log.lines("cache_opened")[0]["trimmed"] >= 3
            tiers = [(await server.talk(f"{n:03} " + "x" * 50, max_tokens=1)).tier for n in (0, 5, 1)]
            assert tiers == ["ssd", "ssd", "none"]

    run(scenario())


# --- what is found ----------------------------------------------------------------------------------


def test_b058_checkpoint_files_alone_are_enough() -> None:
    """B058: every file that is no checkpoint is deleted; the hits are the same."""

    async def scenario() -> None:
        disk = FaultDisk()
        async with started(disk) as (server, _):
            for number in range(4):
                await server.talk(f"{number} bottles standing on the wall", max_tokens=2)
            assert await server.end() == 0
        checkpoints = kv_files(disk)
        for path in set(disk.files()) - set(checkpoints):
            disk.unlink(path)
        async with started(disk) as (server, log):
            assert log.lines("cache_opened")[0]["entries"] == 4
            for number in range(4):
                answer = await server.talk(f"{number} bottles standing on the wall", max_tokens=2)
                assert (answer.tier, answer.cached) == ("ssd", answer.whole)
        assert kv_files(disk).items() >= checkpoints.items()

    run(scenario())


def test_b067_files_of_another_format_are_told_once_and_go_first() -> None:
    """B067: an older version, a feature nobody knows: one warning with files and bytes by reason."""

    async def scenario() -> None:
        disk = FaultDisk()
        engine = Model(token_bytes=10_000)
        async with started(disk, engine) as (server, _):
            for number in range(4):
                await server.talk(f"{number:03} " + "x" * 50, max_tokens=1)
            assert await server.end() == 0
        paths = sorted(kv_files(disk), key=lambda path: read_header(disk, path).header.spec.tokens[2])
        for path in paths[:2]:
            data = bytearray(disk.files()[path])
            data[8:12] = (0).to_bytes(4, "little")
            disk.put(path, bytes(data))
        old_bytes = sum(len(disk.files()[path]) for path in paths[:2])
        async with started(disk, engine, f"cache.ssd.max={total_bytes(disk)}B") as (server, log):
            (warning,) = log.lines("cache_files_unusable")
            assert warning["problems"] == {"unsupported_version": [2, old_bytes]}
            assert warning["level"] == "warning"
            assert (await server.talk("000 " + "x" * 50, max_tokens=1)).tier == "none"
            await server.flush()
            # Old files made room, whatever lies under their names now; the two good ones are still there.
            files = disk.files()
            assert sum(path in files and files[path][8:12] == bytes(4) for path in paths[:2]) < 2
            for number in (2, 3):
                assert (await server.talk(f"{number:03} " + "x" * 50, max_tokens=1)).tier == "ssd"
            assert len(log.lines("cache_files_unusable")) == 1

    run(scenario())


class SparseFile:
    """Leaves out what is large, and does not sync: the state of these files is a hole."""

    def __init__(self, file: OsFile) -> None:
        self._file = file

    def write(self, segments: Sequence[memoryview], offset: int) -> int:
        wanted = sum(segment.nbytes for segment in segments)
        return wanted if wanted > 200_000 else self._file.write(segments, offset)

    def read(self, segments: Sequence[memoryview], offset: int) -> int:
        return self._file.read(segments, offset)

    def size(self) -> int:
        return self._file.size()

    def sync(self) -> None:
        """Nobody will pull the plug."""

    def close(self) -> None:
        self._file.close()


class SparseFilesystem(OsFilesystem):
    def create(self, path: Path) -> Any:
        return SparseFile(super().create(path))


class CountingFile:
    """Counts what is read of it."""

    def __init__(self, file: OsFile, counts: list[int]) -> None:
        self._file = file
        self._counts = counts

    def read(self, segments: Sequence[memoryview], offset: int) -> int:
        count = self._file.read(segments, offset)
        self._counts.append(count)
        return count

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()


class CountingFilesystem(OsFilesystem):
    def __init__(self) -> None:
        self.reads: list[int] = []

    def open(self, path: Path) -> Any:
        return CountingFile(super().open(path), self.reads)


def test_b068_thousands_of_files_are_known_by_their_headers(tmp_path: Path) -> None:
    """B068: 3000 files of 1 MB. benchmarks/storage.py has the times; here: no state is read to be ready."""
    count, state_bytes = 3000, 1_000_000
    folder = tmp_path / "kv" / "fake" / namespace_folder("")
    folder.mkdir(parents=True)
    hole, sparse = memoryview(bytes(state_bytes)), SparseFilesystem()
    for number in range(count):
        tokens = TokenIds.of([number // 256, number % 256, *range(30)])
        tensors = (TensorSpec("ids", "uint32", (32,)), TensorSpec("state", "uint8", (state_bytes,)))
        spec = CheckpointSpec(tokens, "", (LayerSpec(SIGNATURE, 32, trimmable=True, tensors=tensors),))
        path = folder / f"{number:032x}.kv"
        ids = [memoryview(tokens.to_bytes())]
        stored = write_container(sparse, path, "fake", spec, [ids, [hole]], created_s=1.0)
        with path.open("r+b") as file:
            file.truncate(stored.file_bytes)
    good = FakeState.of(
        TokenIds.of(FakeEngine().codec().encode("a prompt that is on the disk")), 16, trims=True
    )
    write_container(
        OsFilesystem(), folder / f"{count:032x}.kv", "fake", good.spec, good.segments(), created_s=2.0
    )

    async def scenario() -> None:
        fs = CountingFilesystem()
        settings = (f"cache.ssd.dir={tmp_path / 'kv'}", "cache.ssd.restore_min_tokens=4")
        async with serving(FakeEngine(), fs, *settings) as server:
            assert sum(fs.reads) <= count * 40_000
            assert (await server.part("ssd_cache"))["entries"] == count + 1
            hit = await server.talk("a prompt that is on the disk", max_tokens=2)
            assert (hit.tier, hit.cached) == ("ssd", hit.whole)
            assert (await server.talk("one that is not there at all", max_tokens=2)).cached == 0

    run(scenario())
