"""The fault file system itself: what it promises is what the crash tests rest on."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest
from samovar.storage.fs import FileLocked

from tests.kit.disk import FaultDisk
from tests.kit.faults import PowerLoss

ROOT = Path("/cache")
FILE = ROOT / "file"
SEEDS = range(60)


def _disk(**options: int) -> FaultDisk:
    disk = FaultDisk(**options)
    disk.make_folder(ROOT)
    return disk


def _write(disk: FaultDisk, path: Path, data: bytes, *, sync: bool = True) -> None:
    file = disk.create(path)
    try:
        sent = 0
        while sent < len(data):
            sent += file.write([memoryview(data)[sent:]], sent)
        if sync:
            file.sync()
    finally:
        file.close()


def _read(disk: FaultDisk, path: Path, size_bytes: int, offset: int = 0) -> bytes:
    buffer = bytearray(size_bytes)
    file = disk.open(path)
    count = file.read([memoryview(buffer)], offset)
    file.close()
    return bytes(buffer[:count])


def test_missing_and_misused_names_raise_what_the_system_would() -> None:
    disk = _disk()
    _write(disk, FILE, b"x")
    for call, expected in (
        (lambda: disk.open(ROOT / "absent"), FileNotFoundError),
        (lambda: disk.unlink(ROOT / "absent"), FileNotFoundError),
        (lambda: disk.rename(ROOT / "absent", FILE), FileNotFoundError),
        (lambda: disk.create(ROOT / "absent" / "file"), FileNotFoundError),
        (lambda: disk.create(FILE), FileExistsError),
        (lambda: disk.unlink(ROOT), IsADirectoryError),
        (lambda: disk.sync_folder(FILE), NotADirectoryError),
        (lambda: disk.list(FILE), NotADirectoryError),
        (lambda: disk.make_folder(FILE / "below"), NotADirectoryError),
    ):
        with pytest.raises(expected):
            call()
    with pytest.raises(OSError, match="not empty"):
        disk.remove_folder(ROOT)
    assert disk.list(ROOT / "absent") == []


def test_a_file_opened_for_reading_cannot_be_written_nor_used_after_close() -> None:
    disk = _disk()
    _write(disk, FILE, b"abc")
    file = disk.open(FILE)
    with pytest.raises(OSError, match="descriptor"):
        file.write([memoryview(b"x")], 0)
    file.close()
    file.close()
    with pytest.raises(OSError, match="descriptor"):
        file.size()


def test_short_transfers_move_part_and_say_so() -> None:
    disk = _disk()
    disk.short_write_bytes = 3
    file = disk.create(FILE)
    assert file.write([memoryview(b"abcd"), memoryview(b"efgh")], 0) == 3
    file.close()
    disk.short_write_bytes, disk.short_read_bytes = None, 2
    assert _read(disk, FILE, 8) == b"ab"
    assert _read(disk, FILE, 8, offset=3) == b""


def test_the_nth_operation_fails_and_only_that() -> None:
    disk = _disk()
    disk.fail_at(2, errno.EIO)
    file = disk.create(FILE)
    with pytest.raises(OSError, match="Input/output") as caught:
        file.write([memoryview(b"x")], 0)
    assert caught.value.errno == errno.EIO
    assert file.write([memoryview(b"x")], 0) == 1
    assert [operation.kind for operation in disk.log][-3:] == ["create", "write", "write"]


def test_operations_fail_by_what_they_are_as_often_as_told() -> None:
    disk = _disk()
    for name in ("a", "b"):
        _write(disk, ROOT / name, b"x")
    fault = disk.fail_when(lambda call: call.kind == "unlink" and call.path.name == "a", errno.EPERM, times=2)
    for _ in range(2):
        with pytest.raises(PermissionError):
            disk.unlink(ROOT / "a")
    disk.unlink(ROOT / "b")
    disk.unlink(ROOT / "a")
    assert fault.hits == 2
    forever = disk.fail_kind("list", errno.EBUSY)
    with pytest.raises(OSError, match="busy"):
        disk.list(ROOT)
    forever.clear()
    assert disk.list(ROOT) == []


def test_a_full_disk_writes_what_fits_then_fails_and_recovers_by_unlink() -> None:
    disk = _disk(capacity_bytes=10)
    file = disk.create(FILE)
    assert file.write([memoryview(b"x" * 16)], 0) == 10
    with pytest.raises(OSError, match="No space") as caught:
        file.write([memoryview(b"x")], 10)
    assert caught.value.errno == errno.ENOSPC
    assert file.write([memoryview(b"y" * 10)], 0) == 10  # no growth, no need
    disk.unlink(FILE)
    assert disk.space(ROOT).free_bytes == 0  # still open
    file.close()
    assert disk.space(ROOT).free_bytes == 10


def test_replaced_files_give_their_room_back() -> None:
    disk = _disk(capacity_bytes=100)
    _write(disk, ROOT / "old", b"x" * 30)
    _write(disk, ROOT / "new", b"x" * 20)
    disk.rename(ROOT / "new", ROOT / "old")
    assert disk.space(ROOT).free_bytes == 80
    assert disk.files() == {ROOT / "old": b"x" * 20}


def test_the_plug_stays_pulled() -> None:
    disk = _disk()
    file = disk.create(FILE)
    disk.stop_at(1)
    for call in (file.sync, lambda: disk.list(ROOT), lambda: disk.unlink(FILE)):
        with pytest.raises(PowerLoss):
            call()
    file.close()
    assert disk.dead


def test_locks_name_their_holder_and_die_with_the_process() -> None:
    disk = _disk()
    held = disk.lock(ROOT / "LOCK")
    with pytest.raises(FileLocked, match="LOCK is locked by process 4711"):
        disk.lock(ROOT / "LOCK")
    held.release()
    held.release()
    disk.lock(ROOT / "LOCK")
    disk.kill().lock(ROOT / "LOCK")


def test_synced_file_under_a_synced_name_survives_every_power_loss() -> None:
    disk = _disk()
    _write(disk, ROOT / "temp", b"whole" * 300)
    disk.rename(ROOT / "temp", FILE)
    disk.sync_folder(ROOT)
    disk.touch(FILE, 77.0)
    for seed in SEEDS:
        assert disk.crash(seed).files() == {FILE: b"whole" * 300}


def test_renames_between_folders_never_lose_the_file() -> None:
    disk = _disk()
    disk.make_folder(ROOT / "tmp")
    _write(disk, ROOT / "tmp" / "t", b"data")
    disk.sync_folder(ROOT / "tmp")
    disk.rename(ROOT / "tmp" / "t", FILE)
    seen = {frozenset(disk.crash(seed).files()) for seed in SEEDS}
    assert seen == {frozenset({ROOT / "tmp" / "t"}), frozenset({FILE}), frozenset({FILE, ROOT / "tmp" / "t"})}
    disk.sync_folder(ROOT)
    assert all(disk.crash(seed).files()[FILE] == b"data" for seed in SEEDS)


def test_unsynced_names_and_bytes_survive_wholly_partly_or_not() -> None:
    disk = _disk()
    _write(disk, ROOT / "synced", b"old" * 512)
    disk.sync_folder(ROOT)
    _write(disk, ROOT / "nameless", b"x")
    file = disk.create(FILE)
    disk.sync_folder(ROOT)
    file.write([memoryview(b"n" * 2048)], 0)
    disk.unlink(ROOT / "synced")
    after = [disk.crash(seed).files() for seed in SEEDS]
    assert all(ROOT / "nameless" in found for found in after)  # made durable by the same folder sync
    assert {ROOT / "synced" in found for found in after} == {True, False}
    contents = {found[FILE] for found in after}
    assert {b"", b"n" * 2048} < contents
    assert any(
        0 < content.count(b"n") < 2048 and len(content) == 2048 for content in contents
    )  # zeros within
    assert any(0 < len(content) < 2048 for content in contents)


def test_a_failed_sync_loses_the_bytes_for_good() -> None:
    disk = _disk()
    file = disk.create(FILE)
    disk.sync_folder(ROOT)
    file.write([memoryview(b"lost")], 0)
    disk.fail_kind("sync", errno.EIO, times=1)
    with pytest.raises(OSError, match="Input/output"):
        file.sync()
    file.sync()  # reports success and persists nothing: the pages are clean
    file.close()
    assert _read(disk, FILE, 4) == b"lost"
    assert {disk.crash(seed).files()[FILE] for seed in SEEDS} == {b""}


def test_a_dead_process_leaves_all_that_it_wrote_still_unsynced() -> None:
    disk = _disk()
    _write(disk, FILE, b"data", sync=False)
    after = disk.kill()
    assert after.files() == {FILE: b"data"}
    lost = {len(after.crash(seed).files()) for seed in SEEDS}
    assert lost == {0, 1}


def test_a_killed_process_frees_the_room_of_unnamed_files() -> None:
    disk = _disk(capacity_bytes=10)
    file = disk.create(FILE)
    file.write([memoryview(b"x" * 10)], 0)
    disk.unlink(FILE)
    assert disk.kill().space(ROOT).free_bytes == 10


def test_the_same_seed_leaves_the_same_disk() -> None:
    disk = _disk()
    for name in "abcdef":
        _write(disk, ROOT / name, name.encode() * 900, sync=False)
    assert disk.crash(5).files() == disk.crash(5).files()
    assert len({frozenset(disk.crash(seed).files().items()) for seed in SEEDS}) > 10


def test_a_slow_operation_holds_nobody_else() -> None:
    disk = _disk()
    _write(disk, FILE, b"x")
    entered, release = threading.Event(), threading.Event()

    def wait(operation: object) -> None:
        if threading.current_thread() is slow:
            entered.set()
            assert release.wait(10)

    slow = threading.Thread(target=lambda: disk.sync_folder(ROOT))
    disk.hook = wait
    slow.start()
    assert entered.wait(10)
    assert _read(disk, FILE, 1) == b"x"
    release.set()
    slow.join(10)
    assert not slow.is_alive()


def test_many_threads_lose_no_count_and_no_room() -> None:
    disk = _disk(capacity_bytes=1 << 20)
    before = disk.count

    def churn(name: str) -> None:
        for _ in range(50):
            _write(disk, ROOT / name, b"x" * 100)
            disk.unlink(ROOT / name)

    threads = [threading.Thread(target=churn, args=(f"t{place}",)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert disk.count - before == 4 * 50 * 4
    assert disk.used_bytes == 0
