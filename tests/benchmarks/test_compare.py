"""The comparison takes real processes through its scenarios, and drops nobody who fails."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from benchmarks.compare_agent import NOTHING_SAID, NoTexts, script_of, scripts
from benchmarks.compare_report import FIGURES, reasons, rows, table
from benchmarks.compare_scenarios import SCENARIOS, Plan, quick
from benchmarks.compare_visit import Contender, Visit
from benchmarks.peers import Environments, Peer
from benchmarks.serving_measures import Scale

ROOT = Path(__file__).parents[2]
SCALE = Scale(streams=(1, 2), reply_tokens=2)


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a tokenizer that counts words, for the prompts."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    (tmp_path / "model").mkdir()
    tokenizer.save(str(tmp_path / "model" / "tokenizer.json"))
    return tmp_path / "model"


def visited(model: Path, behaviour: str, *names: str, seconds: float = 60.0) -> Contender:
    program = ("-m", "tests.benchmarks.tiny_server")
    contender = Contender(Peer(behaviour, "samovar", program, ("{port}", behaviour)), {"samovar": "0"})
    plan = Plan(model / "no traces", SCALE, cold_tokens=60, settle_s=0.0, names=names)
    Visit(Environments(), model, plan, 7, time.monotonic() + seconds).make(contender)
    return contender


def test_a_server_that_does_not_start_fails_every_scenario_with_what_it_said(model: Path) -> None:
    contender = visited(model, "never", "start", "repeat")
    assert contender.samples == {}
    assert set(contender.outcomes) == {"start", "repeat"}
    assert all("failed: ended with 1: I do not start" in each[0] for each in contender.outcomes.values())


def test_a_server_that_dies_of_a_scenario_is_started_again_for_the_next(model: Path) -> None:
    contender = visited(model, "dies", "start", "repeat", "streams")
    assert set(contender.outcomes) == {"repeat"}
    assert contender.outcomes["repeat"][0].startswith("failed: RemoteDisconnected")
    assert contender.samples["aggregate_2"][0] > 0.0


def test_a_refusal_fails_its_scenario_alone(model: Path) -> None:
    contender = visited(model, "refuses", "start", "sigterm", "streams")
    assert contender.outcomes["sigterm"][0].startswith("failed: 500")
    assert contender.samples["first_answer_s"]
    assert contender.samples["aggregate_1"]


def test_what_is_kept_over_a_kill_is_found_again_in_the_same_folder(model: Path) -> None:
    contender = visited(model, "good", "start", "idle", "repeat", "sigterm", "sigkill")
    assert contender.outcomes == {}
    assert contender.notes == []
    samples = contender.samples
    assert samples["again_reused"] == samples["sigterm_reused"] == samples["sigkill_reused"] == [1.0]
    assert samples["idle_mb"][0] > 1.0
    assert contender.command[-1] == "good"


def test_without_recorded_texts_the_agent_is_skipped_and_said_so(model: Path) -> None:
    contender = visited(model, "good", "start", "agent")
    assert contender.outcomes["agent"][0].startswith("skipped: no agent/taubench")


def test_what_there_is_no_time_for_is_said(model: Path) -> None:
    contender = visited(model, "good", "start", "load", seconds=-1.0)
    assert contender.outcomes == {"start": ["no time"], "load": ["no time"]}


def test_the_table_has_a_word_for_every_missing_figure_and_the_reason_below() -> None:
    samples = {
        "samovar": {"cold_ttft_s": [2.0], "again_reused": [1.0], "sigkill_reused": [1.0]},
        "other": {"cold_ttft_s": [5.0]},
        "lost": {},
    }
    outcomes = {"samovar": {}, "other": {"sigkill": ["no time"]}, "lost": {"repeat": ["failed: 500: no"]}}
    text = table(rows(samples), outcomes)
    cold, kept = (
        next(line for line in text.splitlines() if line.startswith(label))
        for label in ("cold prompt, TTFT", "after SIGKILL, reused")
    )
    assert cold.split()[-4:] == ["2.00", "5.00", "(2.50)", "failed"]
    assert kept.split()[-4:] == ["1.00", "no", "time", "-"]
    assert reasons(outcomes) == ["other, sigkill: no time", "lost, repeat: failed: 500: no"]
    assert text.endswith("lost, repeat: failed: 500: no")


def test_every_scenario_has_figures() -> None:
    assert set(FIGURES) == set(SCENARIOS) == set(quick(ROOT).names)


def test_a_conversation_is_what_is_said_to_the_assistant(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "policy " * 10},
        {"role": "user", "content": "book"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "tool", "name": "find", "content": "x" * 9999},
        {"role": "assistant", "content": "done"},
        {"role": "user", "content": None},
    ]
    script = script_of(messages, 6)
    assert script.system == "policy"
    assert script.turns[0] == "book"
    assert script.turns[1].startswith("Result of find: xxx")
    assert len(script.turns[1]) == 1500
    assert script.turns[2] == NOTHING_SAID
    (tmp_path / "agent").mkdir()
    path = tmp_path / "agent" / "taubench_airline_gpt4o.jsonl"
    path.write_text("\n".join(json.dumps({"messages": each}) for each in (messages[:2], messages)))
    assert scripts(tmp_path, 1, 2, 6)[0].turns == script.turns[:2]
    with pytest.raises(NoTexts, match="has 1 conversations of 3 turns, 2 are wanted"):
        scripts(tmp_path, 2, 3, 6)
