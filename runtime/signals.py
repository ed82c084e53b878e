"""What signals mean to a server.

SIGINT and SIGTERM: stop in order; once more, at once. SIGHUP: read the configuration again; but where the
server was started in a terminal that has been closed, stop in order, since nobody can see or end it there.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

from .logs import get_logger

if TYPE_CHECKING:
    from collections.abc import Callable

EXIT_FORCED = 1

ECHO_S = 0.1
"""A signal that follows the first one this soon is the same one, sent to the process and to its group."""

HANGUP_S = 0.2
"""After a hangup the kernel may take the terminal away a moment later than it sends the signal."""

_log = get_logger("samovar.server")


class Signals:
    """Turns signals into events: ``stop`` stays set, ``reload`` is cleared by whoever carries it out.

    One for the process, from its main thread, for as long as the loop runs.
    """

    def __init__(self, *, reloads: bool, has_terminal: Callable[[], bool] | None = None) -> None:
        self.stop = asyncio.Event()
        self.reload = asyncio.Event()
        self._reloads = reloads
        self._has_terminal = has_terminal or _has_terminal
        # Under nohup SIGHUP is ignored: such a server is meant to outlive its terminal.
        ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        self._in_terminal = self._has_terminal() and not ignored
        self._loop = asyncio.get_running_loop()
        self._first_s = 0.0

    def install(self) -> Signals:
        """Listen to the process's signals."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._loop.add_signal_handler(number, self.on_stop, number.name)
        self._loop.add_signal_handler(signal.SIGHUP, self.on_hangup)
        return self

    def on_stop(self, name: str) -> None:
        """Stop in order; at the second time end the process without a flush."""
        if not self.stop.is_set():
            self._first_s = self._loop.time()
            _log.info("stopping", signal=name)
            self.stop.set()
        elif self._loop.time() - self._first_s > ECHO_S:
            _log.warning("forced", signal=name, flushed=False)
            os._exit(EXIT_FORCED)

    def on_hangup(self) -> None:
        """Reload, or stop where the terminal is gone or there is nothing to read again."""
        if self._in_terminal:
            self._loop.call_later(HANGUP_S, self._settle_hangup)
        else:
            self._settle_hangup()

    def _settle_hangup(self) -> None:
        if not self._reloads or (self._in_terminal and not self._has_terminal()):
            if not self.stop.is_set():  # a closing terminal may send it more than once
                self.on_stop("SIGHUP")
        else:
            self.reload.set()


def _has_terminal() -> bool:
    """Return whether the process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK))
    except OSError:
        return False
    return True
