"""The bytes of a streamed response: named, numbered events from ``response.created`` to the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ....actors.requests import Admitted
    from ..errors import HttpError
    from ..replies.pieces import Progress
    from ..replies.usage import Usage
    from .answer import Answer
    from .parts import Event


class ResponseEvents:
    """Encodes one response. Loop thread only.

    The first events come with the first of the reply, so that what fails before is still a status.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._sequence = 0

    def start(self, _: Admitted) -> bytes:
        """Return nothing: what comes first announces itself."""
        return b""

    def progress(self, progress: Progress) -> bytes:
        """Return the events of what was added to the reply; nothing where there is nothing to tell."""
        events = self._answer.add(progress)
        return self._encoded(events) if events else b""

    def done(self, usage: Usage) -> bytes:
        """Return the last event; the response is stored by then."""
        body = self._answer.finished(usage)
        return self._encoded([(str(body["status"]), {"response": body})])

    def failed(self, error: HttpError) -> bytes:
        """Return the events that end an open stream: what became of the response, and why.

        The error stands in the last event twice: flat, as OpenAI documents it, and nested, as its own client
        and others look for it.
        """
        told = self._encoded([("failed", {"response": self._answer.failed(error)})])
        about = {"code": error.code, "message": error.message, "param": error.param}
        kind = orjson.loads(error.envelope())["error"]["type"]
        return told + self._event("error", about | {"error": {"type": kind, **about}})

    def _encoded(self, events: Iterable[Event]) -> bytes:
        begun = b""
        if not self._sequence:
            started: Mapping[str, object] = {"response": self._answer.started()}
            begun = self._event("response.created", started) + self._event("response.in_progress", started)
        return begun + b"".join(self._event(f"response.{kind}", fields) for kind, fields in events)

    def _event(self, kind: str, fields: Mapping[str, object]) -> bytes:
        data = orjson.dumps({"type": kind, "sequence_number": self._sequence, **fields})
        self._sequence += 1
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)
