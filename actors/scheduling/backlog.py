"""Which waiting request runs next: first come, first served within a class, except for two that may wait.

When several requests begin with the same long text and arrive together, the first one prefills it and the
others would each do the same. Instead they wait until the first has published it, and start from there. And
one that needs more memory than is free lets others pass while it waits, but only OVERTAKEN_MOST of them.
Pure bookkeeping: no clock, no I/O.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...storage.tokens import TokenIds

SHARED_WORTH_TOKENS: Final = 128
"""A shared prefix shorter than this is prefilled twice sooner than it is waited for."""
OVERTAKEN_MOST: Final = 8
"""How many later requests may pass one that does not fit yet; then all wait until it does."""


class Waiting(Protocol):
    """A request that waits for a row."""

    overtaken: int
    """How many have passed it because it did not fit."""

    @property
    def due_s(self) -> float:
        """Its place in the order."""
        ...

    @property
    def tokens(self) -> TokenIds:
        """Its prompt."""
        ...

    @property
    def namespace(self) -> str:
        """What its state depends on beside the tokens."""
        ...


W = TypeVar("W", bound=Waiting)


@dataclass(frozen=True, slots=True)
class Prefilling:
    """A row that prefills and will publish ``tokens``, of which it found ``cached`` in the cache.

    ``trims``: whether others can start from a part of what it publishes.
    """

    tokens: TokenIds
    namespace: str
    cached: int
    trims: bool

    def spares(self, waiting: Waiting) -> bool:
        """Whether waiting for this row's state saves ``waiting`` enough prefill."""
        if waiting.namespace != self.namespace:
            return False
        shared = self.tokens.common_prefix(waiting.tokens)
        if shared < len(self.tokens) and not self.trims:
            return False
        return min(shared, len(waiting.tokens) - 1) - self.cached >= SHARED_WORTH_TOKENS


class Backlog(Generic[W]):
    """Requests that wait for a row, and what the running rows are about to publish."""

    def __init__(self) -> None:
        self._waiting: list[W] = []
        self._prefilling: dict[str, Prefilling] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[W]:
        return iter(self._waiting)

    def add(self, waiting: W) -> None:
        """Let a request wait behind all that are due before it or with it."""
        insort(self._waiting, waiting, key=lambda each: each.due_s)

    def next(self, fits: Callable[[W], bool] = lambda _: True) -> W | None:
        """Take out the first request that fits and need not wait for another's prefix; None without one."""
        passed: list[W] = []
        for place, waiting in enumerate(self._waiting):
            if any(row.spares(waiting) for row in self._prefilling.values()):
                continue
            if fits(waiting):
                for each in passed:
                    each.overtaken += 1
                return self._waiting.pop(place)
            if waiting.overtaken >= OVERTAKEN_MOST:
                return None
            passed.append(waiting)
        return None

    def drop(self, gone: Callable[[W], bool]) -> int:
        """Forget requests and return how many."""
        staying = [waiting for waiting in self._waiting if not gone(waiting)]
        dropped = len(self._waiting) - len(staying)
        self._waiting = staying
        return dropped

    def began(self, row_id: str, prefilling: Prefilling) -> None:
        """Note a row whose state others may want."""
        self._prefilling[row_id] = prefilling

    def published(self, row_id: str) -> None:
        """Note that a row has published or ended: nobody waits for it any more."""
        self._prefilling.pop(row_id, None)
