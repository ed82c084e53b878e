"""What goes into a container comes out of it, however calls are cut short; failures leave nothing."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from samovar.storage import checksums, tensor_reader
from samovar.storage.container import ALIGNMENT, file_bytes_of, read_header, read_tensors, write_container
from samovar.storage.container_errors import (
    ContainerChanged,
    CorruptTensor,
    RestoreCancelled,
    SegmentMismatch,
    UnstorableCheckpoint,
)
from samovar.storage.fs import OsFilesystem
from samovar.storage.layout import MAX_TOKENS
from samovar.storage.spec import DTYPE_BYTES, AttachmentSpec, CheckpointSpec, LayerSpec, TensorSpec
from samovar.storage.tensor_reader import SHARE_BYTES
from samovar.storage.tokens import TokenIds
from samovar.storage.transfer import BLOCK_BYTES, blocks_of

from tests.kit.containers import (
    CREATED_S,
    IDENTITY,
    MemoryFiles,
    attached,
    contents,
    layer,
    plain,
    read,
    views,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from samovar.storage.container import StoredCheckpoint
    from samovar.storage.filesystem import OpenFile

PATH = Path("one.kv")


def test_a_failure_of_any_call_leaves_no_file_and_its_own_error() -> None:
    spec = attached()
    healthy = MemoryFiles()
    write(healthy, PATH, spec, contents(spec))
    steps = healthy.calls.index("sync") + 1
    assert healthy.calls[-2:] == ["sync", "close"]
    for step in range(1, steps + 1):
        fs = MemoryFiles(fail_at=step)
        with pytest.raises(OSError, match="fails"):
            write(fs, PATH, spec, contents(spec))
        assert fs.files == {}, f"call {step}"
        assert fs.calls.count("close") == (step > 1)


def test_a_file_that_is_there_is_not_touched() -> None:
    fs = MemoryFiles({PATH: bytearray(b"another's")})
    with pytest.raises(FileExistsError):
        write(fs, PATH, plain(), contents(plain()))
    assert fs.files == {PATH: b"another's"}


def test_an_unlink_that_fails_does_not_hide_the_error() -> None:
    class Stuck(MemoryFiles):
        def unlink(self, path: Path) -> None:
            raise PermissionError(str(path))

    healthy = MemoryFiles()
    write(healthy, PATH, plain(), contents(plain()))
    stuck = Stuck(fail_at=healthy.calls.index("sync") + 1)
    with pytest.raises(OSError, match="sync fails"):
        write(stuck, PATH, plain(), contents(plain()))
    assert PATH in stuck.files


@pytest.mark.parametrize(
    "spec",
    [
        CheckpointSpec(TokenIds.of([1]), "\ud800", ()),
        CheckpointSpec(TokenIds.of([1]), "", (LayerSpec("s", 1, True, 0, {"n": 1 << 64}),)),
        CheckpointSpec(TokenIds.of([1]), "", (LayerSpec("s", 1, True, 0, {"n": True}),)),
        CheckpointSpec(TokenIds.of([1]), "", (), (AttachmentSpec("a", {"x": float("nan")}),)),
        CheckpointSpec(TokenIds.of([1]), "", (), (AttachmentSpec("a", {"x": float("inf")}),)),
        CheckpointSpec(TokenIds.of([1]), "", (layer("s", 1, *[TensorSpec("same", "int8", ())] * 2),)),
        CheckpointSpec(TokenIds.of([1]), "", (layer("s", 1, TensorSpec("t", "int8", (1,) * 17)),)),
        CheckpointSpec(TokenIds.of([1]), "", (layer("s", 1),) * 4097),
        CheckpointSpec(TokenIds.of(range(MAX_TOKENS + 1)), "", ()),
        CheckpointSpec(TokenIds.of([1]), "x" * (5 << 20), ()),
    ],
    ids=["surrogate", "overflow", "bool", "nan", "inf", "names", "dims", "layers", "tokens", "header"],
)
def test_what_could_not_be_read_back_is_refused_before_a_file_is_made(spec: CheckpointSpec) -> None:
    fs = MemoryFiles()
    with pytest.raises(UnstorableCheckpoint):
        write(fs, PATH, spec, contents(spec))
    assert fs.calls == []


def test_room_for_what_json_cannot_hold_is_refused_too() -> None:
    with pytest.raises(UnstorableCheckpoint):
        file_bytes_of(CheckpointSpec(TokenIds.of([1]), "\ud800", ()), IDENTITY)


def test_segments_of_other_sizes_are_refused_both_ways() -> None:
    fs, spec = MemoryFiles(), plain()
    parts = contents(spec)
    for wrong in (parts[:-1], [*parts, b""], [parts[0] + b"x", *parts[1:]]):
        with pytest.raises(SegmentMismatch):
            write(fs, PATH, spec, wrong)
    assert fs.calls == []
    stored = write(fs, PATH, spec, parts)
    with pytest.raises(SegmentMismatch):
        read_tensors(fs, PATH, stored, views([bytearray(3)]))


def test_a_read_error_midway_leaves_and_closes() -> None:
    healthy = MemoryFiles()
    spec = plain()
    stored = write(healthy, PATH, spec, contents(spec))
    healthy.calls.clear()
    read(healthy, PATH)
    for step, name in enumerate(healthy.calls, start=1):
        if name != "close":
            fs = MemoryFiles(dict(healthy.files), fail_at=step)
            with pytest.raises(OSError, match="fails"):
                read(fs, PATH)
            assert fs.calls.count("close") == fs.calls.count("open") - (name == "open")
    assert read(healthy, PATH)[0] == stored


def test_a_cancelled_restore_stops_at_the_next_block() -> None:
    fs, spec = MemoryFiles(), plain()
    stored = write(fs, PATH, spec, contents(spec))
    asked = itertools.count(1)
    targets = [bytearray(tensor.nbytes) for tensor in spec.tensors()]
    with pytest.raises(RestoreCancelled):
        read_tensors(fs, PATH, stored, views(targets), cancelled=lambda: next(asked) > 4)
    assert next(asked) == 6
    assert any(targets[1])
    assert not any(targets[2])
    assert fs.calls[-1] == "close"


@pytest.mark.parametrize("limit_bytes", [1, 7, 4096, ALIGNMENT + 1])
def test_short_writes_and_reads_go_on(limit_bytes: int) -> None:
    whole, spec = MemoryFiles(), attached()
    write(whole, PATH, spec, contents(spec))
    fs = MemoryFiles(limit_bytes=limit_bytes)
    stored = write(fs, PATH, spec, contents(spec))
    assert fs.files == whole.files
    assert read(fs, PATH) == (stored, contents(spec))


def test_a_disk_that_takes_nothing_is_an_error_not_a_loop() -> None:
    with pytest.raises(OSError, match="stored nothing"):
        write(MemoryFiles(limit_bytes=0), PATH, plain(), contents(plain()))


def test_many_strided_segments_give_the_same_file_and_fill_the_same_places() -> None:
    spec, fs = plain(length=300), MemoryFiles()
    parts = contents(spec)
    write(fs, PATH, spec, parts)
    cut = [[memoryview(part)[n : n + 3] for n in range(0, len(part), 3)] for part in parts]
    other = MemoryFiles()
    stored = write_container(other, PATH, IDENTITY, spec, cut, created_s=CREATED_S)
    assert other.files == fs.files
    # Rows of 8 bytes with 8 bytes of room after each: what a cache with spare capacity looks like.
    rooms = [bytearray(2 * len(part)) for part in parts]
    rows = [[memoryview(room)[n : n + 8] for n in range(0, len(room), 16)] for room in rooms]
    assert read_tensors(fs, PATH, stored, rows) == spec.nbytes
    for room, part in zip(rooms, parts, strict=True):
        assert b"".join(room[n : n + 8] for n in range(0, len(room), 16)) == part
        assert not any(b"".join(room[n + 8 : n + 16] for n in range(0, len(room), 16)))


def test_blocks_have_limits_and_lose_nothing() -> None:
    data = memoryview(bytes(range(256)) * 12289)
    start, end = BLOCK_BYTES + 9, BLOCK_BYTES + 1500
    single = [data[n : n + 1] for n in range(start, end)]
    pieces = [data[:5], data[5:5], data[5:start], *single, data[end:]]
    blocks = list(blocks_of(pieces))
    assert max(sum(piece.nbytes for piece in block) for block in blocks) == BLOCK_BYTES
    assert max(len(block) for block in blocks) == 1000
    assert b"".join(piece for block in blocks for piece in block) == data


def large(tmp_path: Path) -> tuple[CheckpointSpec, list[bytes], Path]:
    spec = CheckpointSpec(
        TokenIds.of(range(20_000)),  # longer than the first read of a header
        "",
        tuple(layer("kv:plain", 20_000, TensorSpec("keys", "uint8", (3, 1_000_001))) for _ in range(4)),
    )
    assert spec.nbytes > checksums.THREADED_BYTES
    assert spec.nbytes > 2 * SHARE_BYTES
    return spec, contents(spec), tmp_path / "large.kv"


def written(tmp_path: Path) -> tuple[CheckpointSpec, list[bytes], Path, StoredCheckpoint]:
    spec, parts, path = large(tmp_path)
    stored = write_container(OsFilesystem(), path, IDENTITY, spec, views(parts), created_s=CREATED_S)
    return spec, parts, path, stored


@pytest.mark.parametrize("cores", [1, 2, 16])
def test_a_large_container_on_a_disk_and_its_damage_found_by_whoever_reads_it(
    cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_reader, "usable_cores", lambda: cores)
    fs = OsFilesystem()
    spec, parts, path, stored = written(tmp_path)
    assert path.stat().st_size == stored.file_bytes
    assert read_header(fs, path) == stored
    targets = [bytearray(len(part)) for part in parts]
    assert read_tensors(fs, path, stored, views(targets)) == spec.nbytes
    assert targets == parts
    with path.open("r+b") as file:
        file.seek(stored.data_start + stored.tensors[1].offset + 1_500_000)
        file.write(bytes([parts[1][1_500_000] ^ 1]))
    with pytest.raises(CorruptTensor) as caught:
        read_tensors(fs, path, stored, views(targets))
    assert caught.value.tensor == "layers.1.keys"
    assert helpers() == []


class Meeting(OsFilesystem):
    """Files whose tensors are read only once ``readers`` threads have come to read some."""

    def __init__(self, readers: int) -> None:
        self._gate = threading.Barrier(readers)
        self._come = threading.local()

    def open(self, path: Path) -> OpenFile:
        file = super().open(path)
        own_read = file.read

        def read(segments: Sequence[memoryview], offset: int) -> int:
            if offset and not hasattr(self._come, "here"):
                self._come.here = True
                self._gate.wait(20.0)
            return own_read(segments, offset)

        return cast("OpenFile", SimpleNamespace(read=read, size=file.size, close=file.close))


def test_a_large_container_is_read_by_several_threads_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_reader, "usable_cores", lambda: 16)
    spec, parts, path, stored = written(tmp_path)
    targets = [bytearray(len(part)) for part in parts]
    shares = min(tensor_reader.MOST_THREADS, spec.nbytes // SHARE_BYTES)
    assert shares > 1
    read_tensors(Meeting(shares), path, stored, views(targets))
    assert targets == parts
    assert helpers() == []


def test_a_file_that_is_replaced_while_threads_come_to_it_is_told(tmp_path: Path) -> None:
    fs = OsFilesystem()
    spec, parts, path, stored = written(tmp_path)
    path.unlink()
    write_container(fs, path, "f" * len(IDENTITY), spec, views(parts), created_s=CREATED_S)
    with pytest.raises(ContainerChanged):
        read_tensors(fs, path, stored, views([bytearray(len(part)) for part in parts]))


def helpers() -> list[str]:
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name == "hash" or name.startswith("restore")]


def test_a_large_restore_is_cancelled_without_leaving_its_thread(tmp_path: Path) -> None:
    spec, parts, path = large(tmp_path)
    fs = OsFilesystem()
    stored = write_container(
        fs, path, IDENTITY, spec, views(parts), checksum="blake3-128", created_s=CREATED_S
    )
    asked = itertools.count()
    targets = views([bytearray(len(part)) for part in parts])
    with pytest.raises(RestoreCancelled):
        read_tensors(fs, path, stored, targets, cancelled=lambda: next(asked) == 7)
    assert helpers() == []


@pytest.mark.parametrize("cores", [1, 16])
def test_whatever_fails_within_a_restore_is_raised(
    cores: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what Python's own containers raise: rubbish in the targets must never pass for a state."""
    monkeypatch.setattr(tensor_reader, "usable_cores", lambda: cores)
    _, parts, path, stored = written(tmp_path)

    def fails(hasher: object, block: object) -> None:
        raise IndexError("within")

    monkeypatch.setattr(tensor_reader, "update_all", fails)
    with pytest.raises(IndexError, match="within"):
        read_tensors(OsFilesystem(), path, stored, views([bytearray(len(part)) for part in parts]))
    assert helpers() == []


def test_an_empty_checkpoint_and_empty_tensors_come_back() -> None:
    for spec in (
        CheckpointSpec(TokenIds.of([]), "", ()),
        CheckpointSpec(TokenIds.of([]), "", (layer("s", 0, TensorSpec("none", "int8", (0, 4))),)),
        CheckpointSpec(
            TokenIds.of([7]),
            "",
            (layer("s", 1, TensorSpec("a", "int8", (3,)), TensorSpec("b", "int8", (0,)), trimmable=False),),
        ),
    ):
        fs = MemoryFiles()
        stored = write(fs, PATH, spec, contents(spec))
        assert read(fs, PATH) == (stored, contents(spec))
        assert stored.file_bytes == len(fs.files[PATH]) <= file_bytes_of(spec, IDENTITY)


def test_two_checksums_differ_and_both_are_said() -> None:
    spec, fs = plain(), MemoryFiles()
    for name in ("xxh3-128", "blake3-128"):
        path = Path(name)
        write_container(fs, path, IDENTITY, spec, views(contents(spec)), checksum=name, created_s=1.0)
        stored, parts = read(fs, path)
        assert (stored.header.checksum, parts) == (name, contents(spec))
    assert read_header(fs, Path("xxh3-128")).tensors[0].digest != stored.tensors[0].digest


SIZES = st.lists(st.integers(0, 5), max_size=4)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


@st.composite
def tensors(draw: st.DrawFn) -> tuple[TensorSpec, ...]:
    names = draw(st.lists(NAMES, max_size=3, unique=True))
    return tuple(
        TensorSpec(name, draw(st.sampled_from(sorted(DTYPE_BYTES))), tuple(draw(SIZES))) for name in names
    )


@st.composite
def specs(draw: st.DrawFn) -> CheckpointSpec:
    ids = TokenIds.of(draw(st.lists(st.integers(0, (1 << 32) - 1), max_size=6)))
    numbers = st.dictionaries(NAMES, st.integers(-(1 << 63), (1 << 64) - 1), max_size=3)
    scalars = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | NAMES
    scalars |= st.floats(allow_nan=False, allow_infinity=False)
    layers = st.builds(
        LayerSpec,
        NAMES,
        st.just(len(ids)),
        st.booleans(),
        st.integers(0, len(ids)),
        numbers,
        tensors(),
    )
    attachments = st.builds(AttachmentSpec, NAMES, st.dictionaries(NAMES, scalars, max_size=3), tensors())
    return CheckpointSpec(
        ids,
        draw(NAMES),
        tuple(draw(st.lists(layers, max_size=4))),
        tuple(draw(st.lists(attachments, max_size=2))),
    )


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    spec=specs(),
    identity=NAMES,
    limit_bytes=st.sampled_from([1 << 62, 5000]),
    checksum=st.sampled_from(["xxh3-128", "blake3-128"]),
    created_s=st.floats(0, 1e300),
)
def test_any_checkpoint_comes_back_as_it_was(
    spec: CheckpointSpec, identity: str, limit_bytes: int, checksum: checksums.Checksum, created_s: float
) -> None:
    fs, parts = MemoryFiles(limit_bytes=limit_bytes), contents(spec)
    stored = write_container(fs, PATH, identity, spec, views(parts), checksum=checksum, created_s=created_s)
    assert read(fs, PATH) == (stored, parts)
    header = stored.header
    assert (header.spec, header.identity, header.created_s) == (spec, identity, created_s)
    assert stored.file_bytes == len(fs.files[PATH])
    assert 0 <= file_bytes_of(spec, identity) - stored.file_bytes <= ALIGNMENT
    assert all(section.offset % ALIGNMENT == 0 for section in stored.tensors)
