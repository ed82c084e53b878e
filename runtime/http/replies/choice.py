"""One choice of an answer: its way into the scheduler, and its stream read piece by piece."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ....actors.requests import Refused
from ...engine.port import Cancelled, Failed, Finished
from ..errors import failure, refusal
from .reader import ReplyReader
from .usage import elapsed_ms

if TYPE_CHECKING:
    from ....actors.requests import Admitted
    from ...metrics import Metrics
    from ..call import Call
    from ..serving import Serving
    from .pieces import ChoiceEnd, Progress


class Choice:
    """One generation. ``admit``, then ``next`` until a progress has its end. Loop thread only.

    Both raise HttpError; either may be cancelled at any await, and ``cancel`` then leaves nothing running.
    """

    def __init__(self, index: int, call: Call, serving: Serving, metrics: Metrics, request_id: str) -> None:
        self.index = index
        self.admitted: Admitted | None = None
        self.end: ChoiceEnd | None = None
        self._call = call
        self._serving = serving
        self._metrics = metrics
        self._request_id = request_id

    async def admit(self) -> Admitted:
        """Wait until the choice runs."""
        admission = await self._serving.submit(self._call.requests[self.index])
        if isinstance(admission, Refused):
            raise refusal(admission)
        self.admitted = admission
        self._pace = self._metrics.pace(admission.stream)
        self._reader = ReplyReader(
            self.index, self._call, self._serving.model().reply, in_reasoning=admission.in_reasoning
        )
        return admission

    async def next(self) -> Progress:
        """Wait for what comes next; everything that has come is in it."""
        admitted = self.admitted or await self.admit()
        events = await admitted.stream.take()
        self._pace.tick()
        if isinstance(events[-1], (Cancelled, Failed)):
            raise failure(events[-1], self._request_id)
        progress = self._reader.read(events)
        if progress.end is None and self._reader.complete:
            admitted.stream.cancel()
            progress = replace(progress, end=self._reader.ending(self._cut_short(admitted)))
        self.end = progress.end
        return progress

    def cancel(self) -> None:
        """Drop the generation if it runs. Idempotent."""
        if self.admitted is not None and not self.admitted.stream.cancelled:
            self.admitted.stream.cancel()

    def _cut_short(self, admitted: Admitted) -> Finished:
        """Return the figures of a generation that ends here because no more of it is wanted."""
        times = admitted.stream.times
        return Finished(
            admitted.stream.id,
            "stop",
            "",
            admitted.prompt_tokens,
            self._reader.tokens,
            elapsed_ms(times.started_s, times.first_token_s) or 0.0,
            0.0,
            admitted.reuse.cached_tokens,
        )
