"""What the server knows of one request while it is being answered."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from secrets import token_hex
from typing import TYPE_CHECKING

from aiohttp import web

from .replies.usage import elapsed_ms
from .serving import RequestRecord

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...actors.requests import Admitted
    from ..engine.port import Finished
    from .call import Call
    from .errors import HttpError
    from .events import EventStream

_SANE_ID = re.compile(r"[A-Za-z0-9_.:/+=-]{1,128}")


@dataclass(slots=True, eq=False)
class Exchange:
    """A request's id, its time limit, and what its record will say. Lives as long as its handler."""

    id: str
    started_s: float
    timeout: asyncio.Timeout
    call: Call | None = None
    admitted: Admitted | None = None
    finished: Finished | None = None
    events: EventStream | None = None
    stopped: HttpError | None = None

    def stop(self, error: HttpError) -> None:
        """End the handler at its next await; the client is told ``error``. Harmless when already ending."""
        if self.stopped is None and not self.timeout.expired():
            self.stopped = error
            self.timeout.reschedule(asyncio.get_running_loop().time())

    def record(
        self, request: web.Request, status: int, error: HttpError | None, cause: BaseException | None
    ) -> RequestRecord:
        """Return the canonical record; call at the end."""
        call, finished = self.call, self.finished
        stream = self.admitted.stream if self.admitted else None
        times = stream.times if stream else None
        reuse = self.admitted.reuse if self.admitted else None
        return RequestRecord(
            request_id=self.id,
            generation_id=call.id if call else None,
            method=request.method,
            path=_shown_path(request),
            status=status,
            duration_ms=round((asyncio.get_running_loop().time() - self.started_s) * 1e3, 3),
            model=call.model if call else None,
            stream=call.stream if call else False,
            session_id=call.request.session_id if call else None,
            prompt_tokens=self.admitted.prompt_tokens if self.admitted else None,
            cached_tokens=reuse.cached_tokens if reuse else None,
            tier=reuse.tier if reuse else None,
            restore_ms=reuse.restore_ms if reuse else None,
            miss_reason=reuse.miss_reason if reuse else None,
            diverged_at=reuse.diverged_at if reuse else None,
            completion_tokens=stream.emitted_tokens if stream else None,
            finish_reason=finished.reason if finished else None,
            queue_ms=elapsed_ms(times.submitted_s, times.started_s) if times else None,
            prefill_ms=finished.prefill_ms if finished else None,
            ttft_ms=elapsed_ms(times.submitted_s, times.first_token_s) if times else None,
            error_code=error.code if error else None,
            error_param=error.param if error else None,
            error_detail=error.detail if error else None,
            error=cause,
        )


EXCHANGE: web.RequestKey[Exchange] = web.RequestKey("exchange", Exchange)


def _shown_path(request: web.Request) -> str:
    """Return the path as logs show it: whoever knows a stored response's id may read it."""
    resource = request.match_info.route.resource
    return request.path if resource is None or "id" not in request.match_info else resource.canonical


def request_id(headers: Mapping[str, str]) -> str:
    """Return the client's own ``x-request-id`` when it is short and plain, else a fresh one."""
    given = headers.get("x-request-id", "")
    return given if _SANE_ID.fullmatch(given) else fresh_id()


def fresh_id() -> str:
    """Return an id for a request that brought none."""
    return f"req-{token_hex(8)}"
