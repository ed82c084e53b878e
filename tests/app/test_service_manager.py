"""What systemd is told, over a real datagram socket."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from samovar.runtime.notify import Notifier

from tests.http.fakes import run

from .process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WAIT_S = 15.0


class Manager:
    """The receiving end of NOTIFY_SOCKET."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(WAIT_S)

    def next(self) -> dict[str, str]:
        """Return the assignments of the next message."""
        return dict(line.split("=", 1) for line in self.socket.recv(4096).decode().split("\n"))

    def until(self, name: str) -> dict[str, str]:
        """Return the next message that assigns ``name``."""
        while name not in (message := self.next()):
            pass
        return message


@contextmanager
def listening(path: Path) -> Iterator[Manager]:
    manager = Manager(path)
    try:
        yield manager
    finally:
        manager.socket.close()


@pytest.mark.parametrize("address", [None, "/nowhere/at/all", "@samovar-nobody-listens", "x" * 200])
def test_a_manager_that_cannot_be_told_is_no_failure(address: str | None) -> None:
    Notifier(address).ready("serving")


def test_one_that_does_not_read_costs_no_time(tmp_path: Path) -> None:
    with listening(tmp_path / "notify") as manager:
        notifier = Notifier(str(manager.path))
        for number in range(10_000):  # far more than a socket holds
            notifier.status(f"status {number}")
        assert manager.next() == {"STATUS": "status 0"}


@pytest.mark.parametrize(
    ("environ", "watchdog_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "7"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "8"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_the_watchdog_is_read_as_systemd_means_it(environ: dict[str, str], watchdog_s: float | None) -> None:
    assert Notifier.of(environ, 7) == Notifier(None, watchdog_s)
    assert Notifier.of({"NOTIFY_SOCKET": ""}, 7).address is None


def test_signs_of_life_come_only_from_the_healthy(tmp_path: Path) -> None:
    async def scenario(path: str) -> None:
        answers, asked_all = [False, False, True, True, False, False], asyncio.Event()

        def healthy() -> bool:
            if len(answers) == 1:
                asked_all.set()
            return answers.pop(0)

        watching = asyncio.ensure_future(Notifier(path, 0.002).watch(healthy))
        await asked_all.wait()
        watching.cancel()

    with listening(tmp_path / "notify") as manager:
        run(scenario(str(manager.path)))
        assert [manager.next(), manager.next()] == [{"WATCHDOG": "1"}] * 2
        manager.socket.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.next()


@pytest.mark.skipif(not hasattr(socket, "SO_PASSCRED"), reason="abstract names are Linux's")
def test_abstract_names_are_understood() -> None:
    name = f"samovar-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(f"\0{name}")
        receiver.settimeout(WAIT_S)
        Notifier(f"@{name}").stopping("flushing")
        assert receiver.recv(100) == b"STOPPING=1\nSTATUS=flushing"


@pytest.mark.timeout(60)
def test_a_life_as_systemd_sees_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(tmp_path / "notify") as manager:
        monkeypatch.setenv("NOTIFY_SOCKET", str(manager.path))
        monkeypatch.setenv("WATCHDOG_USEC", "40000")
        command = ("-m", "tests.kit.serve", "--set", "server.port=0", "--set", "server.fault_injection=true")
        with ServerProcess(*command) as server:
            assert manager.next() == {"STATUS": "starting"}
            assert f"on {server.wait_ready().url}" in manager.until("READY")["STATUS"]
            manager.until("WATCHDOG")
            server.signal(signal.SIGHUP)
            assert manager.until("RELOADING")["MONOTONIC_USEC"].isdecimal()
            manager.until("READY")
            manager.until("WATCHDOG")
            server.signal()
            assert manager.until("STOPPING")["STATUS"]
            assert server.end() == 0
