"""A server of a few lines for the tests of the comparison: streams words, keeps prompts in its home.

    python -m tests.benchmarks.tiny_server PORT [good|refuses|dies|never]

``refuses`` answers long prompts with 500, ``dies`` ends when it gets one, ``never`` does not start.
"""

from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

LONG_WORDS = 40
SEEN = Path(os.environ["HOME"]) / "seen.txt"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        prompt = json.dumps(body["messages"])
        words = len(prompt.split())
        if words > LONG_WORDS and sys.argv[2] == "dies":
            os._exit(3)
        if words > LONG_WORDS and sys.argv[2] == "refuses":
            self.send_error(500, "too long for me")
            return
        seen = SEEN.read_text().splitlines() if SEEN.exists() else []
        SEEN.write_text("\n".join([*seen, prompt]))
        self.send_response(200)
        self.end_headers()
        usage = {"prompt_tokens": words, "completion_tokens": 2}
        usage["prompt_tokens_details"] = {"cached_tokens": words if prompt in seen else 0}
        for text in ("once ", "more"):
            self._event({"choices": [{"delta": {"content": text}, "finish_reason": None}]})
        self._event({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": usage})

    def _event(self, event: object) -> None:
        self.wfile.write(f"data: {json.dumps(event)}\n\n".encode())

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    if sys.argv[2] == "never":
        sys.exit("I do not start")
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
