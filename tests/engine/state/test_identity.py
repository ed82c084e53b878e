"""Identities: the same everywhere for the same bytes, another one for any difference that matters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from samovar.runtime.engine.errors import ModelUnreadable
from samovar.runtime.engine.models.artifacts import hash_files
from samovar.runtime.engine.state import identity as identity_module
from samovar.runtime.engine.state.identity import default_memo, model_identity

if TYPE_CHECKING:
    from collections.abc import Callable

    from samovar.storage.identity import Identity

CONFIG = {"model_type": "llama", "rope_theta": 10000.0, "time_step_limit": [0.0, float("inf")]}
TOKENIZER_CONFIG = {"add_bos_token": True, "chat_template": "one"}


def write_model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "tokenizer.json").write_text('{"model": 1}')
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG))
    (folder / "model-00001-of-00002.safetensors").write_bytes(b"a" * 1000)
    (folder / "model-00002-of-00002.safetensors").write_bytes(b"b" * 1000)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


@pytest.fixture
def identify(tmp_path: Path, folder: Path) -> Callable[..., Identity]:
    def of(where: Path = folder, dtype: Any = "float32", scheme: str = "plain") -> Identity:
        return model_identity(where, dtype, scheme, tmp_path / "cache" / "memo.json")

    return of


def differing(one: Identity, other: Identity) -> set[str]:
    assert one.fields.keys() == other.fields.keys()
    assert (one.id == other.id) == (one.fields == other.fields)
    return {name for name in one.fields if one.fields[name] != other.fields[name]}


@pytest.mark.parametrize("missing", ["config.json", "*.safetensors"])
def test_what_is_not_there_is_named(folder: Path, identify: Callable[..., Identity], missing: str) -> None:
    for path in folder.glob(missing):
        path.unlink()
    with pytest.raises(ModelUnreadable, match=str(folder)):
        identify()


def test_a_broken_configuration_is_unreadable(folder: Path, identify: Callable[..., Identity]) -> None:
    for content in (b"{", b"[]", b"\xff"):
        (folder / "config.json").write_bytes(content)
        with pytest.raises(ModelUnreadable, match=r"config\.json"):
            identify()


def test_a_copy_of_the_model_has_the_same_identity(tmp_path: Path, identify: Callable[..., Identity]) -> None:
    assert identify(write_model(tmp_path / "elsewhere")) == identify()


def test_order_spacing_and_chat_template_do_not_matter(
    folder: Path, identify: Callable[..., Identity]
) -> None:
    before = identify()
    (folder / "config.json").write_text(json.dumps(dict(reversed(CONFIG.items())), indent=3))
    (folder / "tokenizer_config.json").write_text(json.dumps(TOKENIZER_CONFIG | {"chat_template": "two"}))
    (folder / "chat_template.jinja").write_text("three")
    assert identify() == before


def test_each_thing_that_matters_differs_in_its_own_field(
    folder: Path, identify: Callable[..., Identity], monkeypatch: pytest.MonkeyPatch
) -> None:
    base = identify()
    assert differing(base, identify(scheme="kv8")) == {"kv_scheme"}
    assert differing(base, identify(dtype="bfloat16")) == {"compute_dtype"}
    (folder / "config.json").write_text(json.dumps(CONFIG | {"rope_theta": 20000.0}))
    (second := folder / "model-00002-of-00002.safetensors").write_bytes(b"c" * 1000)
    (folder / "tokenizer.json").write_text('{"model": 2}')
    changed = identify()
    assert differing(base, changed) == {"config", "weights", "tokenizer"}
    second.rename(folder / "model-00003-of-00002.safetensors")
    assert differing(changed, identify()) == {"weights"}
    before = identify()
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "9.9" if name == "mlx" else real(name))
    assert differing(before, identify()) == {"mlx"}
    monkeypatch.setattr(identity_module, "LAYOUT", -1)
    assert differing(before, identify()) == {"mlx", "layout"}


@pytest.mark.timeout(60)  # two processes that import MLX, one after the other
def test_the_identity_does_not_depend_on_the_process(folder: Path, tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path;"
        "from samovar.runtime.engine.state.identity import model_identity;"
        "print(model_identity(Path(sys.argv[1]), 'auto', 'plain', Path(sys.argv[2])).id)"
    )
    found: set[str] = set()
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        command = [sys.executable, "-c", program, str(folder), str(tmp_path / f"memo-{seed}.json")]
        found.add(subprocess.run(command, env=environment, check=True, capture_output=True).stdout.decode())
    assert found == {model_identity(folder, "auto", "plain", tmp_path / "memo.json").id + "\n"}


def test_a_remembered_file_is_not_read_again(folder: Path, tmp_path: Path) -> None:
    memo = tmp_path / "cache" / "memo.json"
    shard = folder / "model-00001-of-00002.safetensors"
    first = hash_files([shard], memo)
    content = json.loads(memo.read_bytes())
    (key,) = content["hashes"]
    content["hashes"][key] = "f" * 64
    memo.write_text(json.dumps(content))
    assert hash_files([shard], memo) == {shard: "f" * 64}
    assert hash_files([shard], None) == first


def test_a_file_of_the_same_size_and_time_is_another_revision(folder: Path, tmp_path: Path) -> None:
    memo = tmp_path / "memo.json"
    shard = folder / "model-00001-of-00002.safetensors"
    before = hash_files([shard], memo)
    stamps = shard.stat()
    replacement = tmp_path / "replacement"
    replacement.write_bytes(b"z" * 1000)
    os.utime(replacement, ns=(stamps.st_atime_ns, stamps.st_mtime_ns))
    replacement.rename(shard)
    assert shard.stat().st_mtime_ns == stamps.st_mtime_ns
    assert hash_files([shard], memo) != before


def test_a_link_to_another_file_is_another_revision(folder: Path, tmp_path: Path) -> None:
    memo, link = tmp_path / "memo.json", tmp_path / "link"
    link.symlink_to(folder / "model-00001-of-00002.safetensors")
    before = hash_files([link], memo)
    link.unlink()
    link.symlink_to(folder / "model-00002-of-00002.safetensors")
    assert hash_files([link], memo) != before


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b'{"version": 1, "hashes": []}',
        b'{"version": 2, "hashes": {}}',
        b'{"version": 1}',
    ],
)
def test_a_spoiled_memo_is_as_good_as_none(folder: Path, tmp_path: Path, content: bytes) -> None:
    shards = sorted(folder.glob("*.safetensors"))
    memo = tmp_path / "memo.json"
    memo.write_bytes(content)
    assert hash_files(shards, memo) == hash_files(shards, None)
    assert len(json.loads(memo.read_bytes())["hashes"]) == 2


def test_entries_that_are_no_hashes_are_ignored(folder: Path, tmp_path: Path) -> None:
    shards = sorted(folder.glob("*.safetensors"))
    memo = tmp_path / "memo.json"
    right = hash_files(shards, memo)
    hashes = json.loads(memo.read_bytes())["hashes"]
    spoiled = dict(zip(hashes, ["short", 7], strict=True))
    memo.write_text(json.dumps({"version": 1, "hashes": spoiled}))
    assert hash_files(shards, memo) == right


def test_a_memo_that_cannot_be_written_never_fails(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    shards = sorted(folder.glob("*.safetensors"))
    assert hash_files(shards, tmp_path / "file" / "memo.json") == hash_files(shards, None)


class Restless(type(Path())):  # pyright: ignore[reportUntypedBaseClass]
    """A file that somebody writes to each time it is read."""

    writes = 0

    def open(self, *args: Any, **kwargs: Any) -> Any:
        if type(self).writes:
            type(self).writes -= 1
            with Path(str(self)).open("ab") as file:
                file.write(b"more")
        return super().open(*args, **kwargs)


def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    memo = tmp_path / "memo.json"
    path = Restless(tmp_path / "shard")
    path.write_bytes(b"x")
    Restless.writes = 2
    found = hash_files([path], memo)
    assert found == hash_files([path], None)
    assert len(json.loads(memo.read_bytes())["hashes"]) == 1


def test_a_file_that_never_rests_is_refused_and_not_remembered(tmp_path: Path) -> None:
    memo = tmp_path / "memo.json"
    path = Restless(tmp_path / "shard")
    path.write_bytes(b"x")
    Restless.writes = 1000
    with pytest.raises(ModelUnreadable, match="keeps changing"):
        hash_files([path], memo)
    Restless.writes = 0
    assert not memo.exists()


def test_the_memo_lies_in_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_memo() == tmp_path / "samovar" / "artifact-hashes.json"
