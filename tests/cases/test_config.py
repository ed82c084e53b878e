"""Scenarios of settings: what a value means, where folders are, what fails at the start, and who is told."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from samovar.runtime.config import ConfigError, load
from samovar.runtime.config.render import to_toml
from samovar.runtime.engine.checkpoint import MemoryReading
from samovar.runtime.serve import _tell_memory

from tests.app.process import ServerProcess
from tests.kit.disk import FaultDisk
from tests.kit.engine import FakeEngine

from .rig import logged, run, serving, tiny

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.timeout(60)

ROOT = Path(__file__).parents[2]
GIB = 1 << 30
DISK = ("cache.ssd.dir=/cache", "cache.ram.min_tokens=16", "cache.ssd.restore_min_tokens=16")

START = ("-m", "tests.kit.serve", "--set", "server.port=0", "--set")


def refused(*assignments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load([], {}, assignments)
    return str(caught.value)


# --- B140 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [("8GB", 8 * 10**9), ("8GiB", 8 * GIB), ("1.5gb", 1_500_000_000), (" 8 GB", 8 * 10**9), ("0", 0)],
)
def test_b140_sizes_are_what_they_say(text: str, size_bytes: int) -> None:
    """B140: units of ten and of two, any case, spaces around; "0" switches the memory tier off."""
    config = load([], {}, [f"cache.ram.max={text}", "cache.ssd.dir=off"]).config
    assert config.cache.ram.max == size_bytes


@pytest.mark.parametrize("text", ["auto", "-1", "8e9", "lots", "8XB", "-8GB", "nan"])
def test_b140_anything_else_is_refused_with_what_is_expected(text: str) -> None:
    """B140: a value that could be misread is never guessed at."""
    message = refused(f"cache.ram.max={text}", "cache.ssd.dir=off")
    assert "cache.ram.max" in message
    assert "8GiB" in message


def test_b140_no_pair_of_caps_switches_a_tier_off_unsaid() -> None:
    """B140: memory 0 with the disk on is refused with both keys; a disk of 0 has a word of its own."""
    message = refused("cache.ram.max=0", "cache.ssd.dir=/tmp/x")
    assert "cache.ram.max" in message
    assert "cache.ssd.dir" in message
    assert "cache.ssd.max" in refused("cache.ssd.max=0")
    neither = load([], {}, ["cache.ram.max=0", "cache.ssd.dir=off"]).config
    assert (neither.cache.ram.max, neither.cache.ssd.enabled) == (0, False)


def test_b140_without_memory_and_disk_everything_is_answered() -> None:
    """B140: both tiers off is a plain server."""

    async def scenario() -> None:
        async with serving(tiny(), None, "cache.ram.max=0") as server:
            first, second = (
                await server.talk("a lamp", max_tokens=4),
                await server.talk("a lamp", max_tokens=4),
            )
            assert first.text == second.text
            assert (second.tier, second.cached) == ("none", 0)

    run(scenario())


# --- B142 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["$HOME/x", "a/$X", "file://~/x", "file:/x", "~nobody-of-this-name/x"])
def test_b142_what_would_become_a_folder_of_that_name_is_refused(text: str) -> None:
    """B142: what a shell or a browser would expand is not taken literally."""
    assert "cache.ssd.dir" in refused(f"cache.ssd.dir={text}")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("~/x", "home/x"),
        ("x", "work/x"),
        ("./x/", "work/x"),
        ("ein Ordner mit Ümläut", "work/ein Ordner mit Ümläut"),
    ],
)
def test_b142_folders_are_absolute_and_shown_so(
    text: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B142: home and relative folders are resolved at the start, and ``config show`` says to what."""
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    loaded = load([], {}, [f"cache.ssd.dir={text}"])
    assert loaded.config.cache.ssd.folder() == tmp_path / place
    assert str(tmp_path / place) in to_toml(loaded)


def test_b142_a_cache_behind_a_link_with_spaces_is_found_again(tmp_path: Path) -> None:
    """B142: the folder a link points to holds the files, the log names it, and the next start reads them."""
    real, link = tmp_path / "große Platte", tmp_path / "link to it"
    real.mkdir()
    link.symlink_to(real, target_is_directory=True)
    settings = ("cache.ram.min_tokens=16", f"cache.ssd.dir={link}/")

    async def scenario() -> None:
        with logged() as log:
            async with serving(tiny(), None, *settings) as server:
                await server.talk("a lamp in the window of the mill", max_tokens=4)
                await server.flush()
            async with serving(tiny(), None, *settings) as server:
                assert (await server.talk("a lamp in the window of the mill", max_tokens=4)).tier == "ssd"
        assert {Path(line["dir"]) for line in log.lines("cache_opened")} == {link}
        assert list(real.rglob("*.kv"))

    run(scenario())


# --- B143 -------------------------------------------------------------------------------------------


def test_b143_a_file_where_the_folder_should_be_stops_the_start(tmp_path: Path) -> None:
    """B143: the start fails with key, path and the system's reason."""
    file = tmp_path / "cache"
    file.write_text("not a folder")
    with ServerProcess(*START, f"cache.ssd.dir={file}") as server:
        assert server.end() == 2
        text = " ".join(str(line) for line in server.lines)
    assert "cache.ssd.dir" in text
    assert str(file) in text
    assert file.read_text() == "not a folder"


def test_b143_a_missing_parent_is_made_private(tmp_path: Path) -> None:
    """B143: a folder that can be made is made, for its owner alone."""
    folder = tmp_path / "not" / "there" / "yet"

    async def scenario() -> None:
        async with serving(tiny(), None, f"cache.ssd.dir={folder}"):
            assert folder.is_dir()
            assert folder.stat().st_mode & 0o777 == 0o700

    run(scenario())


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOLCK], ids=errno.errorcode.get)
def test_b143_a_root_that_cannot_be_used_is_no_silent_start(number: int) -> None:
    """B143: no rights, a read-only mount, no locks: each ends the start with its reason."""

    async def scenario() -> None:
        disk = FaultDisk()
        for kind in ("lock", "make_folder"):
            disk.fail_kind(kind, number)
        with pytest.raises(Exception, match="archive") as caught:
            async with serving(FakeEngine(), disk, "cache.ssd.dir=/cache"):
                pass
        cause = caught.value.__cause__
        assert isinstance(cause, OSError)
        assert cause.errno == number
        assert "/cache" in str(cause)

    run(scenario())


def test_b143_a_disk_that_becomes_read_only_is_one_alarm_and_health_says_so() -> None:
    """B143: while running it costs no reply; one warning, and /health says what works worse."""

    async def scenario() -> None:
        disk = FaultDisk()
        with logged() as log:
            async with serving(tiny(), disk, *DISK) as server:
                for kind in ("create", "write"):
                    disk.fail_kind(kind, errno.EROFS)
                for number in range(6):
                    await server.talk(f"{number} lamps in the window of the mill", max_tokens=4)
                    await server.call("POST", "/admin/cache/flush")
                status, health = await server.call("GET", "/health")
                assert (status, health["ready"]) == (200, True)
                assert "cannot write" in health["detail"]["degraded"]
                assert (await server.call("GET", "/ready"))[0] == 200
        assert len(log.lines("cache_write_failing")) == 1

    run(scenario())


# --- B145 -------------------------------------------------------------------------------------------


def test_b145_a_context_length_alone_is_in_force_and_shown(tmp_path: Path) -> None:
    """B145: longer prompts are refused by its number, and /v1/models shows it."""

    async def scenario() -> None:
        async with serving(FakeEngine(context_length=64), None) as server:
            status, body = await server.call("GET", "/v1/models")
            assert {model["context_length"] for model in body["data"]} == {64}
            request = {"messages": [{"role": "user", "content": "x" * 100}]}
            status, body = await server.call("POST", "/v1/chat/completions", request)
            assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
            assert "64" in body["error"]["message"]

    run(scenario())


@pytest.mark.parametrize(
    ("assignments", "keys"),
    [
        (("cache.ram.max=8GiB", "cache.ram.hard_max=1GiB"), ("cache.ram.hard_max", "cache.ram.max")),
        (("cache.ram.max=0",), ("cache.ram.max", "cache.ssd.dir")),
        (("server.unix_socket=/tmp/s", "server.port=80"), ("server.port", "server.unix_socket")),
        (("server.host=0.0.0.0",), ("server.host", "server.api_keys")),
    ],
)
def test_b145_what_contradicts_itself_is_refused_with_both_keys(
    assignments: tuple[str, ...], keys: tuple[str, str]
) -> None:
    """B145: no setting is dropped in favour of another."""
    message = refused(*assignments)
    assert all(key in message for key in keys)


def test_b145_a_cap_above_the_memory_is_told_and_what_limits_instead() -> None:
    """B145: the default must start on small machines, so it is a warning that names what is in force."""
    config = load([], {}, ["cache.ram.max=64GiB"]).config
    with logged() as log:
        _tell_memory(config, MemoryReading(0, 16 * GIB))
        _tell_memory(config, MemoryReading(0, 128 * GIB))
    (line,) = log.warnings()
    assert (line["event"], line["key"], line["memory_bytes"]) == (
        "cache_above_memory",
        "cache.ram.max",
        16 * GIB,
    )
    assert "85%" in line["in_force"]


# --- B148 -------------------------------------------------------------------------------------------

WATCHED = """
import sys
def refuse(event, args):
    if event == "socket.getaddrinfo" and args[0] not in (None, "127.0.0.1", b"127.0.0.1"):
        print("LOOKUP", args[0], flush=True); raise OSError("no network here")
    if event == "socket.connect" and isinstance(args[1], tuple) and args[1][0] != "127.0.0.1":
        print("CONNECT", args[1], flush=True); raise OSError("no network here")
sys.addaudithook(refuse)
from samovar.runtime.cli import main
sys.argv[1:1] = []
sys.exit(main())
"""


def hub_copy(model: Path, home: Path) -> None:
    """Lay a model out as the hub's cache holds it, under the name org/tiny."""
    repository = home / "hub" / "models--org--tiny"
    snapshot = repository / "snapshots" / ("0" * 40)
    snapshot.parent.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    snapshot.symlink_to(model, target_is_directory=True)


@pytest.fixture
def offline(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "SAMOVAR_"))}
    return kept | {
        "HF_HOME": str(tmp_path / "hf"),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONUNBUFFERED": "1",
        "SAMOVAR__CACHE__SSD__DIR": "off",
    }


@pytest.mark.parametrize("named", ["by path", "by its name in the hub's cache"])
def test_b148_what_is_here_is_served_without_a_connection(
    named: str, tmp_path: Path, write_model: Callable[[Path], Path], offline: dict[str, str]
) -> None:
    """B148: neither a lookup of a name nor a connection, from start to the first reply."""
    model = write_model(tmp_path / "model")
    hub_copy(model, tmp_path / "hf")
    name = str(model) if named == "by path" else "org/tiny"
    command = ("-c", WATCHED, "serve", name, "--port", "0", "--set", "logging.format=json")
    with ServerProcess(*command, env=offline, stdout=subprocess.PIPE).wait_ready() as server:
        assert server.chat("hello", max_tokens=2)[0] == 200
        server.signal()
        assert server.end() == 0
        assert server.process.stdout is not None
        with server.process.stdout as stdout:
            assert stdout.read() == ""


def test_b148_what_is_not_here_is_one_clear_line_at_once(offline: dict[str, str]) -> None:
    """B148: without a network a missing model ends the start; nothing is tried over and over."""
    ended = subprocess.run(
        [sys.executable, "-c", WATCHED, "serve", "org/missing", "--port", "0"],
        env=offline,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ended.returncode in {1, 2}
    assert "org/missing" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert 1 <= ended.stdout.count("LOOKUP") <= 8  # the library asks at most that often
