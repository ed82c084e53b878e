"""The measurable goals of issue 3: the cache on two tiers."""

from __future__ import annotations

from .summary_find import of_cold, storage
from .summary_goals import Goal

NOISY = "the machine's speed varied two- to threefold during that run"
FAST_GPU = "a model of 1 B prefills 60,000 tokens/s there; of 8 B: 0.045 and 0.50 (restart-h200-8b)"

CACHE_GOALS = (
    Goal(
        3,
        "restore of 512 MB / raw read, cold, verified, into MLX",
        "storage",
        storage("restore / raw read, cold, xxh3-128", "mlx"),
        at_least=0.8,
        remark=NOISY,
    ),
    Goal(3, "the same, warm", "storage", storage("restore / raw read, warm, xxh3-128", "mlx"), at_least=0.8),
    Goal(
        3,
        "the same, cold, H200",
        "storage-h200",
        storage("restore / raw read, cold, xxh3-128", "mlx"),
        at_least=0.8,
    ),
    Goal(
        3,
        "durable write / raw write and fsync",
        "storage",
        storage("durable write / raw + fsync, xxh3-128", "transfer"),
        at_least=0.8,
    ),
    Goal(
        3,
        "the same, H200",
        "storage-h200",
        storage("durable write / raw + fsync, xxh3-128", "transfer"),
        at_least=0.8,
    ),
    Goal(
        3,
        "verified / unverified restore, cold",
        "storage",
        storage("verified / unverified, cold, xxh3-128", "transfer"),
        at_most=1.1,
        remark=NOISY,
    ),
    Goal(
        3,
        "the same, warm",
        "storage",
        storage("verified / unverified, warm, xxh3-128", "transfer"),
        at_most=1.1,
    ),
    Goal(
        3,
        "the same, cold, H200",
        "storage-h200",
        storage("verified / unverified, cold, xxh3-128", "transfer"),
        at_most=1.1,
    ),
    Goal(
        3,
        "index lookup, 10,000 entries of 32,000 tokens, median, ms",
        "storage",
        storage("index lookup, shared, median", "lookup"),
        at_most=1.0,
    ),
    Goal(
        3,
        "the same, 400 nested turns that cannot be trimmed, ms",
        "storage",
        storage("index lookup, deep, median", "lookup"),
        at_most=1.0,
    ),
    Goal(
        3,
        "start-up scan of 10,000 files of 4,000 tokens, warm, s",
        "storage",
        storage("open 10000 x 4000 tokens, warm", "scan"),
        at_most=3.0,
    ),
    Goal(
        3,
        "the same, cold, s",
        "storage",
        storage("open 10000 x 4000 tokens, cold", "scan"),
        at_most=3.0,
        remark=NOISY,
    ),
    Goal(
        3,
        "the same, cold, H200, s",
        "storage-h200",
        storage("open 10000 x 4000 tokens, cold", "scan"),
        at_most=3.0,
    ),
    Goal(
        3,
        "loop lag p99 while restoring, writing, scanning, ms",
        "storage",
        storage("loop lag p99, restores, writes, scans (32 layers)", "lag"),
        at_most=20.0,
    ),
    Goal(3, "TTFT of 2,000 tokens from RAM / cold", "restart", of_cold(2000, "ram"), at_most=0.012),
    Goal(3, "TTFT of 2,000 tokens after SIGTERM / cold", "restart", of_cold(2000, "sigterm"), at_most=0.02),
    Goal(3, "TTFT of 2,000 tokens after SIGKILL / cold", "restart", of_cold(2000, "sigkill"), at_most=0.02),
    Goal(
        3,
        "TTFT of 8,000 tokens from RAM / cold, H200",
        "restart-h200",
        of_cold(8000, "ram"),
        at_most=0.012,
        remark=FAST_GPU,
    ),
    Goal(
        3,
        "TTFT of 8,000 tokens after SIGTERM / cold, H200",
        "restart-h200",
        of_cold(8000, "sigterm"),
        at_most=0.02,
        remark=FAST_GPU,
    ),
    Goal(
        3,
        "decode rate with a write beside / without, H200",
        "restart-h200-cost",
        lambda result: result["decode_ratio_with_write"],
        at_least=0.97,
        remark="0.96 in the run of restart-h200: it varies by a tenth",
    ),
    Goal(
        3,
        "whole time without hits, cache on / off",
        "restart",
        lambda result: result["cost_at_no_hits"],
        at_most=1.02,
        remark=NOISY,
    ),
    Goal(
        3,
        "the same, H200",
        "restart-h200-cost",
        lambda result: result["cost_at_no_hits"],
        at_most=1.02,
        remark="of 32 pairs half lie between 0.97 and 1.22; 0.73 and 1.25 were medians of 8",
    ),
    Goal(
        3,
        "lone restore through a reader / synchronous",
        "lone_restore",
        lambda result: result["ratio"],
        at_most=1.1,
        remark="1.04 and 1.08 were printed when issue 3 was closed",
    ),
)
