"""Two servers on one cache directory: the second is refused, and nothing is in the way of a third."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from tests.app.process import ServerProcess, fake

if TYPE_CHECKING:
    from pathlib import Path

PROMPT = "a prompt that is worth keeping"

pytestmark = pytest.mark.timeout(60)


def server(root: Path) -> ServerProcess:
    return fake(f"cache.ssd.dir={root}", "cache.ssd.restore_min_tokens=1", "cache.ram.min_tokens=4")


def check_refused(second: ServerProcess, root: Path, holder: ServerProcess) -> None:
    """Check that a server ended because of another one, and said so."""
    assert second.end(30.0) == 2
    said = " ".join(str(line) for line in second.lines)
    assert "cache.ssd.dir" in said
    assert str(root) in said
    assert str(holder.process.pid) in said


def test_a_second_server_is_refused_and_the_first_one_is_not_disturbed(tmp_path: Path) -> None:
    root = tmp_path / "kv"
    with server(root).wait_ready() as first:
        assert first.chat(PROMPT, max_tokens=2)[0] == 200
        status, flushed = first.call("POST", "/admin/cache/flush")
        assert (status, flushed["durable"]) == (200, True)
        with server(root) as second:
            check_refused(second, root, first)
        assert first.chat(PROMPT, max_tokens=2)[1]["usage"]["samovar"]["tier"] == "ram"
        first.signal(signal.SIGKILL)
        assert first.end() == -signal.SIGKILL
        with server(root).wait_ready() as third:
            reuse = third.chat(PROMPT, max_tokens=2)[1]["usage"]["samovar"]
            assert (reuse["tier"], reuse["cached_tokens"]) == ("ssd", len(PROMPT) - 1)


def test_servers_that_start_at_once_have_one_winner_and_its_death_frees_the_directory(tmp_path: Path) -> None:
    root = tmp_path / "kv"
    with server(root) as one, server(root) as other:
        winner, loser = _by_fate(one, other)
        check_refused(loser, root, winner)
        winner.wait_ready()
        with server(root) as heir:  # imports while the winner dies
            winner.signal(signal.SIGKILL)
            winner.end()
            assert heir.wait_ready().chat(PROMPT, max_tokens=2)[0] == 200


def _by_fate(one: ServerProcess, other: ServerProcess) -> tuple[ServerProcess, ServerProcess]:
    """Return the one that lives and the one that has ended."""
    until_s = time.monotonic() + 30.0
    while time.monotonic() < until_s:
        for loser, winner in ((one, other), (other, one)):
            with contextlib.suppress(subprocess.TimeoutExpired):
                loser.process.wait(0.02)
                return winner, loser
    raise AssertionError("both servers live on one directory")
