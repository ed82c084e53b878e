"""What a start could not list or sync: not lost, not served before it is durable, and within the cap."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from samovar.storage.directory import CheckpointDirectory
from samovar.storage.directory_errors import NoRoom
from samovar.storage.entry import namespace_folder
from samovar.storage.identity import Identity
from samovar.storage.room import Limits

from tests.kit.disk import FaultDisk
from tests.kit.stored import content_of, read_back, spec_of, store, write_published, write_reserved

if TYPE_CHECKING:
    from samovar.storage.spec import CheckpointSpec

    from tests.kit.faults import Fault

ROOT = Path("/cache")
IDENTITY = Identity("a" * 32, {"model": "llama"})
FOLDER = ROOT / IDENTITY.id
FILE_BYTES = 50_000  # about what a branch takes
NO_LIMITS = Limits(max_bytes=0, free_floor=0.0)


def _directory(disk: FaultDisk, limits: Limits = NO_LIMITS, now_s: float = 2000.0) -> CheckpointDirectory:
    return CheckpointDirectory(disk, ROOT, IDENTITY, limits, lambda: now_s)


def _branch(number: int, namespace: str = "") -> CheckpointSpec:
    return spec_of([number * 1000 + place for place in range(20)], namespace)


def _numbers(directory: CheckpointDirectory) -> list[int]:
    """Return the branches that can be found, least recently used first."""
    return [entry.tokens[0] // 1000 for entry in directory.entries()]


def _filled(*specs: CheckpointSpec) -> FaultDisk:
    """Return the disk of a process that stored these and was killed."""
    disk = FaultDisk()
    directory = _directory(disk, now_s=1000.0)
    directory.open()
    for spec in specs:
        store(disk, directory, spec)
    return disk.kill()


def _fail(disk: FaultDisk, kind: str, folder: Path) -> Fault:
    return disk.fail_when(lambda op: op.kind == kind and op.path == folder, errno.EIO)


def _recovered(directory: CheckpointDirectory, fault: Fault) -> None:
    fault.clear()
    report = directory.recover()
    assert report.failures == ()
    assert report.entries == len(directory.entries())
    directory.check_integrity()
    figures = directory.figures()
    assert (figures.unrecovered, figures.unread_bytes) == (0, 0)


@pytest.mark.parametrize(
    ("kind", "folder"),
    [
        ("sync_folder", FOLDER / "base"),
        ("list", FOLDER / "base"),
        ("list", FOLDER),
        ("list", ROOT),
        ("list", FOLDER / "tmp"),
        ("list", ROOT / "quarantine"),
    ],
)
def test_what_a_start_could_not_do_is_done_later(kind: str, folder: Path) -> None:
    disk = _filled(_branch(1), _branch(2), _branch(3, "lora"))
    disk.put(ROOT / "stranger", b"x" * 1000)
    disk.put(FOLDER / "base" / "notes.txt", b"x" * 100)
    disk.put(FOLDER / "tmp" / "left.tmp", b"x" * 10)
    disk.put(ROOT / "quarantine" / "bad", b"x")
    fault = _fail(disk, kind, folder)
    directory = _directory(disk)
    report = directory.open()
    assert len(report.failures) >= 1
    assert directory.figures().unrecovered == len(report.failures)
    again = directory.recover()
    assert again.failures == report.failures
    store(disk, directory, _branch(4, "lora"))
    _recovered(directory, fault)
    assert _numbers(directory) == [1, 2, 3, 4]
    for entry, number in zip(directory.entries(), range(1, 5), strict=True):
        assert read_back(disk, entry) == content_of(_branch(number, entry.namespace))
    figures = directory.figures()
    assert figures.foreign_bytes == 1100  # once each, however many passes there were
    assert figures.problems == {"unknown_file": 1}
    assert figures.quarantined_bytes == 1
    assert FOLDER / "tmp" / "left.tmp" not in disk.files()


def test_a_name_that_no_sync_has_made_durable_is_neither_found_nor_covers() -> None:
    """A process died between a file's rename and its folder's sync: nobody acknowledges it before a sync."""
    disk, spec = FaultDisk(), _branch(1)
    first = _directory(disk)
    first.open()
    reservation = first.reserve(spec)
    unsynced = _fail(disk, "sync_folder", reservation.final_path.parent)
    with pytest.raises(OSError, match="error"):
        write_published(disk, first, reservation, spec, 1.0)
    unsynced.clear()
    disk = disk.kill()
    fault = _fail(disk, "sync_folder", reservation.final_path.parent)
    directory = _directory(disk)
    directory.open()
    assert reservation.final_path in disk.files()
    assert not directory.covers(spec.tokens, "")
    _recovered(directory, fault)
    assert directory.covers(spec.tokens, "")
    for seed in range(20):
        assert reservation.final_path in disk.crash(seed).files()


def test_files_of_a_folder_that_was_not_synced_count_towards_the_cap() -> None:
    disk = _filled(*map(_branch, range(3)))
    fault = _fail(disk, "sync_folder", FOLDER / "base")
    directory = _directory(disk, Limits(int(3.5 * FILE_BYTES), 0.0))
    directory.open()
    assert directory.figures().total_bytes == directory.figures().unread_bytes > 2 * FILE_BYTES
    with pytest.raises(NoRoom):
        directory.reserve(_branch(3, "lora"))
    _recovered(directory, fault)
    store(disk, directory, _branch(3, "lora"))
    assert _numbers(directory) == [1, 2, 3]


def test_the_cap_is_kept_once_a_folder_can_be_listed_and_the_oldest_go() -> None:
    disk = _filled(*map(_branch, range(3)))
    fault = _fail(disk, "list", FOLDER / "base")
    directory = _directory(disk, Limits(int(3.5 * FILE_BYTES), 0.0))
    directory.open()
    for number in (3, 4):
        store(disk, directory, _branch(number, "lora"))
    _recovered(directory, fault)
    assert _numbers(directory) == [2, 3, 4]
    assert {gone.entry.tokens[0] // 1000 for gone in directory.withdrawn()} == {0, 1}
    figures = directory.figures()
    assert (
        sum(len(data) for path, data in disk.files().items() if path.suffix == ".kv") == figures.entry_bytes
    )


def test_a_failed_write_removes_no_file_that_could_not_be_taken_up() -> None:
    disk = _filled(_branch(1))
    fault = _fail(disk, "sync_folder", FOLDER / "base")
    directory = _directory(disk)
    directory.open()
    reservation = directory.reserve(_branch(1))
    with pytest.raises(OSError, match="error"):
        write_reserved(disk, directory, reservation, _branch(1), 2.0)
    _recovered(directory, fault)
    assert _numbers(directory) == [1]


@pytest.mark.parametrize("folder", [FOLDER / "base", FOLDER / "tmp"])
def test_what_is_being_written_is_left_alone(folder: Path) -> None:
    disk = _filled(_branch(1))
    fault = _fail(disk, "list", folder)
    directory = _directory(disk)
    directory.open()
    new, written = directory.reserve(_branch(2, "lora")), directory.reserve(_branch(3))
    stored = write_published(disk, directory, written, _branch(3), 1.0)
    disk.put(new.temp_path, b"half a file")
    _recovered(directory, fault)
    assert _numbers(directory) == [1]
    assert disk.files()[new.temp_path] == b"half a file"
    directory.commit(written, stored)
    disk.unlink(new.temp_path)
    write_reserved(disk, directory, new, _branch(2, "lora"), 1.0)  # its folder, which was empty, is there
    assert _numbers(directory) == [1, 3, 2]


def test_equal_tokens_that_were_stored_meanwhile_win() -> None:
    disk = _filled(_branch(1))
    fault = _fail(disk, "sync_folder", FOLDER / "base")
    directory = _directory(disk)
    directory.open()
    reservation = directory.reserve(_branch(1))
    fault.clear()
    stored = write_published(disk, directory, reservation, _branch(1), 0.5)
    directory.commit(reservation, stored)
    _recovered(directory, fault)
    assert [entry.path for entry in directory.entries()] == [reservation.final_path]
    assert [path for path in disk.files() if path.suffix == ".kv"] == [reservation.final_path]


@pytest.mark.parametrize("kind", ["list", "sync_folder"])
@pytest.mark.parametrize("namespace", [None, "lora"])
def test_what_was_cleared_before_it_could_be_read_does_not_come_back(
    kind: str, namespace: str | None
) -> None:
    disk = _filled(_branch(1, "lora"), _branch(2))
    fault = _fail(disk, kind, FOLDER / namespace_folder("lora"))
    directory = _directory(disk)
    directory.open()
    directory.clear(namespace)
    fault.clear()
    fresh = store(disk, directory, _branch(3, "lora"))
    directory.recover()
    left = [3] if namespace is None else [2, 3]
    assert _numbers(directory) == left
    directory.check_integrity()
    for seed in range(20):
        after = disk.crash(seed)
        again = _directory(after)
        again.open()
        assert sorted(_numbers(again)) == left  # the order of use is nobody's promise
        assert fresh.path in after.files()


def test_a_folder_that_was_removed_by_hand_counts_no_more() -> None:
    disk = _filled(_branch(1))
    fault = _fail(disk, "sync_folder", FOLDER / "base")
    directory = _directory(disk)
    directory.open()
    for path in [path for path in disk.files() if path.suffix == ".kv"]:
        disk.unlink(path)
    disk.remove_folder(FOLDER / "base")
    _recovered(directory, fault)
    assert directory.figures().total_bytes == 0
