"""A scripted server for ``samovar chat``, and a terminal to run it in."""

from __future__ import annotations

import os
import pty
import re
import select
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from samovar.runtime.cli.chat.loop_thread import LoopThread

from tests.http.fakes import FakeServing, live

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

WAIT_S = 15.0


@contextmanager
def listening(serving: FakeServing | None = None, **options: Any) -> Generator[str]:
    """Run the HTTP layer over a scripted serving on a thread of its own; yield its address."""
    with LoopThread() as loop:
        server = live(serving, **options)
        up = loop.call(server.__aenter__())
        try:
            yield f"http://127.0.0.1:{up.server.port}"
        finally:
            loop.call(server.__aexit__(None, None, None))


class Terminal:
    """The command line at a terminal of its own."""

    def __init__(self, folder: Path, *args: str) -> None:
        self._pid, self._fd = pty.fork()
        if self._pid == 0:
            os.environ |= {"XDG_STATE_HOME": str(folder), "TERM": "xterm", "INPUTRC": os.devnull}
            os.environ.pop("NO_COLOR", None)
            os.execv(sys.executable, [sys.executable, "-m", "samovar.runtime.cli", *args])
        self._fresh = ""
        self._status: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is None:
            os.kill(self._pid, 9)
            os.waitpid(self._pid, 0)
        os.close(self._fd)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def wait(self, pattern: str) -> str:
        """Wait until something matches; return what was shown up to there, since the last wait."""
        until = time.monotonic() + WAIT_S
        while (found := re.search(pattern, self._fresh)) is None:
            assert self._read(until), f"{pattern!r} never came: {self._fresh!r}"
        shown, self._fresh = self._fresh[: found.end()], self._fresh[found.end() :]
        return shown

    def end(self) -> tuple[int, str]:
        """Wait for the end of the program; return its exit code and what it showed since the last wait."""
        until = time.monotonic() + WAIT_S
        while self._read(until):
            pass
        _, status = os.waitpid(self._pid, 0)
        self._status = os.waitstatus_to_exitcode(status)
        return self._status, self._fresh

    def _read(self, until: float) -> bool:
        """Read some more; False at the end of the program. Fails when the time is up."""
        ready, _, _ = select.select([self._fd], [], [], max(0.0, until - time.monotonic()))
        assert ready, f"nothing more came: {self._fresh!r}"
        try:
            data = os.read(self._fd, 65_536)
        except OSError:  # how Linux says that the other side is closed
            return False
        self._fresh += data.decode("utf-8", "replace")
        return bool(data)
