"""kvcache-simulator (PyPI) over the same trace: an independent check of our LRU and OPT over blocks.

It replays prefix blocks under budgets in GiB of a model of its catalogue, and counts the last half of the
requests, if the cache has filled before. Its budgets are turned into numbers of blocks here, and ours counts
the same half. It knows neither whole states nor a second tier, so it is no check of the cache itself.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from .retention_bounds import farthest, least_recent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .retention_traces import Trace

MODEL = "glm-5.2"


@dataclass(frozen=True, slots=True)
class Agreement:
    """Hit tokens of the last half at ``blocks`` blocks, theirs and ours."""

    policy: str
    blocks: int
    theirs: int
    ours: int

    @property
    def difference(self) -> float:
        """Ours less theirs, as a share of theirs."""
        return (self.ours - self.theirs) / self.theirs if self.theirs else float(self.ours != 0)


def version() -> str | None:
    """Return which version is installed, None for none."""
    try:
        return importlib.metadata.version("kvcache-simulator")
    except importlib.metadata.PackageNotFoundError:
        return None


def compare(trace: Trace, shares: list[float]) -> list[Agreement]:
    """Return both sides' hit tokens, without budgets that never fill: the package leaves those out."""
    from kvcache_sim import BYTES_PER_GIB, run_sweep  # noqa: PLC0415 - only for this
    from kvcache_sim.trace import parse_trace_lines  # noqa: PLC0415

    parsed = parse_trace_lines(_lines(trace))
    probe = run_sweep(parsed, model_id=MODEL, budgets_gib=[1.0], policies=["fifo"], backend="python")
    block_gib = probe["metadata"]["bytesPerBlock"] / BYTES_PER_GIB
    wanted = [max(1, int(share * len(trace.sizes))) for share in shares]
    budgets = [(blocks + 0.5) * block_gib for blocks in wanted]
    swept = run_sweep(
        parsed, model_id=MODEL, budgets_gib=budgets, policies=["lru", "optimal"], backend="python"
    )
    return [one for point in swept["points"] for one in _agreements(trace, point)]


def _agreements(trace: Trace, point: dict[str, Any]) -> Iterator[Agreement]:
    blocks, since = point["cacheBlocks"], len(trace.requests) // 2
    for policy, ours in (("lru", least_recent), ("optimal", farthest)):
        theirs = point["results"][policy]["hitTokens"]
        yield Agreement(policy, blocks, theirs, ours(trace, blocks, since).hit_tokens)


def _lines(trace: Trace) -> Iterator[str]:
    for request in trace.requests:
        lengths = trace.lengths[request.nodes].tolist()
        line = {
            "block_size": trace.block,
            "hash_ids": request.nodes.tolist(),
            "input_length": sum(lengths),
            "block_tokens": lengths,
        }
        yield orjson.dumps(line).decode()
