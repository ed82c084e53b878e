"""One server of the comparison, in one folder, through several lives: started, ended, started again.

What it keeps on disk stays between its lives, as it would on a user's machine: the folder is its home.
"""

from __future__ import annotations

import contextlib
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

import psutil

from .peers import Environments, Peer, model_name
from .serving_chat import Chat, Prompts, Reply
from .serving_process import NoStart, Process, free_port

if TYPE_CHECKING:
    from pathlib import Path

    from .serving_chat import Messages

START_S = 90.0
REPLY_S = 180.0
END_S = 60.0
LEAST_S = 5.0


@dataclass
class Server:
    """How to start one server and reach it. Nothing runs before ``start``; ``with`` ends what runs.

    ``until_s`` (monotonic): no wait reaches beyond it by more than a few seconds. ``remembered``: the long
    prompt that it was asked last for others to come back to, and the reply. ``notes``: what was odd.
    """

    environments: Environments
    peer: Peer
    model: Path
    folder: Path
    until_s: float
    command: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    remembered: tuple[Messages, Reply] | None = None
    _process: Process | None = None
    _port: int = 0

    def start(self, prompts: Prompts) -> float:
        """Start it and ask a short question; return seconds to the first piece of the answer.

        Raises NoStart, ChatFailed.
        """
        self.end(signal.SIGKILL)
        begun_s = time.perf_counter()
        self._port = free_port()
        self.command = self.environments.command(self.peer, self.model, self._port, self.folder)
        self._process = Process(self.command, self._port, self.folder)
        self._process.wait_up(min(START_S, self._left_s()))
        return self.chat().ask(prompts.short(), 8).pieces_s[0] - begun_s

    def chat(self) -> Chat:
        """Return how to ask it."""
        return Chat(self._port, model_name(self.peer, self.model), min(REPLY_S, self._left_s()))

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.alive

    @property
    def port(self) -> int:
        """Where it listens; another port after each start."""
        return self._port

    def end(self, number: signal.Signals) -> None:
        """Signal it and wait until it is gone; a note says so if it had to be killed."""
        if self._process is None:
            return
        within_s = END_S if number != signal.SIGKILL else LEAST_S
        if not self._process.end(number, within_s):
            self.notes.append(f"did not end in {within_s:.0f} s of {number.name}, killed")
        self._process.close()
        self._process = None

    def memory_bytes(self) -> float:
        """Return what its processes hold, shared pages divided among them (PSS; RSS where there is none)."""
        return float(sum(_memory(each) for each in self._processes()))

    def cpu_s(self) -> float:
        """Return the CPU seconds that its processes have used."""
        times = [each.cpu_times() for each in self._processes()]
        return sum(each.user + each.system for each in times)

    def tail(self) -> str:
        """Return the end of what it wrote."""
        return self._process.tail()[-300:] if self._process else ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            with self._process:
                self._process = None

    def _processes(self) -> list[psutil.Process]:
        if not self.alive or self._process is None:
            raise NoStart("it does not run")
        parent = psutil.Process(self._process.pid)
        return [parent, *parent.children(recursive=True)]

    def _left_s(self) -> float:
        return max(LEAST_S, self.until_s - time.monotonic())


def _memory(process: psutil.Process) -> int:
    with contextlib.suppress(psutil.Error, AttributeError):
        return int(process.memory_full_info().pss)
    with contextlib.suppress(psutil.NoSuchProcess):
        return int(process.memory_info().rss)
    return 0
