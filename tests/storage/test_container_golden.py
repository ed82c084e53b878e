"""Files of format version 1 that are never made anew: this and every later Samovar has to read them.

A reader of thirty lines stands beside ours, written from docs/kv-container.md alone.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import xxhash
from blake3 import blake3
from samovar.storage.container import Checksum, file_bytes_of, read_header, read_tensors, write_container
from samovar.storage.fs import OsFilesystem
from samovar.storage.spec import CheckpointSpec, TensorSpec
from samovar.storage.tokens import TokenIds

from tests.kit.containers import CREATED_S, IDENTITY, MemoryFiles, attached, contents, layer, plain, views

FOLDER = Path(__file__).parent / "golden"
FS = OsFilesystem()
IDS = TokenIds.of([1, 70_000, (1 << 32) - 1, 0])


def one(*tensors: TensorSpec, signature: str, trimmable: bool = True, **geometry: int) -> CheckpointSpec:
    return CheckpointSpec(IDS, "", (layer(signature, 4, *tensors, trimmable=trimmable, **geometry),))


PARTS = (("packed", "uint32", 16), ("scales", "float16", 1), ("biases", "float16", 1))
GOLDEN: dict[str, tuple[CheckpointSpec, Checksum]] = {
    "plain": (plain(length=4, layers=1), "xxh3-128"),
    "bfloat16": (
        one(
            *(TensorSpec(name, "bfloat16", (1, 2, 4, 3)) for name in ("keys", "values")), signature="kv:plain"
        ),
        "xxh3-128",
    ),
    "rotating": (
        one(
            *(TensorSpec(name, "float32", (1, 1, 3, 2)) for name in ("keys", "values")),
            signature="kv:rotating",
            trimmable=False,
            max_size=3,
            keep=0,
            index=1,
        ),
        "xxh3-128",
    ),
    "quantised": (
        one(
            *(
                TensorSpec(f"{name}.{part}", dtype, (1, 1, 4, width))
                for name in ("keys", "values")
                for part, dtype, width in (
                    ("packed", "uint32", 16),
                    ("scales", "float16", 1),
                    ("biases", "float16", 1),
                )
            ),
            signature="kv:quant:8:64",
            bits=8,
            group_size=64,
        ),
        "blake3-128",
    ),
    "arrays": (
        one(
            TensorSpec("0", "float32", (1, 3, 5)),
            TensorSpec("1", "float32", (1, 2, 0)),
            signature="state:arrays",
            trimmable=False,
        ),
        "xxh3-128",
    ),
    "attachment": (attached(length=5), "xxh3-128"),
    "namespace": (plain(length=3, layers=1, namespace="адаптер/самовар ☕ 🫖"), "xxh3-128"),
}


def foreign_read(data: bytes) -> tuple[dict, bytes, list[bytes]]:
    """Return header, tokens and tensors, every byte checked; AssertionError for anything wrong."""
    magic, version, header_bytes, data_start, file_bytes = struct.unpack_from("<8sIIQQ", data)
    assert (magic, version, file_bytes) == (b"SAMOVAR\n", 1, len(data))
    area = data[:32] + bytes(16) + data[48:data_start]
    assert xxhash.xxh3_128(area).digest() == data[32:48]
    header = json.loads(data[64 : 64 + header_bytes])
    assert header["features"] == []
    owners = [*header["layers"], *header["attachments"]]
    sections = [header["tokens"], *(tensor for owner in owners for tensor in owner["tensors"])]
    end, parts = data_start, []
    for section in sections:
        start = data_start + section["offset"]
        assert start % 16384 == 0
        assert 0 <= start - end < 16384
        assert not any(data[end:start])
        end = start + section["bytes"]
        parts.append(data[start:end])
        assert foreign_sum(header["checksum"], parts[-1]) == section["hash"]
    assert end == len(data)
    return header, parts[0], parts[1:]


def foreign_sum(checksum: str, data: bytes) -> str:
    if checksum == "xxh3-128":
        return xxhash.xxh3_128(data).hexdigest()
    assert checksum == "blake3-128"
    return blake3(data).hexdigest()[:32]


@pytest.mark.parametrize("name", GOLDEN)
def test_a_golden_file_is_read(name: str) -> None:
    spec, checksum = GOLDEN[name]
    path = FOLDER / f"{name}.kv"
    stored = read_header(FS, path)
    header = stored.header
    assert (header.spec, header.identity, header.checksum) == (spec, IDENTITY, checksum)
    assert (header.created_s, header.features) == (CREATED_S, ())
    targets = [bytearray(tensor.nbytes) for tensor in spec.tensors()]
    assert read_tensors(FS, path, stored, views(targets)) == spec.nbytes
    assert targets == contents(spec)


@pytest.mark.parametrize("name", GOLDEN)
def test_the_same_checkpoint_still_gives_the_same_bytes(name: str) -> None:
    spec, checksum = GOLDEN[name]
    fs, path = MemoryFiles(), Path("again.kv")
    write_container(fs, path, IDENTITY, spec, views(contents(spec)), checksum=checksum, created_s=CREATED_S)
    assert bytes(fs.files[path]) == (FOLDER / f"{name}.kv").read_bytes()
    assert file_bytes_of(spec, IDENTITY) == len(fs.files[path])


@pytest.mark.parametrize("name", GOLDEN)
def test_a_stranger_reads_a_golden_file_with_the_document_alone(name: str) -> None:
    spec, _ = GOLDEN[name]
    header, tokens, tensors = foreign_read((FOLDER / f"{name}.kv").read_bytes())
    assert (header["identity"], header["namespace"]) == (IDENTITY, spec.namespace)
    assert list(struct.unpack(f"<{header['tokens']['count']}I", tokens)) == spec.tokens.tolist()
    assert tensors == contents(spec)
    names = [tensor["name"] for layer in header["layers"] for tensor in layer["tensors"]]
    assert names == [tensor.name for layer in spec.layers for tensor in layer.tensors]


def test_every_golden_file_is_known() -> None:
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(GOLDEN)
