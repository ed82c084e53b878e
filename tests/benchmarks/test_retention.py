"""Trace replay: absent traces, how prompts become tokens, the bounds, and the cache under replay."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import retention
from benchmarks.retention_bounds import everything, farthest, least_recent, whole_prompts
from benchmarks.retention_traces import Trace, claude, mooncake
from benchmarks.retention_tree import replay
from benchmarks.retention_world import TOKEN_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

BLOCK = 64


def trace_of(prompts: Sequence[Sequence[int]], *, gap_s: float = 10.0) -> Trace:
    """Return a trace of prompts of whole blocks, ``gap_s`` apart, each with a reply of a second."""
    trace = Trace("made up", "", BLOCK)
    for number, blocks in enumerate(prompts):
        trace.add(number * gap_s, trace.path([(block, BLOCK) for block in blocks]), 50)
    return trace.close()


PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), min_size=1, max_size=12)
CONVERSATIONS = [list(range(start, start + turn)) for turn in (4, 6, 8) for start in (0, 100, 200)]


def test_absent_traces_are_said_and_are_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert retention.main(["--traces", str(tmp_path / "nowhere")]) == 0
    assert "skipped" in capsys.readouterr().out
    assert retention.main(["--traces", str(tmp_path), "--only", "tau"]) == 0
    assert "skipped tau" in capsys.readouterr().out


def test_prompts_share_the_tokens_of_equal_blocks_behind_equal_prefixes(tmp_path: Path) -> None:
    lines = (
        '{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [7, 8, 9]}\n'
        '{"timestamp": 9, "input_length": 1536, "output_length": 5, "hash_ids": [7, 8, 10]}\n'
        '{"timestamp": 9, "input_length": 1024, "output_length": 5, "hash_ids": [6, 8]}\n'
    )
    (tmp_path / "mooncake").mkdir()
    (tmp_path / "mooncake/some_trace.jsonl").write_text(lines)
    trace = mooncake(tmp_path, "some", 0)
    first, second, third = map(trace.tokens_of, trace.requests)
    assert [len(first), len(second), len(third)] == [1100, 1536, 1024]
    assert first.common_prefix(second) == 1024
    assert first.common_prefix(third) == 0
    assert len(set(first[512:].tolist()) & set(third.tolist())) == 0, (
        "a block behind another prefix is another"
    )
    assert trace.unique_tokens == 1100 + 512 + 1024
    assert len(mooncake(tmp_path, "some", 2).requests) == 2


def test_sessions_share_tools_and_system_only(tmp_path: Path) -> None:
    session = (
        '{"id": "%d", "block_size": 64, "tool_tokens": 64, "system_tokens": 64, "requests": ['
        '{"t": 0.0, "in": 199, "out": 5, "keep": 0, "new": [[1, 3]]},'
        '{"t": 1.0, "in": 256, "out": 5, "keep": 2, "new": [[9, 2]]},'
        '{"requests": [{"t": 0.5, "in": 64, "out": 5, "keep": 0, "new": [[1, 1]]}]}]}\n'
    )
    (tmp_path / "claude_code_kvct").mkdir()
    (tmp_path / "claude_code_kvct/all.jsonl").write_text(session % 1 + session % 2)
    trace = claude(tmp_path, 2)
    prompts = [trace.tokens_of(request) for request in trace.requests]
    assert [len(prompt) for prompt in prompts] == [192, 64, 256, 192, 64, 256]
    assert prompts[0].common_prefix(prompts[2]) == 128, "the second turn keeps two blocks of the first"
    assert prompts[0].common_prefix(prompts[3]) == 128, "another session shares tools and system"
    assert prompts[0].common_prefix(prompts[1]) == 0, "a sub-agent has a system prompt of its own"


@given(PROMPTS, st.integers(0, 6))
def test_farthest_finds_as_much_as_any_way_to_keep_blocks(prompts: list[list[int]], blocks: int) -> None:
    trace = trace_of(prompts[:5])
    best = farthest(trace, blocks).hit_tokens // BLOCK
    assert best == _best_by_trying(trace, blocks)
    assert least_recent(trace, blocks).hit_tokens // BLOCK <= best
    assert best * BLOCK <= everything(trace).hit_tokens


def _best_by_trying(trace: Trace, blocks: int) -> int:
    """Return the most hits: after each request keep any prefix-closed set of what was there or came."""
    states: dict[frozenset[int], int] = {frozenset(): 0}
    parents: dict[int, int] = {}
    for request in trace.requests:
        path = request.nodes.tolist()
        parents |= dict(zip(path, [-1, *path[:-1]], strict=True))
        after: dict[frozenset[int], int] = {}
        for kept, hits in states.items():
            found = len(list(itertools.takewhile(kept.__contains__, path)))
            for choice in _closed(kept | set(path), parents, blocks):
                after[choice] = max(after.get(choice, 0), hits + found)
        states = after
    return max(states.values())


def _closed(nodes: frozenset[int], parents: dict[int, int], limit: int) -> list[frozenset[int]]:
    closed = {frozenset[int]()}
    for node in sorted(nodes):  # a parent has the lower number
        closed |= {each | {node} for each in closed if parents[node] in each or parents[node] == -1}
    return [each for each in closed if len(each) <= limit]


def test_whole_prompts_are_lent_whole_or_not_at_all() -> None:
    trace = trace_of([[1, 2, 3], [1, 2, 3, 4], [1, 2, 9], [1, 2, 3]])
    assert whole_prompts(trace, 100 * BLOCK).hit_tokens == (3 + 3) * BLOCK
    assert whole_prompts(trace, 2 * BLOCK).hit_tokens == 0


@given(PROMPTS)
def test_a_cache_with_room_finds_what_was_there_before_but_for_the_last_token(
    prompts: list[list[int]],
) -> None:
    trace = trace_of(prompts)
    outcome = replay(trace, 10 * trace.unique_tokens)
    repeats = everything(trace)
    assert outcome.prompt_tokens == repeats.prompt_tokens
    assert repeats.hit_tokens - len(prompts) <= outcome.hit_tokens <= repeats.hit_tokens
    assert outcome.lost == outcome.written_bytes == 0


def test_ssd_finds_what_ram_had_to_let_go() -> None:
    trace, ram = trace_of(CONVERSATIONS), 10 * BLOCK
    alone, both = replay(trace, ram), replay(trace, ram, 40 * BLOCK)
    assert alone.hit_tokens == 0, "three conversations take turns in room for one"
    assert both.restores == 6
    assert both.hit_tokens == 3 * (4 + 6) * BLOCK
    assert alone.peak_ram_bytes <= (10 + 8) * BLOCK * TOKEN_BYTES
    assert both.written_bytes > 3 * (4 + 6 + 8) * BLOCK * TOKEN_BYTES


def test_the_peer_agrees_about_lru_and_opt() -> None:
    pytest.importorskip("kvcache_sim")
    from benchmarks.retention_peer import compare  # noqa: PLC0415

    agreements = compare(trace_of([[*blocks, 7] for blocks in CONVERSATIONS * 4]), [0.4, 0.6])
    assert {one.policy for one in agreements} == {"lru", "optimal"}
    assert all(one.ours == one.theirs for one in agreements)
