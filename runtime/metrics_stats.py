"""The figures of ``GET /stats`` as Prometheus metrics.

Every figure has one line here. Parts that are null or absent (an actor that does not answer, a tier that is
off) give no metrics, so a scrape never fails for them.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, is_dataclass
from typing import TYPE_CHECKING, Final, cast

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from prometheus_client.core import Metric


@dataclass(frozen=True, slots=True)
class Part:
    """A part of ``/stats``. ``gauges`` and ``counters`` give a key's name behind ``samovar_<thing>_``.

    Keys in ``seconds`` hold milliseconds and are told in seconds.
    """

    thing: str
    gauges: Mapping[str, str]
    counters: Mapping[str, str]
    seconds: frozenset[str] = frozenset()


def _same(*keys: str) -> dict[str, str]:
    return {key: key for key in keys}


def _requests(*keys: str) -> dict[str, str]:
    return {key: f"{key}_requests" for key in keys}


PARTS: Final = {
    "server": Part("server", {"uptime_s": "uptime_seconds", "draining": "draining"}, {}),
    "scheduler": Part(
        "scheduler",
        {**_requests("queued", "running"), **_same("kv_bytes", "kv_budget_bytes")},
        _requests("admitted", "refused", "cancelled", "failed", "finished", "resumed"),
    ),
    "prompt_cache": Part(
        "prompt_cache",
        _same(
            "entries",
            "bytes",
            "max_bytes",
            "sessions",
            "leases",
            "waiting",
            "restoring",
            "undurable",
            "undurable_bytes",
            "withdrawn",
        ),
        _same(
            "hits",
            "misses",
            "hit_tokens",
            "prompt_tokens",
            "evictions",
            "demotions",
            "lost",
            "session_hits",
            "object_hits",
            "object_misses",
        ),
    ),
    "ssd_cache": Part(
        "ssd_cache",
        {
            **_same(
                "entries",
                "bytes",
                "max_bytes",
                "foreign_bytes",
                "unread_bytes",
                "unrecovered",
                "pending_snapshots",
                "pending_spills",
                "pending_spill_bytes",
                "longest_durable_prefix_tokens",
                "quarantined",
                "missing",
                "degraded",
            ),
            "restore_ms_last": "last_restore_seconds",
            "write_ms_last": "last_write_seconds",
        },
        _same(
            "restores",
            "restore_failures",
            "restored_bytes",
            "spills",
            "written_bytes",
            "dropped_spills",
            "failed_spills",
            "corrupt",
            "evictions",
            "unlink_failures",
        ),
        frozenset({"restore_ms_last", "write_ms_last"}),
    ),
    "responses": Part("stored_responses", _same("entries", "bytes", "max_bytes"), {"evictions": "evicted"}),
    "actors": Part("actors", _same("open_asks"), _same("restarts", "dead_letters")),
}

LANE: Final = Part(
    "lane",
    {
        **_same("rows", "prefilling", "peak_rows", "solo_rows"),
        "decode_tps": "decode_tokens_per_second",
        "prefill_tps": "prefill_tokens_per_second",
    },
    _same("steps", "decoded_tokens", "prefilled_tokens", "failed_publications", "restarts"),
)
_QUANTILES: Final = {"step_ms_p50": "0.5", "step_ms_p99": "0.99"}


class StatsCollector:
    """One reading of ``/stats`` for prometheus-client."""

    def __init__(self, stats: Mapping[str, object]) -> None:
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of every part that is there."""
        for name, part in PARTS.items():
            yield from _families(part, [({}, _mapping(self._stats.get(name)))])
        lanes = [_mapping(lane) for lane in cast("Sequence[object]", self._stats.get("lanes") or ())]
        labelled = [({"lane": str(lane.get("id", index))}, lane) for index, lane in enumerate(lanes)]
        yield from _families(LANE, labelled)
        yield _steps(labelled)
        yield from self._others()

    def _others(self) -> Iterator[Metric]:
        server = _mapping(self._stats.get("server"))
        if server:
            info = GaugeMetricFamily("samovar_info", "What is running.", labels=["version", "model"])
            info.add_metric([str(server.get("version")), str(server.get("model"))], 1)
            yield info
        lag_ms = _number(_mapping(self._stats.get("loop")).get("lag_ms_p99"))
        if lag_ms is not None:
            lag = GaugeMetricFamily("samovar_loop_lag_seconds", "loop.lag_ms_p99.", labels=["quantile"])
            lag.add_metric(["0.99"], lag_ms / 1e3)
            yield lag
        layers = _mapping(_mapping(self._stats.get("kv")).get("layers"))
        if layers:
            kv = GaugeMetricFamily("samovar_kv_layers", "kv.layers of GET /stats.", labels=["signature"])
            for signature, count in layers.items():
                kv.add_metric([signature], _number(count) or 0)
            yield kv


def _families(part: Part, rows: Sequence[tuple[Mapping[str, str], Mapping[str, object]]]) -> Iterator[Metric]:
    """Yield one family for each figure of ``part`` that some row has."""
    kinds = ((GaugeMetricFamily, part.gauges), (CounterMetricFamily, part.counters))
    for kind, names in kinds:
        for key, name in names.items():
            labels = list(rows[0][0]) if rows else []
            family = kind(f"samovar_{part.thing}_{name}", f"{part.thing}.{key} of GET /stats.", labels=labels)
            for values, figures in rows:
                value = _number(figures.get(key))
                if value is not None:
                    family.add_metric(list(values.values()), value / 1e3 if key in part.seconds else value)
            if family.samples:
                yield family


def _steps(lanes: Sequence[tuple[Mapping[str, str], Mapping[str, object]]]) -> Metric:
    steps = GaugeMetricFamily("samovar_lane_step_seconds", "Decode steps.", labels=["lane", "quantile"])
    for labels, figures in lanes:
        for key, quantile in _QUANTILES.items():
            value = _number(figures.get(key))
            if value is not None:
                steps.add_metric([labels["lane"], quantile], value / 1e3)
    return steps


def _mapping(value: object) -> Mapping[str, object]:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}


def _number(value: object) -> float | None:
    """Return a figure's value; text (why something is degraded) counts as true."""
    match value:
        case bool() | int() | float():
            return float(value)
        case str():
            return float(bool(value))
        case _:
            return None
