"""Telling the service manager how the server is: systemd's notification protocol, sd_notify(3).

Where nobody asked for it (no ``NOTIFY_SOCKET``) every call does nothing. A message that cannot be delivered
is dropped: the server runs on, and the manager's own time limits decide.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class Notifier:
    """Sends to ``address`` (a path, or ``@`` and an abstract name); nowhere when None.

    ``watchdog_s`` is how long the manager waits for a sign of life before it restarts the process; None
    where it does not.
    """

    address: str | None = None
    watchdog_s: float | None = None

    @classmethod
    def of(cls, environ: Mapping[str, str], process_id: int) -> Notifier:
        """Read what systemd puts into the environment. A watchdog meant for another process is not ours."""
        limit = environ.get("WATCHDOG_USEC", "")
        ours = environ.get("WATCHDOG_PID", str(process_id)) == str(process_id)
        watchdog_s = int(limit) / _MICROSECONDS if ours and limit.isdecimal() and int(limit) > 0 else None
        return cls(environ.get("NOTIFY_SOCKET") or None, watchdog_s)

    def ready(self, status: str) -> None:
        """Say that the server serves, also after a reload."""
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Say that the configuration is being read again; ``ready`` ends it."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str) -> None:
        """Say that the server is on its way out."""
        self._send("STOPPING=1", f"STATUS={status}")

    def status(self, status: str) -> None:
        """Say in a few words what goes on; one line."""
        self._send(f"STATUS={status}")

    async def watch(self, healthy: Callable[[], bool]) -> None:
        """Give signs of life twice as often as asked, as long as ``healthy``; without end. Loop thread.

        A loop that is stuck, or a part of the tree that stays down, is silent: the manager then restarts.
        """
        while self.watchdog_s is not None:
            if healthy():
                self._send("WATCHDOG=1")
            await asyncio.sleep(self.watchdog_s / 2)

    def _send(self, *assignments: str) -> None:
        if self.address is None:
            return
        name = "\0" + self.address[1:] if self.address.startswith("@") else self.address
        data = "\n".join(assignments).encode()
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)  # noqa: FBT003 - the socket module's own signature
            sender.sendto(data, name)


def service_manager() -> Notifier:
    """Return the notifier of this process."""
    return Notifier.of(os.environ, os.getpid())
