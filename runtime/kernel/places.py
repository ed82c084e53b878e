"""Operating-system threads that outlive what runs on them, kept by name for whoever runs there next.

Native libraries keep things for each thread that used them, and not all of them end with the thread: MLX
keeps the worker behind a CPU stream for good. A crash costs none where the successor has the same thread.
"""

from __future__ import annotations

import queue
import threading
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

Job: TypeAlias = "Callable[[], Callable[[], object]]"
_Jobs: TypeAlias = "queue.SimpleQueue[Job | None]"


class ThreadPlaces:
    """Runs jobs on threads. A thread runs one at a time and is idle only once its job has returned.

    So no job ever waits for another's thread: one that hangs keeps its own, and the next job of that name
    gets a new one. At most ``idle_limit`` threads wait; one more ends instead. Any thread.
    """

    def __init__(self, idle_limit: int) -> None:
        self._idle_limit = idle_limit
        self._idle: list[tuple[str, _Jobs]] = []
        self._lock = threading.Lock()

    def run(self, name: str, job: Job) -> None:
        """Run ``job`` on the idle thread of this name that was used last, else on a new one.

        ``job`` must not raise. What it returns is called on the same thread when that counts as idle already:
        who learns of the end from it and runs the next job of this name gets this thread.
        """
        (self._take(name) or self._start(name)).put(job)

    def close(self) -> None:
        """Let idle threads end, and the others with their jobs. Idempotent."""
        with self._lock:
            self._idle_limit = 0
            idle, self._idle = self._idle, []
        for _, jobs in idle:
            jobs.put(None)

    def _start(self, name: str) -> _Jobs:
        jobs: _Jobs = queue.SimpleQueue()
        # A daemon: a thread stuck in a foreign call must not keep the process from ending.
        threading.Thread(target=partial(self._work, name, jobs), name=name, daemon=True).start()
        return jobs

    def _work(self, name: str, jobs: _Jobs) -> None:
        while (job := jobs.get()) is not None:
            told = job()
            stays = self._rest(name, jobs)
            told()
            del job, told  # an idle thread holds nothing of what ran on it
            if not stays:
                return

    def _take(self, name: str) -> _Jobs | None:
        with self._lock:
            for place in range(len(self._idle) - 1, -1, -1):
                if self._idle[place][0] == name:
                    return self._idle.pop(place)[1]
        return None

    def _rest(self, name: str, jobs: _Jobs) -> bool:
        with self._lock:
            if len(self._idle) >= self._idle_limit:
                return False
            self._idle.append((name, jobs))
        return True
