"""One load, and what three instruments say of it: our client, aiperf, and the server's own histograms.

The load: a list of prompts, each one user turn, asked for in order by ``at_once`` clients that each wait for
their reply before they ask for the next. The terms are aiperf's: time to first token and latency of a request
from sending it; inter-token latency of a request = (latency - time to first token) / (tokens - 1);
throughput = all tokens over the time from the first request to the end of the last.
"""

from __future__ import annotations

import http.client
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .serving_chat import Chat, Prompts, Reply

SERVER_HISTOGRAMS = {"ttft_s": "samovar_ttft_seconds", "itl_s": "samovar_token_gap_seconds"}


@dataclass(frozen=True)
class Load:
    """What is asked for: how many prompts of how many tokens, how long replies, by how many clients."""

    requests: int = 24
    at_once: int = 4
    prompt_tokens: int = 200
    reply_tokens: int = 48

    def texts(self, prompts: Prompts) -> list[str]:
        """Return the prompts as user turns."""
        made = (prompts.long(self.prompt_tokens) for _ in range(self.requests))
        return ["\n".join(message["content"] for message in messages) for messages in made]


@dataclass(frozen=True)
class Figures:
    """What an instrument says of one run of a load; seconds are means over requests, None: it does not say.

    ``itl_s`` of the server's histograms is a mean over gaps: the same where replies are equally long.
    """

    ttft_s: float | None = None
    itl_s: float | None = None
    latency_s: float | None = None
    tokens_per_s: float | None = None
    requests: float | None = None


def ask_all(chat: Chat, texts: list[str], load: Load) -> Figures:
    """Put the load on a server with our own client. Raises ChatFailed."""
    begun_s = time.perf_counter()
    with ThreadPoolExecutor(load.at_once) as pool:
        waiting = [
            pool.submit(chat.ask, [{"role": "user", "content": text}], load.reply_tokens) for text in texts
        ]
        replies = [each.result() for each in waiting]
    return figures_of(replies, time.perf_counter() - begun_s)


def figures_of(replies: list[Reply], took_s: float) -> Figures:
    """Return the figures of replies that came within ``took_s``."""
    latencies = [reply.pieces_s[-1] - reply.asked_s for reply in replies]
    between = [
        (latency - reply.ttft_s) / (reply.tokens - 1)
        for reply, latency in zip(replies, latencies, strict=True)
        if reply.tokens > 1
    ]
    return Figures(
        statistics.mean(reply.ttft_s for reply in replies),
        statistics.mean(between) if between else None,
        statistics.mean(latencies),
        sum(reply.tokens for reply in replies) / took_s,
        float(len(replies)),
    )


def metrics(port: int) -> dict[str, float]:
    """Return the samples of the server's ``/metrics`` that have no labels, by name."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10.0)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    lines = (line.split(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return {parts[0]: float(parts[1]) for parts in lines if "{" not in parts[0]}


def between(before: dict[str, float], after: dict[str, float]) -> Figures:
    """Return what the server's histograms say of the requests between two readings."""
    means: dict[str, float | None] = {}
    for field, name in SERVER_HISTOGRAMS.items():
        count, total = (
            after[f"{name}_{each}"] - before.get(f"{name}_{each}", 0.0) for each in ("count", "sum")
        )
        means[field] = total / count if count else None
    count_name = f"{SERVER_HISTOGRAMS['ttft_s']}_count"
    return Figures(**means, requests=after[count_name] - before.get(count_name, 0.0))
