"""What is measured of one running server: every measure asks for replies and returns samples by name.

``aggregate_N`` (tokens/s): all tokens of N streams over the time from the first request to the last token,
prefill included. ``decode_N`` (tokens/s): the same streams, only while every one of them was decoding; left
out where there was no such time. ``cold_ttft_s``: the first token of a long cold prompt, alone.
``load_ttft_s``: short requests that arrive while eight streams run. ``gap_s``: the longest pause of a running
stream from the moment in which a long cold prompt is sent until that prompt's first token; ``step_s``: the
stream's median pause before. ``short_ttft_s``: a short request sent one second after that long prompt.
``long_ttft_s``: that prompt's own.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .serving_chat import Chat, ChatFailed, Prompts, Reply

if TYPE_CHECKING:
    from concurrent.futures import Future

Samples = dict[str, list[float]]
Measure = Callable[[Chat, Prompts], Samples]

POLL_S = 0.02
SHORT_AFTER_S = 1.0
HEAD_START = 8
"""Pieces that a stream has sent before its rival comes."""


@dataclass(frozen=True)
class Scale:
    """How much is asked for."""

    streams: tuple[int, ...] = (1, 4, 8)
    reply_tokens: int = 64
    cold_tokens: int = 1980
    rival_tokens: int = 2000
    watched_tokens: int = 160
    load_streams: int = 8
    load_tokens: int = 96
    arrivals: int = 12
    arrival_s: float = 1.0


FULL = Scale()
QUICK = Scale(
    streams=(1, 8),
    reply_tokens=24,
    cold_tokens=400,
    rival_tokens=600,
    watched_tokens=60,
    load_tokens=64,
    arrivals=4,
)


def measures(scale: Scale) -> dict[str, Measure]:
    """Return the measures of a visit, in their order."""
    return {
        **{f"{count} streams": _streams(count, scale) for count in scale.streams},
        "cold prompt": lambda chat, prompts: _cold(chat, prompts, scale),
        "long prompt beside a stream": lambda chat, prompts: _interference(chat, prompts, scale),
        "short requests under load": lambda chat, prompts: _under_load(chat, prompts, scale),
    }


def _streams(count: int, scale: Scale) -> Measure:
    def measure(chat: Chat, prompts: Prompts) -> Samples:
        conversations = [prompts.short() for _ in range(count)]
        with ThreadPoolExecutor(count) as pool:
            waiting = [pool.submit(chat.ask, messages, scale.reply_tokens) for messages in conversations]
            replies = [each.result() for each in waiting]
        samples = {f"aggregate_{count}": [_aggregate(replies)], "tokens": [float(r.tokens) for r in replies]}
        decode = _decode_rate(replies)
        return samples if decode is None else samples | {f"decode_{count}": [decode]}

    return measure


def _aggregate(replies: list[Reply]) -> float:
    last_s = max(reply.pieces_s[-1] for reply in replies)
    return sum(reply.tokens for reply in replies) / (last_s - min(reply.asked_s for reply in replies))


def _decode_rate(replies: list[Reply]) -> float | None:
    """Return tokens/s while all decode; None where fewer than four tokens of each came in that time."""
    from_s = max(reply.pieces_s[0] for reply in replies)
    to_s = min(reply.pieces_s[-1] for reply in replies)
    counts = [sum(from_s < at_s <= to_s for at_s in reply.pieces_s) for reply in replies]
    if min(counts) < 4:
        return None
    tokens = sum(count * reply.tokens_per_piece for count, reply in zip(counts, replies, strict=True))
    return tokens / (to_s - from_s)


def _cold(chat: Chat, prompts: Prompts, scale: Scale) -> Samples:
    reply = chat.ask(prompts.long(scale.cold_tokens), 2)
    return {"cold_ttft_s": [reply.ttft_s], "cold_prompt_tokens": [float(reply.prompt_tokens)]}


def _interference(chat: Chat, prompts: Prompts, scale: Scale) -> Samples:
    watched, rival, short = prompts.short(), prompts.long(scale.rival_tokens), prompts.short()
    under_way = threading.Event()

    def on_piece(number: int) -> None:
        if number >= HEAD_START:
            under_way.set()

    with ThreadPoolExecutor(3) as pool:
        stream = pool.submit(chat.ask, watched, scale.watched_tokens, on_piece)
        while not (under_way.wait(POLL_S) or stream.done()):
            pass
        sent_s = time.perf_counter()
        long = pool.submit(chat.ask, rival, 2)
        time.sleep(SHORT_AFTER_S)
        late = pool.submit(chat.ask, short, 4)
        stream_reply, long_reply, late_reply = stream.result(), long.result(), late.result()
    return _pauses(stream_reply, sent_s, long_reply.pieces_s[0]) | {
        "short_ttft_s": [late_reply.ttft_s],
        "long_ttft_s": [long_reply.ttft_s],
    }


def _pauses(stream: Reply, sent_s: float, over_s: float) -> Samples:
    during = [end - begin for begin, end in stream.pauses if end > sent_s and begin < over_s]
    before = [end - begin for begin, end in stream.pauses if end <= sent_s]
    if not during or not before:
        raise ChatFailed("the stream ended before the long prompt was sent")
    return {"gap_s": [max(during)], "step_s": [statistics.median(before)]}


def _under_load(chat: Chat, prompts: Prompts, scale: Scale) -> Samples:
    begun = threading.Semaphore(0)

    def on_piece(number: int) -> None:
        if number == 1:
            begun.release()

    conversations = [prompts.short() for _ in range(scale.load_streams)]
    arriving = [prompts.short() for _ in range(scale.arrivals)]
    with ThreadPoolExecutor(scale.load_streams + scale.arrivals) as pool:
        streams = [pool.submit(chat.ask, each, scale.load_tokens, on_piece) for each in conversations]
        if not _all_begun(begun, streams):
            raise ChatFailed("a stream ended before all had begun")
        shorts: list[Future[Reply]] = []
        for messages in arriving:
            if any(stream.done() for stream in streams):
                break
            shorts.append(pool.submit(chat.ask, messages, 4))
            time.sleep(scale.arrival_s)
        for stream in streams:
            stream.result()
    return {"load_ttft_s": [short.result().ttft_s for short in shorts]}


def _all_begun(begun: threading.Semaphore, streams: list[Future[Reply]]) -> bool:
    missing = len(streams)
    while missing:
        if begun.acquire(timeout=POLL_S):
            missing -= 1
        elif any(stream.done() for stream in streams):
            for stream in streams:
                if stream.done():
                    stream.result()
            return False
    return True
