from __future__ import annotations

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx_lm import utils as mlx_lm_utils
from mlx_lm.tokenizer_utils import TokenizerWrapper
from mlx_lm.tool_parsers import json_tools
from samovar.runtime.engine.errors import PromptTooLong, TemplateError
from samovar.runtime.engine.models.gguf import convert_gguf
from samovar.runtime.engine.prompt import Conversation
from samovar.runtime.engine.text.codec import HfTextCodec
from samovar.runtime.engine.text.detokenize import BytesDetokenizer, WindowDetokenizer, byte_level_table
from samovar.storage.tokens import TokenIds
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from samovar.runtime.engine.port import Detokenizer
    from samovar.runtime.engine.prompt import RenderedPrompt

USER = {"role": "user", "content": "hello"}
BYTE_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] + ':' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
# As thinking models do: the primer of an open turn is gone once the turn is over, and a finished tool call
# has one of its own.
PRIMED_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['tool_calls'] %}{{ 'CALL' }}{% endif %}"
    "{{ message['content'] + '<|im_end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)


def codec_of(folder: Path) -> HfTextCodec:
    return HfTextCodec(mlx_lm_utils.load_tokenizer(folder), {2})


@pytest.fixture
def codec(tiny_model_dir: Path) -> HfTextCodec:
    return codec_of(tiny_model_dir)


@pytest.fixture(scope="session")
def real_codec(default_model_dir: Path) -> HfTextCodec:
    return codec_of(default_model_dir)


@pytest.fixture
def codec_with(write_gguf: Callable[..., Path], tmp_path: Path) -> Callable[..., HfTextCodec]:
    """Make a codec of the tiny vocabulary with another chat template, and tools of its own if told so."""

    def make(template: str, **tools: Any) -> HfTextCodec:
        convert_gguf(
            write_gguf(metadata={"tokenizer.chat_template": template}), tmp_path / "out", source="test"
        )
        if tools:
            loaded = mlx_lm_utils.load_tokenizer(tmp_path / "out")
            return HfTextCodec(TokenizerWrapper(loaded._tokenizer, **tools))
        return codec_of(tmp_path / "out")

    return make


class OwnWays(PreTrainedTokenizerFast):
    """A class that does something of its own while encoding, so it cannot be gone round."""

    def _encode_plus(self, *args: Any, **kwargs: Any) -> Any:
        return super()._encode_plus(*args, **kwargs)


@pytest.fixture(params=[PreTrainedTokenizerFast, OwnWays])
def codec_of_words(request: pytest.FixtureRequest) -> HfTextCodec:
    """Words with a mark for the space before them, as SentencePiece has; once without offsets."""
    characters = sorted({*"▁helo:usratin."} | {"\ue000"})
    vocabulary = {token: index for index, token in enumerate(["<unk>", "</s>", *characters, "he", "hel"])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[("h", "e"), ("he", "l")], unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.add_special_tokens([AddedToken("</s>", special=True)])
    tokenizer = request.param(tokenizer_object=made, eos_token="</s>", unk_token="<unk>")
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '</s>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
    )
    return HfTextCodec(TokenizerWrapper(tokenizer))


def rendered(
    codec: HfTextCodec, messages: Sequence[Mapping[str, object]], kwargs: Mapping[str, object]
) -> RenderedPrompt:
    return codec.render(Conversation(tuple(messages), template_kwargs=kwargs))


def spelled(codec: HfTextCodec, tokens: Sequence[int]) -> str:
    """The text of tokens, special ones included."""
    assert codec._tokenizing.backend is not None
    return codec._tokenizing.backend.decode(list(tokens), skip_special_tokens=False)


def byte_by_byte(codec: HfTextCodec, text: str) -> list[int]:
    """An encoding that no tokenizer gives: its canonical one would use "he" and "hel"."""
    return [token for character in text for token in codec.encode(character)]


def after(prompt: TokenIds, reply: Sequence[int]) -> TokenIds:
    return TokenIds.of([*prompt, *reply])


def turn(text: str, then: str = "hello") -> list[dict[str, object]]:
    return [{"role": "assistant", "content": text}, {"role": "user", "content": then}]


def streamed(detokenizer: Detokenizer, tokens: Sequence[int]) -> str:
    return "".join([*map(detokenizer.add, tokens), detokenizer.flush()])


def test_no_template(write_gguf: Callable[..., Path], tmp_path: Path) -> None:
    convert_gguf(write_gguf(metadata={"tokenizer.chat_template": None}), tmp_path / "out", source="test")
    with pytest.raises(TemplateError, match="no chat template"):
        rendered(codec_of(tmp_path / "out"), [USER], {})


@pytest.mark.parametrize(
    ("template", "messages"),
    [
        ("{{ raise_exception('roles must alternate') }}", [USER]),
        ("{{ messages[0]['content'] + '' }}", [{"role": "user", "content": None}]),
        ("{{ messages[0]['content'] + '' }}", [{"role": "user"}]),
        ("{{ messages[5]['content'] + '' }}", [USER]),
        ("{{ 1 / 0 }}", [USER]),
        ("{% if %}", [USER]),
    ],
)
def test_a_template_that_refuses(
    write_gguf: Callable[..., Path], tmp_path: Path, template: str, messages: list[dict[str, object]]
) -> None:
    convert_gguf(write_gguf(metadata={"tokenizer.chat_template": template}), tmp_path / "out", source="test")
    with pytest.raises(TemplateError, match=r"refused the messages: .") as caught:
        rendered(codec_of(tmp_path / "out"), messages, {})
    assert caught.value.__cause__ is not None


def test_a_long_refusal_is_cut(write_gguf: Callable[..., Path], tmp_path: Path) -> None:
    template = "{{ raise_exception('first ' + 'x' * 5000) }}"
    convert_gguf(write_gguf(metadata={"tokenizer.chat_template": template}), tmp_path / "out", source="test")
    with pytest.raises(TemplateError) as caught:
        rendered(codec_of(tmp_path / "out"), [USER], {})
    assert "first" in str(caught.value)
    assert len(str(caught.value)) < 260


@pytest.mark.parametrize("name", ["tokenize", "chat_template", "add_generation_prompt", "return_dict"])
def test_what_is_not_the_clients_to_set(codec: HfTextCodec, name: str) -> None:
    with pytest.raises(TemplateError, match=f"may not set {name}"):
        rendered(codec, [USER], {name: "x"})


def test_render_is_ready_for_the_reply(codec: HfTextCodec) -> None:
    ids = rendered(codec, [USER], {"enable_thinking": False}).tokens
    assert codec.decode(ids) == "user\nhelloassistant\n"
    assert [token for token in ids if token < 3] == [1, 2, 1]


def test_template_kwargs_reach_the_template(write_gguf: Callable[..., Path], tmp_path: Path) -> None:
    convert_gguf(
        write_gguf(metadata={"tokenizer.chat_template": "{{ mood }}"}), tmp_path / "out", source="test"
    )
    codec = codec_of(tmp_path / "out")
    assert codec.decode(rendered(codec, [USER], {"mood": "fine"}).tokens) == "fine"


def test_encode_adds_nothing(write_gguf: Callable[..., Path], tmp_path: Path) -> None:
    path = write_gguf(metadata={"tokenizer.ggml.add_bos_token": mx.array(True)})
    convert_gguf(path, tmp_path / "out", source="test")
    assert codec_of(tmp_path / "out").decode(codec_of(tmp_path / "out").encode("hel")) == "hel"
    assert len(codec_of(tmp_path / "out").encode("hel")) == 1


def test_end_tokens(codec: HfTextCodec) -> None:
    assert codec.end_tokens == {2}


def test_a_character_comes_out_with_its_last_byte(codec: HfTextCodec) -> None:
    ids = codec.encode("a😀b")
    assert len(ids) == 6
    detokenizer = codec.detokenizer()
    assert [detokenizer.add(token) for token in ids] == ["a", "", "", "", "😀", "b"]
    assert detokenizer.flush() == ""


def test_an_incomplete_character_is_replaced_at_the_end(codec: HfTextCodec) -> None:
    detokenizer = codec.detokenizer()
    assert [detokenizer.add(token) for token in codec.encode("😀")[:3]] == ["", "", ""]
    assert detokenizer.flush() == "\ufffd"


def test_special_and_unknown_ids_are_no_text(codec: HfTextCodec) -> None:
    detokenizer = codec.detokenizer()
    assert [detokenizer.add(token) for token in (0, 1, 2, 99_999, -1)] == [""] * 5
    assert detokenizer.flush() == ""


def test_rows_do_not_share_state(codec: HfTextCodec) -> None:
    first, second = codec.detokenizer(), codec.detokenizer()
    first.add(codec.encode("😀")[0])
    assert second.add(codec.encode("x")[0]) == "x"
    assert second.flush() == ""


@given(tokens=st.lists(st.integers(0, 260), max_size=40))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_pieces_join_to_the_whole(codec: HfTextCodec, tokens: list[int]) -> None:
    assert streamed(codec.detokenizer(), tokens) == codec.decode(tokens)


@given(text=st.text(max_size=60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_window_detokenizer_gives_text_back(codec: HfTextCodec, text: str) -> None:
    ids = codec.encode(text)
    assert streamed(WindowDetokenizer(codec.decode), ids) == codec.decode(ids)


@given(tokens=st.lists(st.integers(0, 260), max_size=60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_window_detokenizer_never_holds_more_than_its_window(codec: HfTextCodec, tokens: list[int]) -> None:
    detokenizer = WindowDetokenizer(codec.decode)
    for token in tokens:
        detokenizer.add(token)
        assert len(detokenizer._window) <= 16


def test_added_text_tokens_come_out_as_written() -> None:
    """Added tokens are text, not byte characters: one with a space and one with an accent."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken("<a tool>", special=False), AddedToken("日本", special=False)])
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    table = byte_level_table(tokenizer)
    assert table is not None
    everything = list(range(len(table)))
    assert streamed(BytesDetokenizer(table), everything) == tokenizer.decode(
        everything, skip_special_tokens=True
    )
    assert table[258] == b""


def test_other_tokenizers_have_no_byte_table() -> None:
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    assert byte_level_table(tokenizer) is None
    tokenizer.decoder = decoders.Metaspace()
    assert byte_level_table(tokenizer) is None


def test_window_keeps_the_spaces_of_sentencepiece_like_tokenizers() -> None:
    vocabulary = {"▁Hello": 0, "▁wor": 1, "ld": 2, "<0xC3>": 3, "<0xB6>": 4}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    detokenizer = WindowDetokenizer(tokenizer.decode)
    assert [detokenizer.add(token) for token in (0, 1, 3, 4, 2)] == ["Hello", " wor", "", "ö", "ld"]
    assert detokenizer.flush() == ""


def test_encoding_from_many_threads_is_exact(codec: HfTextCodec) -> None:
    texts = [f"hello {i} 😀 " * 50 for i in range(40)]
    expected = [list(codec.encode(text)) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        assert [list(ids) for ids in pool.map(codec.encode, texts)] == expected
        texts_again = pool.map(
            lambda text: codec.decode(rendered(codec, [{**USER, "content": text}], {}).tokens), texts
        )
        assert list(texts_again) == [f"user\n{text}assistant\n" for text in texts]


@pytest.mark.model
@pytest.mark.timeout(600)
def test_default_model_spreads_an_emoji_over_tokens(real_codec: HfTextCodec) -> None:
    ids = real_codec.encode("😀")
    assert len(ids) == 3
    detokenizer = real_codec.detokenizer()
    assert [detokenizer.add(token) for token in ids] == ["", "", "😀"]


@pytest.mark.model
@pytest.mark.timeout(600)
@given(tokens=st.lists(st.integers(0, 49151), max_size=50))
@settings(deadline=None)
def test_default_model_pieces_join_to_the_whole(real_codec: HfTextCodec, tokens: list[int]) -> None:
    expected = real_codec._wrapper.decode(tokens, skip_special_tokens=True)
    assert streamed(real_codec.detokenizer(), tokens) == expected
    assert real_codec.decode(tokens) == expected


@pytest.mark.model
@pytest.mark.timeout(600)
def test_default_model_renders_as_transformers_does(real_codec: HfTextCodec) -> None:
    messages = [{"role": "system", "content": "Be brief."}, USER]
    expected = real_codec._wrapper.apply_chat_template(messages, add_generation_prompt=True, tokenize=True)
    assert list(rendered(real_codec, messages, {}).tokens) == expected


# -- the boundary -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "template",
    [
        "{{ raise_exception('one turn only') if messages | length > 1 else 'hello' }}",
        "{{ messages[-1]['content'] + messages[0]['content'] }}",  # nothing of the beginning stays
    ],
)
def test_a_template_without_a_next_turn_has_no_boundary(
    codec_with: Callable[..., HfTextCodec], template: str
) -> None:
    prompt = rendered(codec_with(template), [USER], {})
    assert len(prompt.tokens) > 0
    assert prompt.boundary == 0


def test_a_template_that_refuses_tools_is_probed_with_text(codec_with: Callable[..., HfTextCodec]) -> None:
    refusal = "{% if m['role'] == 'tool' %}{{ raise_exception('no') }}{% endif %}"
    codec = codec_with("{% for m in messages %}" + refusal + "{% endfor %}" + PRIMED_TEMPLATE)
    prompt = rendered(codec, [USER], {})
    assert spelled(codec, prompt.tokens[: prompt.boundary]).endswith("<|im_start|>assistant\n")


def test_a_primer_is_not_part_of_the_boundary(codec_with: Callable[..., HfTextCodec]) -> None:
    codec = codec_with(PRIMED_TEMPLATE)
    prompt = rendered(codec, [USER], {})
    assert spelled(codec, prompt.tokens).endswith("<|im_start|>assistant\n<think>\n")
    assert prompt.boundary <= len(prompt.tokens) - len("<think>\n")
    for reply in ("fine", "\nfine", "hello", ""):
        assert rendered(codec, [USER, *turn(reply)], {}).tokens.starts_with(prompt.tokens[: prompt.boundary])


def test_the_boundary_is_what_text_and_tool_replies_share(codec_with: Callable[..., HfTextCodec]) -> None:
    """A tool turn that renders otherwise from its first character on."""
    codec = codec_with(
        "{% if tools %}{{ tools }}{% endif %}"
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] }}"
        "{% if m['tool_calls'] %}{{ '!' }}{% else %}{{ '\n' + m['content'] + '<|im_end|>' }}{% endif %}"
        "{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        tool_parser=json_tools.parse_tool_call,
        tool_call_start="<tool_call>",
        tool_call_end="</tool_call>",
    )
    prompt = rendered(codec, [USER], {})
    assert spelled(codec, prompt.tokens[: prompt.boundary]).endswith("<|im_start|>assistant")


def test_a_token_that_a_reply_may_draw_in_is_left_out() -> None:
    """A reply that begins with a line feed makes one token of it and the primer's own."""
    vocabulary = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "ĊĊ"]
    made = Tokenizer(models.BPE({token: i for i, token in enumerate(vocabulary)}, [("Ċ", "Ċ")]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<|im_start|>"), AddedToken("<|im_end|>")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>")
    tokenizer.chat_template = PRIMED_TEMPLATE.replace("<think>\n", "")
    codec = HfTextCodec(TokenizerWrapper(tokenizer))
    prompt = rendered(codec, [USER], {})
    assert spelled(codec, prompt.tokens[prompt.boundary :]) == "\n"
    for reply in ("fine", "\nfine", "\n\n", " ", ""):
        later = rendered(codec, [USER, *turn(reply)], {})
        assert later.tokens.starts_with(prompt.tokens[: prompt.boundary])
    assert not rendered(codec, [USER, *turn("\n")], {}).tokens.starts_with(prompt.tokens)


def test_a_straddling_token_is_left_out(codec_with: Callable[..., HfTextCodec]) -> None:
    """The primer goes on within a token: "hel" of the prompt against "he" of the next turn."""
    codec = codec_with(
        "{% for m in messages %}{{ '<|im_start|>he' + m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>hel' }}{% endif %}"
    )
    prompt = rendered(codec, [USER], {})
    assert spelled(codec, prompt.tokens[prompt.boundary :]) == "hel"


def test_a_template_of_plain_text_has_a_boundary_too(codec_with: Callable[..., HfTextCodec]) -> None:
    codec = codec_with(BYTE_TEMPLATE)
    conversation = [{"role": "user", "content": "hello 😀 " * 30}]
    prompt = rendered(codec, conversation, {})
    assert len(prompt.tokens) - prompt.boundary <= 1
    for reply in ("fine", "\nfine", " fine", ""):
        next_prompt = rendered(codec, [*conversation, *turn(reply)], {})
        assert next_prompt.tokens.starts_with(prompt.tokens[: prompt.boundary])


def test_kwargs_reach_the_probes(codec_with: Callable[..., HfTextCodec]) -> None:
    codec = codec_with(
        "{{ mood + messages[0]['content'] }}{% if messages | length > 1 %}{{ mood }}{% endif %}"
    )
    assert rendered(codec, [USER], {"mood": "hel"}).boundary > 0


@given(content=st.text(max_size=30), reply=st.text(max_size=10))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_the_next_turn_begins_with_the_boundary(codec: HfTextCodec, content: str, reply: str) -> None:
    conversation = [{"role": "user", "content": content}]
    prompt = rendered(codec, conversation, {})
    later = rendered(codec, [*conversation, *turn(reply)], {})
    assert later.tokens.starts_with(prompt.tokens[: prompt.boundary])
    assert len(prompt.tokens) - prompt.boundary <= 2


# -- generated history --------------------------------------------------------------------------------------


def test_unknown_ids_change_nothing(codec: HfTextCodec) -> None:
    prompt = rendered(codec, [USER], {})
    codec.remember(TokenIds.of([*prompt.tokens, 99_999]))
    codec.remember(TokenIds.of([]))
    assert rendered(codec, [USER], {}) == prompt


def test_a_reply_keeps_the_ids_it_was_sampled_with(codec: HfTextCodec) -> None:
    first = rendered(codec, [USER], {})
    reply = byte_by_byte(codec, "hello 😀 hello")
    seen = after(first.tokens, reply)
    codec.remember(seen)
    second = rendered(codec, [USER, *turn("hello 😀 hello")], {})
    assert second.tokens.starts_with(seen)
    canonical = codec.encode(spelled(codec, second.tokens))
    assert list(second.tokens) != canonical
    assert spelled(codec, second.tokens) == spelled(codec, canonical)
    assert len(seen) < second.boundary <= len(second.tokens)
    assert rendered(codec, [USER], {}) == first


@pytest.mark.parametrize("reply", ["", "Hello", "hellhel", " hello", "hexagon"])
def test_an_edited_reply_is_encoded_afresh(codec: HfTextCodec, reply: str) -> None:
    first = rendered(codec, [USER], {})
    codec.remember(after(first.tokens, [*byte_by_byte(codec, "hello"), 2]))
    prompt = rendered(codec, [USER, *turn(reply)], {})
    assert list(prompt.tokens) == codec.encode(spelled(codec, prompt.tokens))
    assert prompt.tokens.starts_with(first.tokens[: first.boundary])


def test_ten_turns_and_a_branch_from_their_middle(codec: HfTextCodec) -> None:
    conversation = [USER]
    seen = [TokenIds.of([])]
    for n in range(10):
        prompt = rendered(codec, conversation, {})
        assert prompt.tokens.starts_with(seen[-1])
        seen.append(after(prompt.tokens, byte_by_byte(codec, f"hello {n}")))
        codec.remember(seen[-1])
        conversation += turn(f"hello {n}", f"hel {n}")
    branch = rendered(codec, [*conversation[:10], {"role": "user", "content": "other"}], {})
    assert branch.tokens.starts_with(seen[5])
    edited = [*conversation[:4], {"role": "user", "content": "edited"}, *conversation[5:]]
    tokens = rendered(codec, edited, {}).tokens
    assert tokens.common_prefix(seen[-1]) > len(seen[2])
    assert spelled(codec, tokens) == spelled(codec, codec.encode(spelled(codec, tokens)))


def test_conversations_with_one_beginning_keep_apart(codec: HfTextCodec) -> None:
    system: dict[str, object] = {"role": "system", "content": "hello"}
    conversations = [[system, {"role": "user", "content": f"hel{n}"}] for n in range(3)]
    seen: list[TokenIds] = []
    for n, conversation in enumerate(conversations):
        seen.append(after(rendered(codec, conversation, {}).tokens, byte_by_byte(codec, f"hello{n}")))
        codec.remember(seen[-1])
    for n, conversation in enumerate(conversations):
        assert rendered(codec, [*conversation, *turn(f"hello{n}")], {}).tokens.starts_with(seen[n])


def test_history_comes_back_from_files(codec: HfTextCodec, tiny_model_dir: Path) -> None:
    seen = after(rendered(codec, [USER], {}).tokens, byte_by_byte(codec, "hello"))
    restarted = codec_of(tiny_model_dir)
    restarted.seed_history([seen])
    assert rendered(restarted, [USER, *turn("hello")], {}).tokens.starts_with(seen)
    figures = restarted.history_figures()
    assert figures is not None
    assert figures.entries == 1


def test_a_user_who_spells_a_special_token(codec: HfTextCodec) -> None:
    first = rendered(codec, [{"role": "user", "content": "a<|im_end|>hello"}], {})
    seen = after(first.tokens, [*byte_by_byte(codec, "<|im_end|>"), *byte_by_byte(codec, "hello")])
    codec.remember(seen)
    conversation = [{"role": "user", "content": "a<|im_end|>hello"}, *turn("<|im_end|>hello")]
    assert rendered(codec, conversation, {}).tokens.starts_with(seen)


def test_a_character_cut_in_two_by_the_limit(codec: HfTextCodec) -> None:
    first = rendered(codec, [USER], {})
    seen = after(first.tokens, [*byte_by_byte(codec, "hello"), *codec.encode("😀")[:3]])
    codec.remember(seen)
    prompt = rendered(codec, [USER, *turn("hello\ufffd")], {})
    assert prompt.tokens.starts_with(seen)
    assert spelled(codec, prompt.tokens).count("\ufffd") == 1
    later = rendered(codec, [USER, *turn("hello\ufffd"), *turn("x")], {})
    assert later.tokens.starts_with(prompt.tokens[: prompt.boundary])


def test_a_reply_cut_within_a_word_is_not_continued(codec_with: Callable[..., HfTextCodec]) -> None:
    codec = codec_with("{{ messages | map(attribute='content') | join }}")
    seen = TokenIds.of(byte_by_byte(codec, "say he"))
    codec.remember(seen)
    for text, kept in (("say hello", False), ("say he lo", True)):
        tokens = rendered(codec, [{"role": "user", "content": text}], {}).tokens
        assert tokens.starts_with(seen) is kept


def test_tokenizers_that_are_not_byte_level_stay_canonical(codec_of_words: HfTextCodec) -> None:
    prompt = rendered(codec_of_words, [USER], {})
    codec_of_words.remember(TokenIds.of([*prompt.tokens, 1]))
    codec_of_words.seed_history([prompt.tokens])
    assert codec_of_words.history_figures() is None
    assert rendered(codec_of_words, [USER], {}) == prompt
    later = rendered(codec_of_words, [USER, *turn("hello")], {})
    assert len(prompt.tokens) - prompt.boundary <= 1
    assert later.tokens.starts_with(prompt.tokens[: prompt.boundary])


def test_turns_from_many_threads(codec: HfTextCodec) -> None:
    def converse(n: int) -> bool:
        conversation = [{"role": "user", "content": f"hello {n}"}]
        seen = after(rendered(codec, conversation, {}).tokens, byte_by_byte(codec, f"hello {n}"))
        codec.remember(seen)
        return rendered(codec, [*conversation, *turn(f"hello {n}")], {}).tokens.starts_with(seen)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(converse, range(100)))


@given(reply=st.text(st.sampled_from("hel o\n😀<"), max_size=20), then=st.text(max_size=10))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_verbatim_reply_is_always_reused(codec: HfTextCodec, reply: str, then: str) -> None:
    seen = after(rendered(codec, [USER], {}).tokens, byte_by_byte(codec, reply))
    codec.remember(seen)
    tokens = rendered(codec, [USER, *turn(reply, then)], {}).tokens
    assert tokens.starts_with(seen)
    assert spelled(codec, tokens) == spelled(codec, codec.encode(spelled(codec, tokens)))


@pytest.mark.model
@pytest.mark.timeout(600)
@pytest.mark.parametrize("reply", ["Paris is the capital.", "\n\nHello\n", "日本語 😀", ""])
def test_default_model_begins_its_next_turn_as_the_last_ended(real_codec: HfTextCodec, reply: str) -> None:
    conversation = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": reply or "x"}]
    first = rendered(real_codec, conversation, {})
    assert len(first.tokens) - first.boundary <= 1
    seen = after(first.tokens, byte_by_byte(real_codec, reply))
    real_codec.remember(seen)
    second = rendered(real_codec, [*conversation, *turn(reply)], {})
    assert second.tokens.starts_with(seen)
    assert second.tokens.starts_with(first.tokens[: first.boundary])


def test_a_prompt_that_cannot_fit_is_refused_by_its_size(tiny_model_dir: Path) -> None:
    """B124: encoding megabytes takes seconds, and only says that they are too many."""
    codec = HfTextCodec(mlx_lm_utils.load_tokenizer(tiny_model_dir), {2}, context_length=100)
    text = "hello " * 2_000
    with pytest.raises(PromptTooLong, match=r"has (\d+) tokens at least; .* context holds 100") as raised:
        rendered(codec, [USER | {"content": text}], {})
    assert (raised.value.code, raised.value.retryable) == ("context_length_exceeded", False)
    (least,) = re.findall(r"has (\d+)", str(raised.value))
    assert 100 < int(least) < len(codec.encode(text))
    # What may fit is encoded, and whoever knows the count decides.
    assert len(rendered(codec, [USER | {"content": "a" * 200}], {}).tokens) > 100


def test_a_tokenizer_that_may_swallow_text_sets_no_limit(tiny_model_dir: Path) -> None:
    wrapper = mlx_lm_utils.load_tokenizer(tiny_model_dir)
    wrapper._tokenizer.add_tokens([AddedToken("<gap>", lstrip=True)])
    codec = HfTextCodec(wrapper, {2}, context_length=10)
    swallowed = rendered(codec, [USER | {"content": " " * 5_000 + "<gap>"}], {})
    assert len(swallowed.tokens) < 5_000


def test_other_threads_run_while_a_long_text_is_encoded(codec: HfTextCodec) -> None:
    """B139: the event loop shares the interpreter's lock with whoever tokenises."""
    text = "hello hello " * 40_000
    stop, beats = threading.Event(), 0

    def beat() -> None:
        nonlocal beats
        while not stop.wait(0.001):
            beats += 1

    heart = threading.Thread(target=beat)
    heart.start()
    try:
        tokens = codec.encode(text)
        seen = beats
    finally:
        stop.set()
        heart.join()
    assert len(tokens) > 40_000
    assert seen > 10
