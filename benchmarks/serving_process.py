"""A server process of the serving benchmark: started in its own group, waited for, ended in any case."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from .peers import environment

if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO, Self

STOP_S = 15.0


class NoStart(Exception):
    """A server did not come up. The message has the end of its output."""


class Process:
    """A server process in a group of its own, with a folder that lasts as long as it does."""

    def __init__(self, command: list[str], port: int, folder: Path) -> None:
        self._port = port
        self._output: IO[bytes] = (folder / "output.log").open("w+b")
        self._process = subprocess.Popen(
            command,
            env=environment(folder),
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the process and whatever it has started: politely, then by force."""
        self.end(signal.SIGTERM, STOP_S)
        self.close()

    def end(self, number: signal.Signals, within_s: float) -> bool:
        """Signal the group and wait; False if it took longer than ``within_s`` and was ended by force."""
        self._signal(number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(within_s)
        in_time = not self.alive
        self._signal(signal.SIGKILL)
        self._process.wait()
        return in_time

    def close(self) -> None:
        """Close the file of its output, once it has ended."""
        self._output.close()

    @property
    def pid(self) -> int:
        """The id of the process that was started; also of its group."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def wait_up(self, timeout_s: float) -> None:
        """Wait until the server lists its models. Raises NoStart."""
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            if not self.alive:
                raise NoStart(f"ended with {self._process.returncode}: {self.tail()}")
            if self._answers():
                return
            time.sleep(0.1)
        raise NoStart(f"did not come up in {timeout_s:.0f} s: {self.tail()}")

    def tail(self) -> str:
        """Return the last lines of what the server wrote."""
        self._output.flush()
        self._output.seek(0)
        return " / ".join(self._output.read().decode(errors="replace").strip().splitlines()[-6:])

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5.0)
        try:
            connection.request("GET", "/v1/models")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return  # the whole group is gone


def end_on_sigterm() -> None:
    """Let SIGTERM end this process as an exception does, so that no server is left behind. Main thread."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
