"""Tokenizers with the chat templates of well-known families, in small, and what a prompt of theirs says."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from mlx_lm.tokenizer_utils import TokenizerWrapper
from samovar.runtime.engine.prompt import Conversation
from samovar.runtime.engine.text.codec import HfTextCodec
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from samovar.runtime.engine.prompt import RenderedPrompt
    from samovar.storage.tokens import TokenIds

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for m in messages %}"
    "{{ '<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n' + m['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
GEMMA = (
    "{{ bos_token }}"
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + m['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{% set system = messages[0]['content'] %}{% set turns = messages[1:] %}"
    "{% else %}{% set system = '' %}{% set turns = messages %}{% endif %}"
    "{% for m in turns %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m['role'] == 'user' %}{{ '[INST] ' + (system + '\n\n' if loop.first and system else '') "
    "+ m['content'] + ' [/INST]' }}"
    "{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'] + eos_token }}"
    "{% else %}{{ raise_exception('only user and assistant roles') }}{% endif %}{% endfor %}"
)
# As Qwen3's: thoughts are looked for in the reply's text, and kept only behind the last user turn.
QWEN3 = (
    "{% if tools %}{{ '<|im_start|>system\n# Tools\n' }}"
    "{% for tool in tools %}{{ tool | tojson + '\n' }}{% endfor %}{{ '<|im_end|>\n' }}{% endif %}"
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m['role'] == 'user' %}{% set ns.last = loop.index0 %}{% endif %}"
    "{% endfor %}"
    "{% for m in messages %}"
    "{% if m['role'] == 'tool' %}"
    "{{ '<|im_start|>user\n<tool_response>\n' + m['content'] + '\n</tool_response><|im_end|>\n' }}"
    "{% elif m['role'] == 'assistant' %}"
    "{% set thoughts, content = '', m['content'] %}"
    "{% if m['reasoning_content'] is string %}{% set thoughts = m['reasoning_content'] %}"
    "{% elif '</think>' in content %}"
    "{% set thoughts = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>assistant\n' }}"
    "{% if loop.index0 > ns.last and thoughts %}{{ '<think>\n' + thoughts + '\n</think>\n\n' }}{% endif %}"
    "{{ content }}"
    "{% for call in m['tool_calls'] or [] %}{% set tool_call = call.function %}"
    '{{ \'\n<tool_call>\n{"name": "\' + tool_call.name + \'", "arguments": \' }}'
    "{% if tool_call.arguments is string %}{{ tool_call.arguments }}"
    "{% else %}{{ tool_call.arguments | tojson }}{% endif %}{{ '}\n</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}"
    "{% else %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{% if enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}"
    "{% elif primed %}{{ '<think>\n' }}{% endif %}{% endif %}"
)
# The first begins texts, the second ends replies.
SPECIAL: Mapping[str, Sequence[str]] = {
    CHATML: ["<|endoftext|>", "<|im_end|>", "<|im_start|>"],
    LLAMA3: ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|python_tag|>"],
    GEMMA: ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"],
    MISTRAL: ["<s>", "</s>", "[INST]", "[/INST]"],
    QWEN3: ["<|endoftext|>", "<|im_end|>", "<|im_start|>"],
}
TEXTUAL: Mapping[str, Sequence[str]] = {
    QWEN3: ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"],
    GEMMA: ["\n\n", "<table>"],
}
TEMPLATES = {"chatml": CHATML, "llama3": LLAMA3, "gemma": GEMMA, "mistral": MISTRAL, "qwen3": QWEN3}


def byte_level(special: Sequence[str], textual: Sequence[str] = ()) -> Tokenizer:
    """A byte-level tokenizer that also knows "he", "hel" and "<|"."""
    vocabulary = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "he", "hel", "<|"]
    merges = [("h", "e"), ("he", "l"), ("<", "|")]
    made = Tokenizer(models.BPE({token: place for place, token in enumerate(vocabulary)}, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(each, normalized=False, special=True) for each in special])
    made.add_tokens([AddedToken(each, normalized=False, special=False) for each in textual])
    return made


def metaspace(special: Sequence[str], textual: Sequence[str] = ()) -> Tokenizer:
    """Characters, and a mark for the space before words, the first one included, as SentencePiece has."""
    characters = sorted({chr(code) for code in range(0x21, 0x7F)} | {"▁", "\n", "\ue000"})
    vocabulary = {token: place for place, token in enumerate(["<unk>", *characters, "▁h", "▁hi"])}
    made = Tokenizer(models.BPE(vocabulary, [("▁", "h"), ("▁h", "i")], unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.decoder = decoders.Metaspace(prepend_scheme="first")
    made.add_special_tokens([AddedToken("<unk>", normalized=False, special=True)])
    made.add_special_tokens([AddedToken(each, normalized=False, special=True) for each in special])
    made.add_tokens([AddedToken(each, normalized=False, special=False) for each in textual])
    return made


def codec_for(
    template: str,
    tokenizer: Tokenizer | None = None,
    *,
    parser: str = "",
    kind: Any = PreTrainedTokenizerFast,
) -> HfTextCodec:
    """A codec with a template; ``parser`` names a module of mlx_lm.tool_parsers."""
    special = SPECIAL.get(template, SPECIAL[CHATML])
    made = tokenizer or byte_level(special, TEXTUAL.get(template, ()))
    hf = kind(tokenizer_object=made, bos_token=special[0], eos_token=special[1])
    hf.chat_template = template
    if not parser:
        return HfTextCodec(TokenizerWrapper(hf))
    module = importlib.import_module(f"mlx_lm.tool_parsers.{parser}")
    tools = {
        "tool_parser": module.parse_tool_call,
        "tool_call_start": module.tool_call_start,
        "tool_call_end": module.tool_call_end,
    }
    return HfTextCodec(TokenizerWrapper(hf, **tools))


def codec_named(name: str) -> HfTextCodec:
    return codec_for(TEMPLATES[name], parser="json_tools" if name == "qwen3" else "")


def chat(
    codec: HfTextCodec, *messages: Mapping[str, object], tools: Sequence[Any] = (), **kwargs: object
) -> RenderedPrompt:
    return codec.render(Conversation(messages, tuple(tools), kwargs))


def said(role: str, content: str, **more: object) -> dict[str, object]:
    return {"role": role, "content": content, **more}


def called(name: str, arguments: object, **more: object) -> dict[str, object]:
    call = {"id": "call00001", "type": "function", "function": {"name": name, "arguments": arguments}}
    return said("assistant", "", tool_calls=[call], **more)


def pieces(codec: HfTextCodec, tokens: TokenIds | Sequence[int]) -> list[str]:
    """The control tokens of a prompt as ⟦spelled⟧ and the text between them as text."""
    backend = codec._tokenizing.backend
    assert backend is not None
    added = backend.get_added_tokens_decoder()
    texts: list[str] = []
    plain: list[int] = []
    for token in [*tokens, -1]:
        if token >= 0 and token not in added:
            plain.append(token)
            continue
        if plain:
            texts.append(backend.decode(plain, skip_special_tokens=False))
            plain = []
        if token >= 0:
            texts.append(f"⟦{added[token].content}⟧")
    return texts


def shown(codec: HfTextCodec, tokens: TokenIds | Sequence[int]) -> str:
    return "".join(pieces(codec, tokens))
