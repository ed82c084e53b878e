"""Nothing damaged is ever taken for whole: bits, ends, and headers that lie under a right hash."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from samovar.storage.container import ALIGNMENT, MAGIC, read_header, read_tensors
from samovar.storage.container_errors import (
    ContainerChanged,
    ContainerError,
    CorruptHeader,
    CorruptTensor,
    NotAContainer,
    TruncatedContainer,
    UnsupportedFeature,
    UnsupportedVersion,
)
from samovar.storage.layout import FRAME_BYTES, parse_frame
from samovar.storage.spec import CheckpointSpec, TensorSpec
from samovar.storage.tokens import TokenIds

from tests.kit.containers import (
    MemoryFiles,
    attached,
    contents,
    forged,
    layer,
    plain,
    read,
    reheaded,
    views,
    write,
)

if TYPE_CHECKING:
    from collections.abc import Callable

PATH = Path("one.kv")


def stored_file(spec: Any = None) -> MemoryFiles:
    fs = MemoryFiles()
    spec = spec or plain()
    write(fs, PATH, spec, contents(spec))
    return fs


def error_of(data: bytes | bytearray) -> ContainerError:
    fs = MemoryFiles({PATH: bytearray(data)})
    with pytest.raises(ContainerError) as caught:
        read(fs, PATH)
    assert caught.value.path == PATH
    assert fs.calls.count("close") == fs.calls.count("open")
    return caught.value


@pytest.mark.parametrize("part", range(4))
def test_every_single_byte_flip_is_noticed(part: int) -> None:
    spec = small()
    parts = contents(spec)
    fs = stored_file(spec)
    whole = fs.files[PATH]
    assert all(len(data) for data in parts)
    missed: list[int] = []
    for place in range(part, len(whole), 4):
        mask = 1 << (place // 4) % 8
        whole[place] ^= mask
        try:
            read_back(fs, parts)
        except ContainerError:
            whole[place] ^= mask
        else:
            missed.append(place)
        fs.calls.clear()
    assert missed == []
    assert read(fs, PATH)[1] == parts


def small() -> CheckpointSpec:
    """Return a checkpoint whose file is as short as one with every kind of part can be."""
    layers = (layer("kv:plain", 5, TensorSpec("keys", "float16", (1, 5, 4))),)
    return CheckpointSpec(TokenIds.of(range(5)), "", layers)


def read_back(fs: MemoryFiles, parts: list[bytes]) -> None:
    read_tensors(fs, PATH, read_header(fs, PATH), views([bytearray(part) for part in parts]))


@pytest.mark.parametrize("mask", [0x80, 0xFF])
def test_other_damage_to_the_first_bytes_and_around_every_boundary(mask: int) -> None:
    whole = stored_file().files[PATH]
    near = [place for start in range(0, len(whole), ALIGNMENT) for place in range(start - 4, start + 90)]
    for place in [*range(2048), *(place for place in near if 2048 <= place < len(whole))]:
        whole[place] ^= mask
        error_of(whole)
        whole[place] ^= mask


def test_every_truncation_is_noticed() -> None:
    whole = bytes(stored_file(small()).files[PATH])
    fs = MemoryFiles({PATH: bytearray(whole)})
    for length in range(len(whole) - 1, -1, -1):
        del fs.files[PATH][length:]
        with pytest.raises(TruncatedContainer):
            read_header(fs, PATH)
        fs.calls.clear()


def test_every_truncation_behind_the_header_is_noticed_when_the_length_was_believed() -> None:
    whole = bytes(stored_file().files[PATH])
    for length in range(0, len(whole), 97):
        fs = MemoryFiles({PATH: bytearray(whole[:length])})
        with pytest.raises(TruncatedContainer):
            read_tensors(fs, PATH, read_header(fs, PATH, file_bytes=len(whole)), views(contents_room()))


def contents_room() -> list[bytearray]:
    return [bytearray(tensor.nbytes) for tensor in plain().tensors()]


@pytest.mark.parametrize("more", [b"\0", b"0123456789", bytes(ALIGNMENT)])
def test_appended_bytes_are_noticed(more: bytes) -> None:
    whole = stored_file().files[PATH]
    assert isinstance(error_of(whole + more), TruncatedContainer)


def test_a_torn_write_that_begins_with_zeros_is_no_container() -> None:
    whole = stored_file().files[PATH]
    assert isinstance(error_of(bytes(FRAME_BYTES) + whole[FRAME_BYTES:]), NotAContainer)


@pytest.mark.parametrize("data", [b"\x89PNG\r\n\x1a\n" + bytes(100), b"x", b"SAMOVAX" + bytes(9)])
def test_foreign_files_are_no_containers(data: bytes) -> None:
    assert isinstance(error_of(data), NotAContainer)


def test_another_version_is_told_apart_from_damage() -> None:
    whole = stored_file().files[PATH]
    whole[len(MAGIC)] = 2
    error = error_of(whole)
    assert isinstance(error, UnsupportedVersion)
    assert "version 2" in str(error)


def test_an_unknown_feature_is_refused_by_name_before_the_rest_is_looked_at() -> None:
    def need(table: dict) -> None:
        table["features"] = ["delta"]
        del table["layers"]

    error = error_of(forged(stored_file().files[PATH], PATH, need))
    assert isinstance(error, UnsupportedFeature)
    assert error.features == ("delta",)


def test_a_damaged_tensor_is_named() -> None:
    spec = attached()
    fs = stored_file(spec)
    stored = read_header(fs, PATH)
    labels = ["layers.0.keys", "layers.0.values", "layers.1.keys", "layers.1.values", "attachments.0.hidden"]
    for section, label in zip(stored.tensors, labels, strict=True):
        place = stored.data_start + section.offset + section.nbytes // 2
        fs.files[PATH][place] ^= 1
        error = error_of(fs.files[PATH])
        assert isinstance(error, CorruptTensor)
        assert error.tensor == label
        fs.files[PATH][place] ^= 1


def test_padding_that_is_not_zero_is_the_fault_of_the_tensor_behind_it() -> None:
    fs = stored_file()
    stored = read_header(fs, PATH)
    fs.files[PATH][stored.data_start + stored.tensors[2].offset - 1] = 1
    error = error_of(fs.files[PATH])
    assert isinstance(error, CorruptTensor)
    assert error.tensor == "layers.1.keys"


def test_unverified_reading_serves_damage_and_only_then() -> None:
    fs = stored_file()
    stored = read_header(fs, PATH)
    fs.files[PATH][-1] ^= 1
    targets = contents_room()
    read_tensors(fs, PATH, stored, views(targets), verify=False)
    assert targets[-1] == fs.files[PATH][-len(targets[-1]) :]
    assert isinstance(error_of(fs.files[PATH]), CorruptTensor)


def test_a_file_replaced_after_its_header_was_read_is_not_called_corrupt() -> None:
    fs = stored_file()
    stored = read_header(fs, PATH)
    del fs.files[PATH]
    write(fs, PATH, plain(), contents(plain(), seed=2))
    with pytest.raises(ContainerChanged) as caught:
        read_tensors(fs, PATH, stored, views(contents_room()))
    assert caught.value.retryable


def put(*keys: str | int, value: object) -> Callable[[dict], None]:
    def change(table: Any) -> None:
        for key in keys[:-1]:
            table = table[key]
        table[keys[-1]] = value

    change.__name__ = f"{'.'.join(map(str, keys))}={value!r:.20}"
    return change


def drop(*keys: str | int) -> Callable[[dict], None]:
    def change(table: Any) -> None:
        for key in keys[:-1]:
            table = table[key]
        del table[keys[-1]]

    change.__name__ = f"without {'.'.join(map(str, keys))}"
    return change


FIRST = ("layers", 0, "tensors", 0)
WRONG: list[object] = [None, True, -1, 1 << 63, 0.5, "x", [], {}, [1], {"a": 1}]
FIELDS = [
    *[
        (key,)
        for key in (
            "identity",
            "namespace",
            "created_s",
            "checksum",
            "features",
            "tokens",
            "layers",
            "attachments",
        )
    ],
    *[("tokens", key) for key in ("count", "offset", "bytes", "hash")],
    *[
        ("layers", 0, key)
        for key in ("signature", "offset", "trimmable", "reusable_from", "geometry", "tensors")
    ],
    *[(*FIRST, key) for key in ("name", "dtype", "shape", "offset", "bytes", "hash")],
    *[("attachments", 0, key) for key in ("schema", "values", "tensors")],
    ("layers", 0),
    FIRST,
    ("attachments", 0),
    ("layers", 0, "geometry", "step"),
    ("attachments", 0, "values", "depth"),
    (*FIRST, "shape", 0),
]


@pytest.mark.parametrize("keys", FIELDS, ids=lambda keys: ".".join(map(str, keys)))
def test_a_wrong_value_anywhere_is_a_typed_error(keys: tuple[str | int, ...]) -> None:
    whole = stored_file(attached()).files[PATH]
    if keys[-1] not in {"step", "depth", 0} or keys in {("layers", 0), FIRST}:
        assert isinstance(error_of(forged(whole, PATH, drop(*keys))), CorruptHeader)
    for value in WRONG:
        if not harmless(keys, value):
            error = error_of(forged(whole, PATH, put(*keys, value=value)))
            assert isinstance(error, CorruptHeader | UnsupportedFeature | CorruptTensor), value


def harmless(keys: tuple[str | int, ...], value: object) -> bool:
    """Whether the format allows this value there."""
    plain_number = isinstance(value, int | float) and not isinstance(value, bool)
    allowed = {
        **dict.fromkeys(("identity", "namespace", "signature", "schema", "name"), isinstance(value, str)),
        **dict.fromkeys(("geometry",), value in ({}, {"a": 1})),
        **dict.fromkeys(("values",), isinstance(value, dict)),
        "created_s": plain_number and value >= 0,
        "trimmable": isinstance(value, bool),
        "step": plain_number and isinstance(value, int),
        "depth": not isinstance(value, list | dict),
        "features": value == [],
    }
    return allowed.get(str(keys[-1]), False)


@pytest.mark.parametrize(
    "change",
    [
        put("tokens", value={"count": 4, "offset": 0, "bytes": 16, "hash": "0" * 32}),
        put("tokens", value={"count": 1 << 60, "offset": 0, "bytes": 1 << 62, "hash": "0" * 32}),
        put("tokens", "offset", value=ALIGNMENT),
        put(*FIRST, "offset", value=0),
        put(*FIRST, "offset", value=ALIGNMENT + 1),
        put(*FIRST, "offset", value=2 * ALIGNMENT),
        put(*FIRST, "offset", value=-ALIGNMENT),
        put(*FIRST, "shape", value=[1 << 62] * 16),
        put(*FIRST, "shape", value=[1] * 17),
        put(*FIRST, "shape", value=[1, 2, -5, -4]),
        put(*FIRST, "shape", value=[1, 2, True, 20]),
        put(*FIRST, "shape", value=[[1, 2], 5, 4]),
        put(*FIRST, "name", value="values"),
        put(*FIRST, "dtype", value="float8"),
        put(*FIRST, "hash", value="0" * 31),
        put("tokens", "hash", value="0" * 32),
        put("checksum", value="crc32"),
        put("layers", 0, "reusable_from", value=6),
        put("layers", 0, "offset", value=4),
        put("layers", value=[{}] * 800),
        put("features", value=[f"f{n}" for n in range(65)]),
        drop("layers", 1),
    ],
    ids=lambda change: change.__name__,
)
def test_a_header_that_lies_is_corrupt(change: Callable[[dict], None]) -> None:
    whole = stored_file(attached()).files[PATH]
    assert isinstance(error_of(forged(whole, PATH, change)), CorruptHeader)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"null",
        b"[]",
        b"{",
        b"{}",
        b"[" * 9000,
        b'{"a":' * 2000,
        b"\xff",
        b'"\\ud800"',
        b"1e999",
        b"{}{}",
    ],
    ids=lambda header: repr(header[:8]),
)
def test_what_is_no_header_at_all_is_corrupt(header: bytes) -> None:
    whole = stored_file().files[PATH]
    frame = parse_frame(PATH, whole, len(whole))
    assert isinstance(error_of(reheaded(whole, frame, header)), CorruptHeader)
