"""Answers of the routes that look into the cache and steer it."""

from typing import Literal

from ..schema.admin import ClearQuery, PageQuery, SessionBody, WaitBody
from ..schema.chat import ChatRequest
from ..schema.completions import CompletionRequest
from .errors import ErrorDetail
from .operation import BODY, GENERATING, PLAIN, Operation, Shape

_NO_CACHE = 501


class CacheRow(Shape):
    """One checkpoint in one tier; see ``CacheEntry``."""

    tier: Literal["ram", "ssd"]
    namespace: str
    tokens: int
    bytes: int
    durable: bool
    trimmable: bool
    reusable_from: int
    idle_s: float
    sessions: int | None
    leases: int | None


class CacheRows(Shape):
    """Some of all entries, most recently used first."""

    entries: list[CacheRow]
    total: int
    bytes: int
    offset: int
    limit: int
    next_offset: int | None


class Removed(Shape):
    """How many entries each tier let go."""

    ram: int
    ssd: int


class Cleared(Shape):
    """What was cleared."""

    tier: Literal["ram", "ssd", "all"]
    removed: Removed


class Flushed(Shape):
    """Whether everything is on disk; see ``FlushReport``."""

    durable: bool
    flushed: int
    missing: int
    pending: int
    pending_bytes: int
    dropped: int
    failed: int
    entries: int
    longest_durable_prefix_tokens: int
    elapsed_ms: float
    reason: str | None


class NotFlushed(Flushed):
    """What is not on disk, and why; or, without the figures, why nothing was flushed."""

    error: ErrorDetail


class Explained(Shape):
    """What a request would reuse; see ``CacheExplanation``."""

    prompt_tokens: int
    tier: Literal["none", "ram", "ssd"]
    cached_tokens: int
    ram_tokens: int
    ssd_tokens: int
    stored_tokens: int
    diverged_at: int
    boundary: int
    reason: str | None
    restore_ms: float | None
    prefill_ms: float | None
    message: str | None


class Drained(Shape):
    """How many entries left RAM, and what remains."""

    demoted: int
    remaining: int
    remaining_bytes: int


class SessionClosed(Shape):
    """Whether there was such a session."""

    session_id: str
    closed: bool


OPERATIONS = (
    Operation(
        "get",
        "/admin/cache",
        "List what is cached",
        CacheRows,
        query=PageQuery,
        errors=(*PLAIN, _NO_CACHE),
    ),
    Operation(
        "delete",
        "/admin/cache",
        "Let the entries of a tier go",
        Cleared,
        query=ClearQuery,
        errors=(*PLAIN, _NO_CACHE),
    ),
    Operation(
        "post",
        "/admin/cache/flush",
        "Bring everything to disk",
        Flushed,
        bodies=(WaitBody,),
        body_required=False,
        others={503: NotFlushed},
        errors=(*BODY, _NO_CACHE),
    ),
    Operation(
        "post",
        "/admin/cache/explain",
        "Tell what a request would reuse, and why not more",
        Explained,
        bodies=(ChatRequest, CompletionRequest),
        errors=(*GENERATING, _NO_CACHE),
    ),
    Operation(
        "post",
        "/admin/drain",
        "Free the RAM of everything that is on disk",
        Drained,
        bodies=(WaitBody,),
        body_required=False,
        errors=(*BODY, _NO_CACHE),
    ),
    Operation(
        "post",
        "/admin/sessions/close",
        "Forget a session",
        SessionClosed,
        bodies=(SessionBody,),
        errors=(*BODY, _NO_CACHE),
    ),
)
