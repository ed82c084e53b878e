"""A server's life as its users see it: start, service, crashes, shutdown, exit codes."""

from __future__ import annotations

import contextlib
import http.client
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from .process import ServerProcess, fake, text_of

pytestmark = pytest.mark.timeout(60)


def test_a_port_in_use_is_named_and_ends_the_start() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with fake(f"server.port={port}") as server:
            assert server.end() == 2
            text = " ".join(str(line) for line in server.lines)
            assert "server.port" in text
            assert str(port) in text


def test_a_model_that_cannot_be_opened_ends_the_start() -> None:
    arguments = ["-m", "tests.kit.serve", "--set", "server.port=0", "--open-error", "weights are cut off"]
    with ServerProcess(*arguments) as server:
        assert server.end() == 2
        assert any("model.path: weights are cut off" in str(line) for line in server.lines)


def test_streamed_and_not_the_reply_is_the_same() -> None:
    with fake().wait_ready() as server:
        status, whole = server.chat("ab", max_tokens=5)
        assert status == 200
        events = server.stream("ab", max_tokens=5).events()
        assert events[-1] == "[DONE]"
        assert text_of(events) == whole["choices"][0]["message"]["content"] == "97.0 97.1 97.2 97.3 97.4 "


def test_sigterm_lets_a_running_stream_finish_and_refuses_new_requests() -> None:
    with fake(step_ms=20).wait_ready() as server:
        stream = server.stream("ab", max_tokens=150)
        stream.next()
        server.signal()
        server.wait_line("draining")
        assert server.call("GET", "/ready")[0] == 503
        status, refusal = server.chat("late")
        assert (status, refusal["error"]["code"]) == (503, "draining")
        events = stream.events()
        assert events[-1] == "[DONE]"
        assert server.end() == 0


def test_sigterm_at_rest_ends_at_once_with_0() -> None:
    with fake().wait_ready() as server:
        server.signal(signal.SIGINT)
        assert server.end(5.0) == 0


def test_a_drain_that_outlasts_its_timeout_ends_with_1_and_no_silent_stream() -> None:
    with fake("server.shutdown_timeout=300ms", step_ms=50).wait_ready() as server:
        stream = server.stream("ab", max_tokens=1000)
        stream.next()
        server.signal()
        last = stream.events()[-1]
        assert "error" in last
        assert server.end() == 1


def test_a_signal_that_comes_twice_at_once_is_one_signal() -> None:
    with fake(step_ms=20).wait_ready() as server:
        stream = server.stream("ab", max_tokens=60)
        stream.next()
        server.signal()
        server.signal()
        assert stream.events()[-1] == "[DONE]"
        assert server.end() == 0


def test_a_client_that_leaves_with_the_last_byte_was_served() -> None:
    with fake().wait_ready() as server:
        for number in range(20):
            server.stream_until(b"data: [DONE]" if number % 2 else b"\r\n0\r\n\r\n", "ab", max_tokens=3)
        server.signal()
        assert server.end() == 0
        lines = [line for line in server.lines if isinstance(line, dict) and line.get("event") == "request"]
        assert [line["status"] for line in lines] == [200] * 20


def test_a_second_signal_forces_the_end() -> None:
    with fake(step_ms=50).wait_ready() as server:
        stream = server.stream("ab", max_tokens=1000)
        stream.next()
        server.signal()
        server.wait_line("draining")
        time.sleep(0.15)  # a real second one, not the first one's echo
        server.signal()
        assert server.end(5.0) == 1
        stream.close()


def test_a_client_that_disconnects_frees_its_row() -> None:
    with fake("lanes.batch=1", step_ms=5).wait_ready() as server:
        stream = server.stream("ab", max_tokens=1000)
        stream.next()
        stream.close()
        # A lane's figures may be a tenth of a second old, so its rows alone would tell too little.
        stats = server.wait_stats(
            lambda stats: stats["scheduler"]["cancelled"] == 1 and stats["lanes"][0]["rows"] == 0
        )
        assert stats["lanes"][0]["decoded_tokens"] < 500
        server.wait_line("request")
        assert server.chat("next", max_tokens=1)[0] == 200


def test_a_full_queue_is_429_with_retry_after() -> None:
    with fake("lanes.batch=1", "lanes.queue=1", step_ms=20).wait_ready() as server:
        with ThreadPoolExecutor(6) as pool:
            answers = list(pool.map(lambda _: server.chat("ab", max_tokens=20), range(6)))
        statuses = sorted(status for status, _ in answers)
        assert statuses[:2] == [200, 200]
        assert set(statuses[2:]) == {429}
        assert all(body["error"]["code"] == "queue_full" for status, body in answers if status == 429)


@pytest.mark.parametrize(
    "path", ["monitor", "serving", "serving/lanes", "serving/lanes/0", "serving/scheduler", "http"]
)
def test_every_actor_and_supervisor_may_crash_and_service_goes_on(path: str) -> None:
    with fake().wait_ready() as server:
        assert server.chat("ab", max_tokens=1)[0] == 200
        if path == "http":
            crash_http(server)
        else:
            assert server.call("POST", f"/admin/actors/{path}/crash")[0] == 200
        server.wait_line("actor_restarted")
        status, reply = server.chat("ab", max_tokens=2)
        assert (status, reply["choices"][0]["message"]["content"]) == (200, "97.0 97.1 ")
        _, tree = server.call("GET", "/admin/tree")
        restarts = {actor["path"]: actor["restarts"] for actor in tree["actors"]}
        assert restarts[path] == 1
        assert all(actor["state"] == "running" for actor in tree["actors"])
        server.signal()
        assert server.end() == 0


def crash_http(server: ServerProcess) -> None:
    """Crash the server that answers the call itself: the reply may or may not get out."""
    server.wait_line("ready")
    port = server.port
    try:
        server.call("POST", "/admin/actors/http/crash")
    except OSError:
        assert port


def test_a_lane_crash_only_pauses_the_stream_that_it_touched() -> None:
    with fake(step_ms=10).wait_ready() as server:
        stream = server.stream("ab", max_tokens=60)
        first = stream.next()
        server.call("POST", "/admin/actors/serving/lanes/0/crash")
        events = [first, *stream.events()]
        assert events[-1] == "[DONE]"
        text = "".join(event["choices"][0]["delta"].get("content", "") for event in events[:-1])
        assert text == "".join(f"97.{n} " for n in range(60))
        assert server.call("GET", "/stats")[1]["scheduler"]["resumed"] == 1
        assert server.chat("ab", max_tokens=1)[0] == 200


def test_a_scheduler_crash_is_not_noticed_by_running_or_queued_requests() -> None:
    with fake("lanes.batch=1", step_ms=10).wait_ready() as server:
        running = server.stream("ab", max_tokens=60)
        running.next()
        with ThreadPoolExecutor(1) as pool:
            queued = pool.submit(server.chat, "cd", max_tokens=2)
            server.wait_stats(lambda stats: stats["scheduler"]["queued"] == 1)
            assert server.call("POST", "/admin/actors/serving/scheduler/crash")[0] == 200
            server.wait_line("actor_restarted")
            assert running.events()[-1] == "[DONE]"
            status, reply = queued.result()
        assert (status, reply["choices"][0]["message"]["content"]) == (200, "99.0 99.1 ")


def test_a_restart_storm_ends_the_process_with_70() -> None:
    with fake().wait_ready() as server:
        until = time.monotonic() + 15.0
        while server.process.poll() is None and time.monotonic() < until:
            with contextlib.suppress(OSError, http.client.HTTPException):
                server.call("POST", "/admin/actors/monitor/crash")
        assert server.end() == 70
        server.wait_line("giving_up")


def test_unknown_actors_cannot_be_crashed() -> None:
    with fake().wait_ready() as server:
        assert server.call("POST", "/admin/actors/nobody/crash")[0] == 404
