"""The parts of the directory by themselves: identity, room, scan, summary, removal."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from samovar.storage.container import read_header, write_container
from samovar.storage.container_errors import ContainerError, CorruptHeader, UnsupportedFeature
from samovar.storage.directory import CheckpointDirectory
from samovar.storage.filesystem import Space
from samovar.storage.identity import IDENTITY_FILE, Identity, read_identity, write_identity
from samovar.storage.layout import frame_of, header_area
from samovar.storage.removal import Removals
from samovar.storage.room import Limits, Usage, shortage
from samovar.storage.scan import UNKNOWN_FILE, UNREADABLE, VANISHED, Found, Problem, scan
from samovar.storage.summary import read_summary

from tests.kit.containers import attached, contents, forged, plain
from tests.kit.disk import FaultDisk
from tests.kit.stored import content_of, spec_of, store

if TYPE_CHECKING:
    from collections.abc import Callable

    from samovar.storage.spec import CheckpointSpec

ROOT = Path("/cache")
FILE = ROOT / "file.kv"
NO_LIMITS = Limits(max_bytes=0, free_floor=0.0)


# -- identity


@pytest.mark.parametrize("name", ["", "LOCK", "quarantine", "..", ".", "a/b", "a\0", "-x", "x" * 129])
def test_an_identity_that_cannot_name_a_folder_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name"):
        Identity(name)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"id": 3, "fields": {}}',
        b'{"id": "a", "fields": []}',
        b'{"id": "..", "fields": {}}',
    ],
)
def test_a_description_that_makes_no_sense_is_none_and_is_written_anew(data: bytes) -> None:
    disk = FaultDisk()
    disk.put(ROOT / IDENTITY_FILE, data)
    assert read_identity(disk, ROOT) is None
    identity = Identity("abc", {"model": "llama"})
    disk.make_folder(ROOT / "tmp")
    disk.put(ROOT / "tmp" / f"{IDENTITY_FILE}.tmp", b"left by a crash")
    write_identity(disk, ROOT, ROOT / "tmp", identity)
    assert read_identity(disk, ROOT) == identity
    before = disk.count
    write_identity(disk, ROOT, ROOT / "tmp", identity)
    assert not [call for call in list(disk.log)[before:] if call.kind in {"create", "write", "rename"}]


def test_an_unreadable_description_is_none() -> None:
    disk = FaultDisk()
    assert read_identity(disk, ROOT) is None
    disk.put(ROOT / IDENTITY_FILE, orjson.dumps({"id": "abc", "fields": {}}))
    fault = disk.fail_kind("read", errno.EIO)
    assert read_identity(disk, ROOT) is None
    fault.clear()
    assert read_identity(disk, ROOT) == Identity("abc")


def test_differences_name_fields_in_order_and_count_absent_ones() -> None:
    one = Identity("a", {"mlx": "0.32.4", "scheme": "bf16", "model": "x"})
    two = Identity("b", {"mlx": "0.32.5", "scheme": "bf16", "tokenizer": "y"})
    assert one.differences(two) == two.differences(one) == ("mlx", "model", "tokenizer")
    assert one.differences(one) == ()


# -- room


@pytest.mark.parametrize(
    "limits",
    [(-1, 0.0, 0), (0, 1.0, 0), (0, -0.1, 0), (0, 0.0, -1)],
    ids=["cap", "floor", "below", "quarantine"],
)
def test_impossible_limits_are_refused(limits: tuple[int, float, int]) -> None:
    with pytest.raises(ValueError, match="impossible"):
        Limits(*limits)


@pytest.mark.parametrize(
    ("limits", "usage", "free", "needed", "gap"),
    [
        (Limits(100, 0.0), Usage(entry_bytes=60, foreign_bytes=30), 1000, 10, (0, "cap")),
        (Limits(100, 0.0), Usage(entry_bytes=60, foreign_bytes=30), 1000, 11, (1, "cap")),
        (Limits(100, 0.0), Usage(entry_bytes=60, reserved_bytes=30, stuck_bytes=5), 1000, 10, (5, "cap")),
        (Limits(0, 0.1), Usage(entry_bytes=600), 120, 20, (0, "cap")),
        (Limits(0, 0.1), Usage(entry_bytes=600), 119, 20, (1, "floor")),
        (Limits(0, 0.1), Usage(reserved_bytes=15), 120, 20, (15, "floor")),
        (Limits(0, 0.0), Usage(), 19, 20, (1, "disk_full")),
        (Limits(100, 0.1), Usage(entry_bytes=100), 105, 10, (10, "cap")),
        (Limits(100, 0.1), Usage(entry_bytes=100), 50, 10, (60, "floor")),
        (Limits(100, 0.1), Usage(entry_bytes=130), 0, 0, (30, "cap")),  # nothing to write: the floor waits
        (Limits(100, 0.1), Usage(entry_bytes=100), None, 10, (10, "cap")),
    ],
)
def test_what_must_go(
    limits: Limits, usage: Usage, free: int | None, needed: int, gap: tuple[int, str]
) -> None:
    space = None if free is None else Space(free, 1000)
    found = shortage(limits, usage, space, needed)
    assert (found.excess_bytes, found.reason) == gap or (found.excess_bytes, *gap) == (0, 0, "cap")


def test_the_quarantine_takes_a_tenth_of_the_cap_at_most() -> None:
    assert Limits(1000, quarantine_max_bytes=300).quarantine_bytes == 100
    assert Limits(1000, quarantine_max_bytes=30).quarantine_bytes == 30
    assert Limits(0, quarantine_max_bytes=300).quarantine_bytes == 300


# -- removal


def test_a_file_that_will_not_go_rests_and_is_retried_once_due() -> None:
    disk = FaultDisk()
    disk.put(FILE, b"x" * 10)
    now_s = [0.0]
    removals = Removals(disk, lambda: now_s[0], retry_s=5.0)
    fault = disk.fail_kind("unlink", errno.EBUSY)
    assert not removals.discard(FILE, 10)
    assert not removals.discard(FILE, 10)
    assert (removals.stuck_bytes, removals.failures) == (10, 2)
    assert removals.holds(FILE)
    assert removals.any_rests()
    assert removals.retry() == 0
    assert removals.failures == 2
    now_s[0] = 5.0
    assert removals.retry() == 0
    assert removals.failures == 3
    fault.clear()
    now_s[0] = 10.0
    assert removals.retry() == 10
    assert (removals.stuck_bytes, removals.any_rests(), removals.holds(FILE)) == (0, False, False)
    assert removals.discard(FILE, 10)  # already gone is gone


# -- summary and scan


def _written(disk: FaultDisk, spec: CheckpointSpec) -> bytes:
    disk.make_folder(ROOT)
    segments = [[memoryview(part)] for part in contents(spec)]
    write_container(disk, FILE, "an-identity", spec, segments, created_s=12.5)
    return disk.files()[FILE]


@pytest.mark.parametrize(
    "spec",
    [
        plain(),
        plain(5000, layers=3, namespace="lora/ä"),
        attached(),
        spec_of(range(9), trimmable=False),
        spec_of(range(9), reusable_from=4),
        spec_of([]),
    ],
    ids=["plain", "long", "attached", "untrimmable", "from", "empty"],
)
@pytest.mark.parametrize("short_bytes", [None, 1000])
def test_a_summary_says_what_the_header_says(spec: CheckpointSpec, short_bytes: int | None) -> None:
    disk = FaultDisk()
    size_bytes = len(_written(disk, spec))
    disk.short_read_bytes = short_bytes
    summary, stored = read_summary(disk, FILE, size_bytes), read_header(disk, FILE)
    assert summary.identity == stored.header.identity
    assert summary.created_s == stored.header.created_s
    assert summary.file_bytes == stored.file_bytes
    assert summary.spec.tokens == spec.tokens
    assert summary.spec.namespace == spec.namespace
    assert summary.spec.trimmable == spec.trimmable
    assert summary.spec.reusable_from == spec.reusable_from


def test_every_flip_in_header_and_tokens_and_every_cut_is_noticed_by_a_summary() -> None:
    disk = FaultDisk()
    data = _written(disk, plain())
    covered = 16384 + 5 * 4
    for place in (*range(2000), *range(2000, covered, 61), *range(covered - 20, covered)):
        flipped = bytearray(data)
        flipped[place] ^= 0x11
        disk.put(FILE, bytes(flipped))
        with pytest.raises(ContainerError):
            read_summary(disk, FILE, len(data))
    for length in (*range(200), 16384, len(data) - 1, len(data) + 1):
        disk.put(FILE, (data + b"x")[:length])
        with pytest.raises(ContainerError):
            read_summary(disk, FILE, length)
    disk.put(FILE, data[: covered - 1])  # shorter than it was when it was listed
    with pytest.raises(ContainerError):
        read_summary(disk, FILE, len(data))


def _set(*keys: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(table: Any) -> None:
        for key in keys[:-1]:
            table = table[key]
        table[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        _set("identity", value=3),
        _set("namespace", value=None),
        _set("created_s", value="now"),
        _set("checksum", value="crc"),
        _set("tokens", value=[]),
        _set("tokens", "count", value=-1),
        _set("tokens", "count", value=10**9),
        _set("tokens", "count", value=True),
        _set("tokens", "offset", value=16384),
        _set("tokens", "hash", value="00"),
        _set("layers", value={}),
        _set("layers", value=[3]),
        _set("layers", 0, "offset", value=4),
        _set("layers", 0, "trimmable", value=1),
        _set("layers", 0, "reusable_from", value=99),
        _set("layers", 0, "signature", value=None),
        _set("attachments", value=[{}]),
        lambda table: table.pop("layers"),
    ],
)
def test_a_header_that_lies_is_corrupt_for_a_summary_too(change: Callable[[dict[str, Any]], None]) -> None:
    disk = FaultDisk()
    data = forged(_written(disk, plain()), FILE, change)
    disk.put(FILE, data)
    with pytest.raises(CorruptHeader):
        read_summary(disk, FILE, len(data))


@pytest.mark.parametrize("layers", [[], {"delta": True}, [3]], ids=["known", "no list", "no layer"])
def test_an_unknown_feature_is_told_apart_from_damage(layers: object) -> None:
    def change(table: dict[str, Any]) -> None:
        table |= {"features": ["holograms"], "layers": layers}

    disk = FaultDisk()
    data = forged(_written(disk, plain()), FILE, change)
    disk.put(FILE, data)
    with pytest.raises(UnsupportedFeature):
        read_summary(disk, FILE, len(data))


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"later":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"later":1e999',
        b'{"identity":"\\ud800"}',
        b'{"identity":"\xff"}',
        b"null",
        b"",
    ],
    ids=["deep", "deep and whole", "cut", "half a pair", "no UTF-8", "null", "empty"],
)
def test_what_is_no_header_is_corrupt_for_a_summary(text: bytes) -> None:
    disk = FaultDisk()
    frame = frame_of(len(text), 0)
    disk.put(FILE, header_area(frame, text))
    with pytest.raises(CorruptHeader):
        read_summary(disk, FILE, frame.file_bytes)


def test_a_scan_tells_every_file_of_every_identity_without_the_lock() -> None:
    disk = FaultDisk()
    directories = [CheckpointDirectory(disk, ROOT, Identity(name), NO_LIMITS) for name in ("a", "b")]
    entries = []
    for directory in directories:
        directory.open()
        entries.append(store(disk, directory, spec_of(range(5), directory.identity.id)))
        directory.close()
    CheckpointDirectory(disk, ROOT, Identity("a"), NO_LIMITS).open()  # a server runs
    folder = entries[0].path.parent
    disk.put(folder / "note.txt", b"hello")
    disk.put(folder / "z-gone.kv", b"x")
    disk.put(folder / "z-sick.kv", b"x")
    disk.put(folder / "z-text.kv", b"hello, this is no container")
    disk.fail_when(lambda call: call.kind == "open" and call.path.name == "z-gone.kv", errno.ENOENT)
    disk.fail_when(lambda call: call.kind == "open" and call.path.name == "z-sick.kv", errno.EIO)
    before = len(disk.log)
    findings = list(scan(disk, ROOT))
    found = [one for one in findings if isinstance(one, Found)]
    problems = {one.path.name: one.code for one in findings if isinstance(one, Problem)}
    assert [(one.identity, one.entry.path) for one in found] == [
        ("a", entries[0].path),
        ("b", entries[1].path),
    ]
    assert found[0].created_s == 1.0
    assert problems == {
        "note.txt": UNKNOWN_FILE,
        "z-gone.kv": VANISHED,
        "z-sick.kv": UNREADABLE,
        "z-text.kv": "not_a_container",
    }
    assert {call.kind for call in list(disk.log)[before:]} <= {"list", "open", "read"}


def test_a_start_keeps_unreadable_files_and_ignores_vanished_ones() -> None:
    disk = FaultDisk()
    directory = CheckpointDirectory(disk, ROOT, Identity("a"), NO_LIMITS)
    directory.open()
    sick, gone, whole = (store(disk, directory, spec_of([number, 1, 2])) for number in range(3))
    directory.close()
    faults = [
        disk.fail_when(lambda call: call.kind == "open" and call.path == sick.path, errno.EIO),
        disk.fail_when(lambda call: call.kind == "open" and call.path == gone.path, errno.ENOENT),
    ]
    again = CheckpointDirectory(disk, ROOT, Identity("a"), NO_LIMITS)
    report = again.open()
    assert [entry.path for entry in again.entries()] == [whole.path]
    assert {code: tally.files for code, tally in report.problems.items()} == {UNREADABLE: 1}
    assert again.figures().outdated_files == 1
    again.close()
    for fault in faults:
        fault.clear()
    assert sick.path in disk.files()
    last = CheckpointDirectory(disk, ROOT, Identity("a"), NO_LIMITS)
    assert last.open().entries == 3
    assert len(content_of(spec_of([0, 1, 2]))) == 2
