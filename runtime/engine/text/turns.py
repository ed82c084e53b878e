"""How the next turn will begin: the part of a prompt that survives whatever is replied to it.

Templates render a finished turn otherwise than an open one (thinking primers go, tool turns keep other
things), so the end of a prompt is no prefix of the next. The stable part is found by rendering what comes
next, once after a text reply and once after a tool's result (DESIGN §5, seed §4 and §5.7).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .seen import common_chars

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

# A character of the private use area: no primer of a template begins with it by chance.
_REPLY: Final = "\ue000"
_CALL_ID: Final = "call00001"  # some templates insist on nine letters and digits
_USER: Final = {"role": "user", "content": _REPLY}
_RESULT: Final = {"role": "tool", "tool_call_id": _CALL_ID, "name": "probe", "content": _REPLY}
# What a reply may begin with. A token that any of them would draw in is not stable.
_OPENINGS: Final = ("\n", " ", "a", "1", ".")
_TAIL_CHARS: Final = 16
_WINDOW_TOKENS: Final = 32
_WINDOW_TRIES: Final = 8


def next_turns(
    render: Callable[[Sequence[Mapping[str, object]]], str | None], messages: Sequence[Mapping[str, object]]
) -> list[str]:
    """Return the conversation as the next turn may render it, one text per kind of reply.

    ``render`` answers None where the template refuses; such a kind of reply is left out.
    """
    replied = render([*messages, {"role": "assistant", "content": _REPLY}, _USER])
    called = None
    for arguments in ({"probe": _REPLY}, '{"probe": 1}'):  # templates expect one or the other
        called = render([*messages, _tool_call(arguments), _RESULT, _USER])
        if called is not None:
            break
    return [text for text in (replied, called) if text is not None]


def shared_chars(text: str, following: Sequence[str]) -> int:
    """Return how many characters of ``text`` begin every one of ``following``; 0 when there are none."""
    return min((common_chars(text, other) for other in following), default=0)


def tails(following: Sequence[str], shared: int) -> list[str]:
    """Return what may come after the shared part."""
    return [*_OPENINGS, *(other[shared : shared + _TAIL_CHARS] for other in following)]


def settled_tokens(
    tokens: Sequence[int],
    count: int,
    *,
    window: Callable[[int, int], str],
    encode: Callable[[str], Sequence[int]],
    added: Collection[int],
    endings: Sequence[str],
) -> int:
    """Return how many of the first ``count`` tokens stay the same whatever text follows them.

    Everything up to the last added token does. What lies behind it (at most some tokens are looked at) is
    encoded once more with each of ``endings``. ``window(start, stop)`` is the text of those tokens.
    """
    start = count
    while start > 0 and count - start < _WINDOW_TOKENS and tokens[start - 1] not in added:
        start -= 1
    if start == count:
        return count
    for first in range(start, max(start - _WINDOW_TRIES, -1), -1):
        text, open_end = window(first, count), list(tokens[first:count])
        if list(encode(text)) == open_end:  # the window means the same when it stands alone
            return first + min(common_items(encode(text + ending), open_end) for ending in endings)
    return start


def common_items(first: Sequence[int], second: Sequence[int]) -> int:
    """Return how many items both begin with."""
    pairs = zip(first, second, strict=False)
    return next((index for index, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _tool_call(arguments: object) -> dict[str, object]:
    function = {"name": "probe", "arguments": arguments}
    call = {"id": _CALL_ID, "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}
