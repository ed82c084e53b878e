"""Scenarios of a disk that lies, fails, fills up or dawdles: replies stay right, and what can be kept is."""

from __future__ import annotations

import asyncio
import errno
from typing import TYPE_CHECKING, Any

import pytest
from samovar.storage.container import read_header

from tests.actors.storage_tree import Gate
from tests.kit.disk import FaultDisk
from tests.kit.engine import FakeEngine
from tests.kit.prompts import chat

from .rig import assistant, logged, run, serving, tiny, user

if TYPE_CHECKING:
    from pathlib import Path

    from samovar.storage.container import StoredCheckpoint

    from tests.kit.faults import Operation

pytestmark = pytest.mark.timeout(60)

# No prefix that all chats have in common is worth keeping.
DISK = ("cache.ssd.dir=/cache", "cache.ram.min_tokens=16", "cache.ssd.restore_min_tokens=16")


def numbered(number: int, tokens: int) -> str:
    return (f"{number}. " + "a lamp in the window of the mill " * (tokens // 20 + 1))[:tokens]


def kv_files(disk: FaultDisk) -> list[Path]:
    """Return the checkpoint files in use."""
    return [
        path for path in disk.files() if path.suffix == ".kv" and not {"quarantine", "tmp"} & set(path.parts)
    ]


def file_of(disk: FaultDisk, tokens: int) -> Path:
    """Return the file with so many tokens at least, the shortest of them."""
    lengths = {len(read_header(disk, path).header.spec.tokens): path for path in kv_files(disk)}
    return lengths[min(length for length in lengths if length >= tokens)]


async def cold(*contents: str, max_tokens: int = 8) -> list[str]:
    async with serving(None, None, "cache.ram.max=0") as server:
        return [(await server.talk(content, max_tokens=max_tokens)).text for content in contents]


# --- reads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("breaks", ["header", "first tensor", "half of a tensor", "last tensor"])
def test_b020_a_restore_that_fails_midway_is_a_full_prefill(breaks: str) -> None:
    """B020: EIO while the client already streams: right text, nothing cached, the file is not asked again."""
    body = numbered(1, 900)

    async def scenario() -> None:
        (expected,) = await cold(body)
        disk = FaultDisk()
        async with serving(None, disk, *DISK) as server:
            await server.talk(body, max_tokens=8)
            await server.flush()
        disk = disk.kill()
        path = file_of(disk, 900)
        async with serving(None, disk, *DISK) as server:
            stored = read_header(disk, path)
            if breaks == "half of a tensor":
                disk.short_read_bytes = stored.tensors[0].nbytes // 2
            fault = disk.fail_when(striking(disk, path, breaks, stored), errno.EIO, times=1)
            answer = await server.stream(body, max_tokens=8)
            assert fault.hits == 1
            assert (answer.text, answer.tier, answer.cached) == (expected, "none", 0)
            assert answer.miss_reason == "restore_failed"
            assert await server.prefilled() == answer.whole
            stats = await server.stats()
            assert stats["ssd_cache"]["restore_failures"] == 1
            assert (await server.talk(body, max_tokens=8)).text == expected

    run(scenario())


def striking(disk: FaultDisk, path: Path, breaks: str, stored: StoredCheckpoint) -> Any:
    """Match one read of the restore: by how many of the file's reads came before it."""
    seen = 0
    header_reads = 2
    wanted = {
        "header": 1,
        "first tensor": header_reads + 1,
        "half of a tensor": 8,
        "last tensor": header_reads + len(stored.tensors),
    }[breaks]

    def matches(operation: Operation) -> bool:
        nonlocal seen
        if operation.kind != "read" or operation.path != path:
            return False
        seen += 1
        return seen == wanted

    return matches


def test_b020_one_warning_names_the_file() -> None:
    """B020: an operator can read which file could not be restored."""

    async def scenario() -> None:
        disk = FaultDisk()
        async with serving(None, disk, *DISK) as server:
            await server.talk(numbered(1, 300), max_tokens=4)
            await server.flush()
        disk = disk.kill()
        path = file_of(disk, 300)
        with logged() as log:
            async with serving(None, disk, *DISK) as server:
                data = bytearray(disk.files()[path])
                data[-40_000] ^= 1
                disk.put(path, bytes(data))
                assert (await server.talk(numbered(1, 300), max_tokens=4)).cached == 0
            named = [line for line in log.warnings() if path.name in str(line)]
        assert len(named) == 1

    run(scenario())


def test_b022_files_of_a_wrong_length_are_rejected_at_the_start() -> None:
    """B022: cut by a byte, by half, to the header, to nothing, and one with ten bytes more."""
    bodies = [numbered(number, 100 + 10 * number) for number in range(6)]

    async def scenario() -> None:
        expected = await cold(*bodies)
        disk = FaultDisk()
        async with serving(None, disk, *DISK) as server:
            for body in bodies:
                await server.talk(body, max_tokens=8)
            await server.flush()
        disk = disk.kill()
        paths = [token_file(disk, body) for body in bodies]
        cut = (
            lambda d: d[:-1],
            lambda d: d[: len(d) // 2],
            lambda d: d[:16384],
            lambda _: b"",
            lambda d: d + b"+" * 10,
        )
        for path, change in zip(paths, cut, strict=False):
            assert path is not None
            disk.put(path, change(disk.files()[path]))
        with logged() as log:
            async with serving(None, disk, *DISK) as server:
                await server.tree.tiers.disk.archive.figures(5.0)  # type: ignore[union-attr]
                answers = [await server.talk(body, max_tokens=8) for body in bodies]
                stats = await server.part("ssd_cache")
            (warning,) = log.lines("cache_files_unusable")
        assert sum(files for files, _ in warning["problems"].values()) == 5
        assert [answer.text for answer in answers] == expected
        assert [answer.tier for answer in answers[5:]] == ["ssd"]
        assert stats["corrupt"] == 5
        assert stats["restore_failures"] == 0

    run(scenario())


def test_a_folder_that_cannot_be_synced_at_the_start_is_told_and_used_once_it_can() -> None:
    async def scenario() -> None:
        body = numbered(1, 300)
        disk = FaultDisk()
        async with serving(None, disk, *DISK) as server:
            expected = await server.talk(body, max_tokens=8)
            await server.flush()
        disk = disk.kill()
        folder = file_of(disk, 100).parent
        fault = disk.fail_when(lambda op: op.kind == "sync_folder" and op.path == folder, errno.EIO)
        with logged() as log:
            async with serving(None, disk, *DISK) as server:
                stats = await server.part("ssd_cache")
                assert (stats["entries"], stats["unrecovered"]) == (0, 1)
                assert stats["bytes"] == stats["unread_bytes"] > 0
                assert [len(line["failures"]) for line in log.lines("cache_files_unusable")] == [1]
                fault.clear()
                await server.until(lambda _: len(log.lines("cache_opened")) == 2)
                assert (await server.part("ssd_cache"))["unrecovered"] == 0
                assert [line["entries"] > 0 for line in log.lines("cache_opened")] == [False, True]
                answer = await server.talk(body, max_tokens=8)
        assert (answer.text, answer.tier) == (expected.text, "ssd")

    run(scenario())


def test_b095_one_damaged_file_costs_one_entry() -> None:
    """B095: ten entries, one damaged: the nine others come back, and a chat goes on growing afterwards."""
    bodies = [numbered(number, 300) for number in range(10)]

    async def scenario() -> None:
        (expected,) = await cold(bodies[4])
        disk = FaultDisk()
        async with serving(None, disk, *DISK) as server:
            for body in bodies:
                await server.talk(body, max_tokens=8)
            await server.flush()
        disk = disk.kill()
        spoil(disk, token_file(disk, bodies[4]))
        async with serving(tiny(prefill_chunk=32), disk, *DISK) as server:
            bad = await server.talk(bodies[4], max_tokens=8)
            assert (bad.text, bad.cached) == (expected, 0)
            others = [await server.talk(body, max_tokens=8) for body in bodies[:4] + bodies[5:]]
            assert [(answer.tier, answer.cached) for answer in others] == [
                ("ssd", answer.whole) for answer in others
            ]
            assert (await server.part("ssd_cache"))["quarantined"] == 1
            messages, before = [user(bodies[4])], bad
            for turn in range(5):
                messages += [assistant(before.text), user(f"{turn}?")]
                answer = await server.talk(messages, max_tokens=8)
                assert answer.cached >= before.fed
                before = answer

    run(scenario())


def token_file(disk: FaultDisk, body: str) -> Path | None:
    """Return the file that holds a chat's prompt, if there is one."""
    start = tiny().codec().render(chat(body)).tokens
    for path in kv_files(disk):
        tokens = read_header(disk, path).header.spec.tokens
        if tokens.common_prefix(start) >= len(start) - 1:
            return path
    return None


def spoil(disk: FaultDisk, path: Path | None) -> None:
    assert path is not None
    data = bytearray(disk.files()[path])
    data[-40_000] ^= 1
    disk.put(path, bytes(data))


@pytest.mark.parametrize("goes", ["evicted", "removed by hand"])
def test_b065_a_file_that_goes_while_it_is_read_slowly_costs_nobody_anything(goes: str) -> None:
    """B065: in the middle of a restore the cap wants the file's room, or somebody removes it."""
    body = numbered(65, 1500)

    async def scenario() -> None:
        (expected,) = await cold(body)
        disk = FaultDisk()
        async with serving(None, disk, *DISK) as server:
            await server.talk(body, max_tokens=8)
            await server.flush()
        disk = disk.kill()
        path, size = file_of(disk, 1500), len(disk.files()[file_of(disk, 1500)])
        disk.short_read_bytes = size // 20
        async with serving(None, disk, *DISK, f"cache.ssd.max={size + size // 2}B") as server:
            gate = Gate(disk, "read")
            try:
                talk = asyncio.ensure_future(server.talk(body, max_tokens=8))
                await server.until(lambda _: gate.held > 0)
                gate.allow(10)
                await server.until(lambda _: gate.held > 10)
                if goes == "evicted":
                    await server.talk(numbered(66, 1500), max_tokens=8)
                    await server.call("POST", "/admin/cache/flush")
                    assert path not in disk.files()
                else:
                    disk.unlink(path)
            finally:
                gate.open()
            answer = await talk
            assert (answer.text, answer.tier, answer.cached) == (expected, "ssd", answer.whole)
            stats = await server.stats()
            assert stats["ssd_cache"]["corrupt"] == stats["ssd_cache"]["restore_failures"] == 0
            assert (await server.talk(body, max_tokens=8)).text == expected

    run(scenario())


# --- writes -----------------------------------------------------------------------------------------


def test_b032_what_waits_for_a_slow_disk_is_still_served() -> None:
    """B032: ten prompts, RAM for three, a writer that stands still: the first prompt is still a hit."""

    async def scenario() -> None:
        disk = FaultDisk()
        settings = (*DISK, "cache.ram.max=450KB", "cache.ram.hard_max=64MB")
        async with serving(None, disk, *settings) as server:
            gate = Gate(disk, "sync")
            try:
                answers = [await server.talk(numbered(n, 200), max_tokens=4) for n in range(10)]
                again = await server.talk(numbered(0, 200), max_tokens=4)
                assert (again.text, again.cached) == (answers[0].text, again.whole)
                assert (await server.part("ssd_cache"))["pending_spills"] > 0
            finally:
                gate.open()
            await server.flush()
            cache = await server.part("prompt_cache")
            assert cache["lost"] == 0
            assert cache["bytes"] <= cache["max_bytes"]
            # Now it is on disk only, or still in RAM.
            assert (await server.talk(numbered(0, 200), max_tokens=4)).cached == again.whole

    run(scenario())


def test_b034_what_is_written_slowly_is_what_was_published() -> None:
    """B034: a prompt's state waits for the disk while its row decodes on and others start from it."""
    body = numbered(34, 300)

    async def at_once() -> dict[str, Any]:
        disk = FaultDisk()
        async with serving(None, disk, *DISK) as server:
            await server.talk(body, max_tokens=1)
            await server.flush()
        return contents(disk, 300)

    async def scenario() -> None:
        expected = await at_once()
        (text,) = await cold(body, max_tokens=200)
        disk = FaultDisk()
        async with serving(None, disk, *DISK) as server:
            gate = Gate(disk, "create")
            try:
                long_reply = asyncio.ensure_future(server.talk(body, max_tokens=200))
                await server.until(lambda stats: stats["prompt_cache"]["entries"] == 1)
                second = await server.talk(body, max_tokens=20)
                assert (second.text, second.cached) == (text[:20], second.whole)
                assert not kv_files(disk)
                gate.allow(1)
                await server.until(lambda _: len(kv_files(disk)) == 1 or long_reply.done())
                assert (await long_reply).text == text
            finally:
                gate.open()
            await server.flush()
        disk = disk.kill()
        assert contents(disk, 300) == expected
        async with serving(None, disk, *DISK) as server:
            again = await server.talk(body, max_tokens=200)
            assert (again.tier, again.text, again.cached) == ("ssd", text, again.whole)

    run(scenario())


def contents(disk: FaultDisk, tokens: int) -> dict[str, Any]:
    """Return the first rows of every tensor of the file that serves so many tokens."""
    path = file_of(disk, tokens)
    stored, data = read_header(disk, path), disk.files()[path]
    return {
        f"{place} {tensor.name}": _rows(
            data[stored.data_start + lies.offset :][: lies.nbytes], tensor.shape, tokens
        )
        for place, (tensor, lies) in enumerate(zip(stored.header.spec.tensors(), stored.tensors, strict=True))
    }


def _rows(data: bytes, shape: tuple[int, ...], tokens: int) -> list[bytes]:
    """Return each head's rows of the first tokens: shape is (1, heads, tokens, width)."""
    _, heads, held, _ = shape
    stride = len(data) // heads
    row = stride // held
    return [data[head * stride : head * stride + tokens * row] for head in range(heads)]


def test_b053_a_full_disk_costs_no_reply_and_recovers() -> None:
    """B053: the oldest files go first, writes that fail are told once, all is durable when space returns."""

    async def scenario() -> None:
        disk = FaultDisk(capacity_bytes=600_000)
        expected = await cold(*[numbered(n, 200) for n in range(12)])
        with logged() as log:
            async with serving(None, disk, *DISK) as server:
                for number in range(6):
                    assert (await server.talk(numbered(number, 200), max_tokens=8)).text == expected[number]
                    _, report = await server.call("POST", "/admin/cache/flush")
                    assert report["failed"] == 0
                    assert report["durable"] or "make room" in report["reason"]
                assert disk.used_bytes <= 600_000
                files = await server.part("ssd_cache")
                assert files["evictions"] > 0
                assert 0 < files["entries"] < 6
                fault = disk.fail_kind("write", errno.ENOSPC)
                for number in range(6, 12):
                    assert (await server.talk(numbered(number, 200), max_tokens=8)).text == expected[number]
                status, report = await server.call("POST", "/admin/cache/flush")
                assert (status, report["durable"]) == (503, False)
                assert report["failed"] >= 1
                assert (await server.talk(numbered(11, 200), max_tokens=8)).text == expected[11]
                fault.clear()
                _, report = await server.call("POST", "/admin/cache/flush")
                assert (report["failed"], report["flushed"] > 0) == (0, True)
                assert "make room" in report["reason"]
            assert len(log.lines("cache_write_failing")) == 1

    run(scenario())


# --- files that are not there -------------------------------------------------------------------------


def test_b070_nothing_to_save_and_a_missing_file_harm_nothing() -> None:
    """B070: an empty flush, an unknown session, and a file that is gone while RAM has the same prefix."""
    body = numbered(70, 300)

    async def scenario() -> None:
        disk = FaultDisk()
        async with serving(None, disk, *DISK) as server:
            report = await server.flush()
            assert (report["entries"], report["flushed"]) == (0, 0)
            status, closed = await server.call("POST", "/admin/sessions/close", {"session_id": "nobody"})
            assert (status, closed["closed"]) == (200, False)
            answer = await server.talk(body, max_tokens=4)
            await server.flush()
            for path in kv_files(disk):
                disk.unlink(path)
            again = await server.talk(body, max_tokens=4)
            assert (again.tier, again.cached, again.text) == ("ram", again.whole, answer.text)

    run(scenario())


def test_b062_a_file_removed_by_hand_is_a_miss_and_written_again() -> None:
    """B062: durable in both tiers, then somebody deletes the file, then RAM lets go."""
    body = numbered(62, 300)

    async def scenario() -> None:
        (expected,) = await cold(body)
        disk = FaultDisk()
        async with serving(None, disk, *DISK) as server:
            await server.talk(body, max_tokens=8)
            await server.flush()
            disk.unlink(file_of(disk, 300))
            await server.to_disk()
            answer = await server.talk(body, max_tokens=8)
            assert (answer.text, answer.tier, answer.miss_reason) == (expected, "none", "restore_failed")
            await server.flush()
            assert file_of(disk, 300)

    run(scenario())


def written(stats: Any) -> bool:
    return stats["ssd_cache"]["pending_snapshots"] == 0


def test_b062_what_the_cap_takes_from_disk_counts_as_durable_no_more() -> None:
    """B062: the disk's cap takes a file that RAM still has; then RAM has to let go; then it is asked for."""
    bodies = [numbered(number, 300) for number in range(8)]

    async def scenario() -> None:
        disk = FaultDisk()
        async with serving(None, None, *DISK[1:]) as server:
            for body in bodies[:3]:
                await server.talk(body, max_tokens=8)
            # How much room its buffers have depends on how a prompt was cut.
            _, page = await server.call("GET", "/admin/cache?tier=ram")
            one = max(entry["bytes"] for entry in page["entries"])
        room = (f"cache.ram.max={7 * one + one // 2}B", f"cache.ram.hard_max={20 * one}B")
        async with serving(None, disk, *DISK, *room, "cache.ssd.max=1MiB") as server:
            first = await server.talk(bodies[0], max_tokens=8)
            for body in bodies[1:7]:
                await server.until(written)
                await server.talk(body, max_tokens=8)
            stats = await server.until(written)
            assert token_file(disk, bodies[0]) is None
            cache, files = stats["prompt_cache"], stats["ssd_cache"]["entries"]
            assert (cache["entries"], cache["undurable"]) == (7, 7 - files)
            again = await server.talk(bodies[0], max_tokens=8)
            assert (again.text, again.tier, again.cached) == (first.text, "ram", again.whole)
            for body in bodies:
                await server.talk(body, max_tokens=8)
                stats = await server.until(written)
                assert stats["prompt_cache"]["lost"] == 0
            assert stats["prompt_cache"]["evictions"] > 0
            assert (await server.talk(bodies[0], max_tokens=8)).text == first.text

    run(scenario())


def test_b062_a_durable_flush_is_true_also_when_the_cap_is_smaller_than_what_is_published() -> None:
    """B062, DESIGN §6: what a flush acknowledged is there after SIGKILL, or the flush says what is not."""
    bodies = [numbered(number, 300) for number in range(7)]

    async def scenario() -> None:
        disk = FaultDisk()
        async with serving(None, disk, *DISK, "cache.ssd.max=1MiB") as server:
            for body in bodies:
                await server.talk(body, max_tokens=8)
            _, report = await server.call("POST", "/admin/cache/flush")
            there = [token_file(disk, body) is not None for body in bodies]
        assert all(there) or report["missing"] + report["dropped"] > 0 or not report["durable"]

    run(scenario())


def test_b002_a_file_that_holds_another_prefix_is_not_believed() -> None:
    """B002: two files change places behind the server's back: tokens are compared, so it is a miss."""
    bodies = [numbered(number, 300) for number in (1, 2)]

    async def scenario() -> None:
        expected = await cold(*bodies)
        disk = FaultDisk()
        async with serving(None, disk, *DISK) as server:
            for body in bodies:
                await server.talk(body, max_tokens=8)
            await server.flush()
            await server.to_disk()
            one, other = (token_file(disk, body) for body in bodies)
            assert one is not None
            assert other is not None
            files = disk.files()
            assert len(files[one]) == len(files[other])
            disk.put(one, files[other])
            disk.put(other, files[one])
            answers = [await server.talk(body, max_tokens=8) for body in bodies]
            assert [answer.text for answer in answers] == expected
            assert [answer.cached for answer in answers] == [0, 0]
            assert (await server.part("ssd_cache"))["restore_failures"] == 2

    run(scenario())


def test_states_of_the_scripted_engine_tell_torn_ones() -> None:
    """What other tests here rely on: a wrong byte fails a scripted row instead of passing unseen."""

    async def scenario() -> None:
        disk = FaultDisk()
        async with serving(FakeEngine(), disk, *DISK) as server:
            await server.talk("hello there, old friend", max_tokens=4)
            await server.flush()
        disk = disk.kill()
        for path in kv_files(disk):
            data = bytearray(disk.files()[path])
            data[-1] ^= 1
            disk.put(path, bytes(data))
        body = {"messages": [user("hello there, old friend")], "max_tokens": 4}
        async with serving(FakeEngine(), disk, *DISK, "cache.ssd.verify=off") as server:
            status, _ = await server.call("POST", "/v1/chat/completions", body)
            assert status == 500
        async with serving(FakeEngine(), disk, *DISK) as server:
            assert (await server.talk("hello there, old friend", max_tokens=4)).cached == 0

    run(scenario())
