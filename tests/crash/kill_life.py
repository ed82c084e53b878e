"""One life of a server process: what is asked of it, what must hold while it lives, and how it ends."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self

from tests.app.process import ServerProcess

from .kill_book import MAX_TOKENS, check_answer, root_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from .kill_book import Book

ENDS_S = 30.0
CLIENTS = 3


class Died(Exception):
    """The server is gone, by SIGKILL."""


class Life:
    """A process that has imported everything and waits for ``go``."""

    def __init__(self, book: Book, fifo: Path, arguments: list[str]) -> None:
        self._book = book
        self._fifo = fifo
        os.mkfifo(fifo)
        self._server = ServerProcess("-m", "tests.crash.kill_serve", "--go", str(fifo), *arguments)
        self._timers: list[threading.Timer] = []
        self._roots: set[str] = set()
        self.checked = 0
        self.evictions = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for timer in self._timers:
            timer.cancel()
            timer.join()
        self._server.__exit__()

    def go(self, order: str) -> None:
        """Let it start, to die where ``order`` says."""
        self._server.wait_line("loaded", ENDS_S)
        self._fifo.write_text(order)

    def wait_ready(self) -> None:
        """Wait for the start to end. Died if it was killed meanwhile."""
        try:
            self._server.wait_ready()
        except AssertionError:
            self._check_killed()
            raise Died from None

    # -- asking

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Make a request. Died when the process has; any other broken connection is an error."""
        try:
            return self._server.call(method, path, body, timeout_s=ENDS_S)
        except (OSError, http.client.HTTPException) as error:
            self._check_killed(error)
            raise Died from error

    def chat(self, prompt: str) -> tuple[str, int]:
        """Send a prompt, check the answer; return tier and cached tokens."""
        message = {"role": "user", "content": prompt}
        body = {"messages": [message], "max_tokens": MAX_TOKENS}
        found = check_answer(prompt, *self.ask("POST", "/v1/chat/completions", body))
        self._book.note_answer(prompt)
        return found

    def flush(self, *, must: bool) -> None:
        """Flush; what was answered before is acknowledged if it says so, which it ``must``."""
        before = self._book.so_far()
        status, report = self.ask("POST", "/admin/cache/flush")
        assert (status == 200) == report["durable"], report
        if report["durable"]:
            self._book.note_durable(before)
        assert report["durable"] or not must, report

    def round(self, prompts: list[str], *, flush: bool, must: bool) -> None:
        """Send prompts from several clients at once, and a flush among them."""
        with ThreadPoolExecutor(CLIENTS + 1) as clients:
            jobs = [clients.submit(self.chat, prompt) for prompt in prompts]
            if flush:
                jobs.append(clients.submit(self.flush, must=must))
        errors = [error for job in jobs if (error := job.exception()) is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, Died)):
            raise error  # one that is no death comes first

    # -- checks

    def check_acknowledged(self, *, must: bool) -> None:
        """Send everything acknowledged: whole from SSD if it ``must``, and right in any case.

        A turn of a conversation that was already sent in this life may come from RAM.
        """
        for prompt in list(self._book.acknowledged):
            tier, cached = self.chat(prompt)
            if must:
                due = {"ssd", "ram"} if root_of(prompt) in self._roots else {"ssd"}
                assert (tier, cached) in {(each, len(prompt) - 1) for each in due}, (
                    f"acknowledged prompt {prompt!r} of {len(prompt)} tokens: {cached} from {tier}"
                )
            self._roots.add(root_of(prompt))
            self.checked += 1

    def check_forgone(self) -> None:
        """Send what nobody promised: it is right, however much of it is there."""
        for prompt in list(self._book.forgone):
            self.chat(prompt)

    def check_figures(self, *, still: bool) -> None:
        """Check that no bad file was ever found, and that the directory is within its cap.

        Unless it was ``still``, a file may have left in the moment in which it was to be read.
        """
        status, stats = self.ask("GET", "/stats")
        assert status == 200
        disk = stats["ssd_cache"]
        bad = {name: disk[name] for name in ("corrupt", "quarantined", "unlink_failures", "problems")}
        assert not any(bad.values()), bad
        assert disk["restore_failures"] == 0 or not still, self._server.lines
        assert disk["bytes"] <= disk["max_bytes"]
        self.evictions = disk["evictions"]

    # -- the end

    def kill(self) -> None:
        """Kill it here and now."""
        self._server.process.kill()
        self._server.end(ENDS_S)
        raise Died

    @contextlib.contextmanager
    def killed_within(self, delay_s: float) -> Iterator[None]:
        """Kill it ``delay_s`` seconds from now, at the latest when the block ends."""
        timer = threading.Timer(delay_s, self._server.process.kill)
        self._timers.append(timer)
        timer.start()
        yield
        timer.join()
        self._check_killed()
        raise Died

    def terminate(self, kill_after_s: float | None = None, *, must: bool) -> None:
        """Let it end of its own accord, which acknowledges all that it answered, or kill it on the way.

        Unless it ``must`` come to disk, an end that says how much found no room there is an orderly one too.
        """
        before = self._book.so_far()
        self._server.signal(signal.SIGTERM)
        if kill_after_s is not None:
            timer = threading.Timer(kill_after_s, self._server.process.kill)
            self._timers.append(timer)
            timer.start()
        code = self._server.end(ENDS_S)
        if code == -signal.SIGKILL:
            assert kill_after_s is not None
            raise Died
        if code == 0:
            self._book.note_durable(before)
            return
        assert (code, must) == (1, False), f"ended with {code}: {self._server.lines[-1]}"
        assert "NoRoom" in self._server.wait_line("flush_incomplete")["reason"]

    def _check_killed(self, cause: Exception | None = None) -> None:
        try:
            code = self._server.end(ENDS_S)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"a connection broke and the server lives: {cause!r}") from error
        assert code == -signal.SIGKILL, f"ended with {code}: {self._server.lines[-5:]}"
