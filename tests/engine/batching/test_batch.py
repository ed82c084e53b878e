"""The decode batch beneath the backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx
import pytest
from mlx_lm.generate import generate_step
from samovar.runtime.engine.batching.admitting import admit
from samovar.runtime.engine.batching.batch import DecodeBatch
from samovar.runtime.engine.batching.prefill import launch_pass
from samovar.runtime.engine.port import RowRequest, Sampling

from tests.kit.models import FAMILIES, VOCAB, ByteCodec, build

if TYPE_CHECKING:
    from samovar.runtime.engine.batching.rows import Row


def make_row(name: str, length: int, max_tokens: int = 100, top_logprobs: int | None = None) -> Row:
    tokens = [(7 * place + len(name) * 31 + length) % VOCAB for place in range(length)]
    request = RowRequest(name, tokens, max_tokens, Sampling(), (), top_logprobs)
    return admit(request, VOCAB, ByteCodec().detokenizer)


def prefilled(family: str, row: Row, chunk: int = 1000) -> Row:
    while row.remaining or not row.caches:
        count = min(chunk, row.remaining)
        launch_pass(build(family), [(row, count)], 0).wait()
        row.prefilled += count
    return row


def upstream(family: str, row: Row, count: int) -> list[int]:
    """What mlx-lm's own single-sequence loop makes of the prompt."""
    steps = generate_step(mx.array(row.prompt), build(family), max_tokens=count)
    return [int(token) for token, _ in steps]


def run(batch: DecodeBatch, steps: int) -> dict[str, list[int]]:
    tokens: dict[str, list[int]] = {}
    for _ in range(steps):
        for row, token, _ in batch.advance():
            tokens.setdefault(row.id, []).append(token)
    return tokens


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_decode_as_alone_while_others_join_and_leave(family: str) -> None:
    first, short, long, late = (make_row(name, n) for name, n in zip("abcd", (20, 1, 45, 17), strict=True))
    batch = DecodeBatch(build(family))
    got: dict[str, list[int]] = {}

    def decode(steps: int) -> None:
        for name, tokens in run(batch, steps).items():
            got.setdefault(name, []).extend(tokens)

    batch.join([prefilled(family, first, 8)])
    decode(4)
    batch.join([prefilled(family, short), prefilled(family, long, 13)])
    decode(7)
    first.ended = True
    batch.drop_ended()
    decode(3)
    batch.join([prefilled(family, late)])
    long.ended = True
    batch.drop_ended()
    decode(20)
    for row in (short, late):
        assert got[row.id] == upstream(family, row, len(got[row.id]))
        assert len(got[row.id]) >= 19
    for row in (first, long):
        assert got[row.id] == upstream(family, row, len(got[row.id]))


def test_a_long_run_keeps_no_growing_graph_and_stays_right() -> None:
    """Rows of one prompt token start from empty recurrent states, whose padding no step evaluates."""
    row = make_row("a", 1)
    batch = DecodeBatch(build("mamba2"))
    batch.join([prefilled("mamba2", row)])
    assert run(batch, 300)["a"] == upstream("mamba2", row, 299)


def test_no_step_is_launched_behind_tokens_that_end_every_row() -> None:
    row = prefilled("llama", make_row("a", 5, max_tokens=3))
    batch = DecodeBatch(build("llama"))
    batch.join([row])
    tokens: list[int] = []
    for _ in range(4):
        for decoded in batch.advance():
            row.completed += 1
            tokens.append(decoded.token)
    assert len(tokens) == 3
    assert batch.launched == 3
    assert not batch.in_flight


def test_logprobs_come_for_the_rows_that_asked() -> None:
    plain, asking, bare = (
        make_row("a", 9),
        make_row("b", 12, top_logprobs=3),
        make_row("c", 4, top_logprobs=0),
    )
    batch = DecodeBatch(build("llama"))
    batch.join([prefilled("llama", row) for row in (plain, asking, bare)])
    batch.advance()
    by_id = {each.row.id: each for each in batch.advance()}
    logits = build("llama")(mx.array([asking.prompt]))[0, -1]
    wanted = logits - mx.logsumexp(logits)
    order = sorted(range(VOCAB), key=lambda token: -wanted[token].item())
    raw = by_id["b"].logprobs
    assert by_id["a"].logprobs is None
    assert raw is not None
    assert [token for token, _ in raw.top] == order[:3]
    assert [value for _, value in raw.top] == pytest.approx(
        [wanted[token].item() for token in order[:3]], abs=1e-3
    )
    assert raw.chosen == raw.top[0][1]
    assert by_id["c"].logprobs is not None
    assert by_id["c"].logprobs.top == ()
