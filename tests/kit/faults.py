"""Operations that fail on purpose: the gate every call of a FaultDisk passes, whatever it does then."""

from __future__ import annotations

import os
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LOG_LENGTH = 100_000


class PowerLoss(BaseException):
    """The machine is gone. No code may catch it and go on."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One call: ``index`` counts from 1. ``target`` is a rename's."""

    index: int
    kind: str
    path: Path
    target: Path | None = None
    size_bytes: int = 0


@dataclass(slots=True, eq=False)
class Fault:
    """Operations that match fail with ``errno``, at most ``times`` of them."""

    matches: Callable[[Operation], bool]
    errno: int
    times: int | None = None
    hits: int = 0

    def strikes(self, operation: Operation) -> bool:
        if self.times is not None and self.hits >= self.times:
            return False
        if not self.matches(operation):
            return False
        self.hits += 1
        return True

    def clear(self) -> None:
        """Let operations succeed again."""
        self.times = 0


class FaultGate:
    """Counts, logs, delays and fails operations. Any thread.

    ``hook`` is called at the start of every operation outside the gate's lock: it may wait, so a disk can be
    slow. ``count`` is the number of operations so far, ``log`` the last of them.
    """

    def __init__(self) -> None:
        self.hook: Callable[[Operation], None] | None = None
        self.count = 0
        self.log: deque[Operation] = deque(maxlen=LOG_LENGTH)
        self.mutex = threading.RLock()
        self.dead = False
        self._faults: list[Fault] = []
        self._stop_at: int | None = None

    def stop_at(self, nth: int) -> None:
        """Pull the plug at the ``nth`` operation from now on."""
        self._stop_at = self.count + nth

    def unplug(self) -> None:
        """Pull the plug now; what other threads are at raises PowerLoss."""
        self.dead = True

    def fail_at(self, nth: int, errno: int) -> Fault:
        """Fail the ``nth`` operation from now on."""
        index = self.count + nth
        return self.fail_when(lambda operation: operation.index == index, errno)

    def fail_when(
        self, matches: Callable[[Operation], bool], errno: int, *, times: int | None = None
    ) -> Fault:
        """Fail operations that match; a failing file sync also loses what was not synced."""
        fault = Fault(matches, errno, times)
        with self.mutex:
            self._faults.append(fault)
        return fault

    def fail_kind(self, kind: str, errno: int, *, times: int | None = None) -> Fault:
        """Fail every operation of a kind."""
        return self.fail_when(lambda operation: operation.kind == kind, errno, times=times)

    def begin(self, kind: str, path: Path, *, target: Path | None = None, size_bytes: int = 0) -> None:
        """Count an operation; raise what was arranged for it."""
        with self.mutex:
            self._check_power()
            self.count += 1
            operation = Operation(self.count, kind, path, target, size_bytes)
            self.log.append(operation)
            if self.count == self._stop_at:
                self.dead = True
                self._check_power()
        if self.hook is not None:
            self.hook(operation)
        with self.mutex:
            self._check_power()
            for fault in self._faults:
                if fault.strikes(operation):
                    raise system_error(fault.errno, path)

    def _check_power(self) -> None:
        if self.dead:
            raise PowerLoss(f"at operation {self.count}")


def system_error(number: int, path: Path) -> OSError:
    """Return the OSError that a system call would raise."""
    return OSError(number, os.strerror(number), str(path))
