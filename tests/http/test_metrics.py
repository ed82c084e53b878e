from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from samovar.actors.caching.tiers import ResidencyFigures
from samovar.actors.requests import PrefixReuse, Refused
from samovar.actors.scheduling.options import SchedulerFigures
from samovar.actors.spilling.spill_reports import DurabilityFigures
from samovar.actors.stream import RequestStream
from samovar.runtime.engine.port import Delta, LaneFigures
from samovar.runtime.http.options import HttpOptions
from samovar.runtime.http.server import HttpServer
from samovar.runtime.http.serving import RequestRecord
from samovar.runtime.kernel import ActorCrashed
from samovar.runtime.metrics import Histogram, Metrics
from samovar.runtime.metrics_stats import LANE, PARTS

from .fakes import FakeServing, RecordingLog, chat, finished, live, run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from samovar.actors.requests import GenerationRequest

# INTERFACE §5, without what is text.
PROMISED = {
    "server": "uptime_s draining",
    "scheduler": "queued running admitted refused cancelled failed resumed",
    "prompt_cache": "entries bytes max_bytes hits misses hit_tokens prompt_tokens evictions demotions lost"
    " sessions session_hits object_hits object_misses",
    "ssd_cache": "entries bytes max_bytes restores restore_ms_last restored_bytes spills written_bytes"
    " pending_snapshots pending_spills pending_spill_bytes dropped_spills failed_spills"
    " longest_durable_prefix_tokens corrupt quarantined degraded",
    "actors": "restarts dead_letters open_asks",
}

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parsed(text: bytes) -> Samples:
    """Every sample by name and labels; fails on text that Prometheus would not read, or on a repeated one."""
    found: Samples = {}
    for family in text_string_to_metric_families(text.decode()):
        assert family.type in {"counter", "gauge", "histogram"}
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found
            found[key] = sample.value
    return found


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


def exposed(stats: Mapping[str, object]) -> Samples:
    return parsed(Metrics().exposition(stats))


def record(**fields: Any) -> RequestRecord:
    known: dict[str, Any] = {"request_id": "r", "generation_id": None, "method": "POST", "path": "/x"}
    return RequestRecord(**(known | {"status": 200, "duration_ms": 1.0} | fields))


@pytest.mark.parametrize(
    "stats",
    [
        {},
        {"scheduler": None, "lanes": None, "ssd_cache": None, "loop": {"lag_ms_p99": None}, "kv": None},
        {"scheduler": "down", "lanes": [], "actors": {"restarts": "many", "open_asks": [1]}},
        {"lanes": [{"id": 0, "restarts": 1}, None]},
    ],
)
def test_parts_that_do_not_answer_spoil_nothing(stats: dict[str, object]) -> None:
    samples = exposed(stats)
    assert value(samples, "samovar_ttft_seconds_count") == 0
    assert value(samples, "samovar_scheduler_admitted_requests_total") is None
    assert value(samples, "samovar_loop_lag_seconds", quantile="0.99") is None


@pytest.mark.parametrize("part", PROMISED)
def test_every_promised_figure_has_a_name_of_its_own(part: str) -> None:
    keys = PROMISED[part].split()
    samples = exposed({part: {key: 1000 + number for number, key in enumerate(keys)}})
    ours = [
        found for (name, labels), found in samples.items() if name.startswith(f"samovar_{PARTS[part].thing}_")
    ]
    expected = [(1000 + n) / (1e3 if keys[n] in PARTS[part].seconds else 1) for n in range(len(keys))]
    assert sorted(ours) == sorted(expected)
    assert {*PARTS[part].gauges, *PARTS[part].counters} >= set(keys)


def test_every_figure_of_a_lane_is_told() -> None:
    lane = LaneFigures(3, 1, 8, 500, 900, 1200, 4.0, 9.5, 77.5, 1234.5)
    told = {*LANE.gauges, *LANE.counters, "step_ms_p50", "step_ms_p99"} - {"restarts"}
    assert told == set(LaneFigures.__slots__)
    samples = exposed({"lanes": [lane, {"id": 1, "rows": 2, "restarts": 4}]})
    assert value(samples, "samovar_lane_rows", lane="0") == 3
    assert value(samples, "samovar_lane_rows", lane="1") == 2
    assert value(samples, "samovar_lane_steps_total", lane="0") == 500
    assert value(samples, "samovar_lane_restarts_total", lane="1") == 4
    assert value(samples, "samovar_lane_step_seconds", lane="0", quantile="0.99") == 0.0095
    assert value(samples, "samovar_lane_decode_tokens_per_second", lane="0") == 77.5
    assert value(samples, "samovar_lane_step_seconds", lane="1", quantile="0.5") is None


@pytest.mark.parametrize(
    ("part", "figures"),
    [("scheduler", SchedulerFigures), ("prompt_cache", ResidencyFigures), ("ssd_cache", DurabilityFigures)],
)
def test_every_figure_of_an_actor_is_told(part: str, figures: type) -> None:
    """Restores are counted by residency too, but told as a part of ``ssd_cache``."""
    names = {item.name for item in fields(figures)}
    told = {*PARTS[part].gauges, *PARTS[part].counters}
    if part == "prompt_cache":
        told |= {"restores", "restore_failures", "restored_bytes", "restore_ms_last"}
    assert names <= told


def test_the_rest_of_the_figures() -> None:
    samples = exposed(
        {
            "server": {"version": "1", "model": 'a "model"\\', "uptime_s": 2.5, "draining": True},
            "loop": {"lag_ms_p99": 12.5},
            "kv": {"scheme": "bf16", "layers": {"kv:plain": 30, "state:arrays": 2}},
            "ssd_cache": {"degraded": "writes fail", "restore_ms_last": 250.0, "dir": "/srv/kv"},
        }
    )
    assert value(samples, "samovar_info", version="1", model='a "model"\\') == 1
    assert value(samples, "samovar_server_uptime_seconds") == 2.5
    assert value(samples, "samovar_server_draining") == 1
    assert value(samples, "samovar_loop_lag_seconds", quantile="0.99") == 0.0125
    assert value(samples, "samovar_kv_layers", signature="kv:plain") == 30
    assert value(samples, "samovar_ssd_cache_degraded") == 1
    assert value(samples, "samovar_ssd_cache_last_restore_seconds") == 0.25
    assert value(exposed({"ssd_cache": {"degraded": None}}), "samovar_ssd_cache_degraded") is None
    assert value(exposed({"ssd_cache": {"degraded": False}}), "samovar_ssd_cache_degraded") == 0


def test_a_histogram_counts_up_to_and_with_its_bounds() -> None:
    histogram = Histogram("samovar_x_seconds", "X.", (0.1, 1.0))
    for seconds in (0.0, 0.1, 0.11, 1.0, 1.5, 99.0):
        histogram.observe(seconds)
    found = {(s.name, s.labels.get("le")): s.value for s in histogram.family().samples}
    assert found == {
        ("samovar_x_seconds_bucket", "0.1"): 2,
        ("samovar_x_seconds_bucket", "1.0"): 4,
        ("samovar_x_seconds_bucket", "+Inf"): 6,
        ("samovar_x_seconds_count", None): 6,
        ("samovar_x_seconds_sum", None): pytest.approx(101.71),
    }


def test_threads_lose_no_observation() -> None:
    metrics = Metrics()
    start = threading.Barrier(4)

    def write() -> None:
        start.wait()
        for _ in range(5000):
            metrics.wrote(0.02)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(write) for _ in range(4)]:
            done.result()
    samples = parsed(metrics.exposition({}))
    assert value(samples, "samovar_write_seconds_count") == 20_000
    assert value(samples, "samovar_write_seconds_bucket", le="0.01") == 0
    assert value(samples, "samovar_write_seconds_bucket", le="0.025") == 20_000


def test_requests_are_counted_by_status_and_by_tier() -> None:
    metrics = Metrics()
    metrics.request_ended(record(status=404))
    metrics.request_ended(record(tier="none", cached_tokens=0, restore_ms=0.0, queue_ms=20.0, ttft_ms=300.0))
    metrics.request_ended(record(tier="ram", cached_tokens=40, restore_ms=0.0))
    metrics.request_ended(record(tier="ssd", cached_tokens=500, restore_ms=70.0, ttft_ms=90.0))
    metrics.request_ended(record(status=499, tier="ram", cached_tokens=2, restore_ms=0.0))
    samples = parsed(metrics.exposition({}))
    assert value(samples, "samovar_http_requests_total", status="200") == 3
    assert value(samples, "samovar_http_requests_total", status="499") == 1
    assert [value(samples, "samovar_prompts_total", tier=tier) for tier in ("none", "ram", "ssd")] == [
        1,
        2,
        1,
    ]
    assert value(samples, "samovar_cached_tokens_total", tier="ram") == 42
    assert value(samples, "samovar_ttft_seconds_count") == 2
    assert value(samples, "samovar_ttft_seconds_bucket", le="0.1") == 1
    assert value(samples, "samovar_queue_seconds_sum") == pytest.approx(0.02)
    assert value(samples, "samovar_restore_seconds_count") == 1
    assert value(samples, "samovar_restore_seconds_sum") == pytest.approx(0.07)


def test_gaps_lie_between_tokens_only() -> None:
    async def scenario() -> None:
        metrics, stream = Metrics(), RequestStream("r", lambda _: None)
        pace = metrics.pace(stream)
        pace.tick()  # prefill events
        for _ in range(3):
            stream.push(Delta("r", "", (1,)))
            pace.tick()
            pace.tick()  # nothing new
        stream.push(finished("r"))
        pace.tick()
        assert value(parsed(metrics.exposition({})), "samovar_token_gap_seconds_count") == 2

    run(scenario())


# -- over HTTP ----------------------------------------------------------------------------------------------


async def scrape(server: Any) -> Samples:
    reply = await server.get("/metrics")
    assert reply.status == 200
    assert reply.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    return parsed(reply.body)


def test_there_are_no_metrics_where_they_are_off() -> None:
    async def scenario() -> None:
        async with live(metrics=False) as server:
            assert (await server.get("/metrics")).status == 404
        async with live(api_keys=("k",)) as server:
            assert (await server.get("/metrics")).status == 401

    run(scenario())


def test_figures_that_cannot_be_had_are_an_error_of_the_scrape() -> None:
    class Crashed(FakeServing):
        async def stats(self) -> Mapping[str, object]:
            raise ActorCrashed("serving/scheduler", "GetFigures", "boom")

    async def scenario() -> None:
        async with live(Crashed()) as server:
            assert (await server.get("/metrics")).status == 503

    run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_a_reply_leaves_its_times(stream: bool) -> None:
    async def slowly(stream: RequestStream, request: GenerationRequest) -> None:
        stream.started_s = asyncio.get_running_loop().time()
        for token in range(4):
            stream.push(Delta(request.id, "x", (token,)))
            for _ in range(3):  # the consumer takes it meanwhile
                await asyncio.sleep(0)
        stream.push(finished(request.id, 4))

    async def scenario() -> None:
        serving = FakeServing(slowly, reuse=PrefixReuse("ssd", 5, 30.0, None))
        async with live(serving) as server:
            before = await scrape(server)
            assert value(before, "samovar_ttft_seconds_count") == 0
            assert (await server.post(chat(stream=stream))).status == 200
            await server.log.wait(2)
            samples = await scrape(server)
            assert value(samples, "samovar_ttft_seconds_count") == 1
            assert value(samples, "samovar_queue_seconds_count") == 1
            assert value(samples, "samovar_restore_seconds_sum") == pytest.approx(0.03)
            assert value(samples, "samovar_token_gap_seconds_count") == 3
            assert value(samples, "samovar_scheduler_admitted_requests_total") == 1
            assert value(samples, "samovar_prompts_total", tier="ssd") == 1

    run(scenario())


def test_refused_requests_have_no_times() -> None:
    async def scenario() -> None:
        async with live(FakeServing(refuse=lambda _: Refused("queue_full", "full"))) as server:
            await server.post(chat())
            await server.log.wait(1)
            samples = await scrape(server)
            assert value(samples, "samovar_http_requests_total", status="429") == 1
            assert value(samples, "samovar_ttft_seconds_count") == 0
            assert value(samples, "samovar_prompts_total", tier="none") is None

    run(scenario())


def test_counters_outlive_the_server() -> None:
    async def scenario() -> None:
        metrics = Metrics()
        for _ in range(2):
            server = HttpServer(FakeServing(), HttpOptions(port=0), RecordingLog(), metrics=metrics)
            await server.start()
            await server.close(0.0)
            metrics.request_ended(record())
        assert value(parsed(metrics.exposition({})), "samovar_http_requests_total", status="200") == 2

    run(scenario())
