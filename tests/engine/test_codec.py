from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlx_lm import utils as mlx_lm_utils
from samovar.runtime.engine.codec import HfTextCodec
from samovar.runtime.engine.detokenize import BytesDetokenizer, WindowDetokenizer, byte_level_table
from samovar.runtime.engine.errors import TemplateError
from samovar.runtime.engine.gguf import convert_gguf
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from samovar.runtime.engine.port import Detokenizer

USER = {"role": "user", "content": "hello"}


def codec_of(folder: Path) -> HfTextCodec:
    return HfTextCodec(mlx_lm_utils.load_tokenizer(folder), {2})


@pytest.fixture
def codec(tiny_model_dir: Path) -> HfTextCodec:
    return codec_of(tiny_model_dir)


@pytest.fixture(scope="session")
def real_codec(default_model_dir: Path) -> HfTextCodec:
    return codec_of(default_model_dir)


def streamed(detokenizer: Detokenizer, tokens: Sequence[int]) -> str:
    return "".join([*map(detokenizer.add, tokens), detokenizer.flush()])


def test_no_template(write_gguf: Callable[..., Path], tmp_path: Path) -> None:
    convert_gguf(write_gguf(metadata={"tokenizer.chat_template": None}), tmp_path / "out", source="test")
    with pytest.raises(TemplateError, match="no chat template"):
        codec_of(tmp_path / "out").render_chat([USER], {})


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
        codec_of(tmp_path / "out").render_chat(messages, {})
    assert caught.value.__cause__ is not None


def test_a_long_refusal_is_cut(write_gguf: Callable[..., Path], tmp_path: Path) -> None:
    template = "{{ raise_exception('first ' + 'x' * 5000) }}"
    convert_gguf(write_gguf(metadata={"tokenizer.chat_template": template}), tmp_path / "out", source="test")
    with pytest.raises(TemplateError) as caught:
        codec_of(tmp_path / "out").render_chat([USER], {})
    assert "first" in str(caught.value)
    assert len(str(caught.value)) < 260


@pytest.mark.parametrize("name", ["tokenize", "chat_template", "add_generation_prompt", "return_dict"])
def test_what_is_not_the_clients_to_set(codec: HfTextCodec, name: str) -> None:
    with pytest.raises(TemplateError, match=f"may not set {name}"):
        codec.render_chat([USER], {name: "x"})


def test_render_is_ready_for_the_reply(codec: HfTextCodec) -> None:
    ids = codec.render_chat([USER], {"enable_thinking": False}).tokens
    assert codec.decode(ids) == "user\nhelloassistant\n"
    assert [token for token in ids if token < 3] == [1, 2, 1]


def test_template_kwargs_reach_the_template(write_gguf: Callable[..., Path], tmp_path: Path) -> None:
    convert_gguf(
        write_gguf(metadata={"tokenizer.chat_template": "{{ mood }}"}), tmp_path / "out", source="test"
    )
    codec = codec_of(tmp_path / "out")
    assert codec.decode(codec.render_chat([USER], {"mood": "fine"}).tokens) == "fine"


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
        rendered = pool.map(
            lambda text: codec.decode(codec.render_chat([{**USER, "content": text}], {}).tokens), texts
        )
        assert list(rendered) == [f"user\n{text}assistant\n" for text in texts]


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
    assert list(real_codec.render_chat(messages, {}).tokens) == expected
