from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import mlx.core as mx
import pytest
from samovar.runtime.engine.errors import ChecksumMismatch, ModelUnreadable
from samovar.runtime.engine.models.fetch import sha256_of
from samovar.runtime.engine.models.gguf import convert_gguf
from samovar.runtime.engine.models.manifest import read_manifest, verify_manifest
from tokenizers import Tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from samovar.runtime.engine.models.progress import ProgressEvent


def refused(path: Path, tmp_path: Path, match: str) -> None:
    destination = tmp_path / "out" / "model"
    with pytest.raises(ModelUnreadable, match=match) as caught:
        convert_gguf(path, destination, source="test")
    assert str(path) in str(caught.value)
    assert not destination.parent.exists() or list(destination.parent.iterdir()) == []


@pytest.mark.parametrize("size", [0, 3, 20, 300, 20_000])
def test_a_truncated_file(write_gguf: Callable[..., Path], tmp_path: Path, size: int) -> None:
    path = write_gguf()
    path.write_bytes(path.read_bytes()[:size])
    refused(path, tmp_path, "not a readable GGUF file")


def test_something_else_entirely(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"PK\3\4" * 100)
    refused(path, tmp_path, "not a readable GGUF file")


@pytest.mark.parametrize(
    ("metadata", "match"),
    [
        ({"general.architecture": "mamba"}, "architecture 'mamba' is not supported"),
        ({"general.architecture": None}, "'general.architecture' is missing"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer kind 'llama'"),
        ({"tokenizer.ggml.pre": "nonesuch"}, "pre-tokenizer 'nonesuch'"),
        ({"llama.block_count": None}, "'llama.block_count' is missing"),
        ({"llama.block_count": "two"}, "'llama.block_count' is of another type"),
        ({"tokenizer.ggml.merges": None}, "'tokenizer.ggml.merges' is missing"),
        ({"tokenizer.ggml.merges": ["h e l"]}, "not a pair"),
        ({"tokenizer.ggml.merges": ["h zz"]}, "broken tokenizer"),
        ({"tokenizer.ggml.eos_token_id": mx.array(99_999, mx.uint32)}, "eos token 99999"),
        ({"llama.rope.scaling.type": "yarn"}, "scaled rotary embedding"),
    ],
)
def test_what_is_not_supported_is_named(
    write_gguf: Callable[..., Path], tmp_path: Path, metadata: dict[str, object], match: str
) -> None:
    refused(write_gguf(metadata=metadata), tmp_path, match)


@pytest.mark.parametrize("name", ["rope_freqs.weight", "blk.0.ffn_gate_exps.weight", "blk.x.attn_q.weight"])
def test_a_tensor_without_a_place(write_gguf: Callable[..., Path], tmp_path: Path, name: str) -> None:
    refused(write_gguf(tensors={name: mx.ones((4,))}), tmp_path, f"tensor '{name}'")


def test_no_embedding(write_gguf: Callable[..., Path], tmp_path: Path) -> None:
    refused(write_gguf(tensors={"token_embd.weight": None}), tmp_path, "token_embd")


def test_an_interrupted_conversion_leaves_nothing(write_gguf: Callable[..., Path], tmp_path: Path) -> None:
    path, destination = write_gguf(), tmp_path / "out" / "model"

    def interrupt(event: ProgressEvent) -> None:
        if event.message == "model.safetensors":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert_gguf(path, destination, source="test", progress=interrupt)
    assert list(destination.parent.iterdir()) == []


def test_configuration(tiny_model_dir: Path) -> None:
    config = json.loads((tiny_model_dir / "config.json").read_text())
    assert config["model_type"] == "llama"
    assert config["rope_traditional"] is True
    assert config["tie_word_embeddings"] is True
    assert config["max_position_embeddings"] == 512
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 16)
    assert "quantization" not in config
    assert json.loads((tiny_model_dir / "generation_config.json").read_text())["eos_token_id"] == [2, 0]


def test_untied_output_is_kept(write_gguf: Callable[..., Path], tmp_path: Path) -> None:
    destination = tmp_path / "out"
    convert_gguf(write_gguf(tensors={"output.weight": mx.ones((261, 64))}), destination, source="test")
    assert json.loads((destination / "config.json").read_text())["tie_word_embeddings"] is False
    assert "lm_head.weight" in mx.load(destination / "model.safetensors")


def test_tokenizer(tiny_model_dir: Path) -> None:
    tokenizer = Tokenizer.from_file(str(tiny_model_dir / "tokenizer.json"))
    assert tokenizer.encode("<|im_start|>hel", add_special_tokens=False).tokens == ["<|im_start|>", "hel"]
    assert tokenizer.encode("123").tokens == ["1", "2", "3"]
    assert tokenizer.decode(tokenizer.encode("hello 😀 wörld<|im_end|>").ids) == "hello 😀 wörld"


def test_begin_token_is_added_where_the_file_wants_it(
    write_gguf: Callable[..., Path], tmp_path: Path
) -> None:
    path = write_gguf(
        metadata={"tokenizer.ggml.add_bos_token": mx.array(True), "tokenizer.ggml.pre": "llama-bpe"}
    )
    convert_gguf(path, tmp_path / "out", source="test")
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert tokenizer.encode("hel").tokens == ["<|im_start|>", "hel"]


def test_manifest_finds_every_kind_of_damage(write_gguf: Callable[..., Path], tmp_path: Path) -> None:
    path, folder = write_gguf(), tmp_path / "out"
    convert_gguf(path, folder, source="here", member="a/b.gguf")
    manifest = read_manifest(folder)
    assert (manifest.source, manifest.member, manifest.source_sha256) == ("here", "a/b.gguf", sha256_of(path))
    verify_manifest(folder, manifest, full=True)

    weights = folder / "model.safetensors"
    data, stamp = weights.read_bytes(), weights.stat()
    weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(ChecksumMismatch, match=r"model\.safetensors.*expected SHA-256"):
        verify_manifest(folder, manifest)
    restore_stamp(weights, stamp.st_mtime_ns)
    verify_manifest(folder, manifest)  # cheap check: same size, same time
    with pytest.raises(ChecksumMismatch):
        verify_manifest(folder, manifest, full=True)
    weights.write_bytes(data)
    verify_manifest(folder, manifest)  # another time, but the same bytes
    weights.write_bytes(data[:-1])
    with pytest.raises(ModelUnreadable, match=r"expected .* bytes, found"):
        verify_manifest(folder, manifest)
    weights.unlink()
    with pytest.raises(ModelUnreadable, match="missing"):
        verify_manifest(folder, manifest)


def restore_stamp(path: Path, mtime_ns: int) -> None:
    os.utime(path, ns=(mtime_ns, mtime_ns))


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"version": 9}', b'{"version": 1, "files": 3}'])
def test_broken_manifest(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "samovar.json").write_bytes(content)
    with pytest.raises(ModelUnreadable, match=r"samovar\.json"):
        read_manifest(tmp_path)


@pytest.mark.model
@pytest.mark.timeout(600)
def test_default_model_keeps_its_widths(default_model_dir: Path) -> None:
    config = json.loads((default_model_dir / "config.json").read_text())
    assert config["quantization"] == {
        "group_size": 32,
        "bits": 4,
        "model.embed_tokens": {"group_size": 32, "bits": 8},
    }
    verify_manifest(default_model_dir, read_manifest(default_model_dir), full=True)
