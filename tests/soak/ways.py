"""The ways of asking for the reply to one prompt: every API, whole and streamed. All must agree."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

from .book import NEAR, Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .book import Talk
    from .server import Server

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
Near = tuple[tuple[int, int], ...]
LOGPROBS = {"logprobs": True, "top_logprobs": 2}


def chat(server: Server, talk: Talk, **more: Any) -> Reply:
    """Ask for a whole chat reply, with how sure the model was of it."""
    _, answer = server.ask("chat", "POST", CHAT, talk.fields | LOGPROBS | more)
    choice = answer["choices"][0]
    near = _near((choice["logprobs"] or {}).get("content") or [])
    return _openai(choice["message"]["content"] or "", choice["finish_reason"], answer["usage"], near)


def completion(server: Server, talk: Talk, **more: Any) -> Reply:
    _, answer = server.ask("completion", "POST", COMPLETIONS, talk.fields | {"logprobs": 2} | more)
    choice = answer["choices"][0]
    found = choice["logprobs"] or {"tokens": [], "top_logprobs": []}
    tops = [list((each or {}).values()) for each in found["top_logprobs"]]
    near = _places(found["tokens"], tops)
    return _openai(choice["text"], choice["finish_reason"], answer["usage"], near)


def chat_stream(server: Server, talk: Talk, **more: Any) -> Reply:
    return _stream(server, "chat stream", CHAT, talk, more)


def slow_stream(server: Server, talk: Talk) -> Reply:
    """Read a stream more slowly than it is written."""
    return _stream(server, "slow reader", CHAT if talk.messages else COMPLETIONS, talk, {}, pause_s=0.02)


def completion_stream(server: Server, talk: Talk, **more: Any) -> Reply:
    return _stream(server, "completion stream", COMPLETIONS, talk, more)


def _stream(
    server: Server, kind: str, path: str, talk: Talk, more: dict[str, Any], *, pause_s: float = 0.0
) -> Reply:
    asked = {"stream": True, "stream_options": {"include_usage": True}}
    text, finish, usage = "", "", {}
    for _, data in server.events(kind, path, talk.fields | asked | more, pause_s=pause_s):
        usage = (data or {}).get("usage") or usage
        for choice in (data or {}).get("choices", ()):
            text += (choice["delta"].get("content") if "delta" in choice else choice["text"]) or ""
            finish = choice["finish_reason"] or finish
    return _openai(text, finish, usage)


def anthropic(server: Server, talk: Talk) -> Reply:
    _, answer = server.ask("messages", "POST", MESSAGES, _anthropic_body(talk))
    text = "".join(block.get("text", "") for block in answer["content"])
    return _anthropic(text, answer["stop_reason"], answer["usage"])


def anthropic_stream(server: Server, talk: Talk) -> Reply:
    text, finish, usage = "", "", {}
    for name, data in server.events("messages stream", MESSAGES, _anthropic_body(talk) | {"stream": True}):
        if name == "content_block_delta":
            text += data["delta"].get("text", "")
        elif name == "message_delta":
            finish, usage = data["delta"]["stop_reason"], data["usage"]
    return _anthropic(text, finish, usage)


def responses(server: Server, talk: Talk) -> Reply:
    _, answer = server.ask("responses", "POST", RESPONSES, responses_body(talk))
    return responses_reply(answer)


def responses_stream(server: Server, talk: Talk) -> Reply:
    answer, streamed = {}, ""
    for name, data in server.events("responses stream", RESPONSES, responses_body(talk) | {"stream": True}):
        streamed += data["delta"] if name == "response.output_text.delta" else ""
        answer = data.get("response", answer)
    reply = responses_reply(answer)
    if streamed != reply.text:
        server.tally.wrong(f"responses stream: deltas say {streamed!r}, the response {reply.text!r}")
    return reply


def ways_of(talk: Talk) -> Sequence[Callable[[Server, Talk], Reply]]:
    """Return the ways in which ``talk`` can be asked for."""
    if not talk.messages:
        return completion, completion_stream, slow_stream
    own = (chat, chat, chat_stream, chat_stream, slow_stream)
    return (*own, anthropic, anthropic_stream, responses, responses_stream) if talk.speakable else own


def responses_body(talk: Talk) -> dict[str, Any]:
    return {"input": list(talk.messages), "max_output_tokens": talk.max_tokens, "temperature": 0}


def responses_reply(answer: dict[str, Any]) -> Reply:
    parts = [part for item in answer["output"] for part in item.get("content") or ()]
    usage, own = answer["usage"], answer["usage"]["samovar"]
    text = "".join(part.get("text", "") for part in parts)
    return Reply(
        text,
        answer["status"],
        usage["input_tokens"],
        own["cached_tokens"],
        own["tier"],
        (),
        own["miss_reason"],
    )


def _anthropic_body(talk: Talk) -> dict[str, Any]:
    head = [message["content"] for message in talk.messages if message["role"] == "system"]
    turns = [message for message in talk.messages if message["role"] != "system"]
    system = {"system": head[0]} if head else {}
    return {**system, "messages": turns, "max_tokens": talk.max_tokens, "temperature": 0}


def _anthropic(text: str, finish: str, usage: dict[str, Any]) -> Reply:
    own = usage["samovar"]
    prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
    return Reply(text, finish, prompt, own["cached_tokens"], own["tier"], (), own["miss_reason"])


def _openai(text: str, finish: str, usage: dict[str, Any], near: Near = ()) -> Reply:
    own = usage["samovar"]
    return Reply(
        text, finish, usage["prompt_tokens"], own["cached_tokens"], own["tier"], near, own["miss_reason"]
    )


def _near(content: list[dict[str, Any]]) -> Near:
    tops = [[top["logprob"] for top in each["top_logprobs"]] for each in content]
    return _places([each["token"] for each in content], tops)


def _places(tokens: list[str], tops: list[list[float]]) -> Near:
    """Return where tokens stand, in characters, that were hardly ahead of the next best."""
    places = pairwise(accumulate((len(token) for token in tokens), initial=0))
    ahead = (best[0] - best[1] if len(best) > 1 else 1.0 for best in (sorted(top)[::-1] for top in tops))
    return tuple(place for place, gap in zip(places, ahead, strict=True) if gap < NEAR)
