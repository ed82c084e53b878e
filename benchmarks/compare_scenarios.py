"""The scenarios of the comparison: each takes a server that runs and returns samples by name.

``start``: seconds from starting the process to the first piece of an answer. ``idle``: memory after a pause,
and CPU used in it. ``repeat``: a long cold prompt, and the same at once again. ``sigterm``, ``sigkill``: the
server is ended some seconds after it answered a long prompt, started again in its folder, asked something
short, then that prompt. ``agent``: conversations of compare_agent.py, turn by turn; the second shares the
first one's system prompt. ``streams``, ``interference``, ``load``: serving_measures.py.

What is named ``…_of_cold`` is the time to the first token over that of the same prompt cold, same server.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from .compare_agent import replay, scripts
from .serving_measures import FULL, QUICK, Samples, Scale, measures

if TYPE_CHECKING:
    from pathlib import Path

    from .compare_server import Server
    from .serving_chat import Prompts, Reply


@dataclass(frozen=True)
class Plan:
    """How much is asked for. ``settle_s``: the pause before a server is ended, and in which it idles."""

    traces: Path
    scale: Scale = FULL
    cold_tokens: int = 2000
    settle_s: float = 5.0
    conversations: int = 2
    turns: int = 6
    turn_tokens: int = 16
    system_characters: int = 8000
    names: tuple[str, ...] = field(default_factory=lambda: tuple(SCENARIOS))


Scenario = Callable[["Server", "Prompts", Plan], Samples]


def quick(traces: Path) -> Plan:
    """Return a plan for trying things out: everything once, and short."""
    scale = replace(QUICK, streams=(1, 4), reply_tokens=12, rival_tokens=300)
    return Plan(traces, scale, cold_tokens=300, settle_s=2.0, turns=3, turn_tokens=6, system_characters=800)


def _start(server: Server, prompts: Prompts, _plan: Plan) -> Samples:
    return {"first_answer_s": [server.start(prompts)]}


def _idle(server: Server, _prompts: Prompts, plan: Plan) -> Samples:
    used_s, begun_s = server.cpu_s(), time.monotonic()
    time.sleep(plan.settle_s)
    used_s = server.cpu_s() - used_s
    return {
        "idle_mb": [server.memory_bytes() / 1e6],
        "idle_cpu_percent": [100.0 * used_s / (time.monotonic() - begun_s)],
    }


def _repeat(server: Server, prompts: Prompts, plan: Plan) -> Samples:
    cold = _ask_cold(server, prompts, plan)
    return {"cold_ttft_s": [cold.ttft_s]} | _again(server, "again")


def _ended_by(number: signal.Signals, name: str, *, fresh: bool) -> Scenario:
    def scenario(server: Server, prompts: Prompts, plan: Plan) -> Samples:
        if fresh or server.remembered is None:
            _ask_cold(server, prompts, plan)
        time.sleep(plan.settle_s)
        server.end(number)
        server.start(prompts)
        return _again(server, name)

    return scenario


def _agent(server: Server, _prompts: Prompts, plan: Plan) -> Samples:
    chosen = scripts(plan.traces, plan.conversations, plan.turns, plan.system_characters)
    talks = [replay(server.chat(), script, plan.turn_tokens) for script in chosen]
    later = [reply for talk in talks for reply in talk[1:]]
    samples = {
        "agent_first_ttft_s": [talks[0][0].ttft_s],
        "agent_joined_ttft_s": [talk[0].ttft_s for talk in talks[1:]],
        "agent_ttft_s": [reply.ttft_s for reply in later],
        "agent_s": [sum(reply.ended_s - reply.asked_s for reply in talk) for talk in talks],
    }
    joined = [talk[0] for talk in talks[1:]]
    return samples | _reported("agent", later) | _reported("agent_joined", joined)


def _measured(*names: str) -> Scenario:
    """Return the measures of the serving benchmark whose names begin so, as one scenario."""

    def scenario(server: Server, prompts: Prompts, plan: Plan) -> Samples:
        samples: Samples = {}
        for name, measure in measures(plan.scale).items():
            if name.endswith(names):
                for key, values in measure(server.chat(), prompts).items():
                    samples.setdefault(key, []).extend(values)
        return samples

    return scenario


SCENARIOS: dict[str, Scenario] = {
    "start": _start,
    "idle": _idle,
    "repeat": _repeat,
    "sigterm": _ended_by(signal.SIGTERM, "sigterm", fresh=False),
    "sigkill": _ended_by(signal.SIGKILL, "sigkill", fresh=True),
    "agent": _agent,
    "streams": _measured("streams"),
    "interference": _measured("beside a stream"),
    "load": _measured("under load"),
}


def _ask_cold(server: Server, prompts: Prompts, plan: Plan) -> Reply:
    messages = prompts.long(plan.cold_tokens)
    reply = server.chat().ask(messages, 8)
    server.remembered = messages, reply
    return reply


def _again(server: Server, name: str) -> Samples:
    """Ask for the remembered prompt again."""
    assert server.remembered is not None
    messages, cold = server.remembered
    reply = server.chat().ask(messages, 8)
    if reply.text != cold.text:
        server.notes.append(f"{name}: another text than cold")
    samples = {f"{name}_ttft_s": [reply.ttft_s], f"{name}_of_cold": [reply.ttft_s / cold.ttft_s]}
    return samples | _reported(name, [reply])


def _reported(name: str, replies: list[Reply]) -> Samples:
    """Return what share of the prompts the server says it had; nothing where it does not say."""
    shares = [
        each.cached_tokens / each.prompt_tokens
        for each in replies
        if each.cached_tokens is not None and each.prompt_tokens
    ]
    return {f"{name}_reused": shares} if shares else {}
