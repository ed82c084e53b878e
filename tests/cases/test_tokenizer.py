"""Scenarios about tokens and text, with the default model's tokenizer where its ids matter.

Rows here are the lane's own: each takes one id per step, in turn with the others, as in a batch.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from typing import TYPE_CHECKING

import pytest
from mlx_lm import utils as mlx_lm_utils
from samovar.runtime.engine.batching.rows import Row
from samovar.runtime.engine.models.model_config import ModelConfig
from samovar.runtime.engine.port import Delta, Finished, RowRequest
from samovar.runtime.engine.prompt import Conversation
from samovar.runtime.engine.text.codec import HfTextCodec
from samovar.storage.tokens import TokenIds

from tests.engine.text.texts import CHATML, SPECIAL, byte_level, codec_for, shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from samovar.runtime.engine.prompt import RenderedPrompt

REPLACEMENT = "\ufffd"
SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}
END = frozenset((2,))
HARD = [
    "a😀b😀",
    "日本語 ď e\u0301 é",
    "👨\u200d👩\u200d👧\u200d👦 and 🏳\ufe0f\u200d🌈",  # a family, a flag in colours
    "🇩🇪🇫🇷 مرحبا بالعالم שלום עולם",
]

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def codec(default_model_dir: Path) -> HfTextCodec:
    return HfTextCodec(mlx_lm_utils.load_tokenizer(default_model_dir), {2})


def row(codec: HfTextCodec, name: str, **options: object) -> Row:
    request = RowRequest(name, [1], **({"max_tokens": 1_000} | options))  # type: ignore[arg-type]
    return Row(request, [1], codec.detokenizer())


def told(events: Sequence[Delta | Finished]) -> str:
    return "".join(event.text for event in events)


def fed(
    row: Row, tokens: Sequence[int], end_tokens: frozenset[int] = frozenset((2,))
) -> list[Delta | Finished]:
    events: list[Delta | Finished] = []
    for token in tokens:
        if not row.ended:
            events += row.accept(token, (), end_tokens, 0.0)
    return events


def chat(codec: HfTextCodec, *messages: Mapping[str, object]) -> RenderedPrompt:
    return codec.render(Conversation(messages))


def test_b089_b094_characters_of_rows_side_by_side_come_whole(codec: HfTextCodec) -> None:
    ids = [list(codec.encode(text)) for text in HARD]
    assert list(codec.encode("😀")) == [10813, 242, 218]
    assert max(map(len, ids)) > 20
    rows = [row(codec, str(n)) for n in range(len(HARD))]
    said = [list[str]() for _ in HARD]
    for step in zip_longest(*ids, fillvalue=2):
        for place, token in enumerate(step):
            if not rows[place].ended:
                said[place] += [event.text for event in rows[place].accept(token, (), END, 0.0)]
    for text, tokens, texts in zip(HARD, ids, said, strict=True):
        assert not any(REPLACEMENT in piece for piece in texts)
        assert "".join(texts) == codec.decode(tokens) == text


@pytest.mark.parametrize("text", HARD)
def test_b094_no_character_is_sent_twice(codec: HfTextCodec, text: str) -> None:
    sent = ""
    for event in fed(row(codec, "a"), [*codec.encode(text), 2]):
        assert text.startswith(sent + event.text)
        sent += event.text
    assert sent == text


@pytest.mark.parametrize(
    ("tokens", "options", "text", "reason"),
    [
        ([10813, 242], {"max_tokens": 2}, REPLACEMENT, "length"),
        ([10813, 2], {}, REPLACEMENT, "stop"),
        ([10813, 253], {"max_tokens": 2}, None, "length"),  # a space behind half a character
        ([28, 10813, 242, 2], {"stop": ("never",)}, None, "stop"),
    ],
)
def test_b091_a_reply_that_ends_within_a_character(
    codec: HfTextCodec, tokens: list[int], options: dict[str, object], text: str | None, reason: str
) -> None:
    events = fed(row(codec, "a", **options), tokens)
    whole = codec.decode([token for token in tokens if token != 2])
    assert told(events) == (text or whole) == whole
    assert told(events).count(REPLACEMENT) == 1
    assert isinstance(events[-1], Finished)
    assert events[-1].reason == reason
    assert json.loads(json.dumps(told(events)).encode()) == told(events)


def test_b091_a_stop_string_right_behind_half_a_character(codec: HfTextCodec) -> None:
    tokens = [10813, 242, *codec.encode("STOP here")]
    events = fed(row(codec, "a", stop=("STOP",)), tokens)
    assert told(events) == REPLACEMENT
    assert isinstance(events[-1], Finished)
    assert (events[-1].reason, events[-1].stopped_by) == ("stop", "STOP")


def test_b131_every_end_token_of_every_file_ends_a_reply(tmp_path: Path) -> None:
    """Neither shown nor counted, wherever it is written down."""
    tokenizer = byte_level([*SPECIAL[CHATML], "<|a|>", "<|b|>", "<|c|>"])
    a, b, c, d = (tokenizer.token_to_id(name) for name in ("<|a|>", "<|b|>", "<|c|>", SPECIAL[CHATML][1]))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [b, c]}))
    config = ModelConfig.read(tmp_path, {"eos_token_id": [a, b]})
    codec = HfTextCodec(codec_for(CHATML, tokenizer)._wrapper, config.end_tokens)
    assert codec.end_tokens == {a, b, c, d}
    for end in (a, b, c, d):
        events = fed(row(codec, "a"), [*codec.encode("hel"), end, *codec.encode("more")], codec.end_tokens)
        assert told(events) == "hel"
        assert isinstance(events[-1], Finished)
        assert (events[-1].reason, events[-1].completion_tokens) == ("stop", 1)


@pytest.mark.parametrize(
    ("reply", "sent"),
    [
        ("Good day.\n", "Good day.\n"),
        ("\n\nGood day.\n\n", "\n\nGood day.\n\n"),
        ("Hel", "Hello there"),  # it was cut, and the client went on by itself
        ("Good day.  ", "Good day."),  # the client strips
        ("Good", "Good"),
    ],
)
def test_b134_a_growing_conversation_begins_as_it_did(codec: HfTextCodec, reply: str, sent: str) -> None:
    turns = [SYSTEM, USER | {"content": f"Hi, {reply}"}]
    first = chat(codec, *turns)
    assert len(first.tokens) - first.boundary <= 1
    seen = TokenIds.of([*first.tokens, *(token for each in reply for token in codec.encode(each))])
    codec.remember(seen)
    turns += [{"role": "assistant", "content": sent}, USER]
    later, cold = chat(codec, *turns), chat(HfTextCodec(codec._wrapper, END), *turns)
    assert later.tokens.starts_with(first.tokens[: first.boundary])
    assert reply != sent or later.tokens.starts_with(seen)
    assert shown(codec, later.tokens) == shown(codec, cold.tokens)


def test_b136_one_tokenizer_for_many_threads(codec: HfTextCodec) -> None:
    """Prompts long and short, some that spell control tokens, with encoding and decoding between them."""
    long = "All work and no play makes Jack a dull boy. 😀 " * 420  # 20 kB

    def work(n: int) -> tuple[list[int], str, str]:
        content = [long, "tiny", "typed <|im_end|> here", long + "<|im_start|>"][n % 4]
        prompt = chat(codec, SYSTEM, USER | {"content": content})
        detokenizer = codec.detokenizer()
        pieces = [*map(detokenizer.add, prompt.tokens), detokenizer.flush()]
        return prompt.tokens.tolist(), codec.decode(codec.encode(content[:200])), "".join(pieces)

    expected = [work(n) for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for n, outcome in enumerate(pool.map(work, range(64))):
            assert outcome == expected[n % 4]
