from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samovar.runtime.engine.errors import ModelNotFound, ModelSourceInvalid
from samovar.runtime.engine.models.sources import (
    ALIASES,
    DEFAULT_MODEL,
    Alias,
    GgufFile,
    HubRepository,
    LocalDirectory,
    ModelSource,
    PypiFile,
    parse_source,
)


@pytest.mark.parametrize(
    "text", ["./absent", "../absent/x", "/absent/model", "~/absent-model", ".hidden/model"]
)
def test_a_path_that_is_not_there_is_never_a_repository(text: str) -> None:
    with pytest.raises(ModelNotFound, match="there is no folder"):
        parse_source(text)


@pytest.mark.parametrize("text", ["org/name.gguf", "absent.GGUF", "./x.gguf"])
def test_a_gguf_that_is_not_there(text: str) -> None:
    with pytest.raises(ModelNotFound, match="there is no file"):
        parse_source(text)


@pytest.mark.parametrize(
    "text", ["", "  ", "nosuchalias", "a/b/c", "org/", "/", "https://x/y", "org/na me", "a\0b", "a" * 5000]
)
def test_anything_else_is_refused_with_the_forms_there_are(text: str, tmp_path: Path) -> None:
    if text == "/":  # exists, and is a directory: its content is checked later
        assert parse_source(text) == LocalDirectory(Path("/"))
        return
    with pytest.raises(ModelSourceInvalid) as caught:
        parse_source(text)
    message = str(caught.value)
    assert repr(text) in message
    for form in ("smollm2", "directory", ".gguf", "org/name", "pypi:PACKAGE==VERSION#FILE.gguf"):
        assert form in message


@pytest.mark.parametrize(
    "text",
    [
        "pypi:",
        "pypi:package",
        "pypi:package==1",
        "pypi:package#x.gguf",
        "pypi:--index-url==1#x.gguf",
        "pypi:package==-r#x.gguf",
        "pypi:package==1 other#x.gguf",
        "pypi:package==1#x.bin",
        "pypi:package==1#../x.gguf",
        "pypi:package==1#/x.gguf",
        "pypi:package==1#",
    ],
)
def test_malformed_pypi(text: str) -> None:
    with pytest.raises(ModelSourceInvalid, match="pypi:"):
        parse_source(text)


def test_a_file_that_is_no_gguf(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ModelSourceInvalid, match=r"neither a model directory nor a \.gguf file"):
        parse_source(str(tmp_path / "notes.txt"))


def test_a_folder_named_like_a_gguf(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").mkdir()
    with pytest.raises(ModelSourceInvalid, match="is not a file"):
        parse_source(str(tmp_path / "x.gguf"))


def test_unknown_home() -> None:
    with pytest.raises(ModelNotFound, match="home"):
        parse_source("~nosuchuser-samovar/model")


def test_local_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    (tmp_path / "m.gguf").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert parse_source("org/name") == LocalDirectory(tmp_path / "org" / "name")
    assert parse_source("~/org") == LocalDirectory(tmp_path / "org")
    assert parse_source("./org").path == tmp_path / "org"  # type: ignore[union-attr]
    assert parse_source("m.gguf") == GgufFile(tmp_path / "m.gguf")


def test_alias_wins_over_a_folder_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "smollm2").mkdir()
    monkeypatch.chdir(tmp_path)
    assert parse_source("smollm2") == Alias("smollm2", ALIASES["smollm2"])
    assert parse_source("./smollm2") == LocalDirectory(tmp_path / "smollm2")


def test_forms() -> None:
    assert parse_source("org/name-1.2_x") == HubRepository("org/name-1.2_x")
    assert parse_source("pypi:a-b==1.0.post1#d/f.gguf") == PypiFile("a-b", "1.0.post1", "d/f.gguf")


def test_aliases_are_pinned_and_can_be_written_out() -> None:
    assert DEFAULT_MODEL in ALIASES
    for target in ALIASES.values():
        assert len(target.file_sha256 or "") == len(target.wheel_sha256 or "") == 64
        written = parse_source(str(target))
        assert isinstance(written, PypiFile)
        assert (written.package, written.version, written.file) == (
            target.package,
            target.version,
            target.file,
        )


@given(st.text())
def test_any_text_gives_a_source_or_a_model_error(text: str) -> None:
    with contextlib.suppress(ModelSourceInvalid, ModelNotFound):
        assert isinstance(parse_source(text), ModelSource)
