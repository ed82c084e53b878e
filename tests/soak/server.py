"""One server process: requests to it, and whether what came back may be so."""

from __future__ import annotations

import http.client
import json
import os
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from tests.app.process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .tally import Tally

ANSWER_S = 90.0
ENVIRONMENT = {"PYTHONUNBUFFERED": "1", "MALLOC_ARENA_MAX": "1"}
"""One arena: many grow by some MiB each, slowly, and a leak as slow could not be told from that."""
GRACE_S = 15.0
PAUSE_S = 0.03
PASSING = {
    "actor_crashed",
    "actor_gone",
    "ask_timeout",
    "cancelled",
    "draining",
    "not_ready",
    "overloaded",
    "shutting_down",
}
"""503s that docs/errors.md gives for a part that fails or stops."""
ENDS = {"[DONE]", "message_stop", "response.completed", "response.incomplete"}


class Setback(Exception):
    """A request without the answer it wanted: a mishap's doing, or a finding that has been noted."""


class Server:
    """A process and what it is going through. Any thread; times are of the monotonic clock."""

    def __init__(self, tally: Tally, command: list[str]) -> None:
        self.tally = tally
        self.process = ServerProcess(*command, env=os.environ | ENVIRONMENT)
        self.dying = False
        self.requests = 0
        self._troubled_until_s = 0.0
        self._deaf_until_s = 0.0
        self._lane_crashes: deque[float] = deque(maxlen=8)

    def trouble(self, *, deaf: bool = False, lane: bool = False) -> None:
        """Expect what a mishap brings; ``deaf``: connections may close, ``lane``: rows lose their lane."""
        now_s = time.monotonic()
        self._troubled_until_s = now_s + GRACE_S
        if deaf:
            self._deaf_until_s = now_s + GRACE_S
        if lane:
            self._lane_crashes.append(now_s)

    def troubled(self, since_s: float) -> bool:
        return self.dying or self._troubled_until_s >= since_s

    # -- asking

    def ask(
        self, kind: str, method: str, path: str, body: Any = None, *, expected: tuple[int, ...] = (200,)
    ) -> tuple[int, Any]:
        """Make a request; return status and answer. Setback for a status that is not ``expected``."""
        begun_s = time.monotonic()
        try:
            status, answer = self.process.call(method, path, body, timeout_s=ANSWER_S)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._lost(kind, begun_s, repr(error)) from error
        self._judge(kind, begun_s, status, answer, expected)
        return status, answer

    def events(self, kind: str, path: str, body: Any, *, pause_s: float = 0.0) -> Iterator[tuple[str, Any]]:
        """Yield the events of a stream by name. Setback for an error, or an end without its last event."""
        begun_s, last = time.monotonic(), ""
        connection = self.process.connect(ANSWER_S)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                self._judge(kind, begun_s, response.status, json.loads(response.read()), (200,))
            for last, data in _events(response):
                if last == "error":
                    self._judge(kind, begun_s, 0, data, (200,))
                time.sleep(pause_s)
                yield last, data
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._lost(kind, begun_s, repr(error)) from error
        finally:
            connection.close()
        if last not in ENDS:
            raise self._lost(kind, begun_s, f"the stream just ends after {last!r}")
        self._judge(kind, begun_s, 200, None, (200,))

    def _lost(self, kind: str, begun_s: float, how: str) -> Setback:
        self.tally.count(self.tally.requests, f"{kind} lost")
        if not self.dying and self._deaf_until_s < begun_s:
            self.tally.wrong(f"{kind}: {how}, and nothing was done to the server")
        return Setback(how)

    def _judge(self, kind: str, begun_s: float, status: int, answer: Any, expected: tuple[int, ...]) -> None:
        self.requests += 1
        self.tally.count(self.tally.requests, f"{kind} {status or 'error event'}")
        if status in expected:
            return
        error = answer.get("error") if isinstance(answer, dict) else None
        code = error.get("code") if isinstance(error, dict) else None
        if not self._excused(begun_s, status, code):
            self.tally.wrong(f"{kind}: {status} {json.dumps(answer)[:300]}")
        self.tally.count(self.tally.notes, f"excused {status} {code}")
        raise Setback(f"{status} {code}")

    def _excused(self, begun_s: float, status: int, code: str | None) -> bool:
        """Whether docs/errors.md has that code for what this server is going through."""
        if code == "lane_crashed":
            return sum(at_s >= begun_s - 1.0 for at_s in self._lane_crashes) >= 2
        return status in {503, 0} and code in PASSING and self.troubled(begun_s)


def _events(response: http.client.HTTPResponse) -> Iterator[tuple[str, Any]]:
    name = ""
    while line := response.readline():
        if line.startswith(b"event: "):
            name = line[7:].strip().decode()
        elif line.startswith(b"data: "):
            raw = line[6:].strip()
            data = None if raw == b"[DONE]" else json.loads(raw)
            failed = isinstance(data, dict) and data.get("error") and not name
            yield ("[DONE]" if data is None else "error" if failed else name or "chunk"), data
            name = ""
