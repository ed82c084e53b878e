"""What the administration of the cache takes: bodies, and queries with whole numbers as such."""

from typing import Annotated, Literal, TypeAlias

from .base import ApiModel
from .calls import SessionId
from .kinds import Number, Whole

MAX_TIMEOUT_S = 3600.0
MAX_PAGE_ENTRIES = 1000
MAX_OFFSET = 1_000_000

TierName: TypeAlias = Literal["ram", "ssd", "all"]


class WaitBody(ApiModel):
    """How long a flush or a drain may take, in seconds."""

    timeout_s: Annotated[float, Number(0.0, MAX_TIMEOUT_S)] | None = None


class SessionBody(ApiModel):
    """A session."""

    session_id: SessionId


class PageQuery(ApiModel):
    """Which entries to list."""

    tier: TierName | None = None
    limit: Annotated[int, Whole(1, MAX_PAGE_ENTRIES)] | None = None
    offset: Annotated[int, Whole(0, MAX_OFFSET)] | None = None


class ClearQuery(ApiModel):
    """Which tier to clear; it must be named, since this cannot be undone."""

    tier: TierName
