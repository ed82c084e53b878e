"""The SSD directory: what it finds, what it keeps, what survives a restart. Names tell the case."""

from __future__ import annotations

import errno
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from samovar.storage import entry as naming
from samovar.storage.container import write_container
from samovar.storage.directory import CheckpointDirectory
from samovar.storage.directory_errors import DirectoryClosed, DirectoryError, NoRoom, ReservationVoid
from samovar.storage.entry import FILE_SUFFIX, key_digest, namespace_folder
from samovar.storage.front import FIRST_READ_BYTES
from samovar.storage.fs import FileLocked
from samovar.storage.identity import Identity
from samovar.storage.room import Limits
from samovar.storage.tokens import TokenIds

from tests.kit.disk import FaultDisk
from tests.kit.stored import content_of, read_back, spec_of, store, write_reserved

if TYPE_CHECKING:
    from tests.kit.disk_file import DiskFile

ROOT = Path("/cache")
IDENTITY = Identity("a" * 32, {"model": "llama", "scheme": "bf16"})
FILE_BYTES = 50_000  # about what spec_of(range(20)) takes: three aligned sections and a little
NO_LIMITS = Limits(max_bytes=0, free_floor=0.0)


def _open(
    disk: FaultDisk, limits: Limits = NO_LIMITS, *, identity: Identity = IDENTITY, now_s: float = 1000.0
) -> CheckpointDirectory:
    directory = CheckpointDirectory(disk, ROOT, identity, limits, lambda: now_s)
    directory.open()
    return directory


def _cap(entries: float, **more: float) -> Limits:
    return Limits(max_bytes=int(entries * FILE_BYTES), free_floor=more.get("free_floor", 0.0))


def _tokens(*ids: int) -> TokenIds:
    return TokenIds.of(ids)


def _branch(number: int, length: int = 20) -> list[int]:
    """Return token ids that share nothing with another number's."""
    return [number * 1000 + place for place in range(length)]


def _numbers(directory: CheckpointDirectory) -> list[int]:
    """Return the branches that are stored, least recently used first."""
    return [entry.tokens[0] // 1000 for entry in directory.entries()]


def _reopened(
    directory: CheckpointDirectory, disk: FaultDisk, limits: Limits = NO_LIMITS
) -> CheckpointDirectory:
    directory.close()
    directory.check_integrity()
    again = _open(disk, limits)
    again.check_integrity()
    return again


# -- refusals and failures first


def test_b047_second_owner_is_refused_by_name_and_the_lock_dies_with_its_process() -> None:
    disk = FaultDisk(holder="1234")
    first = _open(disk)
    second = CheckpointDirectory(disk, ROOT, Identity("b" * 32), NO_LIMITS)
    with pytest.raises(FileLocked, match=r"/cache/LOCK is locked by process 1234"):
        second.open()
    _open(disk.kill())
    first.close()
    first.close()
    second.open()


def test_a_closed_directory_refuses_and_a_double_open_is_an_error() -> None:
    disk = FaultDisk()
    directory = CheckpointDirectory(disk, ROOT, IDENTITY, NO_LIMITS)
    with pytest.raises(DirectoryClosed):
        directory.reserve(spec_of([1]))
    directory.open()
    with pytest.raises(DirectoryError, match="opened before"):
        directory.open()
    directory.close()
    with pytest.raises(DirectoryClosed):
        directory.clear()


def test_a_root_that_cannot_be_made_leaves_no_lock() -> None:
    disk = FaultDisk()
    fault = disk.fail_kind("lock", errno.EACCES)
    with pytest.raises(PermissionError):
        _open(disk)
    fault.clear()
    _open(disk)


@pytest.mark.parametrize(
    "kind", ["list", "create", "sync_folder", "rename", "space", "touch", "unlink", "sync"]
)
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EPERM])
def test_no_disk_error_stops_a_start(kind: str, number: int) -> None:
    disk = FaultDisk()
    directory = _open(disk)
    kept = store(disk, directory, spec_of(_branch(1)))
    disk.put(ROOT / IDENTITY.id / "tmp" / "left.tmp", b"x")
    disk.put(kept.path.with_name("bad.kv"), b"x")
    directory.close()
    again = CheckpointDirectory(disk, ROOT, replace(IDENTITY, fields={"model": "other"}), NO_LIMITS)
    fault = disk.fail_kind(kind, number)
    again.open()
    fault.clear()
    again.check_integrity()
    again.close()
    last = _open(disk)
    assert read_back(disk, last.entries()[0]) == content_of(spec_of(_branch(1)))


def test_b022_files_of_a_wrong_length_are_never_served_and_the_scan_goes_on() -> None:
    disk = FaultDisk()
    directory = _open(disk)
    entries = [store(disk, directory, spec_of(_branch(number))) for number in range(6)]
    directory.close()
    whole = disk.files()
    for entry, damage in zip(
        entries,
        (
            lambda data: data[:-1],
            lambda data: data[: len(data) // 2],
            lambda data: data[:16384],
            lambda data: b"",
            lambda data: data + b"0123456789",
        ),
        strict=False,
    ):
        disk.put(entry.path, damage(whole[entry.path]))
    again = CheckpointDirectory(disk, ROOT, IDENTITY, NO_LIMITS)
    report = again.open()
    assert _numbers(again) == [5]
    assert report.problems["truncated_container"].files == 5
    assert again.figures().corrupt == 5
    assert again.figures().quarantined == 5
    names = sorted(path.name for path in disk.files() if path.parent == ROOT / "quarantine")
    assert names == sorted(f"truncated_container~{IDENTITY.id}~{entry.path.name}" for entry in entries[:5])
    again.close()
    assert _open(disk).figures().corrupt == 0  # they do not come back


def test_b095_one_bad_entry_is_lost_alone_and_growth_goes_on() -> None:
    disk = FaultDisk()
    directory = _open(disk)
    entries = [store(disk, directory, spec_of(_branch(number))) for number in range(10)]
    bad = directory.quarantine(entries[3].id, "corrupt_tensor")
    assert bad is not None
    assert directory.quarantine(entries[3].id, "corrupt_tensor") is None
    assert [one.entry.id for one in directory.withdrawn()] == [entries[3].id]
    assert directory.withdrawn() == ()
    assert sorted(_numbers(directory)) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    for length in range(25, 50, 5):
        store(disk, directory, spec_of(_branch(4, length)))
        match = directory.find(TokenIds.of(_branch(4, length + 1)), "")
        assert match is not None
        assert match.length == length
    assert len(directory.entries()) == 9
    again = _reopened(directory, disk)
    assert len(again.entries()) == 9
    assert not again.covers(TokenIds.of(_branch(3)), "")


def test_quarantine_is_bounded_and_drops_its_oldest() -> None:
    disk = FaultDisk()
    limits = Limits(max_bytes=0, free_floor=0.0, quarantine_max_bytes=int(2.5 * FILE_BYTES))
    directory = _open(disk, limits)
    entries = [store(disk, directory, spec_of(_branch(number))) for number in range(4)]
    for entry in entries:
        directory.quarantine(entry.id, "Why, that's bad!")
    kept = [path.name for path in disk.files() if path.parent.name == "quarantine"]
    assert sorted(kept) == sorted(f"why_that_s_bad_~{IDENTITY.id}~{entry.path.name}" for entry in entries[2:])
    assert directory.figures().quarantined_bytes <= limits.quarantine_max_bytes
    assert directory.figures().corrupt == 4
    tight = replace(limits, quarantine_max_bytes=FILE_BYTES + 5000)
    assert _reopened(directory, disk, tight).figures().quarantined == 1


def test_a_bad_file_that_cannot_be_moved_stays_unused_and_goes_first() -> None:
    disk = FaultDisk()
    directory = _open(disk, _cap(3.2))
    bad, good = (store(disk, directory, spec_of(_branch(number))) for number in range(2))
    faults = [disk.fail_kind(kind, errno.EPERM) for kind in ("rename", "unlink")]
    directory.quarantine(bad.id, "corrupt_tensor")
    for fault in faults:
        fault.clear()
    assert bad.path in disk.files()
    assert directory.figures().outdated_bytes == bad.file_bytes
    for number in (2, 3):
        store(disk, directory, spec_of(_branch(number)))
    assert bad.path not in disk.files()
    assert good in directory.entries()


def test_misplaced_and_foreign_headers_are_not_believed_by_the_name_of_a_folder() -> None:
    disk = FaultDisk()
    other = Identity("b" * 32)
    directory = _open(disk, identity=other)
    stranger = store(disk, directory, spec_of(_branch(1)))
    directory.close()
    directory = _open(disk)
    ours = store(disk, directory, spec_of(_branch(2), "lora"))
    directory.close()
    base = ROOT / IDENTITY.id / "base"
    disk.put(base / stranger.path.name, disk.files()[stranger.path])
    disk.put(base / ours.path.name, disk.files()[ours.path])
    again = CheckpointDirectory(disk, ROOT, IDENTITY, NO_LIMITS)
    report = again.open()
    assert {code: tally.files for code, tally in report.problems.items()} == {
        "wrong_identity": 1,
        "misplaced": 1,
    }
    assert [entry.path for entry in again.entries()] == [ours.path]
    assert stranger.path in disk.files()


def test_two_files_of_one_name_in_two_namespaces_do_not_meet() -> None:
    disk = FaultDisk()
    directory = _open(disk)
    first = store(disk, directory, spec_of(_branch(1)))
    second = store(disk, directory, spec_of(_branch(2), "lora"))
    directory.close()
    disk.put(second.path.with_name(first.path.name), disk.files()[second.path])
    disk.unlink(second.path)
    again = CheckpointDirectory(disk, ROOT, IDENTITY, NO_LIMITS)
    report = again.open()
    assert len(again.entries()) == 1
    assert report.problems["duplicate_id"].files == 1


# -- room


def test_b050_the_cap_holds_for_the_whole_root_and_foreign_files_are_left_alone() -> None:
    disk = FaultDisk()
    directory = _open(disk, _cap(5.5))
    theirs = [store(disk, directory, spec_of(_branch(number))) for number in range(3)]
    directory.close()
    disk.put(ROOT / "old-format.bin", b"x" * 1000)
    limits = _cap(5.5)
    for restart in range(3):
        other = CheckpointDirectory(
            disk, ROOT, Identity("b" * 32, {"model": "gemma", "scheme": "bf16"}), limits
        )
        report = other.open()
        store(disk, other, spec_of(_branch(10 + restart)))
        figures = other.figures()
        assert figures.total_bytes == sum(map(len, disk.files().values())) - _bookkeeping(disk)
        assert figures.total_bytes <= limits.max_bytes
        assert {folder.name: folder.tally.files for folder in report.foreign} == {"": 1, IDENTITY.id: 4}
        other.close()
    assert all(entry.path in disk.files() for entry in theirs)


def _bookkeeping(disk: FaultDisk) -> int:
    """Bytes of the files that are nobody's entries: the lock and the second identity's description."""
    return sum(
        len(data)
        for path, data in disk.files().items()
        if path in {ROOT / "LOCK", ROOT / ("b" * 32) / "identity.json"}
    )


def test_b050_foreign_files_that_fill_the_cap_refuse_every_write_and_evict_nothing() -> None:
    disk = FaultDisk()
    directory = _open(disk, _cap(3))
    kept = store(disk, directory, spec_of(_branch(1)))
    directory.close()
    disk.put(ROOT / "elsewhere" / "big", b"x" * int(1.5 * FILE_BYTES))
    again = _open(disk, _cap(3))
    with pytest.raises(NoRoom, match="foreign") as caught:
        again.reserve(spec_of(_branch(2, 9000)))
    assert caught.value.reason == "cap"
    assert caught.value.retryable
    assert again.entries() == (kept,)


def test_b035_the_field_that_differs_is_named_and_nothing_of_the_other_is_touched() -> None:
    disk = FaultDisk()
    directory = _open(disk)
    entry = store(disk, directory, spec_of(_branch(1)))
    directory.close()
    changed = Identity("c" * 32, {"model": "llama", "scheme": "kv8", "drafter": "none"})
    other = CheckpointDirectory(disk, ROOT, changed, NO_LIMITS)
    (folder,) = other.open().foreign
    assert folder.name == IDENTITY.id
    assert folder.differs == ("drafter", "scheme")
    assert other.find(TokenIds.of([*_branch(1), 0]), "") is None
    other.close()
    assert _open(disk).entries() == (entry,)


def test_b052_a_lowered_cap_is_kept_at_start_in_stored_order_of_use() -> None:
    disk = FaultDisk()
    directory = _open(disk)
    entries = [store(disk, directory, spec_of(_branch(number))) for number in range(4)]
    assert directory.touch(entries[0].id)
    after = disk.kill()
    again = CheckpointDirectory(after, ROOT, IDENTITY, _cap(2.2))
    report = again.open()
    assert report.trimmed == 2
    assert _numbers(again) == [3, 0]
    assert again.figures().total_bytes <= _cap(2.2).max_bytes
    assert len([path for path in after.files() if path.suffix == ".kv"]) == 2


def test_b052_equal_mtimes_fall_back_to_the_order_of_creation() -> None:
    disk = FaultDisk()
    directory = _open(disk)
    for number in (3, 1, 2):
        store(disk, directory, spec_of(_branch(number)), created_s=100.0 - number)
    for entry in directory.entries():
        disk.touch(entry.path, 50.0)
    assert _numbers(_reopened(directory, disk)) == [3, 2, 1]


def test_least_recent_use_survives_restarts_and_a_clock_that_stands_still() -> None:
    disk = FaultDisk()
    directory = _open(disk)
    entries = [store(disk, directory, spec_of(_branch(number))) for number in range(4)]
    for place in (2, 0, 3):
        assert directory.touch(entries[place].id)
    assert _numbers(directory) == [1, 2, 0, 3]
    again = _reopened(directory, disk)
    assert _numbers(again) == [1, 2, 0, 3]
    again.touch(entries[1].id)
    assert _numbers(_reopened(again, disk)) == [2, 0, 3, 1]


def test_least_recently_used_entries_make_room() -> None:
    disk = FaultDisk()
    directory = _open(disk, _cap(3.2))
    entries = [store(disk, directory, spec_of(_branch(number))) for number in range(3)]
    directory.touch(entries[0].id)
    store(disk, directory, spec_of(_branch(3)))
    assert _numbers(directory) == [2, 0, 3]
    assert entries[1].path not in disk.files()
    assert directory.figures().evictions == 1
    assert [(one.entry.id, one.why) for one in directory.withdrawn()] == [(entries[1].id, "evicted")]


def test_reservations_count_before_a_byte_is_written() -> None:
    disk = FaultDisk()
    directory = _open(disk, _cap(2.2))
    held = [directory.reserve(spec_of(_branch(number))) for number in range(2)]
    with pytest.raises(NoRoom):
        directory.reserve(spec_of(_branch(3)))
    directory.abandon(held[0])
    directory.abandon(held[0])
    directory.reserve(spec_of(_branch(3)))
    directory.check_integrity()


def test_b055_a_stuck_victim_is_skipped_counted_and_tried_again_later() -> None:
    disk = FaultDisk()
    now_s = [1000.0]
    directory = CheckpointDirectory(disk, ROOT, IDENTITY, _cap(3.2), lambda: now_s[0])
    directory.open()
    stuck = store(disk, directory, spec_of(_branch(0)))
    fault = disk.fail_when(lambda call: call.kind == "unlink" and call.path == stuck.path, errno.EBUSY)
    for number in range(1, 11):
        store(disk, directory, spec_of(_branch(number)))
        assert directory.figures().total_bytes <= _cap(3.2).max_bytes
    assert _numbers(directory) == [0, 9, 10]
    assert directory.figures().unlink_failures == fault.hits == 1  # left alone, not tried at every turn
    assert read_back(disk, directory.entries()[0]) == content_of(spec_of(_branch(0)))
    now_s[0] += 61
    store(disk, directory, spec_of(_branch(11)))
    assert fault.hits == 2
    fault.clear()
    now_s[0] += 61
    store(disk, directory, spec_of(_branch(12)))
    assert 0 not in _numbers(directory)


def test_b053_a_full_disk_loses_the_oldest_only_and_recovers() -> None:
    disk = FaultDisk(capacity_bytes=int(3.5 * FILE_BYTES))
    directory = _open(disk)
    for number in range(10):
        store(disk, directory, spec_of(_branch(number)))
    assert _numbers(directory) == [7, 8, 9]
    for entry in directory.entries():
        assert read_back(disk, entry) == content_of(spec_of(entry.tokens))


def test_b053_space_that_vanishes_during_a_write_fails_it_frees_it_and_the_next_succeeds() -> None:
    disk = FaultDisk()
    directory = _open(disk)
    for number in range(3):
        store(disk, directory, spec_of(_branch(number)))
    used = disk.used_bytes
    reservation = directory.reserve(spec_of(_branch(3)))
    disk.capacity_bytes = used + FILE_BYTES // 2  # somebody else took it
    with pytest.raises(OSError, match="No space"):
        write_reserved(disk, directory, reservation, spec_of(_branch(3)), 1.0)
    assert not [path for path in disk.files() if path.parent.name == "tmp"]
    assert _numbers(directory) == [1, 2]  # the oldest gave way for another try
    store(disk, directory, spec_of(_branch(3)))
    assert _numbers(directory) == [1, 2, 3]
    directory.check_integrity()


def test_b053_the_floor_is_kept_by_evicting_and_nothing_goes_when_that_cannot_help() -> None:
    disk = FaultDisk(capacity_bytes=10 * FILE_BYTES)
    directory = _open(disk, _cap(0, free_floor=0.5))
    for number in range(8):
        store(disk, directory, spec_of(_branch(number)))
        assert disk.space(ROOT).free_bytes >= 5 * FILE_BYTES
    assert _numbers(directory) == [3, 4, 5, 6, 7]
    before = directory.entries()
    disk.put(Path("/elsewhere/film"), b"x" * 6 * FILE_BYTES)
    with pytest.raises(NoRoom) as caught:
        directory.reserve(spec_of(_branch(9)))
    assert caught.value.reason == "floor"
    assert directory.entries() == before


def test_b053_no_space_for_a_folder_or_its_sync_is_a_typed_refusal_or_a_clean_failure() -> None:
    disk = FaultDisk()
    directory = _open(disk)
    fault = disk.fail_kind("make_folder", errno.ENOSPC)
    with pytest.raises(NoRoom) as caught:
        directory.reserve(spec_of(_branch(1)))
    assert caught.value.reason == "disk_full"
    fault.clear()
    fault = disk.fail_kind("sync_folder", errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        store(disk, directory, spec_of(_branch(1)))
    fault.clear()
    assert not [path for path in disk.files() if path.suffix in {".kv", ".tmp"}]
    assert directory.figures().reserved_bytes == 0
    store(disk, directory, spec_of(_branch(1)))


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_write_that_fails_at_any_operation_leaves_nothing_and_loses_nothing(number: int) -> None:
    for nth in range(1, 100):
        disk = FaultDisk()
        directory = _open(disk)
        kept = store(disk, directory, spec_of(_branch(1)))
        fault = disk.fail_at(nth, number)
        try:
            store(disk, directory, spec_of(_branch(2)))
        except (OSError, NoRoom):
            assert [entry.tokens for entry in directory.entries()] in ([kept.tokens], [])
            assert not [path for path in disk.files() if path.suffix == ".tmp"]
        directory.check_integrity()
        used = sum(len(data) for path, data in disk.files().items() if path.suffix in {".kv", ".tmp"})
        assert directory.figures().total_bytes == used
        if not fault.hits:
            return
    pytest.fail("the write never got through")


def test_b067_older_formats_are_counted_by_reason_and_go_first() -> None:
    disk = FaultDisk()
    directory = _open(disk)
    old, kept = (store(disk, directory, spec_of(_branch(number))) for number in range(2))
    directory.close()
    data = bytearray(disk.files()[old.path])
    data[8] = 0  # the version
    disk.put(old.path, bytes(data))
    limits = _cap(3.2)
    again = CheckpointDirectory(disk, ROOT, IDENTITY, limits, lambda: 1000.0)
    report = again.open()
    assert report.needs_attention
    assert report.problems["unsupported_version"].files == 1
    assert report.problems["unsupported_version"].size_bytes == old.file_bytes
    assert again.figures().outdated_files == 1
    assert again.entries() == (kept,)
    beside = again.reserve(spec_of(_branch(0)))
    assert beside.final_path != old.path  # what could not be read is not overwritten either
    again.abandon(beside)
    store(disk, again, spec_of(_branch(2)))
    assert old.path in disk.files()
    again.reserve(spec_of(_branch(0)))
    assert old.path not in disk.files()
    assert len(again.entries()) == 2
    assert again.figures().outdated_bytes == 0


# -- lookups


def test_find_leaves_a_token_to_compute_and_minds_namespace_and_bounds() -> None:
    disk = FaultDisk()
    directory = _open(disk)
    store(disk, directory, spec_of([1, 2, 3, 4, 5, 6], reusable_from=2))
    match = directory.find(_tokens(1, 2, 3, 4, 5, 6), "")
    assert match is not None
    assert match.length == 5
    assert directory.find(_tokens(1, 2, 3, 4, 5, 6), "", longer_than=5) is None
    assert directory.find(_tokens(1, 2, 3), "lora") is None
    assert directory.find(_tokens(1, 9), "") is None
    assert directory.find(_tokens(1), "") is None
    assert directory.find(_tokens(), "") is None
    assert directory.covers(_tokens(1, 2), "")
    assert not directory.covers(_tokens(1), "")
    assert directory.common_prefix(_tokens(1, 9), "") == 1


def test_an_untrimmable_entry_serves_its_own_length_only_and_supersedes_nothing() -> None:
    disk = FaultDisk()
    directory = _open(disk)
    store(disk, directory, spec_of([1, 2, 3], trimmable=False))
    store(disk, directory, spec_of([1, 2, 3, 4, 5], trimmable=False))
    assert len(directory.entries()) == 2
    match = directory.find(_tokens(1, 2, 3, 4, 5), "")
    assert match is not None
    assert match.length == 3
    assert not directory.covers(_tokens(1, 2, 3, 4), "")


def test_a_longer_trimmable_entry_supersedes_the_ancestors_it_serves() -> None:
    disk = FaultDisk()
    directory = _open(disk)
    entries = {length: store(disk, directory, spec_of(range(length))) for length in (3, 5)}
    assert len(directory.entries()) == 1  # 5 took 3's place
    spec = spec_of(range(9), reusable_from=6)
    gone = write_reserved(disk, directory, directory.reserve(spec), spec, 1.0)
    assert gone == []
    spec = spec_of(range(12), reusable_from=5)
    gone = write_reserved(disk, directory, directory.reserve(spec), spec, 1.0)
    assert [len(entry.tokens) for entry in gone] == [5, 9]
    assert entries[5].path not in disk.files()
    assert directory.covers(TokenIds.of(range(7)), "")
    assert not directory.covers(TokenIds.of(range(3)), "")
    assert directory.figures().superseded == 3
    assert directory.withdrawn() == ()


def test_equal_tokens_are_replaced_under_another_name_and_a_removal_never_hits_the_new_file() -> None:
    disk = FaultDisk()
    directory = _open(disk)
    first = store(disk, directory, spec_of(_branch(1)), created_s=1.0)
    spec = spec_of(_branch(1), reusable_from=5)
    reservation = directory.reserve(spec)
    assert reservation.final_path != first.path
    assert write_reserved(disk, directory, reservation, spec, 2.0) == [first]
    assert first.path not in disk.files()
    (entry,) = _reopened(directory, disk).entries()
    assert entry.reusable_from == 5


def test_two_files_of_one_key_at_start_leave_the_younger() -> None:
    disk = FaultDisk()
    directory = _open(disk)
    old = store(disk, directory, spec_of(_branch(1)), created_s=1.0)
    data = disk.files()[old.path]
    new = store(disk, directory, spec_of(_branch(1), reusable_from=5), created_s=2.0)
    directory.close()
    for path in (old.path, new.path.with_name("zz.kv")):
        disk.put(path, data)
    again = _open(disk)
    assert [entry.path for entry in again.entries()] == [new.path]
    assert [path for path in disk.files() if path.suffix == ".kv"] == [new.path]


def test_b047_two_writers_of_one_key_leave_one_file() -> None:
    disk = FaultDisk()
    directory = _open(disk)
    spec = spec_of(_branch(1))
    one, two = directory.reserve(spec), directory.reserve(spec)
    assert len({one.temp_path, two.temp_path, one.final_path, two.final_path}) == 4
    write_reserved(disk, directory, two, spec, 1.0)
    write_reserved(disk, directory, one, spec, 1.0)
    assert [path for path in disk.files() if path.suffix == ".kv"] == [one.final_path]
    directory.check_integrity()


def test_b037_names_are_a_fixed_digest_of_canonical_bytes() -> None:
    assert key_digest("", _tokens(1, 2, 3)) == "245996017a2cf4f3795b50a2b3176672"
    assert key_digest("lora", _tokens(1, 2, 3)) != key_digest("", _tokens(1, 2, 3))
    assert key_digest("ab", _tokens(0x63)) != key_digest("abc", _tokens())
    assert namespace_folder("") == "base"
    assert namespace_folder("base") != "base"


def test_b038_a_constant_digest_mixes_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naming, "digest", lambda data: "0" * 32)
    disk = FaultDisk()
    directory = _open(disk, _cap(6.5))
    specs = [
        spec_of(_branch(number), namespace) for number in range(3) for namespace in ("", "lora", "other")
    ]
    for spec in specs:
        store(disk, directory, spec)
    for expected in (directory, _reopened(directory, disk, _cap(6.5))):
        assert len(expected.entries()) == 6
        for spec in specs:
            match = expected.find(TokenIds.of([*spec.tokens, 7]), spec.namespace)
            if match is not None:
                assert read_back(disk, match.entry) == content_of(spec)
            else:
                assert not expected.covers(spec.tokens, spec.namespace)


# -- restarts, clearing, hands in the works


def test_b005_b058_restarts_need_nothing_but_the_checkpoint_files_and_rewrite_none() -> None:
    disk = FaultDisk()
    directory = _open(disk)
    system = list(range(8))
    for number in range(50):
        store(disk, directory, spec_of([*system, *_branch(number + 1)]))
    directory = _reopened(directory, disk)
    for number in range(50, 55):
        store(disk, directory, spec_of([*system, *_branch(number + 1)]))
    before = {path: data for path, data in disk.files().items() if path.suffix == ".kv"}
    directory.close()
    for path in disk.files():
        if path.suffix != ".kv":
            disk.unlink(path)
    again = CheckpointDirectory(disk, ROOT, IDENTITY, NO_LIMITS)
    report = again.open()
    assert report.entries == 55
    assert not report.problems
    assert {path: data for path, data in disk.files().items() if path.suffix == ".kv"} == before
    for number in (1, 30, 55):
        match = again.find(TokenIds.of([*system, *_branch(number), 0]), "")
        assert match is not None
        assert read_back(disk, match.entry) == content_of(spec_of([*system, *_branch(number)]))


def test_b004_orphans_of_killed_writers_are_swept() -> None:
    disk = FaultDisk()
    directory = _open(disk)
    kept = store(disk, directory, spec_of(_branch(1)))
    reservation = directory.reserve(spec_of(_branch(2)))
    disk.put(reservation.temp_path, b"half a checkpoint")
    after = disk.kill()
    again = CheckpointDirectory(after, ROOT, IDENTITY, NO_LIMITS)
    assert again.open().swept == 1
    assert [entry.id for entry in again.entries()] == [kept.id]
    assert reservation.temp_path not in after.files()


def test_b070_nothing_stored_is_no_failure() -> None:
    disk = FaultDisk()
    directory = _open(disk)
    assert directory.clear() == 0
    assert directory.entries() == ()
    assert directory.forget("unknown") is None
    assert directory.quarantine("unknown", "reason") is None
    assert not directory.touch("unknown")
    assert directory.figures().longest_tokens == 0


def test_b062_a_file_removed_by_hand_is_forgotten_and_told() -> None:
    disk = FaultDisk()
    directory = _open(disk)
    gone, other = (store(disk, directory, spec_of(_branch(number))) for number in (1, 2))
    disk.unlink(gone.path)
    assert not directory.touch(gone.id)
    assert directory.find(TokenIds.of([*_branch(1), 0]), "") is None
    (withdrawal,) = directory.withdrawn()
    assert withdrawal.entry.tokens == gone.tokens
    assert withdrawal.why == "missing"
    disk.unlink(other.path)
    assert directory.forget(other.id) == other
    assert directory.figures().missing == 2
    assert directory.figures().entry_bytes == 0


def test_b062_what_something_else_still_covers_is_not_withdrawn() -> None:
    disk = FaultDisk()
    directory = _open(disk)
    short = store(disk, directory, spec_of(range(5), trimmable=False))
    longer = store(disk, directory, spec_of(range(9)))
    assert len(directory.entries()) == 1  # the longer one serves the shorter's length
    assert directory.forget(short.id) is None
    directory.forget(longer.id)
    assert [one.entry.id for one in directory.withdrawn()] == [longer.id]
    kept = store(disk, directory, spec_of(range(9)))
    directory.forget(kept.id)
    store(disk, directory, spec_of(range(12)))
    assert directory.withdrawn() == ()


def test_a_removed_root_is_made_again() -> None:
    disk = FaultDisk()
    directory = _open(disk)
    entry = store(disk, directory, spec_of(_branch(1)))
    for path in disk.files():
        disk.unlink(path)
    disk.remove_folder(entry.path.parent)
    disk.remove_folder(ROOT / IDENTITY.id / "tmp")
    disk.remove_folder(ROOT / IDENTITY.id)
    store(disk, directory, spec_of(_branch(2)))
    assert _numbers(directory) == [1, 2]


def test_clear_removes_durably_and_voids_what_is_being_written() -> None:
    disk = FaultDisk()
    directory = _open(disk)
    for number in range(3):
        store(disk, directory, spec_of(_branch(number), "lora" if number else ""))
    directory.quarantine(directory.entries()[0].id, "bad")
    spec = spec_of(_branch(9))
    reservation = directory.reserve(spec)
    assert directory.clear() == 2
    with pytest.raises(ReservationVoid):
        write_reserved(disk, directory, reservation, spec, 1.0)
    with pytest.raises(ReservationVoid):
        directory.commit(reservation, None)  # type: ignore[arg-type]
    directory.check_integrity()
    assert directory.figures().total_bytes == 0
    for seed in range(10):
        assert not [path for path in disk.crash(seed).files() if path.suffix == ".kv"]
    assert {one.why for one in directory.withdrawn()} == {"cleared", "quarantined"}


def test_clear_of_a_namespace_leaves_the_others() -> None:
    disk = FaultDisk()
    directory = _open(disk)
    for number, namespace in enumerate(("", "a", "b", "a")):
        store(disk, directory, spec_of(_branch(number), namespace))
    held = directory.reserve(spec_of(_branch(8), "b"))
    assert directory.clear("a") == 2
    write_reserved(disk, directory, held, spec_of(_branch(8), "b"), 1.0)
    assert _numbers(directory) == [0, 2, 8]


def test_a_cleared_file_that_will_not_go_is_not_served_and_goes_later() -> None:
    disk = FaultDisk()
    now_s = [1000.0]
    directory = CheckpointDirectory(disk, ROOT, IDENTITY, NO_LIMITS, lambda: now_s[0])
    directory.open()
    entry = store(disk, directory, spec_of(_branch(1)))
    fault = disk.fail_kind("unlink", errno.EPERM)
    directory.clear()
    fault.clear()
    assert directory.entries() == ()
    assert directory.figures().stuck_bytes == entry.file_bytes
    assert store(disk, directory, spec_of(_branch(1))).path != entry.path  # its name is not free yet
    now_s[0] += 61
    store(disk, directory, spec_of(_branch(2)))
    assert entry.path not in disk.files()
    assert directory.figures().stuck_bytes == 0


def test_lookups_go_on_while_files_are_worked_on() -> None:
    disk = FaultDisk()
    directory = _open(disk, _cap(2.2))
    for number in range(2):
        store(disk, directory, spec_of(_branch(number)))
    entered, release = threading.Event(), threading.Event()

    def wait_at_unlink(operation: object) -> None:
        if getattr(operation, "kind", "") == "unlink":
            entered.set()
            assert release.wait(10)

    disk.hook = wait_at_unlink
    worker = threading.Thread(target=lambda: directory.reserve(spec_of(_branch(2))))
    worker.start()
    assert entered.wait(10)
    assert directory.find(TokenIds.of([*_branch(1), 0]), "") is not None
    assert directory.covers(TokenIds.of(_branch(0)), "")
    assert directory.figures().entries == 2
    release.set()
    worker.join(10)
    assert not directory.covers(TokenIds.of(_branch(0)), "")


class WatchedDisk(FaultDisk):
    """Notes what is prefetched and opened."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, str]] = []

    def prefetch(self, path: Path, size_bytes: int) -> None:
        assert 0 < size_bytes <= FIRST_READ_BYTES
        self.seen.append(("prefetch", path.name))

    def open(self, path: Path) -> DiskFile:
        self.seen.append(("open", path.name))
        return super().open(path)


def test_a_start_has_the_next_files_read_while_it_examines_one() -> None:
    disk = WatchedDisk()
    directory = _open(disk)
    for number in range(20):
        store(disk, directory, spec_of(_branch(number)))
    disk.put(directory.entries()[3].path, b"bad")
    disk.put(directory.entries()[4].path.with_name("z.txt"), b"foreign")
    directory.close()
    disk.seen.clear()
    again = CheckpointDirectory(disk, ROOT, IDENTITY, NO_LIMITS)
    report = again.open()
    assert _numbers(again) == [number for number in range(20) if number != 3]
    assert report.problems["not_a_container"].files == 1
    names = sorted(name for kind, name in disk.seen if kind == "open" and name.endswith(FILE_SUFFIX))
    seen = [(kind, name) for kind, name in disk.seen if name.endswith(FILE_SUFFIX)]
    assert [name for kind, name in seen if kind == "prefetch"] == names
    assert [name for kind, name in seen if kind == "open"] == names
    for place, name in enumerate(names):
        ahead = seen.index(("open", name)) - seen.index(("prefetch", name)) - 1
        assert ahead >= min(8, len(names) - 1 - place)


def test_a_file_written_by_anybody_is_taken_for_what_its_header_says() -> None:
    disk = FaultDisk()
    spec = spec_of(_branch(7), "lora")
    folder = ROOT / IDENTITY.id / namespace_folder("lora")
    disk.make_folder(folder)
    segments = [[memoryview(data)] for data in content_of(spec)]
    write_container(disk, folder / "any-name.kv", IDENTITY.id, spec, segments, created_s=5.0)
    directory = _open(disk)
    match = directory.find(TokenIds.of([*spec.tokens, 0]), "lora")
    assert match is not None
    assert match.entry.id == "any-name"
