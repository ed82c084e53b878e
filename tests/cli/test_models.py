"""``samovar models``: what it will not remove, what it lists, where it converts to."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from samovar.runtime.cli import main
from samovar.runtime.engine.models.hub_progress import HubProgress
from samovar.runtime.engine.models.manifest import Manifest, ManifestFile

if TYPE_CHECKING:
    from pathlib import Path

    from samovar.runtime.engine.models.progress import ProgressEvent


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for models, with a converted one, a stranger's folder, and a link to outside."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "samovar" / "models"
    model = folder / "tiny-1"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    record = Manifest(
        "/x/tiny.gguf\x1b[2J", "tiny.gguf", "ab" * 32, 7, (ManifestFile("config.json", 2, 0, ""),)
    )
    (model / "samovar.json").write_bytes(record.encode())
    (folder / "stranger").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "samovar.json").write_bytes(record.encode())
    (folder / "link").symlink_to(tmp_path / "outside")
    return folder


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["models", *args])
    return (code, *capsys.readouterr())


@pytest.mark.parametrize(
    "name",
    [
        "stranger",
        "link",
        "none",
        "../outside",
        "../../../outside",
        ".",
        "..",
        "",
        "/",
        "tiny-1/.",
        "org/name",
    ],
)
def test_what_no_conversion_made_stays(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    before = sorted(tmp_path.rglob("*"))
    code, out, err = run(capsys, "rm", "--yes", name)
    assert (code in {1, 2}, out) == (True, "")
    assert err.startswith("samovar: error: ")
    assert sorted(tmp_path.rglob("*")) == before


def test_without_an_answer_nothing_is_removed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "rm", "tiny-1")
    assert code == 2
    assert "--yes" in err
    assert (root / "tiny-1" / "config.json").exists()


@pytest.mark.parametrize("manifest", [None, b"{"])
def test_a_converted_model_goes_even_if_its_record_is_damaged(
    root: Path, capsys: pytest.CaptureFixture[str], manifest: bytes | None
) -> None:
    if manifest is not None:
        (root / "tiny-1" / "samovar.json").write_bytes(manifest)
    assert run(capsys, "rm", "--yes", "tiny-1")[0] == 0
    assert sorted(path.name for path in root.iterdir()) == [".lock", "link", "stranger"]


def test_ls_shows_converted_models_and_steers_no_terminal(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(root / "none"))
    (root / "link").unlink()
    _, out, _ = run(capsys, "ls")
    assert out == "tiny-1  2 B  /x/tiny.gguf?[2J\n"
    (listed,) = json.loads(run(capsys, "ls", "--json")[1])
    assert (listed["name"], listed["kind"], listed["size_bytes"]) == ("tiny-1", "converted", 2)
    assert listed["path"] == str(root / "tiny-1")


def test_convert_writes_no_folder_twice(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.gguf").write_bytes(b"no gguf")
    code, out, err = run(capsys, "convert", str(tmp_path / "x.gguf"), "--to", str(root / "stranger"))
    assert (code, out) == (2, "")
    assert "is there already" in err
    code, out, err = run(capsys, "convert", str(tmp_path / "x.gguf"), "--to", str(tmp_path / "new"))
    assert (code, out) == (1, "")
    assert not (tmp_path / "new").exists()


def test_what_the_hubs_client_counts_is_told_a_hundred_times_at_most(
    capsys: pytest.CaptureFixture[str],
) -> None:
    events: list[ProgressEvent] = []
    bars = HubProgress(events.append, "org/name", 10_000).bars()
    files, transfer, written = (
        bars(total=total, unit=unit) for total, unit in ((3, "it"), (0, "B"), (0, "B"))
    )
    for _ in range(1000):
        transfer.update(9)
        written.update(9)
    files.update(3)
    written.update(1000)
    for bar in (files, transfer, written):
        bar.close()
    told = [event.done for event in events]
    assert (told[0], told[-1]) == (9, 10_000)
    assert told == sorted(set(told))
    assert len(told) <= 101
    assert {(event.stage, event.total) for event in events} == {("download", 10_000)}
    assert capsys.readouterr() == ("", "")
