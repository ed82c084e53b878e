"""``samovar cache``: what it refuses, what it finds, what it leaves alone."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from samovar.runtime.cli import main
from samovar.runtime.cli.cache_check import check_file
from samovar.runtime.cli.cache_survey import survey
from samovar.runtime.cli.cache_upkeep import clear, collect
from samovar.runtime.cli.cache_verify import verify
from samovar.storage.container_errors import ContainerError
from samovar.storage.directory import CheckpointDirectory
from samovar.storage.fs import FileLock, OsFile, OsFilesystem
from samovar.storage.identity import Identity
from samovar.storage.layout import ALIGNMENT
from samovar.storage.room import Limits

from tests.kit.stored import spec_of, store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from samovar.storage.entry import StoredEntry

FS = OsFilesystem()
FIRST = Identity("a" * 32, {"config": "c0ffee00" * 8, "kv_scheme": "bf16"})
SECOND = Identity("b" * 32, {"kv_scheme": "kv8"})
ADAPTER = "adapter:x"
TOKEN = 918_273_645  # a number that no size, time or digest has
READ_ONLY = (("ls",), ("du",), ("verify",))
MUTATING = (("gc",), ("clear", "--yes"), ("verify", "--repair"))


@dataclass
class Cache:
    """A folder with entries of two identities, the first ones least recently used."""

    root: Path
    entries: list[StoredEntry] = field(default_factory=list)

    def add(self, identity: Identity, number: int, namespace: str = "") -> StoredEntry:
        directory = CheckpointDirectory(FS, self.root, identity, Limits(0, 0.0))
        directory.open()
        entry = store(FS, directory, spec_of([TOKEN, *range(number * 100, number * 100 + 20)], namespace))
        directory.close()
        used_s = 1_700_000_000.0 + number
        FS.touch(entry.path, used_s)
        self.entries.append(entry)
        return entry

    def files(self) -> set[Path]:
        """Return every file but the lock and the identities' descriptions."""
        own = {"LOCK", "identity.json"}
        return {path for path in self.root.rglob("*") if path.is_file() and path.name not in own}

    @property
    def paths(self) -> list[Path]:
        return [entry.path for entry in self.entries]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    made = Cache(tmp_path / "kv")
    made.add(FIRST, 1)
    made.add(FIRST, 2)
    made.add(FIRST, 3, ADAPTER)
    made.add(SECOND, 4)
    return made


@dataclass
class Ended:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    def run(*args: str) -> Ended:
        code = main(["cache", *args])
        out, err = capsys.readouterr()
        return Ended(code, out, err)

    return run


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)


def last_byte_of(path: Path) -> int:
    return path.stat().st_size - 1


# -- what is refused


@pytest.mark.parametrize(
    "args", [(), ("show",), ("paint",), ("ls", "x"), ("gc", "--max"), ("show", "a", "b")]
)
def test_a_wrong_command_line_is_a_usage_error(args: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["cache", *args])
    assert ended.value.code == 2


@pytest.mark.parametrize("command", ["ls", "du", "verify", "gc", "clear"])
def test_a_folder_that_is_not_there_is_a_usage_error(
    tmp_path: Path, run: Callable[..., Ended], command: str
) -> None:
    ended = run(command, "--dir", str(tmp_path / "none"))
    assert (ended.code, ended.out) == (2, "")
    assert f"--dir: {tmp_path / 'none'} is no folder" in ended.err
    assert not (tmp_path / "none").exists()


def test_a_cache_that_is_off_has_no_folder(run: Callable[..., Ended]) -> None:
    ended = run("ls", "--set", "cache.ssd.dir=off")
    assert (ended.code, ended.out) == (2, "")
    assert "cache.ssd.dir is off" in ended.err


@pytest.mark.parametrize("args", MUTATING)
def test_a_folder_in_use_is_not_changed(
    cache: Cache, run: Callable[..., Ended], args: tuple[str, ...]
) -> None:
    flip(cache.paths[0], last_byte_of(cache.paths[0]))
    before = cache.files()
    with FileLock.acquire(cache.root / "LOCK"):
        ended = run(*args, "--dir", str(cache.root))
    assert (ended.code, ended.out) == (2, "")
    assert str(cache.root) in ended.err
    assert f"process {os.getpid()}" in ended.err
    assert cache.files() == before


@pytest.mark.parametrize("args", READ_ONLY)
def test_reading_works_beside_a_server(
    cache: Cache, run: Callable[..., Ended], args: tuple[str, ...]
) -> None:
    with FileLock.acquire(cache.root / "LOCK"):
        assert run(*args, "--dir", str(cache.root)).code == 0


def test_clear_wants_to_be_told_twice(cache: Cache, run: Callable[..., Ended]) -> None:
    ended = run("clear", "--dir", str(cache.root))
    assert (ended.code, ended.out) == (2, "")
    assert "--yes" in ended.err
    assert cache.files() == set(cache.paths)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("answer", "code", "left"), [("n\n", 2, 4), ("", 2, 4), ("y\n", 0, 0)])
def test_clear_asks_at_a_terminal(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, answer: str, code: int, left: int
) -> None:
    shown = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stderr", shown)
    assert main(["cache", "clear", "--dir", str(cache.root)]) == code
    assert "Remove 4 entries" in shown.getvalue()
    assert len(cache.files()) == left


@pytest.mark.parametrize("given", ["c", "", "aa" * 17])
def test_clear_names_the_identities_when_it_does_not_know_one(
    cache: Cache, run: Callable[..., Ended], given: str
) -> None:
    ended = run("clear", "--yes", "--identity", given, "--dir", str(cache.root))
    assert ended.code == 2
    assert FIRST.id in ended.err
    assert cache.files() == set(cache.paths)


def test_a_bad_size_is_a_usage_error(cache: Cache, run: Callable[..., Ended]) -> None:
    ended = run("gc", "--max", "lots", "--dir", str(cache.root))
    assert (ended.code, ended.out) == (2, "")
    assert '--max: found "lots"' in ended.err
    assert cache.files() == set(cache.paths)


def test_an_entry_that_is_not_there_is_one_line(cache: Cache, run: Callable[..., Ended]) -> None:
    ended = run("show", "0123", "--dir", str(cache.root))
    assert (ended.code, ended.out) == (1, "")
    assert "no entry '0123'" in ended.err


def test_an_id_that_two_identities_have_is_not_guessed(cache: Cache, run: Callable[..., Ended]) -> None:
    twin = cache.add(SECOND, 1)
    assert twin.id == cache.entries[0].id
    ended = run("show", twin.id, "--dir", str(cache.root))
    assert (ended.code, ended.out) == (1, "")
    assert FIRST.id in ended.err
    assert SECOND.id in ended.err


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path, run: Callable[..., Ended]) -> None:
    for name in ("home/tmp/draft.tmp", "home/base/notes.kv", "quarantine/flu~x~y", "loose.kv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("mine")
    before = set(tmp_path.rglob("*"))
    for args in (("gc", "--all", "--max", "0"), ("clear", "--yes"), ("verify", "--repair")):
        assert run(*args, "--dir", str(tmp_path)).code == 0
        assert set(tmp_path.rglob("*")) == before


# -- verify


def damaged(path: Path, how: str) -> None:
    match how:
        case "corrupt_tensor":
            flip(path, last_byte_of(path))
        case "corrupt_header":
            flip(path, 100)
        case "truncated_container":
            os.truncate(path, last_byte_of(path))
        case "not_a_container":
            path.write_bytes(b"nothing of the kind" * 10)
        case "misplaced":
            folder = path.parents[1] / ("0" * 32)
            folder.mkdir()
            path.rename(folder / path.name)
        case _:
            raise AssertionError(how)


@pytest.mark.parametrize(
    "how", ["corrupt_tensor", "corrupt_header", "truncated_container", "not_a_container", "misplaced"]
)
def test_verify_finds_and_repairs_a_bad_file(cache: Cache, run: Callable[..., Ended], how: str) -> None:
    bad = cache.paths[1]
    damaged(bad, how)
    before = cache.files()
    found = run("verify", "--dir", str(cache.root))
    assert found.code == 1
    (line,) = [line for line in found.out.splitlines() if bad.name in line]
    assert line.startswith(f"{how}: ")
    assert "3 files" in found.out
    assert cache.files() == before, "a plain verify changes nothing"

    repaired = run("verify", "--repair", "--json", "--dir", str(cache.root))
    assert repaired.code == 1
    assert [(one["code"], one["done"]) for one in repaired.document["bad"]] == [(how, "moved")]
    (kept,) = (cache.root / "quarantine").iterdir()
    assert kept.name == f"{how}~{FIRST.id}~{bad.name}"

    again = run("verify", "--json", "--dir", str(cache.root))
    assert (again.code, again.document["bad"], again.document["good"]["files"]) == (0, [], 3)


def test_verify_removes_what_the_quarantine_cannot_hold(cache: Cache, run: Callable[..., Ended]) -> None:
    bad = cache.add(FIRST, 5)
    with bad.path.open("r+b") as file:
        file.truncate(1 << 20)
    ended = run("verify", "--repair", "--json", "--dir", str(cache.root), "--set", "cache.ssd.max=1MiB")
    assert [one["done"] for one in ended.document["bad"]] == ["removed"]
    assert cache.files() == set(cache.paths) - {bad.path}


def test_a_file_of_another_version_is_not_judged(cache: Cache, run: Callable[..., Ended]) -> None:
    with cache.paths[0].open("r+b") as file:
        file.seek(8)
        file.write((9).to_bytes(4, "little"))
    ended = run("verify", "--repair", "--json", "--dir", str(cache.root))
    assert (ended.code, ended.document["bad"]) == (0, [])
    assert [one["code"] for one in ended.document["outdated"]] == ["unsupported_version"]
    assert cache.files() == set(cache.paths)


def test_every_flipped_byte_is_found(cache: Cache) -> None:
    path = cache.paths[0]
    whole = path.read_bytes()
    check_file(FS, path, lambda _: None)
    places = {*range(0, len(whole), 131), *range(ALIGNMENT, ALIGNMENT + 100), *range(64)}
    for place in sorted(places):
        flip(path, place)
        with pytest.raises(ContainerError):
            check_file(FS, path, lambda _: None)
        path.write_bytes(whole)


def test_verify_tells_how_far_it_is(cache: Cache, run: Callable[..., Ended]) -> None:
    lines = run("verify", "--dir", str(cache.root)).err.splitlines()
    assert lines[0] == "verify: 4 files 0%"
    assert lines[-1] == "verify: 4 files 100%"
    assert len(lines) <= 6


class Meddled(OsFilesystem):
    """Something happens just before a file is opened for the ``number``-th time."""

    def __init__(self, path: Path, number: int, act: Callable[[], None]) -> None:
        self._path = path
        self._left = number
        self._act = act

    def open(self, path: Path) -> OsFile:
        if path == self._path:
            self._left -= 1
            if self._left == 0:
                self._act()
        return super().open(path)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_file_that_leaves_meanwhile_is_no_fault(cache: Cache, number: int) -> None:
    path = cache.paths[0]
    verdict = verify(Meddled(path, number, path.unlink), cache.root, lambda _: None, None)
    assert verdict.passed
    assert (verdict.good.files, verdict.vanished) == (3, int(number > 1))


def test_a_file_that_is_replaced_meanwhile_is_read_again(cache: Cache) -> None:
    path = cache.paths[0]

    def replace() -> None:
        path.unlink()
        path.write_bytes(cache.paths[1].read_bytes())

    verdict = verify(Meddled(path, 3, replace), cache.root, lambda _: None, None)
    assert verdict.passed
    assert (verdict.good.files, verdict.vanished) == (4, 0)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_file_that_the_disk_cannot_read_is_told_and_stays(cache: Cache, number: int) -> None:
    def fail() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = cache.paths[0]
    verdict = verify(Meddled(path, number, fail), cache.root, lambda _: None, 1 << 30)
    assert [(bad.problem.path, bad.problem.code, bad.done) for bad in verdict.bad] == [
        (path, "unreadable", "left")
    ]
    assert path.exists()


# -- gc and clear


def test_gc_sweeps_what_writers_left(cache: Cache, run: Callable[..., Ended]) -> None:
    left = cache.root / FIRST.id / "tmp" / "x-1.tmp"
    left.write_bytes(b"half")
    ended = run("gc", "--json", "--dir", str(cache.root))
    assert ended.code == 0
    assert ended.document["removed"]["temporary"] == {"files": 1, "bytes": 4}
    assert cache.files() == set(cache.paths)


def test_gc_trims_the_least_recently_used_of_all_identities(cache: Cache, run: Callable[..., Ended]) -> None:
    room = cache.entries[0].file_bytes * 2 + 1000
    ended = run("gc", "--json", "--max", f"{room}", "--dir", str(cache.root))
    assert ended.document["removed"]["entries"]["files"] == 2
    assert ended.document["left"]["bytes"] <= room
    assert cache.files() == set(cache.paths[2:])


def test_gc_keeps_what_is_bad_until_told(cache: Cache, run: Callable[..., Ended]) -> None:
    flip(cache.paths[3], 100)
    put_aside = cache.root / "quarantine" / "corrupt_tensor~x~y.kv"
    put_aside.parent.mkdir()
    put_aside.write_bytes(b"bad")
    assert run("gc", "--dir", str(cache.root)).code == 0
    assert cache.files() == {*cache.paths, put_aside}
    removed = run("gc", "--all", "--json", "--dir", str(cache.root)).document["removed"]
    assert {name: tally["files"] for name, tally in removed.items()} == {
        "entries": 0,
        "temporary": 0,
        "unusable": 1,
        "quarantine": 1,
    }
    assert cache.files() == set(cache.paths[:3])
    assert not (cache.root / SECOND.id).exists(), "an identity without a file has no folder"


class Stubborn(OsFilesystem):
    """One file will not go."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def unlink(self, path: Path) -> None:
        if path == self._path:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        super().unlink(path)


def test_a_file_that_will_not_go_is_told_and_the_next_one_goes(cache: Cache) -> None:
    fs = Stubborn(cache.paths[0])
    trimmed = collect(fs, cache.root, cache.entries[0].file_bytes * 3 + 1000, everything=False)
    assert trimmed.entries.files == 1
    assert [failure.partition(":")[0] for failure in trimmed.failures] == [str(cache.paths[0])]
    assert cache.files() == {cache.paths[0], *cache.paths[2:]}
    cleared = clear(fs, survey(fs, cache.root), None, None)
    assert (cleared.entries.files, len(cleared.failures)) == (2, 1)
    assert cache.files() == {cache.paths[0]}


@pytest.mark.parametrize(
    ("args", "left"),
    [
        ((), []),
        (("--identity", "a"), [3]),
        (("--identity", SECOND.id), [0, 1, 2]),
        (("--namespace", "base"), [2]),
        (("--namespace", ADAPTER), [0, 1, 3]),
        (("--namespace", "nobody's"), [0, 1, 2, 3]),
        (("--namespace", "base", "--identity", "a"), [2, 3]),
    ],
)
def test_clear_removes_what_was_named(
    cache: Cache, run: Callable[..., Ended], args: tuple[str, ...], left: list[int]
) -> None:
    ended = run("clear", "--yes", *args, "--json", "--dir", str(cache.root))
    assert ended.code == 0
    assert ended.document["removed"]["entries"]["files"] == 4 - len(left)
    assert cache.files() == {cache.paths[place] for place in left}


def test_clearing_a_namespace_takes_its_unreadable_files_along(
    cache: Cache, run: Callable[..., Ended]
) -> None:
    flip(cache.paths[2], 100)
    flip(cache.paths[1], 100)
    run("clear", "--yes", "--namespace", ADAPTER, "--dir", str(cache.root))
    assert cache.files() == set(cache.paths) - {cache.paths[2]}


def test_a_server_can_start_on_what_is_left(cache: Cache, run: Callable[..., Ended]) -> None:
    run("clear", "--yes", "--identity", "b", "--dir", str(cache.root))
    for identity, count in ((FIRST, 3), (SECOND, 0)):
        directory = CheckpointDirectory(FS, cache.root, identity, Limits(0, 0.0))
        report = directory.open()
        directory.close()
        assert (report.entries, report.problems) == (count, {})


# -- what is shown


def test_ls_lists_entries_by_use_and_bad_files(cache: Cache, run: Callable[..., Ended]) -> None:
    flip(cache.paths[0], 100)
    document = run("ls", "--json", "--dir", str(cache.root)).document
    assert list(document) == ["dir", "entries", "identities", "problems", "failures"]
    assert [entry["path"] for entry in document["entries"]] == [str(path) for path in cache.paths[:0:-1]]
    assert document["entries"][0] == {
        "id": cache.entries[3].id,
        "identity": SECOND.id,
        "namespace": "",
        "tokens": 21,
        "bytes": cache.entries[3].file_bytes,
        "trimmable": True,
        "reusable_from": 0,
        "created_s": 1.0,
        "last_used_s": 1_700_000_004.0,
        "path": str(cache.paths[3]),
    }
    assert document["identities"][1] == {
        "id": SECOND.id,
        "fields": {"kv_scheme": "kv8"},
        "entries": 1,
        "bytes": cache.entries[3].file_bytes,
    }
    assert [(one["path"], one["code"]) for one in document["problems"]] == [
        (str(cache.paths[0]), "corrupt_header")
    ]
    lines = run("ls", "--dir", str(cache.root)).out.splitlines()
    assert lines[0] == f"{FIRST.id}  config c0ffee00…, kv_scheme bf16"
    assert lines[2].split()[:3] == [cache.entries[2].id, ADAPTER, "21"]
    assert lines[-2].startswith("corrupt_header: ")
    assert lines[-1].startswith("3 entries, ")


def test_show_says_what_the_header_says_and_no_token(cache: Cache, run: Callable[..., Ended]) -> None:
    entry = cache.entries[2]
    shown = run("show", entry.id[:8], "--dir", str(cache.root))
    told = run("show", entry.id, "--json", "--dir", str(cache.root))
    assert (shown.code, told.code) == (0, 0)
    for line in ("namespace  adapter:x", "tokens     21; serves any prefix of 0 to 21 tokens"):
        assert line in shown.out
    assert re.search(r"layers +1 x kv:plain: keys uint8 \[21, 4\], values uint8 \[21, 4\]", shown.out)
    assert {name: told.document[name] for name in ("checksum", "tensors", "tensor_bytes", "features")} == {
        "checksum": "xxh3-128",
        "tensors": 2,
        "tensor_bytes": 2 * 21 * 4,
        "features": [],
    }
    assert told.document["layers"] == [
        {
            "signature": "kv:plain",
            "offset": 21,
            "trimmable": True,
            "reusable_from": 0,
            "geometry": {"heads": 1},
            "tensors": [{"name": name, "dtype": "uint8", "shape": [21, 4]} for name in ("keys", "values")],
        }
    ]
    assert str(TOKEN) not in shown.out + told.out


def test_names_out_of_files_cannot_steer_the_terminal(cache: Cache, run: Callable[..., Ended]) -> None:
    evil = cache.add(FIRST, 6, "\x1b[2Jgone\n")
    for args in (("ls",), ("du",), ("show", evil.id)):
        out = run(*args, "--dir", str(cache.root)).out
        assert "?[2Jgone?" in out
        assert "\x1b" not in out


def test_the_parts_of_du_add_up(cache: Cache, run: Callable[..., Ended]) -> None:
    flip(cache.paths[3], 100)
    (cache.root / FIRST.id / "tmp" / "x.tmp").write_bytes(b"half")
    (cache.root / "quarantine").mkdir()
    (cache.root / "quarantine" / "bad~x~y").write_bytes(b"bad")
    (cache.root / "notes").mkdir()
    (cache.root / "notes" / "mine.txt").write_bytes(b"hello")
    (cache.root / "loose").write_bytes(b"me")
    document = run("du", "--json", "--dir", str(cache.root)).document
    assert document["foreign"] == {"files": 2, "bytes": 7}
    assert document["quarantine"] == {"files": 1, "bytes": 3}
    first, second = document["identities"]
    assert [one["namespace"] for one in first["namespaces"]] == ["", ADAPTER]
    assert first["temporary"] == {"files": 1, "bytes": 4}
    assert second["unusable"] == {"files": 1, "bytes": cache.entries[3].file_bytes}
    files = [path for path in cache.root.rglob("*") if path.is_file() and path.name != "LOCK"]
    assert document["total"] == {"files": len(files), "bytes": sum(path.stat().st_size for path in files)}
    for each in (first, second):
        parts = [*each["namespaces"], each["temporary"], each["unusable"], each["other"]]
        assert each["total"]["bytes"] == sum(part["bytes"] for part in parts)


def test_the_folder_comes_from_the_configuration(cache: Cache, run: Callable[..., Ended]) -> None:
    ended = run("ls", "--json", "--set", f"cache.ssd.dir={cache.root}")
    assert len(ended.document["entries"]) == 4


@pytest.mark.parametrize("command", ["ls", "du", "verify", "gc", "clear"])
def test_a_cache_that_was_never_used_is_empty_and_stays_absent(
    tmp_path: Path, run: Callable[..., Ended], command: str
) -> None:
    folder = tmp_path / "never"
    assert run(command, "--set", f"cache.ssd.dir={folder}").code == 0
    assert not folder.exists()


@pytest.mark.parametrize("args", [*READ_ONLY, *MUTATING])
def test_it_starts_without_mlx_and_aiohttp(cache: Cache, args: tuple[str, ...]) -> None:
    program = (
        "import sys\n"
        "from samovar.runtime.cli import main\n"
        f"code = main(['cache', *{args!r}, '--dir', {str(cache.root)!r}])\n"
        "heavy = {'mlx', 'mlx_lm', 'aiohttp', 'anyio', 'transformers', 'rich'} & sys.modules.keys()\n"
        "sys.exit(f'loaded {heavy}' if heavy else code)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=19
    )
    assert ended.returncode == 0, ended.stderr
