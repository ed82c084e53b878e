from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from samovar.storage.fs import FileLocked, OsFile, OsFilesystem

if TYPE_CHECKING:
    from samovar.storage.filesystem import Filesystem

FS: Filesystem = OsFilesystem()
OTHER_PROCESS = """
import sys
from pathlib import Path
from samovar.storage.fs import FileLocked, OsFilesystem
try:
    OsFilesystem().lock(Path(sys.argv[1]))
except FileLocked as error:
    print(error)
    sys.exit(3)
"""


def test_creating_over_a_file_fails_and_leaves_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"mine")
    with pytest.raises(FileExistsError):
        FS.create(path)
    assert path.read_bytes() == b"mine"


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        FS.open(tmp_path / "absent")
    with pytest.raises(FileNotFoundError):
        FS.unlink(tmp_path / "absent")
    with pytest.raises(FileNotFoundError):
        FS.rename(tmp_path / "absent", tmp_path / "other")
    assert FS.list(tmp_path / "absent") == []


def test_a_hint_is_never_an_error(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x")
    os.mkfifo(tmp_path / "pipe")
    for path in (file, tmp_path, tmp_path / "pipe", tmp_path / "absent"):
        FS.prefetch(path, 32768)
    assert file.read_bytes() == b"x"


def test_an_error_of_the_system_keeps_its_number(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    file = FS.open(path)
    with pytest.raises(OSError, match="descriptor") as caught:
        file.write([memoryview(b"y")], 0)
    assert caught.value.errno == errno.EBADF
    file.close()
    file.close()
    for use in (file.size, file.sync, lambda: file.read([memoryview(bytearray(1))], 0)):
        with pytest.raises(OSError, match="closed"):
            use()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_is_enospc() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    file = OsFile(descriptor)
    with pytest.raises(OSError, match="space") as caught:
        file.write([memoryview(b"data")], 0)
    assert caught.value.errno == errno.ENOSPC
    file.close()


def test_reading_a_folder_is_an_error_not_a_crash(tmp_path: Path) -> None:
    file = FS.open(tmp_path)
    with pytest.raises(IsADirectoryError):
        file.read([memoryview(bytearray(8))], 0)
    file.close()


def test_a_pipe_does_not_make_a_scan_wait(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.kv")
    file = FS.open(tmp_path / "pipe.kv")
    with pytest.raises(OSError, match="seek"):
        file.read([memoryview(bytearray(8))], 0)
    file.close()


def test_more_segments_than_one_call_takes_arrive_in_order(tmp_path: Path) -> None:
    count = 2 * os.sysconf("SC_IOV_MAX") + 7
    data = os.urandom(count * 3)
    file = FS.create(tmp_path / "file")
    assert file.write([memoryview(data)[n * 3 : n * 3 + 3] for n in range(count)], 11) == len(data)
    assert file.size() == 11 + len(data)
    file.sync()
    file.close()
    assert (tmp_path / "file").read_bytes() == bytes(11) + data
    room = bytearray(len(data))
    file = FS.open(tmp_path / "file")
    assert file.read([memoryview(room)[n * 3 : n * 3 + 3] for n in range(count)], 11) == len(data)
    file.close()
    assert room == data


def test_reading_past_the_end_tells_how_much_there_was(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    file = FS.open(tmp_path / "file")
    first, second = bytearray(6), bytearray(6)
    assert file.read([memoryview(first), memoryview(second)], 1) == 9
    assert (bytes(first), bytes(second)) == (b"123456", b"789\0\0\0")
    assert file.read([memoryview(first)], 10) == 0
    assert file.read([], 0) == 0
    file.close()


def test_files_and_folders_are_private_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        FS.make_folder(tmp_path / "a" / "b" / "c")
        FS.create(tmp_path / "a" / "file").close()
        FS.lock(tmp_path / "a" / "LOCK").release()
    finally:
        os.umask(before)
    for path, mode in {"a": 0o700, "a/b": 0o700, "a/b/c": 0o700, "a/file": 0o600, "a/LOCK": 0o600}.items():
        assert stat.S_IMODE((tmp_path / path).stat().st_mode) == mode, path


def test_descriptors_do_not_leak_into_children(tmp_path: Path) -> None:
    file = FS.create(tmp_path / "file")
    assert not os.get_inheritable(file._descriptor)  # type: ignore[attr-defined]
    file.close()


def test_making_a_folder_again_changes_nothing_and_a_file_in_the_way_is_said(tmp_path: Path) -> None:
    FS.make_folder(tmp_path / "a")
    (tmp_path / "a" / "kept").write_bytes(b"")
    FS.make_folder(tmp_path / "a")
    assert [entry.name for entry in FS.list(tmp_path / "a")] == ["kept"]
    with pytest.raises((FileExistsError, NotADirectoryError)):
        FS.make_folder(tmp_path / "a" / "kept" / "below")
    with pytest.raises(FileExistsError):
        FS.make_folder(tmp_path / "a" / "kept")


def test_a_listing_describes_and_follows_no_link(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    FS.touch(tmp_path / "file", 1_700_000_000.5)
    entries = {entry.name: entry for entry in FS.list(tmp_path)}
    assert sorted(entries) == ["file", "folder", "link"]
    assert (entries["file"].size_bytes, entries["file"].mtime_s) == (5, 1_700_000_000.5)
    assert [entries[name].is_folder for name in ("file", "folder", "link")] == [False, True, False]


def test_rename_replaces_and_removal_removes(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"old")
    (tmp_path / "new").write_bytes(b"new")
    FS.rename(tmp_path / "new", tmp_path / "old")
    FS.sync_folder(tmp_path)
    assert (tmp_path / "old").read_bytes() == b"new"
    FS.unlink(tmp_path / "old")
    (tmp_path / "empty").mkdir()
    FS.remove_folder(tmp_path / "empty")
    assert FS.list(tmp_path) == []
    (tmp_path / "full" / "x").mkdir(parents=True)
    with pytest.raises(OSError, match="not empty"):
        FS.remove_folder(tmp_path / "full")


def test_space_is_that_of_the_volume(tmp_path: Path) -> None:
    space = FS.space(tmp_path)
    assert 0 < space.free_bytes <= space.total_bytes


def test_a_locked_folder_names_the_path_and_the_holder(tmp_path: Path) -> None:
    path = tmp_path / "LOCK"
    lock = FS.lock(path)
    script = (
        "import sys; from pathlib import Path; from samovar.storage.fs import OsFilesystem as F, FileLocked\n"
    )
    script += "try: F().lock(Path(sys.argv[1]))\nexcept FileLocked as e: print(e); sys.exit(3)"
    other = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False
    )
    assert (other.returncode, other.stdout) == (3, f"{path} is locked by process {os.getpid()}\n")
    with pytest.raises(FileLocked, match=str(os.getpid())):
        FS.lock(path)
    lock.release()
    lock.release()
    FS.lock(path).release()
