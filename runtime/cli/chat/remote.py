"""Replies of a server that speaks the OpenAI chat API: Samovar itself, or any other."""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, cast

import aiohttp

from .chunks import ChunkReader, object_of, read_object
from .events import EventTooLarge, event_data
from .speech import ReplyFailed

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from .speech import Message, Piece, Wish

CONNECT_S: Final = 10.0
SILENCE_S: Final = 600.0
"""How long a server may say nothing at all: some prefill long prompts without a sign of life."""

_UNIX: Final = "unix:"
_ADDRESS: Final = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[^\s/?#:@\[\]]+)(:\d+)?(/[^\s?#]*)?")
_ERROR_BYTES: Final = 65_536
_RETRYABLE: Final = (408, 429, 500, 502, 503, 504)


class RemoteSpeaker:
    """Talks to the server at ``url`` (with or without ``/v1``; ``unix:PATH`` for a socket file).

    Redirects are not followed and proxies of the environment not used: the key goes to that server alone.
    """

    def __init__(self, url: str, api_key: str | None, model: str | None) -> None:
        self._url = url
        self._base = base_url(url)
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._model = model
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Get ready to connect; nothing is sent yet."""
        socket = self._url.startswith(_UNIX)
        connector = aiohttp.UnixConnector(self._url.removeprefix(_UNIX)) if socket else None
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=SILENCE_S)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, headers=self._headers)

    async def introduce(self) -> str:
        """Ask which models there are."""
        try:
            async with self._call("GET", "/v1/models") as response:
                if response.status == 404:  # noqa: PLR2004 - a server without the route may chat all the same
                    return f"{self._model or 'the default model'} at {self._url}"
                await _check(response)
                served = _ids(read_object(await response.read()))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise self._unreachable(error) from error
        first = served[0] if served else "the default model"
        return f"{self._model or first} at {self._url}"

    async def reply(self, messages: Sequence[Message], wish: Wish) -> AsyncGenerator[Piece]:
        """Stream one chat completion."""
        reader = ChunkReader(asyncio.get_running_loop().time)
        try:
            async with self._call(
                "POST", "/v1/chat/completions", json=self._body(messages, wish)
            ) as response:
                await _check(response)
                async with aclosing(event_data(response.content.iter_any())) as events:
                    async for data in events:
                        for piece in reader.read(data):
                            yield piece
                        if reader.over:
                            break
        except (aiohttp.ClientError, OSError, TimeoutError, EventTooLarge) as error:
            raise self._unreachable(error) from error
        yield reader.done()

    async def close(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _call(self, method: str, path: str, **more: Any) -> aiohttp.client._RequestContextManager:  # pyright: ignore[reportPrivateUsage]
        assert self._session is not None
        return self._session.request(method, self._base + path, allow_redirects=False, **more)

    def _body(self, messages: Sequence[Message], wish: Wish) -> dict[str, object]:
        named = {
            "model": self._model,
            "max_tokens": wish.max_tokens,
            "temperature": wish.temperature,
            "seed": wish.seed,
        }
        given: dict[str, object] = {name: value for name, value in named.items() if value is not None}
        options = {"include_usage": True}
        return given | {"messages": list(messages), "stream": True, "stream_options": options}

    def _unreachable(self, error: Exception) -> ReplyFailed:
        detail = str(error) or type(error).__name__
        if isinstance(error, aiohttp.ClientConnectorError):
            detail = f"no connection ({_cause(error)}); is the server running?"
        return ReplyFailed(f"{self._url}: {detail}", "server_unreachable", retryable=True)


def base_url(url: str) -> str:
    """Return the part of the URL before ``/v1``. Raises ReplyFailed for what is no URL of a server."""
    if url.startswith(_UNIX):
        return "http://localhost"
    full = url if "://" in url else f"http://{url}"
    if not _ADDRESS.fullmatch(full):
        message = f"--url: {url!r} is no address of a server; it looks like http://127.0.0.1:8080"
        raise ReplyFailed(message, "bad_url", usage=True)
    return full.rstrip("/").removesuffix("/v1").rstrip("/")


def _cause(error: aiohttp.ClientConnectorError) -> str:
    number = error.os_error.errno or 0
    return os.strerror(number) if number > 0 else error.os_error.strerror or str(error.os_error)


async def _check(response: aiohttp.ClientResponse) -> None:
    """Raise ReplyFailed with the server's own words unless it accepted the request."""
    if response.status == 200:  # noqa: PLR2004 - the HTTP status
        return
    told = await response.content.read(_ERROR_BYTES)
    message = _told(read_object(told)) or response.reason or "no reason given"
    if response.status == 401:  # noqa: PLR2004 - the HTTP status
        message += " (give a key with SAMOVAR_API_KEY or --api-key)"
    raise ReplyFailed(
        f"the server answered {response.status}: {message}",
        f"http_{response.status}",
        retryable=response.status in _RETRYABLE,
    )


def _told(body: Mapping[str, object]) -> str | None:
    match body.get("error"):
        case {"message": str() as message} | (str() as message):
            return message
        case _:
            return None


def _ids(body: Mapping[str, object]) -> list[str]:
    items = body.get("data")
    if not isinstance(items, list):
        return []
    found = (object_of(item).get("id") for item in cast("list[object]", items))
    return [name for name in found if isinstance(name, str)]
