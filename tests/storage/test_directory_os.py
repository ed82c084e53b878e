"""The directory on the real file system: modes, the lock between processes, a restart."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from samovar.storage.directory import CheckpointDirectory
from samovar.storage.fs import FileLocked, OsFilesystem
from samovar.storage.identity import Identity
from samovar.storage.room import Limits
from samovar.storage.tokens import TokenIds

from tests.kit.stored import content_of, read_back, spec_of, store

if TYPE_CHECKING:
    from pathlib import Path

IDENTITY = Identity("a" * 32, {"model": "tiny"})
LIMITS = Limits(max_bytes=1 << 20, free_floor=0.0)

HOLDER = """
import sys
from pathlib import Path
from samovar.storage.directory import CheckpointDirectory
from samovar.storage.fs import OsFilesystem
from samovar.storage.identity import Identity
from samovar.storage.room import Limits
CheckpointDirectory(OsFilesystem(), Path(sys.argv[1]), Identity("b" * 32), Limits(0)).open()
print("open", flush=True)
sys.stdin.read()
"""


def test_b047_another_process_holds_the_root_until_it_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    directory = CheckpointDirectory(OsFilesystem(), tmp_path, IDENTITY, LIMITS)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(FileLocked, match=f"{tmp_path}/LOCK is locked by process {holder.pid}"):
            directory.open()
        holder.kill()
        holder.wait(10)
    directory.open()
    directory.close()


def test_a_restart_on_a_real_disk_finds_private_files_and_their_order(tmp_path: Path) -> None:
    fs, root = OsFilesystem(), tmp_path / "cache"
    directory = CheckpointDirectory(fs, root, IDENTITY, LIMITS)
    directory.open()
    entries = [store(fs, directory, spec_of([number, 1, 2], "lora" if number else "")) for number in range(4)]
    assert directory.touch(entries[1].id)
    bad = directory.quarantine(entries[2].id, "corrupt_tensor")
    assert bad is not None
    directory.close()
    again = CheckpointDirectory(fs, root, IDENTITY, LIMITS)
    report = again.open()
    assert [entry.tokens[0] for entry in again.entries()] == [0, 3, 1]
    assert not report.problems
    assert not report.failures
    assert again.figures().quarantined == 1
    match = again.find(TokenIds.of([1, 1, 2, 9]), "lora")
    assert match is not None
    assert read_back(fs, match.entry) == content_of(spec_of([1, 1, 2], "lora"))
    for path in root.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path
    assert again.clear() == 3
    assert not list(root.rglob("*.kv"))
    again.close()
