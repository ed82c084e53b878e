from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from samovar.storage.fs import (
    STAGING_PREFIX,
    FileLock,
    FileLocked,
    make_private_folder,
    remove_tree,
    staged_folder,
    sweep_staging,
    write_atomically,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    (target / "inside").mkdir(parents=True)
    with pytest.raises(OSError, match="folder"):  # a folder cannot be replaced by a file
        write_atomically(target, b"data")
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_write_into_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "absent" / "file", b"data")


def test_write_replaces_whole_and_private(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"a long first content")
    write_atomically(path, b"second")
    assert path.read_bytes() == b"second"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_staged_folder_vanishes_with_an_error(tmp_path: Path) -> None:
    def fail() -> None:
        with staged_folder(tmp_path / "model") as folder:
            (folder / "half").write_bytes(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_staged_folder_refuses_a_destination_that_has_content(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").write_bytes(b"old")
    with pytest.raises(OSError, match="model"), staged_folder(tmp_path / "model") as folder:
        (folder / "new").write_bytes(b"new")
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "old"]


def test_staged_folder_appears_whole_at_the_end(tmp_path: Path) -> None:
    destination = tmp_path / "deep" / "model"
    with staged_folder(destination) as folder:
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_bytes(b"x")
        assert not destination.exists()
    assert (destination / "sub" / "file").read_bytes() == b"x"


def test_sweep_removes_only_staging(tmp_path: Path) -> None:
    (tmp_path / f"{STAGING_PREFIX}a").mkdir()
    (tmp_path / f"{STAGING_PREFIX}a" / "file").write_bytes(b"x")
    (tmp_path / f"{STAGING_PREFIX}b").write_bytes(b"x")
    (tmp_path / "kept").write_bytes(b"x")
    assert sweep_staging(tmp_path) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_remove_tree_follows_no_link_and_forgives_absence(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    remove_tree(tmp_path / "link")
    remove_tree(tmp_path / "absent")
    assert (tmp_path / "real" / "file").exists()
    assert not (tmp_path / "link").exists()


def test_lock_names_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "LOCK"
    with (
        FileLock.acquire(path),
        pytest.raises(FileLocked, match=f"locked by process {os.getpid()}") as caught,
    ):
        FileLock.acquire(path)
    assert caught.value.code == "file_locked"
    assert caught.value.retryable


def test_lock_is_free_again_after_release(tmp_path: Path) -> None:
    lock = FileLock.acquire(tmp_path / "LOCK")
    lock.release()
    lock.release()
    FileLock.acquire(tmp_path / "LOCK").release()


def test_lock_excludes_another_process_and_dies_with_it(tmp_path: Path) -> None:
    path = tmp_path / "LOCK"
    code = (
        "import sys; from pathlib import Path; from samovar.storage.fs import FileLock\n"
        "lock = FileLock.acquire(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(FileLocked, match=str(other.pid)):
            FileLock.acquire(path)
        other.kill()
        other.wait()
        FileLock.acquire(path).release()


def test_waiting_lock_gets_its_turn(tmp_path: Path) -> None:
    first = FileLock.acquire(tmp_path / "LOCK")
    taken: list[FileLock] = []
    waiter = threading.Thread(
        target=lambda: taken.append(FileLock.acquire(tmp_path / "LOCK", timeout_s=15.0))
    )
    waiter.start()
    first.release()
    waiter.join()
    assert len(taken) == 1
    taken[0].release()


def test_private_folder(tmp_path: Path) -> None:
    make_private_folder(tmp_path / "a" / "b")
    make_private_folder(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
