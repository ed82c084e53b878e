"""A server in a process of its own, and a small client for it."""

from __future__ import annotations

import http.client
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Self

ROOT = Path(__file__).parents[2]
START_S = 60.0
WAIT_S = 15.0


class ServerProcess:
    """Starts a server, waits until it is ready, and makes sure that it is gone in the end."""

    def __init__(self, *command: str, **popen: Any) -> None:
        self.lines: list[dict[str, Any] | str] = []
        self._arrived: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.process = subprocess.Popen(
            [sys.executable, *command],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
            **({"env": {"SAMOVAR__CACHE__SSD__DIR": "off", **os.environ, "PYTHONUNBUFFERED": "1"}} | popen),
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self.port = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()

    def wait_ready(self) -> ServerProcess:
        line = self.wait_line("ready", START_S)
        match = re.search(r":(\d+)$", line["address"])
        assert match
        self.port = int(match[1])
        return self

    def wait_line(self, event: str, timeout_s: float = WAIT_S) -> dict[str, Any]:
        """Wait for a log line with ``event`` and return it."""
        until = time.monotonic() + timeout_s
        while True:
            for line in list(self.lines):
                if isinstance(line, dict) and line.get("event") == event:
                    return line
            if self.process.poll() is not None and not self._reader.is_alive():
                raise AssertionError(f"the server ended with {self.process.returncode}: {self.lines}")
            if time.monotonic() > until:
                raise AssertionError(f"no line {event!r} in {timeout_s} s: {self.lines}")
            try:
                self._arrived.get(timeout=0.1)
            except queue.Empty:
                continue

    def end(self, timeout_s: float = WAIT_S) -> int:
        """Wait for the end of the process; return its exit code."""
        code = self.process.wait(timeout_s)
        self._reader.join()
        return code

    def signal(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def call(self, method: str, path: str, body: Any = None, timeout_s: float = WAIT_S) -> tuple[int, Any]:
        """Make one request; return status and parsed body."""
        connection = self.connect(timeout_s)
        try:
            connection.request(method, path, *_encoded(body))
            response = connection.getresponse()
            return response.status, json.loads(response.read() or b"null")
        finally:
            connection.close()

    def connect(self, timeout_s: float = WAIT_S) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)

    def chat(self, content: str, **fields: Any) -> tuple[int, Any]:
        return self.call("POST", "/v1/chat/completions", _chat(content, fields), timeout_s=60.0)

    def talk(self, messages: list[dict[str, str]], **fields: Any) -> dict[str, Any]:
        """Send a conversation and return the answer's body; it must be a 200."""
        body = {"messages": messages, **fields}
        status, answer = self.call("POST", "/v1/chat/completions", body, timeout_s=60.0)
        assert status == 200, answer
        return answer

    def stream(self, content: str, **fields: Any) -> Stream:
        connection = self.connect(60.0)
        connection.request("POST", "/v1/chat/completions", *_encoded(_chat(content, fields, stream=True)))
        return Stream(connection, connection.getresponse())

    def stream_until(self, mark: bytes, content: str, **fields: Any) -> None:
        """Ask for a stream on a bare socket and close it in the moment in which ``mark`` has come."""
        body = json.dumps(_chat(content, fields, stream=True)).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        with socket.create_connection(("127.0.0.1", self.port), WAIT_S) as client:
            client.sendall(head.encode() + body)
            seen = b""
            while mark not in seen:
                received = client.recv(65_536)
                assert received, f"the server closed first: {seen!r}"
                seen += received

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_status(self, status: int, timeout_s: float = WAIT_S) -> str:
        """Poll ``/v1/models`` until it answers with ``status``, an error's; return its code."""
        until = time.monotonic() + timeout_s
        while True:
            found, body = self.call("GET", "/v1/models")
            if found == status:
                return body["error"]["code"]
            assert time.monotonic() < until, f"never {status}: {found} {body}"

    def wait_stats(self, condition: Any, timeout_s: float = WAIT_S) -> Any:
        """Poll ``/stats`` until ``condition(stats)`` holds; return them."""
        until = time.monotonic() + timeout_s
        while True:
            _, stats = self.call("GET", "/stats")
            if condition(stats):
                return stats
            assert time.monotonic() < until, f"never came true: {stats}"

    def _read(self) -> None:
        assert self.process.stderr is not None
        for raw in self.process.stderr:
            try:
                self.lines.append(json.loads(raw))
            except ValueError:
                self.lines.append(raw.rstrip())
            self._arrived.put(None)
        self.process.stderr.close()


class Stream:
    """A streamed reply, event by event."""

    def __init__(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        self.connection = connection
        self.response = response
        self.status = response.status

    def events(self) -> list[Any]:
        """Read to the end; the last event is "[DONE]" unless it was cut off or failed."""
        found = []
        while (event := self.next()) is not None:
            found.append(event)
        self.close()
        return found

    def next(self) -> Any:
        """Return the next event, or None at the end."""
        while line := self.response.readline():
            if line.startswith(b"data: "):
                data = line[6:].strip()
                return "[DONE]" if data == b"[DONE]" else json.loads(data)
        return None

    def close(self) -> None:
        self.response.close()
        self.connection.close()


def text_of(events: list[Any]) -> str:
    return "".join(
        event["choices"][0]["delta"].get("content") or ""
        for event in events
        if isinstance(event, dict) and event.get("choices")
    )


def fake(*settings: str, step_ms: float = 2.0) -> ServerProcess:
    """Start a server over the scripted engine on a free port."""
    return _kit_server(["--step-ms", str(step_ms)], settings)


def tiny(family: str, *settings: str) -> ServerProcess:
    """Start a server over a tiny random model on a free port."""
    return _kit_server(["--family", family], settings)


def _kit_server(arguments: list[str], settings: tuple[str, ...]) -> ServerProcess:
    command = ["-m", "tests.kit.serve", *arguments]
    for setting in ("server.port=0", "server.fault_injection=true", "cache.ssd.dir=off", *settings):
        command += ["--set", setting]
    return ServerProcess(*command)


def _chat(content: str, fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}], **fields, **more}


def _encoded(body: Any) -> tuple[bytes | None, dict[str, str]]:
    if body is None:
        return None, {}
    return json.dumps(body).encode(), {"Content-Type": "application/json"}
