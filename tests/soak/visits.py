"""What a client may do in one visit: talk, ask again, constrain, leave, be slow, be wrong, look around."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from . import ways
from .book import DEEPEST, parted

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

    from .book import Book, Reply, Talk
    from .server import Server

TOOL_PARAMETERS = {
    "type": "object",
    "properties": {"kind": {"enum": ["tea", "milk"]}, "hot": {"type": "boolean"}},
    "required": ["kind", "hot"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "brew", "parameters": TOOL_PARAMETERS}}
BAD = (
    ("POST", ways.CHAT, {"messages": []}, 400),
    ("POST", ways.CHAT, {"messages": [{"role": "user", "content": "tea"}], "temperature": 9}, 400),
    ("POST", ways.CHAT, {"messages": "tea"}, 400),
    ("POST", ways.CHAT, {"messages": [{"role": "user", "content": "tea"}], "model": "nobody"}, 404),
    ("POST", ways.CHAT, {"messages": [{"role": "user", "content": "tea " * 9000}], "max_tokens": 8}, 400),
    ("POST", ways.COMPLETIONS, {"prompt": "tea", "suffix": "milk"}, 400),
    ("POST", ways.MESSAGES, {"messages": [{"role": "user", "content": "tea"}]}, 400),
    ("POST", ways.RESPONSES, {"input": "tea", "previous_response_id": "resp_nobody"}, 400),
    ("GET", ways.CHAT, None, 405),
    ("GET", "/v1/nothing", None, 404),
    ("POST", "/admin/actors/nobody/crash", None, 404),
)
PAGES = ("/health", "/ready", "/stats", "/v1/models", "/openapi.json", "/admin/tree", "/admin/cache?limit=5")


def check(server: Server, talk: Talk, reply: Reply, how: str) -> None:
    """Hold a reply against the record."""
    tally, recorded = server.tally, talk.reply
    tally.count(tally.tiers, reply.tier)
    assert recorded is not None
    if reply.cached_tokens >= reply.prompt_tokens or (reply.cached_tokens > 0) == (reply.tier == "none"):
        tally.wrong(f"{how}: {reply.cached_tokens} of {reply.prompt_tokens} tokens from {reply.tier}")
    if reply.prompt_tokens != recorded.prompt_tokens:
        tally.count(tally.notes, "rendered to other ids")
    elif (at := parted(recorded, reply.text)) is not None:
        tally.wrong(
            f"{how}: the reply to {reply.prompt_tokens} tokens, {reply.cached_tokens} from {reply.tier}, "
            f"parts from its record at character {at}: {reply.text!r}, not {recorded.text!r}"
        )
    elif reply.text != recorded.text:
        tally.count(tally.notes, "parted at a near tie")


def begin(server: Server, book: Book, chance: random.Random) -> None:
    first_time(server, book, book.fresh(chance))


def grow(server: Server, book: Book, chance: random.Random) -> None:
    talk = book.draw(chance)
    if talk is None or not talk.messages or talk.depth >= DEEPEST:
        return begin(server, book, chance)
    return first_time(server, book, book.further(talk, chance))


def first_time(server: Server, book: Book, talk: Talk) -> None:
    """Ask for a reply; the first one is the record."""
    reply = (ways.chat if talk.messages else ways.completion)(server, talk)
    book.record(talk, reply)
    check(server, talk, reply, "first time")


def again(server: Server, book: Book, chance: random.Random) -> None:
    talk = book.draw(chance)
    if talk is None:
        return begin(server, book, chance)
    way = chance.choice(ways.ways_of(talk))
    return check(server, talk, way(server, talk), way.__name__)


def chain(server: Server, book: Book, chance: random.Random) -> None:
    """Two turns over ``previous_response_id`` say what the same two turns say as a chat."""
    talk = book.draw(chance)
    if talk is None or not talk.speakable or talk.depth >= DEEPEST:
        return
    further = book.further(talk, chance)
    if further.reply is None:
        first_time(server, book, further)
    _, answer = server.ask("responses", "POST", ways.RESPONSES, ways.responses_body(talk))
    reply = ways.responses_reply(answer)
    check(server, talk, reply, "chain")
    if further.speakable and talk.reply is not None and reply.text == talk.reply.text:
        turn = {"input": [further.messages[-1]], "previous_response_id": answer["id"]}
        body = ways.responses_body(further) | turn
        _, answer = server.ask("responses", "POST", ways.RESPONSES, body)
        check(server, further, ways.responses_reply(answer), "chain, second turn")


def stop(server: Server, book: Book, chance: random.Random) -> None:
    """A stop string out of the known reply ends it right before its first occurrence."""
    talk = book.draw(chance)
    if talk is None or talk.reply is None or len(talk.reply.text) < 8 or talk.reply.near:
        return
    known = talk.reply
    at = chance.randint(2, len(known.text) - 4)
    word = known.text[at : at + chance.randint(1, 3)]
    ask = (ways.chat, ways.chat_stream) if talk.messages else (ways.completion, ways.completion_stream)
    reply = chance.choice(ask)(server, talk, stop=[word])
    want = known.text[: known.text.find(word)]
    # The stop string is taken out, and white space right at a reply's end may go with it.
    if reply.prompt_tokens == known.prompt_tokens and (reply.text != want or reply.finish != "stop"):
        server.tally.wrong(f"stop {word!r}: {reply.text!r} {reply.finish}, not {want!r}")


def choices(server: Server, book: Book, chance: random.Random) -> None:
    """Greedy choices are all the same reply."""
    talk = book.draw(chance)
    if talk is None or talk.reply is None or not talk.messages:
        return
    _, answer = server.ask("n=3", "POST", ways.CHAT, talk.fields | {"n": 3})
    for choice in answer["choices"]:
        text = choice["message"]["content"] or ""
        if (
            answer["usage"]["prompt_tokens"] == talk.reply.prompt_tokens
            and parted(talk.reply, text) is not None
        ):
            server.tally.wrong(f"choice {choice['index']} of 3: {text!r}, not {talk.reply.text!r}")


def tool(server: Server, book: Book, chance: random.Random) -> None:
    """A forced call is a call, with arguments of its schema."""
    talk = book.fresh(chance)
    if not talk.messages:
        return
    named = {"type": "function", "function": {"name": "brew"}}
    asked = {"tools": [TOOL], "tool_choice": chance.choice(["required", named]), "parallel_tool_calls": False}
    _, answer = server.ask("tool", "POST", ways.CHAT, talk.fields | asked | {"max_tokens": 120})
    calls = answer["choices"][0]["message"].get("tool_calls") or []
    for call in calls:
        _conforms(server, "tool", call["function"]["arguments"])
    if [call["function"]["name"] for call in calls] != ["brew"]:
        server.tally.wrong(f"tool: {answer['choices']}")


def schema(server: Server, book: Book, chance: random.Random) -> None:
    talk = book.fresh(chance)
    if not talk.messages:
        return
    form = {
        "type": "json_schema",
        "json_schema": {"name": "order", "schema": TOOL_PARAMETERS, "strict": True},
    }
    reply = ways.chat_stream(server, talk, response_format=form, max_tokens=120)
    if reply.finish == "stop":
        _conforms(server, "json_schema", reply.text)
    else:
        server.tally.count(server.tally.notes, "json_schema cut by max_tokens")


def _conforms(server: Server, kind: str, text: str) -> None:
    try:
        value = json.loads(text)
        fits = (
            set(value) == {"kind", "hot"}
            and value["kind"] in {"tea", "milk"}
            and value["hot"] in {True, False}
        )
    except (ValueError, TypeError):
        fits = False
    if not fits:
        server.tally.wrong(f"{kind}: {text!r} is not of its schema")


def leave(server: Server, book: Book, chance: random.Random) -> None:
    """Ask for a long reply and close the connection amid it."""
    talk = book.fresh(chance)
    path = ways.CHAT if talk.messages else ways.COMPLETIONS
    body = talk.fields | {"stream": True, "max_tokens": 400}
    left = chance.randint(0, 12)
    for count, _ in enumerate(server.events("left stream", path, body)):
        if count >= left:
            break


def bad(server: Server, book: Book, chance: random.Random) -> None:
    method, path, body, status = chance.choice(BAD)
    server.ask("bad", method, path, body, expected=(status,))


def look(server: Server, book: Book, chance: random.Random) -> None:
    server.ask("page", "GET", chance.choice(PAGES))


def explain(server: Server, book: Book, chance: random.Random) -> None:
    talk = book.draw(chance)
    if talk is not None:
        explained(server, talk)


def explained(server: Server, talk: Talk) -> dict[str, Any]:
    """Return what a talk would reuse now."""
    _, answer = server.ask("explain", "POST", "/admin/cache/explain", talk.fields)
    return answer


def session(server: Server, book: Book, chance: random.Random) -> None:
    """Talk with a session id and a draw of chance; close the session now and then."""
    talk, name = book.fresh(chance), f"session-{chance.randint(0, 5)}"
    path = ways.CHAT if talk.messages else ways.COMPLETIONS
    body = talk.fields | {"session_id": name, "temperature": 1.0, "seed": 7}
    server.ask("session", "POST", path, body)
    if chance.random() < 0.3:
        server.ask("close session", "POST", "/admin/sessions/close", {"session_id": name})


def count_tokens(server: Server, book: Book, chance: random.Random) -> None:
    talk = book.draw(chance)
    if talk is not None and talk.speakable and talk.reply is not None and talk.messages[0]["role"] == "user":
        body = {"messages": list(talk.messages)}
        _, answer = server.ask("count", "POST", "/v1/messages/count_tokens", body)
        if answer["input_tokens"] != talk.reply.prompt_tokens:
            server.tally.count(server.tally.notes, "counted otherwise than rendered")


VISITS: Mapping[Callable[[Server, Book, random.Random], None], int] = {
    begin: 6,
    grow: 10,
    again: 16,
    chain: 3,
    stop: 4,
    choices: 2,
    tool: 2,
    schema: 2,
    leave: 4,
    bad: 4,
    look: 3,
    explain: 2,
    session: 2,
    count_tokens: 1,
}


def visit(server: Server, book: Book, chance: random.Random) -> None:
    """Make one visit. Setback when it had no answer."""
    (act,) = chance.choices(list(VISITS), weights=list(VISITS.values()))
    act(server, book, chance)
