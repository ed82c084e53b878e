"""``samovar models pull org/name`` from a hub on loopback, with the hub's real client."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COMMIT = "0" * 40
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model.safetensors": b"x" * 25_000_000,
    "modeling.py": b"evil()",
}
WANTED_BYTES = len(FILES["config.json"]) + len(FILES["model.safetensors"])
EVENTS = (
    "from samovar.runtime.engine.models.hub import fetch_hub_repository\n"
    "fetch_hub_repository('org/name', lambda event: print(event.stage, event.done, event.total))"
)


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub as its client asks for."""

    def answer(self) -> bytes:
        path = self.path.partition("?")[0]
        headers: dict[str, str] = {}
        if path.startswith("/api/models/org/name/tree/"):
            files = [
                {"type": "file", "path": name, "size": len(data), "oid": "a" * 40}
                for name, data in FILES.items()
            ]
            data = json.dumps(files).encode()
        elif path.startswith("/api/models/org/name"):
            names = [{"rfilename": name} for name in FILES]
            data = json.dumps({"id": "org/name", "sha": COMMIT, "siblings": names}).encode()
        elif path.startswith("/org/name/resolve/"):
            name = path.rpartition("/")[2]
            data, headers = FILES[name], {"ETag": f'"{name}"', "X-Repo-Commit": COMMIT}
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return b""
        self.send_response(200)
        for key, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        return data

    def do_GET(self) -> None:
        self.wfile.write(self.answer())

    def do_HEAD(self) -> None:
        self.answer()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield {
        **os.environ,
        "HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}",
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_OFFLINE": "0",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    server.shutdown()
    thread.join()
    server.server_close()


def run(environment: dict[str, str], *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *args]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=19)


def test_a_repository_that_is_not_there_is_one_line(environment: dict[str, str]) -> None:
    ended = run(environment, "-m", "samovar.runtime.cli", "models", "pull", "org/none")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.splitlines()[-1].startswith("samovar: error: org/none: no such repository")
    assert "Traceback" not in ended.stderr


def test_a_repository_is_fetched_without_its_code_and_listed(
    environment: dict[str, str], tmp_path: Path
) -> None:
    ended = run(environment, "-m", "samovar.runtime.cli", "models", "pull", "org/name")
    assert ended.returncode == 0, ended.stderr
    snapshot = tmp_path / "hf" / "hub" / "models--org--name" / "snapshots" / COMMIT
    assert ended.stdout == f"{snapshot}\n"
    assert sorted(path.name for path in snapshot.iterdir()) == ["config.json", "model.safetensors"]
    told = ended.stderr.splitlines()
    assert (told[0], told[-1]) == ("download: org/name", "download: org/name 100%")
    assert all(line.startswith("download: org/name") for line in told)
    listed = json.loads(run(environment, "-m", "samovar.runtime.cli", "models", "ls", "--json").stdout)
    assert [(model["name"], model["kind"], model["size_bytes"]) for model in listed] == [
        ("org/name", "hub", WANTED_BYTES)
    ]


def test_bytes_are_counted_as_they_come(environment: dict[str, str]) -> None:
    told = [line.split() for line in run(environment, "-c", EVENTS).stdout.splitlines()]
    assert told[0] == ["download", "0", "None"]
    assert {total for _, _, total in told[1:]} == {str(WANTED_BYTES)}
    done = [int(count) for _, count, _ in told]
    assert done == sorted(done)
    assert done[-1] == WANTED_BYTES
    assert 0 < done[1] < WANTED_BYTES
