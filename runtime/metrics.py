"""What Prometheus is told: histograms observed here, and the figures of ``/stats`` under Prometheus' names.

Names are ``samovar_<thing>_<unit>[_total]``, seconds and bytes. Observing costs well under a microsecond, so
it is done per chunk; text is made only when somebody asks.
"""

from __future__ import annotations

import asyncio
import threading
from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from .metrics_stats import StatsCollector

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from prometheus_client.core import Metric

    from ..actors.stream import RequestStream
    from .http.serving import RequestRecord

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4

_WAITS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_GAPS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


class Histogram:
    """Counts observations by upper bound. Any thread; one uncontended lock and a binary search each."""

    __slots__ = ("_bounds", "_counts", "_documentation", "_lock", "_name", "_sum")

    def __init__(self, name: str, documentation: str, bounds: tuple[float, ...]) -> None:
        self._name = name
        self._documentation = documentation
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float) -> None:
        """Count ``value``."""
        with self._lock:
            self._counts[bisect_left(self._bounds, value)] += 1
            self._sum += value

    def family(self) -> Metric:
        """Return the present state."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        names = [*map(str, self._bounds), "+Inf"]
        buckets = list(zip(names, map(float, accumulate(counts)), strict=True))
        return HistogramMetricFamily(self._name, self._documentation, buckets=buckets, sum_value=total)


class Pace:
    """Observes the gaps between the tokens of one reply as they reach the HTTP layer. Loop thread only."""

    __slots__ = ("_gaps", "_last_s", "_loop", "_seen", "_stream")

    def __init__(self, stream: RequestStream, gaps: Histogram) -> None:
        self._stream = stream
        self._gaps = gaps
        self._loop = asyncio.get_running_loop()
        self._seen = 0
        self._last_s: float | None = None

    def tick(self) -> None:
        """Note that events were taken; only those with new tokens count."""
        if self._stream.emitted_tokens == self._seen:
            return
        now_s = self._loop.time()
        if self._last_s is not None:
            self._gaps.observe(now_s - self._last_s)
        self._seen, self._last_s = self._stream.emitted_tokens, now_s


class Metrics:
    """What was observed since the process started. Make one and keep it: restarts of actors lose nothing."""

    def __init__(self) -> None:
        self.ttft = Histogram("samovar_ttft_seconds", "From submission to the first token.", _WAITS_S)
        self.gap = Histogram("samovar_token_gap_seconds", "Between tokens of a reply.", _GAPS_S)
        self.queue = Histogram("samovar_queue_seconds", "From submission to a row.", _WAITS_S)
        self.restore = Histogram("samovar_restore_seconds", "Requests' waits for reads from SSD.", _WAITS_S)
        self.write = Histogram("samovar_write_seconds", "Durable writes of checkpoints.", _WAITS_S)
        self._requests: dict[int, int] = {}
        self._reused: dict[str, list[int]] = {}

    def pace(self, stream: RequestStream) -> Pace:
        """Return the observer of one reply's gaps."""
        return Pace(stream, self.gap)

    def wrote(self, elapsed_s: float) -> None:
        """Count a durable write. Any thread."""
        self.write.observe(elapsed_s)

    def request_ended(self, record: RequestRecord) -> None:
        """Count a request: ``http.serving.RequestLog``. Loop thread only."""
        self._requests[record.status] = self._requests.get(record.status, 0) + 1
        if record.ttft_ms is not None:
            self.ttft.observe(record.ttft_ms / 1e3)
        if record.queue_ms is not None:
            self.queue.observe(record.queue_ms / 1e3)
        if record.tier is None:
            return
        counts = self._reused.setdefault(record.tier, [0, 0])
        counts[0] += 1
        counts[1] += record.cached_tokens or 0
        if record.tier == "ssd" and record.restore_ms:
            self.restore.observe(record.restore_ms / 1e3)

    def collect(self) -> Iterator[Metric]:
        """Yield what was observed, as prometheus-client wants it."""
        for histogram in (self.ttft, self.gap, self.queue, self.restore, self.write):
            yield histogram.family()
        requests = CounterMetricFamily("samovar_http_requests", "HTTP requests by status.", labels=["status"])
        for status, count in sorted(self._requests.items()):
            requests.add_metric([str(status)], count)
        yield requests
        prompts = CounterMetricFamily(
            "samovar_prompts", "Prompts by the tier that served them.", labels=["tier"]
        )
        tokens = CounterMetricFamily(
            "samovar_cached_tokens", "Prompt tokens that were not prefilled, by tier.", labels=["tier"]
        )
        for tier, (count, cached) in sorted(self._reused.items()):
            prompts.add_metric([tier], count)
            tokens.add_metric([tier], cached)
        yield prompts
        yield tokens

    def exposition(self, stats: Mapping[str, object]) -> bytes:
        """Return the text of ``GET /metrics`` (``CONTENT_TYPE``); about a millisecond."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)  # pyright: ignore[reportArgumentType] - a collector by its method
        registry.register(StatsCollector(stats))  # pyright: ignore[reportArgumentType]
        return generate_latest(registry)
