"""Writes the HTTP layer's request records as canonical log lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .logs import RequestLine, get_logger, log_request

if TYPE_CHECKING:
    from .http.serving import RequestRecord

CLIENT_LOST = 499

_log = get_logger("samovar.http")


class LineLog:
    """``http.serving.RequestLog`` over structlog: one line per request; unexpected errors get a traceback."""

    def request_ended(self, record: RequestRecord) -> None:
        """Write the line."""
        if record.error is not None:
            _log.error("request_error", request_id=record.request_id, exc_info=record.error)
        if record.error_detail is not None:
            _log.error("reply_failed", request_id=record.request_id, detail=record.error_detail)
        log_request(
            RequestLine(
                request_id=record.request_id,
                route=record.path,
                status=record.status,
                model=record.model,
                stream=record.stream,
                finish_reason=record.finish_reason,
                prompt_tokens=record.prompt_tokens,
                cached_tokens=record.cached_tokens,
                tier=record.tier,
                restore_ms=record.restore_ms,
                miss_reason=record.miss_reason,
                diverged_at=record.diverged_at,
                completion_tokens=record.completion_tokens,
                queue_ms=record.queue_ms,
                prefill_ms=record.prefill_ms,
                ttft_ms=record.ttft_ms,
                duration_ms=record.duration_ms,
                tokens_per_s=_rate(record),
                client_lost=record.status == CLIENT_LOST,
                error_code=record.error_code,
            )
        )


def _rate(record: RequestRecord) -> float | None:
    """Tokens per second after the first one."""
    if record.completion_tokens is None or record.ttft_ms is None:
        return None
    took_ms = record.duration_ms - record.ttft_ms
    return 1000.0 * (record.completion_tokens - 1) / took_ms if took_ms > 0 else None
