from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from samovar.runtime.engine.text.detokenize import byte_level_table
from samovar.runtime.engine.text.history import TokenHistory
from samovar.runtime.engine.text.seen import common_chars
from samovar.storage.tokens import TokenIds
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:
    from collections.abc import Sequence

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
END = 259


def tokenizer() -> Tokenizer:
    """256 bytes, "he", "hel", "\\n\\n", and two added tokens."""
    vocabulary = {token: index for index, token in enumerate([*ALPHABET, "he", "hel", "ĊĊ"])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[("h", "e"), ("he", "l"), ("Ċ", "Ċ")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<end>", special=True)])
    made.add_tokens([AddedToken("<tool é>", special=False)])
    return made


TOKENIZER = tokenizer()


TABLE = byte_level_table(TOKENIZER) or []
PIECES = [*TABLE[:END], b"<end>", "<tool é>".encode()]
LETTERS = {piece: index for index, piece in enumerate(PIECES) if len(piece) == 1}


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False).ids


def letters(text: str) -> list[int]:
    """The longest possible encoding: byte by byte."""
    return [LETTERS[bytes([byte])] for byte in text.encode()]


def history(**limits: int) -> TokenHistory:
    return TokenHistory(PIECES, {END, END + 1}, **limits)


def never(_: int) -> bool:
    return False


def always(_: int) -> bool:
    return True


def recalled(memory: TokenHistory, text: str, may_cut: object = never) -> tuple[list[int], int] | None:
    found = memory.recall(text, may_cut)  # type: ignore[arg-type]
    return None if found is None else (found.tokens.tolist(), found.chars)


def remembered(*sequences: Sequence[int], **limits: int) -> TokenHistory:
    memory = history(**limits)
    for ids in sequences:
        memory.remember(TokenIds.of(ids))
    return memory


def test_unknown_ids_are_not_remembered() -> None:
    memory = remembered([99_999, END])
    assert recalled(memory, "hello<end>") is None
    assert memory.decode([99_999]) is None
    assert memory.figures().dropped == 1


def test_nothing_is_known_of_another_text() -> None:
    memory = remembered([*letters("hello"), END])
    for text in ("", "h", "Hello<end>", "hello<END>", "hello"):
        assert recalled(memory, text) is None


def test_a_cut_within_a_word_is_not_made() -> None:
    memory = remembered(letters("hel"))
    assert recalled(memory, "hello") is None
    assert recalled(memory, "hello", always) == (letters("hel"), 3)


def test_empty_sequences_are_harmless() -> None:
    memory = remembered([])
    assert recalled(memory, "hello") is None
    assert memory.figures().entries == 0


def test_what_was_seen_comes_back_up_to_an_added_token() -> None:
    ids = [*letters("hello"), END, *letters("he")]
    assert encode("hello<end>he") != ids
    assert recalled(remembered(ids), "hello<end>hexagon") == ([*letters("hello"), END], 10)


def test_an_edited_history_keeps_what_comes_before_the_edit() -> None:
    ids = [*letters("hel"), END, *letters("one"), END, *letters("two"), END]
    memory = remembered(ids)
    assert recalled(memory, "hel<end>ONE<end>two<end>") == (ids[:4], 8)
    assert recalled(memory, "hel<end>one<end>tw0<end>") == (ids[:8], 16)
    assert recalled(memory, "hel<end>one<end>two<end>more") == (ids, 24)


def test_a_text_that_goes_on_with_another_added_token() -> None:
    ids = [*letters("hel"), END]
    text = "hel<tool é>x"
    asked: list[int] = []
    memory = remembered(ids)
    found = recalled(memory, text, lambda position: asked.append(position) or True)
    assert found == (letters("hel"), 3)
    assert asked == [3]


def test_text_that_only_spells_an_added_token_is_no_place_to_cut() -> None:
    ids = [*letters("a<end>b"), END]
    assert recalled(remembered(ids), "a<end>c<end>") is None


@pytest.mark.parametrize("text", ["日本語😀", "ď", "naïve\n\n", "<tool é>"])
def test_characters_of_several_bytes_count_as_one(text: str) -> None:
    ids = [*encode(text), END]
    assert recalled(remembered(ids), f"{text}<end>hel") == (ids, len(text) + 5)


def test_a_character_cut_in_two_is_known_by_its_replacement() -> None:
    ids = [*letters("x😀")[:3], END]
    assert recalled(remembered(ids), "x\ufffd<end>y") == (ids, 7)


def test_a_turn_takes_the_place_of_the_turns_before() -> None:
    turns = [[*letters("hel"), END], [*letters("hel"), END, *letters("lo"), END]]
    memory = remembered(*turns)
    assert recalled(memory, "hel<end>lo<end>") == (turns[1], 15)
    assert memory.figures().entries == 1


def test_the_end_of_an_earlier_turn_stays_a_place_to_cut() -> None:
    """Also where no added token marks it: templates of plain text."""
    memory = remembered(letters("hel"), letters("hello"))
    assert memory.figures().decoded == 0
    assert recalled(memory, "hel-p", always) == (letters("hel"), 3)
    assert memory.figures().entries == 1


def test_an_earlier_turn_that_ended_within_a_character_is_no_place_to_cut() -> None:
    whole = letters("x😀y")
    memory = remembered(whole[:3], whole)
    assert recalled(memory, "x\ufffd", always) is None
    assert recalled(memory, "x😀y", always) == (whole, 3)


def test_conversations_share_a_beginning() -> None:
    start = [*letters("hel"), END]
    one, two = [*start, *letters("hel-1"), END], [*start, *letters("hel-2"), END]
    memory = remembered(one, two)
    assert recalled(memory, "hel<end>hel-1<end>") == (one, 18)
    assert recalled(memory, "hel<end>hel-2<end>") == (two, 18)
    assert recalled(memory, "hel<end>hel-3<end>") == (start, 8)
    assert memory.figures().entries == 2


def test_equal_history_is_refreshed_without_decoding() -> None:
    ids = [*letters("hel"), END]
    memory = remembered(ids, [*letters("other"), END], max_entries=2)
    recalled(memory, "x")
    for again, decoded in ((ids, 2), (ids[:2], 3), (ids[:2], 3), (ids, 3)):
        memory.remember(TokenIds.of(again))
        recalled(memory, "x")
        assert memory.figures().decoded == decoded  # the third is a beginning, taken in once
    memory.remember(TokenIds.of([*letters("third"), END]))
    assert recalled(memory, "hel<end>") == (ids, 8)  # the other one had to go
    assert recalled(memory, "other<end>") is None


def test_of_equal_texts_the_newest_ids_count() -> None:
    old, new = [*letters("hel"), END], [*encode("hel"), END]
    memory = remembered(old, new)
    assert recalled(memory, "hel<end>") == (new, 8)
    assert memory.figures().entries == 1


def test_what_is_used_stays() -> None:
    memory = remembered([*letters("a"), END], [*letters("b"), END], max_entries=2)
    recalled(memory, "a<end>")
    memory.remember(TokenIds.of([*letters("c"), END]))
    assert recalled(memory, "b<end>") is None
    assert recalled(memory, "a<end>") is not None
    assert memory.figures().dropped == 1


def test_bytes_are_limited() -> None:
    memory = remembered(*([*letters(f"{n:04}" * 100), END] for n in range(50)), max_bytes=20_000)
    assert recalled(memory, f"{'0049' * 100}<end>") is not None
    assert recalled(memory, f"{'0000' * 100}<end>") is None
    figures = memory.figures()
    assert 0 < figures.size_bytes <= 20_000
    assert figures.entries + figures.dropped == 50


def test_one_that_is_too_large_is_not_kept() -> None:
    memory = remembered([*letters("hel" * 1000), END], max_bytes=1000)
    assert recalled(memory, "hel" * 1000 + "<end>") is None
    assert memory.figures().size_bytes == 0


def test_waiting_ones_are_limited() -> None:
    memory = remembered(*([*letters(str(n)), END] for n in range(10)), max_entries=3)
    assert memory.figures().pending == 3
    assert recalled(memory, "9<end>") is not None
    assert recalled(memory, "5<end>") is None


def test_seeding_looks_only_at_what_fits() -> None:
    memory = history(max_entries=2)
    memory.seed(TokenIds.of([*letters(word), END]) for word in ("one", "two", "three"))
    assert memory.figures().decoded == 2
    assert recalled(memory, "one<end>") is None
    assert recalled(memory, "three<end>") is not None
    memory = history(max_bytes=600)
    memory.seed(TokenIds.of([*letters(word * 20), END]) for word in ("one", "two"))
    assert memory.figures().decoded == 1


def test_a_sequence_that_a_longer_one_continues_ends_where_it_can_be_cut() -> None:
    for sequences in ([letters("hh"), letters("h")], [letters("h"), letters("hh")]):
        memory = remembered(*sequences)
        assert recalled(memory, "h", always) == (letters("h"), 1)
        assert recalled(memory, "hh", always) == (letters("hh"), 2)
        assert memory.figures().entries == 1


def test_threads_remember_while_others_recall() -> None:
    memory = history()
    words = [f"hel{n}" for n in range(200)]

    def work(word: str) -> tuple[list[int], int] | None:
        memory.remember(TokenIds.of([*letters(word), END]))
        return recalled(memory, f"{word}<end>")

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(work, words))
    assert found == [([*letters(word), END], len(word) + 5) for word in words]
    assert memory.figures().entries == 200


@given(st.text("ab😀", max_size=300), st.text("ab😀", max_size=300), st.text("ab", max_size=300))
def test_common_chars(start: str, one: str, two: str) -> None:
    first, second = start + one, start + two
    count = common_chars(first, second)
    assert first[:count] == second[:count]
    assert first[count : count + 1] != second[count : count + 1] or count == min(len(first), len(second))


@given(
    st.lists(st.lists(st.sampled_from([*letters("hel\n"), 256, 257, END, END + 1]), max_size=12)), st.data()
)
def test_whatever_is_recalled_spells_the_text(sequences: list[list[int]], data: st.DataObject) -> None:
    memory = remembered(*sequences)
    ids = data.draw(st.sampled_from(sequences)) if sequences else []
    text = (memory.decode(ids) or b"").decode() + data.draw(st.sampled_from(["", "hel", "<end>", "x"]))
    found = memory.recall(text, always)
    if found is not None:
        assert memory.decode(found.tokens) == text[: found.chars].encode()
    if ids:
        assert found is not None
        assert found.chars >= len((memory.decode(ids) or b"").decode())
