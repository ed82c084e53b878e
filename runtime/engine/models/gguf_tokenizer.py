"""A Hugging Face tokenizer out of the metadata of a GGUF file."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    processors,
)

from ..errors import ModelUnreadable

if TYPE_CHECKING:
    from pathlib import Path

    from .gguf_metadata import GgufMetadata

_CONTROL, _USER_DEFINED = 3, 4
_TURN_ENDS = frozenset(
    {"<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>", "<|eom_id|>", "</s>"}
)
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SPLITTERS = ("smollm", "gpt-2", "llama-bpe", "llama3")


class GgufTokenizer:
    """The tokenizer that a GGUF file describes: byte-level BPE with one of the known splitters.

    Raises ModelUnreadable from the constructor when the file describes another kind.
    """

    def __init__(self, metadata: GgufMetadata) -> None:
        self._metadata = metadata
        kind = metadata.text("tokenizer.ggml.model")
        self._splitter = metadata.optional_text("tokenizer.ggml.pre") or "gpt-2"
        if kind != "gpt2":
            raise ModelUnreadable(f"{metadata.path}: tokenizer kind {kind!r} is not supported, only 'gpt2'")
        if self._splitter not in _SPLITTERS:
            known = ", ".join(_SPLITTERS)
            raise ModelUnreadable(
                f"{metadata.path}: pre-tokenizer {self._splitter!r} is not supported (known: {known})"
            )
        self.tokens = metadata.texts("tokenizer.ggml.tokens")
        self._types = metadata.optional_integers("tokenizer.ggml.token_type") or [1] * len(self.tokens)

    def write(self, folder: Path) -> None:
        """Write ``tokenizer.json``; control tokens are special there, as are their ids."""
        tokenizer = self._build()
        tokenizer.save(str(folder / "tokenizer.json"))

    def config(self) -> dict[str, object]:
        """Return the content of ``tokenizer_config.json``, chat template included where there is one."""
        config: dict[str, object] = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "add_prefix_space": False,
            "model_max_length": self._metadata.context_length,
        }
        for role, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown")):
            if (token := self._special(key)) is not None:
                config[f"{role}_token"] = self.tokens[token]
        if (template := self._metadata.optional_text("tokenizer.chat_template")) is not None:
            config["chat_template"] = template
        return config

    def generation_config(self) -> dict[str, object]:
        """Return the content of ``generation_config.json``: the ids that begin, pad and end a text.

        A file names one end token; other control tokens that are known to end a turn end it as well.
        """
        ends = [token for key in ("eos", "eot") if (token := self._special(key)) is not None]
        ends += [i for i, token in enumerate(self.tokens) if self._is_control(i) and token in _TURN_ENDS]
        config: dict[str, object] = {"eos_token_id": list(dict.fromkeys(ends))}
        for role, key in (("bos", "bos"), ("pad", "padding")):
            if (token := self._special(key)) is not None:
                config[f"{role}_token_id"] = token
        return config

    def _special(self, key: str) -> int | None:
        token = self._metadata.optional_integer(f"tokenizer.ggml.{key}_token_id")
        if token is not None and not 0 <= token < len(self.tokens):
            raise ModelUnreadable(f"{self._metadata.path}: {key} token {token} is outside the vocabulary")
        return token

    def _is_control(self, index: int) -> bool:
        return self._types[index] == _CONTROL

    def _build(self) -> Tokenizer:
        merges = [tuple(merge.split(" ")) for merge in self._metadata.texts("tokenizer.ggml.merges")]
        if any(len(pair) != 2 for pair in merges):  # noqa: PLR2004 - a merge joins two
            raise ModelUnreadable(f"{self._metadata.path}: a merge of the tokenizer is not a pair")
        vocabulary = {token: index for index, token in enumerate(self.tokens)}
        try:
            model = models.BPE(
                vocab=vocabulary,
                merges=cast("list[tuple[str, str]]", merges),
                ignore_merges=self._splitter.startswith("llama"),
            )
        except Exception as error:  # the bindings raise bare Exception
            raise ModelUnreadable(f"{self._metadata.path}: broken tokenizer: {error}") from error
        tokenizer = Tokenizer(model)
        tokenizer.pre_tokenizer = self._pre_tokenizer()
        tokenizer.decoder = decoders.ByteLevel()
        self._add_tokens(tokenizer)
        self._add_bos(tokenizer)
        return tokenizer

    def _pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        match self._splitter:
            case "smollm":
                parts = [
                    pre_tokenizers.Digits(individual_digits=True),
                    pre_tokenizers.ByteLevel(add_prefix_space=False),
                ]
            case "gpt-2":
                return pre_tokenizers.ByteLevel(add_prefix_space=False)
            case _:
                parts = [
                    pre_tokenizers.Split(Regex(_LLAMA3_SPLIT), behavior="isolated"),
                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
                ]
        return pre_tokenizers.Sequence(parts)

    def _add_tokens(self, tokenizer: Tokenizer) -> None:
        control: list[str | AddedToken] = []
        plain: list[str | AddedToken] = []
        for index, token in enumerate(self.tokens):
            if self._is_control(index):
                control.append(AddedToken(token, special=True, normalized=False))
            elif self._types[index] == _USER_DEFINED:
                plain.append(AddedToken(token, special=False, normalized=False))
        tokenizer.add_special_tokens(control)  # pyright: ignore[reportUnknownMemberType]
        tokenizer.add_tokens(plain)  # pyright: ignore[reportUnknownMemberType]

    def _add_bos(self, tokenizer: Tokenizer) -> None:
        bos = self._special("bos")
        if bos is None or not self._metadata.flag("tokenizer.ggml.add_bos_token"):
            return
        text = self.tokens[bos]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[text, "$A"], pair=[text, "$A", "$B"], special_tokens=[(text, bos)]
        )
