"""Scenarios of the end: signals in every phase, terminals that close, and what clients are told."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import termios
import time
from typing import TYPE_CHECKING, Any

import pytest

from tests.app.process import ROOT, ServerProcess, fake
from tests.app.test_service_manager import listening

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.timeout(60)

KIT = ("-m", "tests.kit.serve", "--set", "server.port=0", "--set", "cache.ssd.dir=off")


def names(server: ServerProcess) -> list[str]:
    return [line["event"] for line in server.lines if isinstance(line, dict)]


# --- B041 -------------------------------------------------------------------------------------------


def test_b041_an_endless_stream_and_an_idle_connection_do_not_hold_the_end_up(tmp_path: Path) -> None:
    """B041: idle connections close at once, the stream is told when the time is up, then comes the flush."""
    settings = ("server.shutdown_timeout=2s", f"cache.ssd.dir={tmp_path / 'kv'}", "cache.ram.min_tokens=4")
    with fake(*settings, step_ms=10).wait_ready() as server:
        assert server.chat("a lamp in the window", max_tokens=4)[0] == 200
        idle = server.connect()
        idle.request("GET", "/health")
        idle.getresponse().read()
        stream = server.stream("a lamp in the window of the mill", max_tokens=900)
        stream.next()
        server.signal()
        server.wait_line("draining")
        assert idle.sock.recv(1) == b""
        idle.close()
        assert "drain_incomplete" not in names(server)
        last = stream.events()[-1]
        assert last["error"]["code"] == "shutting_down"
        assert "flushed" not in names(server)[: names(server).index("request") + 1]
        assert server.end() == 1
        assert names(server).index("draining") < names(server).index("flushed")
        assert list((tmp_path / "kv").rglob("*.kv"))


def test_b041_what_ends_in_time_ends_with_0() -> None:
    """B041: a stream that finishes within the limit is whole, and the exit code says so."""
    with fake("server.shutdown_timeout=30s", step_ms=10).wait_ready() as server:
        stream = server.stream("ab", max_tokens=30)
        stream.next()
        server.signal()
        assert stream.events()[-1] == "[DONE]"
        assert server.end() == 0


# --- B125 -------------------------------------------------------------------------------------------


def prefilling(server: ServerProcess) -> socket.socket:
    """Ask for a reply to a prompt that takes 45 s to prefill; return once that has begun."""
    body = json.dumps({"messages": [{"role": "user", "content": "x" * 900}], "stream": True}).encode()
    client = socket.create_connection(("127.0.0.1", server.port), 15.0)
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    client.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    server.wait_stats(lambda stats: stats["scheduler"]["running"] == 1)
    return client


def test_b125_the_first_signal_amid_a_long_prefill_is_a_bounded_drain() -> None:
    """B125: prefill does not outlast the limit; whoever waits for it is told."""
    command = [*KIT, "--prefill-tokens", "1", "--step-ms", "50", "--set", "server.shutdown_timeout=500ms"]
    with ServerProcess(*command).wait_ready() as server, prefilling(server) as client:
        begun = time.monotonic()
        server.signal(signal.SIGINT)
        answer = client.recv(65_536)
        assert b"503" in answer.split(b"\r\n")[0]
        assert b"shutting_down" in answer + client.recv(65_536)
        assert server.end() == 1
        assert time.monotonic() - begun < 10.0


def test_b125_the_second_signal_ends_at_once_and_says_that_nothing_was_flushed() -> None:
    """B125: no flush, said so, and the folder is free for the next start."""
    command = [*KIT, "--prefill-tokens", "1", "--step-ms", "50"]
    with ServerProcess(*command).wait_ready() as server, prefilling(server):
        server.signal(signal.SIGINT)
        server.wait_line("draining")
        time.sleep(0.15)  # a real second one, not the first one's echo
        server.signal(signal.SIGINT)
        assert server.end(5.0) == 1
        forced = server.wait_line("forced")
        assert (forced["signal"], forced["flushed"]) == ("SIGINT", False)
        assert "flushed" not in names(server)


def test_b125_a_forced_end_leaves_no_lock(tmp_path: Path) -> None:
    """B125: whatever ended the process, the next one gets the folder."""
    folder = f"cache.ssd.dir={tmp_path / 'kv'}"
    command = [*KIT, "--prefill-tokens", "1", "--step-ms", "50", "--set", folder]
    with ServerProcess(*command).wait_ready() as server, prefilling(server):
        server.signal()
        server.wait_line("draining")
        time.sleep(0.15)
        server.signal()
        assert server.end(5.0) == 1
    with ServerProcess(*KIT, "--set", folder).wait_ready() as server:
        server.signal()
        assert server.end() == 0


def test_b125_a_signal_before_it_is_ready_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B125: SIGTERM while the model is being opened: an ordered end, with nothing left."""
    with listening(tmp_path / "notify") as manager:
        monkeypatch.setenv("NOTIFY_SOCKET", str(manager.path))
        with ServerProcess(*KIT, "--open-s", "3", "--set", f"cache.ssd.dir={tmp_path / 'kv'}") as server:
            assert manager.next() == {"STATUS": "starting"}
            server.signal()
            assert server.end(20.0) == 0
            assert "ready" not in names(server)
    with ServerProcess(*KIT, "--set", f"cache.ssd.dir={tmp_path / 'kv'}").wait_ready() as server:
        server.signal()
        assert server.end() == 0


# --- B127 -------------------------------------------------------------------------------------------


def in_terminal(terminal: int) -> dict[str, Any]:
    """Make the child the leader of a session whose terminal this is."""

    def take() -> None:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    return {"preexec_fn": take, "pass_fds": (terminal,)}


def test_b127_closing_the_terminal_ends_the_server() -> None:
    """B127: nobody can see or stop it there any more, so it goes, in order."""
    master, terminal = pty.openpty()
    with ServerProcess(*KIT, **in_terminal(terminal)) as server:
        os.close(terminal)
        server.wait_ready()
        os.close(master)
        assert server.end() == 0
        assert server.wait_line("stopping")["signal"] == "SIGHUP"


def test_b127_a_hangup_in_an_open_terminal_is_a_reload() -> None:
    """B127: ``kill -HUP`` means what it means to every daemon, also in a terminal."""
    master, terminal = pty.openpty()
    try:
        with ServerProcess(*KIT, **in_terminal(terminal)) as server:
            os.close(terminal)
            server.wait_ready()
            server.signal(signal.SIGHUP)
            assert server.wait_line("reloaded")["applied"] == []
            assert server.chat("ab", max_tokens=1)[0] == 200
            server.signal()
            assert server.end() == 0
    finally:
        os.close(master)


def test_b127_a_shell_that_is_killed_takes_its_server_along() -> None:
    """B127: SIGKILL of the shell in whose terminal it runs."""
    master, terminal = pty.openpty()
    shell = subprocess.Popen(
        ["/bin/sh", "-c", '"$@"; true', "sh", sys.executable, *KIT],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        **in_terminal(terminal),
    )
    os.close(terminal)
    assert shell.stderr is not None
    with shell.stderr as lines:
        for line in lines:
            if '"event":"ready"' in line:
                break
        else:
            raise AssertionError("it never came up")
        shell.kill()
        shell.wait()
        rest = lines.read()  # ends when the server has, the last one to hold it
    os.close(master)
    assert '"signal":"SIGHUP"' in rest
    assert '"event":"drained"' in rest


def test_b127_without_a_terminal_a_hangup_is_a_reload_and_the_server_goes_on() -> None:
    """B127: setsid and ``kill -HUP``: documented in docs/operations.md."""
    with ServerProcess(*KIT, start_new_session=True).wait_ready() as server:
        server.signal(signal.SIGHUP)
        server.wait_line("reloaded")
        assert server.call("GET", "/ready")[0] == 200
        server.signal()
        assert server.end() == 0


def test_b127_the_console_script_is_the_process_that_serves(
    tmp_path: Path, write_model: Callable[[Path], Path]
) -> None:
    """B127: signals to the script reach the server; no wrapper lives or is left."""
    script = shutil.which("samovar", path=os.path.dirname(sys.executable))  # noqa: PTH120 - a search path
    if script is None:
        pytest.skip("samovar is not installed beside this interpreter")
    model = write_model(tmp_path / "model")
    settings = ("--port", "0", "--set", "logging.format=json", "--ssd", "off")
    with ServerProcess(script, "serve", str(model), *settings).wait_ready() as server:
        port = server.port
        server.signal(signal.SIGHUP)
        assert server.wait_line("reloaded")["applied"] == []
        server.signal()
        assert server.end() == 0
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", port)) != 0
