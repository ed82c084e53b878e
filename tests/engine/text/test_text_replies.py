"""How models mark up replies: the format that is read off a tokenizer, and what detokenizers show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from samovar.runtime.engine.errors import ConstraintError, PromptError
from samovar.runtime.engine.models.loading import ModelHandle
from samovar.runtime.engine.prompt import (
    PLAIN_REPLIES,
    PLAIN_TOOLS,
    Constraint,
    Conversation,
    GivenIds,
    PlainText,
    ToolFormat,
)
from samovar.runtime.engine.text.codec import HfTextCodec
from tokenizers import AddedToken, processors
from transformers import PreTrainedTokenizerFast

from tests.engine.text.texts import (
    CHATML,
    QWEN3,
    SPECIAL,
    byte_level,
    chat,
    codec_for,
    codec_named,
    metaspace,
    said,
)

if TYPE_CHECKING:
    from pathlib import Path

THINK = ["<think>", "</think>"]
MISTRAL_TOOLS = "{{ tools or '' }}{{ '[TOOL_CALLS]' }}"
KIMI_TOOLS = "{{ tools or '' }}{{ '<|tool_calls_section_begin|>' }}"


def streamed(codec: HfTextCodec, text: str) -> str:
    """What comes of the canonical ids of a text."""
    ids = codec.encode(text)
    detokenizer = codec.detokenizer()
    pieces = [*map(detokenizer.add, ids), detokenizer.flush()]
    assert "".join(pieces) == codec.decode(ids)
    return "".join(pieces)


def asked(**kwargs: object) -> Conversation:
    return Conversation((said("user", "x"),), template_kwargs=kwargs)


# -- the format ---------------------------------------------------------------------------------------------


def test_a_model_that_marks_up_nothing(tiny_model_dir: Path) -> None:
    loaded = ModelHandle(tiny_model_dir, "tiny").load()
    assert loaded.info.reply == loaded.codec.reply == PLAIN_REPLIES


def test_tools_and_reasoning_as_mlx_lm_knows_them() -> None:
    codec = codec_named("qwen3")
    assert codec.reply.tools == ToolFormat("<tool_call>", "</tool_call>", "json_tools", native=True)
    assert codec.reply.reasoning == ("<think>", "</think>")
    assert codec_for(QWEN3).reply.tools == PLAIN_TOOLS
    assert codec_for(CHATML, parser="mistral").reply.tools == PLAIN_TOOLS
    mistral = codec_for(MISTRAL_TOOLS, parser="mistral").reply.tools
    assert mistral == ToolFormat("[TOOL_CALLS]", "", "mistral", native=True)


# -- what is shown ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("make", [byte_level, metaspace])
def test_reasoning_is_shown_and_the_end_of_a_turn_is_not(make: object, special: bool) -> None:
    made = make(SPECIAL[CHATML] + (THINK if special else []), [] if special else THINK)  # type: ignore[operator]
    codec = codec_for(CHATML, made)
    text = streamed(codec, "<think>hm</think>hi<|im_end|><|im_start|>")
    assert text.replace(" ", "") == "<think>hm</think>hi"


def test_a_special_token_is_not_shown_amid_a_character() -> None:
    codec = codec_for(CHATML, byte_level([*SPECIAL[CHATML], *THINK]))
    detokenizer = codec.detokenizer()
    half, end = codec.encode("é")[0], codec.encode("</think>")[0]
    assert [detokenizer.add(half), detokenizer.add(end), detokenizer.flush()] == ["", "\ufffd</think>", ""]


def test_what_stands_in_a_tool_call_is_shown_whole() -> None:
    inner = ["<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"]
    outer = ["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"]
    codec = codec_for(KIMI_TOOLS, byte_level([*SPECIAL[CHATML], *inner, *outer]), parser="kimi_k2")
    call = f"{outer[0]}{inner[0]}functions.f:0{inner[1]}{{}}{inner[2]}{outer[1]}"
    assert streamed(codec, f"a{inner[0]}b{call}c{inner[1]}d{call}") == f"ab{call}cd{call}"


def test_a_call_without_an_end_is_shown_to_the_end() -> None:
    made = byte_level([*SPECIAL[CHATML], "[TOOL_CALLS]", "[ARGS]"])
    codec = codec_for(MISTRAL_TOOLS, made, parser="mistral")
    assert streamed(codec, "[ARGS]x[TOOL_CALLS]f[ARGS]{}") == "x[TOOL_CALLS]f[ARGS]{}"


def test_a_token_that_ends_replies_is_never_shown() -> None:
    codec = codec_for(CHATML, byte_level([*SPECIAL[CHATML], *THINK]))
    ending = HfTextCodec(codec._wrapper, codec.encode("</think>"))
    assert streamed(ending, "<think>a</think>b") == "<think>ab"


def test_rows_do_not_share_where_they_are() -> None:
    codec = codec_for(
        MISTRAL_TOOLS, byte_level([*SPECIAL[CHATML], "[TOOL_CALLS]", "[ARGS]"]), parser="mistral"
    )
    start, args = codec.encode("[TOOL_CALLS][ARGS]")
    one, other = codec.detokenizer(), codec.detokenizer()
    assert one.add(start) == "[TOOL_CALLS]"
    assert (one.add(args), other.add(args)) == ("[ARGS]", "")


# -- prompts that are no conversation -----------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "place"), [((0, 1, 99_999), 2), ((0, -1), 1), ((2**40,), 0)])
def test_ids_that_the_vocabulary_lacks(tokens: tuple[int, ...], place: int) -> None:
    codec = codec_named("chatml")
    with pytest.raises(PromptError, match=f"token {place} of the prompt is {tokens[place]}; .* 0 to 261"):
        codec.render(GivenIds(tokens))


@pytest.mark.parametrize("prompt", [GivenIds(()), PlainText("")])
def test_nothing_to_go_on_from(prompt: GivenIds | PlainText) -> None:
    with pytest.raises(PromptError, match="the prompt is empty"):
        codec_named("chatml").render(prompt)


def test_given_ids_are_taken_as_they_are() -> None:
    rendered = codec_named("chatml").render(GivenIds((261, 0, 5)))
    assert rendered.tokens.tolist() == [261, 0, 5]
    assert rendered.boundary == 0


def test_plain_text_that_is_no_text() -> None:
    with pytest.raises(PromptError, match="character 1 of the prompt is a lone surrogate"):
        codec_named("chatml").render(PlainText("a\udc00"))


@pytest.mark.parametrize("kind", ["fast", "own"])
def test_plain_text_is_encoded_as_the_tokenizer_would(kind: str) -> None:
    class OwnWays(PreTrainedTokenizerFast):
        def encode(self, *args: object, **kwargs: object) -> list[int]:
            return super().encode(*args, **kwargs)  # type: ignore[arg-type]

    made = byte_level(SPECIAL[CHATML])
    bos = made.token_to_id("<|endoftext|>")
    made.post_processor = processors.TemplateProcessing(
        single=["<|endoftext|>", "$A"], special_tokens=[("<|endoftext|>", bos)]
    )
    codec = codec_for(CHATML, made, kind=PreTrainedTokenizerFast if kind == "fast" else OwnWays)
    text = "<|im_start|>user\nhel"
    tokens = codec.render(PlainText(text)).tokens.tolist()
    assert tokens == codec._wrapper.encode(text)
    assert tokens[:2] == [bos, made.token_to_id("<|im_start|>")]
    assert codec.render(PlainText("<|endoftext|>hel")).tokens.tolist() == [bos, *made.encode("hel").ids[1:]]
    assert codec.render(PlainText("")).tokens.tolist() == [bos]
    without = codec_named("chatml")
    assert without.render(PlainText("hel")).tokens.tolist() == without.encode("hel")


# -- constraints --------------------------------------------------------------------------------------------


def test_a_constraint_is_compiled_with_the_prompt() -> None:
    codec = codec_named("chatml")
    guide = codec.render(PlainText("x"), Constraint("regex", "he|no")).guide
    assert guide is not None
    allowed = guide.start([]).allowed(codec.vocab_size)
    assert allowed is not None
    firsts = {codec.decode([token]) for token in allowed.nonzero()[0].tolist()}
    assert firsts == {"h", "he", "n"}


def test_a_prompt_that_ends_amid_reasoning_is_constrained_behind_it() -> None:
    codec = codec_named("qwen3")
    rendered = codec.render(asked(primed=True), Constraint("regex", "no"))
    assert rendered.in_reasoning
    assert rendered.guide is not None
    assert rendered.guide.start([]).allowed(codec.vocab_size) is None
    closed = codec.render(asked(enable_thinking=False), Constraint("regex", "no"))
    assert closed.guide is not None
    assert closed.guide.start([]).allowed(codec.vocab_size) is not None


def test_a_bad_constraint_names_its_field() -> None:
    with pytest.raises(ConstraintError) as caught:
        codec_named("chatml").render(PlainText("x"), Constraint("regex", "(", param="structured"))
    assert caught.value.param == "structured"


def test_a_tokenizer_that_grammars_cannot_use_is_loaded_all_the_same() -> None:
    class OwnWays(PreTrainedTokenizerFast):
        def encode(self, *args: object, **kwargs: object) -> list[int]:
            return super().encode(*args, **kwargs)  # type: ignore[arg-type]

    made = byte_level(SPECIAL[CHATML])
    made.add_tokens([AddedToken("x")])
    codec = codec_for(CHATML, made, kind=OwnWays)
    assert len(chat(codec, said("user", "x")).tokens) > 0
    with pytest.raises(ConstraintError, match="cannot be constrained"):
        codec.render(PlainText("x"), Constraint("json_object"))
