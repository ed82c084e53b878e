"""What other ways to keep prompts would do: blocks by LRU and OPT, whole prompts by LRU.

``least_recent`` and ``farthest`` keep blocks, each once however many prompts share it, and count what a
prompt finds at its beginning without a gap. ``farthest`` is Belady's MIN with bypass: with blocks of one size
it is the best that any cache of that many blocks can do, also one that knows prefixes, since a block is never
needed sooner than the ones before it: what it keeps has no gaps. Our own caches keep whole states, shared by
no two entries, so they cannot reach it; and a last block with fewer tokens counts as a whole one here, which
makes it exact in blocks and a little off in tokens.

``whole_prompts`` keeps each prompt as one object, its whole blocks, and lends it only to a prompt that begins
with all of it; nothing is cut to length and nothing supersedes anything.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from .retention_traces import Trace

NEVER = 1 << 60


@dataclass(slots=True)
class Score:
    """Tokens of prompts from request ``since`` on, and those of them that were found."""

    since: int = 0
    hit_tokens: int = 0
    prompt_tokens: int = 0

    def note(self, number: int, lengths: np.ndarray, found: int) -> None:
        """Count a request of blocks with these lengths, of which the first ``found`` were there."""
        if number >= self.since:
            self.hit_tokens += int(lengths[:found].sum())
            self.prompt_tokens += int(lengths.sum())

    @property
    def ratio(self) -> float:
        """Hit tokens of prompt tokens."""
        return self.hit_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class Order(Protocol):
    """Which block goes. Blocks that one request touched last are a run, and leave it deepest first."""

    def touch(self, number: int, end: int) -> None:
        """Note that a request has touched the first ``end`` blocks of its path."""
        ...

    def yield_room(self, cache: Blocks, number: int, depth: int, wanted: int) -> int:
        """Evict up to ``wanted`` blocks for a request's block at ``depth``; return how many went."""
        ...

    def same_worth(self, number: int, depth: int) -> int:
        """Return up to where a request's blocks from ``depth`` on are worth the same."""
        ...


class Blocks:
    """Blocks under a limit. ``touched``: the request that touched each one last."""

    def __init__(self, trace: Trace, limit: int) -> None:
        self.paths = [request.nodes for request in trace.requests]
        self.here = np.zeros(len(trace.sizes), dtype=bool)
        self.touched = np.full(len(trace.sizes), -1, dtype=np.int64)
        self.room = limit

    def found(self, path: np.ndarray) -> int:
        """Return how many blocks at the beginning of a path are here."""
        here = self.here[path]
        return len(path) if here.all() else int(here.argmin())

    def keep(self, number: int, start: int, end: int) -> None:
        """Take blocks of a request in."""
        self.here[self.paths[number][start:end]] = True
        self.room -= end - start

    def drop_from(self, number: int, start: int, end: int, wanted: int) -> int:
        """Drop up to ``wanted`` blocks, deepest first, that a request touched last; return how many went."""
        part = self.paths[number][start:end]
        going = part[self.here[part] & (self.touched[part] == number)][-wanted:]
        self.here[going] = False
        self.room += len(going)
        return len(going)


class Oldest:
    """LRU: the runs of the oldest requests go first."""

    def __init__(self) -> None:
        self._runs: deque[tuple[int, int]] = deque()

    def touch(self, number: int, end: int) -> None:
        """Append a run."""
        self._runs.append((number, end))

    def yield_room(self, cache: Blocks, number: int, depth: int, wanted: int) -> int:  # noqa: ARG002
        """Evict until a run of this very request is the oldest."""
        freed = 0
        while freed < wanted and self._runs and self._runs[0][0] < number:
            oldest, end = self._runs[0]
            freed += cache.drop_from(oldest, 0, end, wanted - freed)
            if freed < wanted:
                self._runs.popleft()
        return freed

    def same_worth(self, number: int, depth: int) -> int:  # noqa: ARG002
        """All blocks of the newest request are worth more than any other."""
        return 1 << 60


class Farthest:
    """Belady: the run whose next use is farthest goes first, of equal ones the older, which may be deeper."""

    def __init__(self, upcoming: list[np.ndarray]) -> None:
        self._upcoming = upcoming
        self._runs: list[tuple[int, int, int, int]] = []

    def touch(self, number: int, end: int) -> None:
        """Split what was touched by next use, which is never sooner further down."""
        start = 0
        while start < end:
            stop = min(end, self.same_worth(number, start))
            heapq.heappush(self._runs, (-int(self._upcoming[number][start]), number, start, stop))
            start = stop

    def yield_room(self, cache: Blocks, number: int, depth: int, wanted: int) -> int:
        """Evict what is used later than the block at ``depth``."""
        freed, next_use = 0, int(self._upcoming[number][depth])
        while freed < wanted and self._runs and -self._runs[0][0] > next_use:
            _, other, start, stop = self._runs[0]
            freed += cache.drop_from(other, start, stop, wanted - freed)
            if freed < wanted:
                heapq.heappop(self._runs)
        return freed

    def same_worth(self, number: int, depth: int) -> int:
        """Return where the next use changes."""
        rest = self._upcoming[number][depth:]
        return depth + int(np.searchsorted(rest, rest[0], side="right"))


def least_recent(trace: Trace, blocks: int, since: int = 0) -> Score:
    """Return what LRU over blocks finds."""
    return _replay(trace, blocks, Oldest(), since)


def farthest(trace: Trace, blocks: int, since: int = 0) -> Score:
    """Return what Belady's MIN with bypass finds."""
    return _replay(trace, blocks, Farthest(next_uses(trace)), since)


def _replay(trace: Trace, blocks: int, order: Order, since: int) -> Score:
    score, cache = Score(since), Blocks(trace, blocks)
    sizes = trace.lengths
    for number, path in enumerate(cache.paths):
        depth = cache.found(path)
        score.note(number, sizes[path], depth)
        cache.touched[path] = number
        while depth < len(path):
            end = min(len(path), order.same_worth(number, depth))
            missing = end - depth - cache.room
            if missing > 0:
                missing -= order.yield_room(cache, number, depth, missing)
            kept = end - max(0, missing)
            cache.keep(number, depth, kept)
            depth = kept
            if kept < end:
                break
        order.touch(number, depth)
    return score


def next_uses(trace: Trace) -> list[np.ndarray]:
    """Return for each request when each of its blocks is used next: a request's number, or NEVER."""
    last = np.full(len(trace.sizes), NEVER, dtype=np.int64)
    upcoming: list[np.ndarray] = []
    for number in range(len(trace.requests) - 1, -1, -1):
        nodes = trace.requests[number].nodes
        upcoming.append(last[nodes])
        last[nodes] = number
    return upcoming[::-1]


def whole_prompts(trace: Trace, tokens: int) -> Score:
    """Return what LRU over whole prompts of ``tokens`` in all finds."""
    score, kept, held = Score(), OrderedDict[int, int](), 0
    sizes = trace.lengths
    stored = np.zeros(len(sizes), dtype=bool)
    for number, request in enumerate(trace.requests):
        path = request.nodes
        lengths = sizes[path]
        whole = np.flatnonzero(lengths == trace.block)
        donors = np.flatnonzero(stored[path])
        score.note(number, lengths, int(donors[-1]) + 1 if len(donors) else 0)
        if len(donors):
            kept.move_to_end(int(path[donors[-1]]))
        if not len(whole):
            continue
        last, size = int(path[whole[-1]]), int(lengths[: whole[-1] + 1].sum())
        if size <= tokens and not stored[last]:
            kept[last], stored[last] = size, True
            held += size
        while held > tokens:
            gone, size = kept.popitem(last=False)
            stored[gone] = False
            held -= size
    return score


def everything(trace: Trace) -> Score:
    """Return what a cache that forgets nothing finds."""
    return least_recent(trace, len(trace.sizes))
