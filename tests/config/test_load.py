from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from samovar.runtime.config import Config, ConfigError, FlagValue, Loaded, Problem, load
from samovar.runtime.config.checks import UNSUPPORTED, Unsupported
from samovar.runtime.config.tree import all_keys, value_of

if TYPE_CHECKING:
    from pathlib import Path


def problems_of(*, files: list[Path] | None = None, **sources: object) -> tuple[Problem, ...]:
    with pytest.raises(ConfigError) as caught:
        load(files or [], **sources)  # type: ignore[arg-type]
    return caught.value.problems


def written(folder: Path, text: str, name: str = "samovar.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_every_fault_of_every_source_is_reported_at_once(tmp_path: Path) -> None:
    file = written(tmp_path, '[server]\nprot = 1\n\n[lanes]\nbatch = "eight"\n')
    found = problems_of(
        files=[file],
        environ={"SAMOVAR__LANES__QUEUE": "0", "SAMOVAR__NOPE": "1", "OTHER__KEY": "1"},
        assignments=["cache.ram.max=lots", "broken"],
        flags=[FlagValue("--port", "server.port", "70000")],
    )
    where = {(str(problem.origin), problem.key) for problem in found}
    assert where == {
        (f"{file}:2", "server.prot"),
        (f"{file}:5", "lanes.batch"),
        ("environment SAMOVAR__LANES__QUEUE", "lanes.queue"),
        ("environment SAMOVAR__NOPE", "nope"),
        ("--set cache.ram.max", "cache.ram.max"),
        ("--set", ""),
        ("--port", "server.port"),
    }


def test_a_problem_says_file_key_found_and_expected(tmp_path: Path) -> None:
    file = written(tmp_path, "[server]\nport = true\n")
    (problem,) = problems_of(files=[file])
    assert str(problem) == f"{file}:2: server.port: found true; expected a whole number from 0 to 65535"


def test_an_assignment_names_its_key_once() -> None:
    (problem,) = problems_of(assignments=["lanes.batch=x"])
    assert str(problem) == '--set lanes.batch: found "x"; expected a whole number from 1 to 1024'


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("server.prot", 'did you mean "server.port"?'),
        ("cach.ssd.dir", 'did you mean "cache"?'),
        ("cache.dir", 'did you mean "cache.ssd.dir"?'),
        ("lanes.zzz", ""),
    ],
)
def test_an_unknown_key_gets_a_guess(key: str, hint: str) -> None:
    (problem,) = problems_of(assignments=[f"{key}=1"])
    assert (problem.found, problem.hint) == ("an unknown key", hint)


def test_a_key_below_a_key_is_unknown() -> None:
    (problem,) = problems_of(environ={"SAMOVAR__SERVER__PORT__NUMBER": "1"})
    assert problem.key == "server.port.number"


@pytest.mark.parametrize(
    ("text", "line"),
    [("[server]\nport = \n", 2), ("[server]\nhost = 'x\n", 2), ("a = 1\na = 2\n", 2), ("x = [\n", 2)],
)
def test_broken_toml_names_file_and_line(tmp_path: Path, text: str, line: int) -> None:
    file = written(tmp_path, text)
    (problem,) = problems_of(files=[file])
    assert problem.origin.name == str(file)
    assert problem.origin.line is not None
    assert abs(problem.origin.line - line) <= 1
    assert "valid TOML" in problem.expected


def test_a_file_that_is_missing_a_folder_or_binary_is_a_problem(tmp_path: Path) -> None:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"a = '\xff'")
    found = problems_of(files=[tmp_path / "none.toml", tmp_path, binary])
    assert [problem.origin.name for problem in found] == [
        str(tmp_path / "none.toml"),
        str(tmp_path),
        str(binary),
    ]


def test_a_section_that_is_no_table_is_refused() -> None:
    (problem,) = problems_of(assignments=["cache.ssd=5"])
    assert (problem.key, problem.found) == ("cache.ssd", "5")


def test_a_bad_value_is_refused_even_when_a_later_source_replaces_it(tmp_path: Path) -> None:
    file = written(tmp_path, "server.port = -1\n")
    (problem,) = problems_of(files=[file], assignments=["server.port=1"])
    assert str(problem.origin) == f"{file}:1"


@pytest.mark.parametrize(
    "source",
    [{"assignments": ['server.api_keys=["sesame open"]']}, {"assignments": ["server.api_keys=sesame open"]}],
)
def test_a_secret_never_shows_in_a_problem(source: dict[str, list[str]]) -> None:
    (problem,) = problems_of(**source)
    assert "sesame" not in str(problem)


@pytest.mark.parametrize(
    ("assignments", "key"),
    [
        (["cache.ram.max=0"], "cache.ram.max"),
        (["cache.ram.hard_max=1GiB"], "cache.ram.hard_max"),
        (["server.host=0.0.0.0"], "server.host"),
        (["server.host=::"], "server.host"),
        (["server.host=example.org"], "server.host"),
        (["server.unix_socket=/run/s", "server.port=9000"], "server.port"),
        (["server.unix_socket=/run/s", "server.host=127.0.0.2"], "server.host"),
    ],
)
def test_a_contradictory_pair_is_refused(assignments: list[str], key: str) -> None:
    (problem,) = problems_of(assignments=assignments)
    assert problem.key == key
    assert problem.origin.kind == "set"


def test_a_port_flag_contradicts_a_socket_even_at_the_default_port() -> None:
    (problem,) = problems_of(
        assignments=["server.unix_socket=/run/s"], flags=[FlagValue("--port", "server.port", "8080")]
    )
    assert str(problem.origin) == "--port"


@pytest.mark.parametrize("scheme", ["kv8", "kv4", "config"])
def test_a_quantised_scheme_is_taken_with_its_group_and_start(scheme: str) -> None:
    loaded = load(assignments=[f"kv.scheme={scheme}", "kv.group_size=32", "kv.start=9"])
    assert (loaded.config.kv.scheme, loaded.config.kv.group_size, loaded.config.kv.start) == (scheme, 32, 9)
    assert loaded.warnings == ()


@pytest.mark.parametrize(
    "assignments",
    [
        ["cache.ram.max=0", "cache.ssd.dir=off"],
        ["server.host=0.0.0.0", "server.api_keys=abc"],
        ["server.host=0.0.0.0", "server.allow_unauthenticated=true"],
        ["server.host=127.1.2.3"],
        ["server.host=::1"],
        ["server.host=LOCALHOST"],
        ["server.unix_socket=/run/s", "server.port=8080"],
    ],
)
def test_what_agrees_is_taken_without_a_warning(assignments: list[str]) -> None:
    assert load(assignments=assignments).warnings == ()


@pytest.mark.parametrize(
    "assignment", ["kv.scheme=turbo:k8v3", "model.draft=small", 'model.adapters={a = "x"}']
)
def test_asking_for_what_would_change_answers_and_does_not_exist_stops_the_start(assignment: str) -> None:
    (problem,) = problems_of(assignments=[assignment])
    assert "not in this version" in problem.expected


@pytest.mark.parametrize(
    "assignment",
    [
        "cache.ram.retention=cost-size",
        "cache.ssd.layout=blocks",
        "checkpoint.interval_tokens=64",
        "kv.start=9",
        "kv.group_size=32",
    ],
)
def test_asking_for_what_has_no_effect_or_would_only_be_faster_and_does_not_exist_is_warned_about(
    assignment: str,
) -> None:
    (warning,) = load(assignments=[assignment]).warnings
    assert warning.key == assignment.partition("=")[0]
    assert "without it" in warning.hint


@pytest.mark.parametrize("entry", UNSUPPORTED, ids=lambda entry: entry.key)
def test_what_is_called_unsupported_is_a_key_or_section_that_exists(entry: Unsupported) -> None:
    assert any(entry.covers(spec) for spec in all_keys())


def test_later_sources_win_and_are_named(tmp_path: Path) -> None:
    first = written(tmp_path, "[server]\nport = 1\n[lanes]\nbatch = 1\nqueue = 1\ncount = 1\n", "a.toml")
    second = written(tmp_path, "[lanes]\nbatch = 2\nqueue = 2\ncount = 2\n", "b.toml")
    loaded = load(
        [first, second],
        {"SAMOVAR__LANES__QUEUE": "3", "SAMOVAR__LANES__COUNT": "3"},
        ["lanes.count=4"],
        [FlagValue("--port", "server.port", "5")],
    )
    lanes = loaded.config.lanes
    assert (loaded.config.server.port, lanes.batch, lanes.queue, lanes.count) == (5, 2, 3, 4)
    assert [str(loaded.origin(f"lanes.{key}")) for key in ("batch", "queue", "count", "decode_gap")] == [
        f"{second}:2",
        "environment SAMOVAR__LANES__QUEUE",
        "--set lanes.count",
        "default",
    ]
    assert str(loaded.origin("server.port")) == "--port"


SOURCES = ("file", "second file", "env", "set", "flag")


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(SOURCES), st.integers(1, 1000)))
def test_the_strongest_source_that_speaks_wins(
    tmp_path_factory: pytest.TempPathFactory, said: dict[str, int]
) -> None:
    folder = tmp_path_factory.mktemp("merge")
    files = [
        written(folder, f"lanes.batch = {said[name]}\n", f"{name}.toml")
        for name in SOURCES[:2]
        if name in said
    ]
    loaded = load(
        files,
        {"SAMOVAR__LANES__BATCH": str(said["env"])} if "env" in said else {},
        [f"lanes.batch={said['set']}"] if "set" in said else [],
        [FlagValue("--batch", "lanes.batch", str(said["flag"]))] if "flag" in said else [],
    )
    expected = next((said[name] for name in reversed(SOURCES) if name in said), Config().lanes.batch)
    assert loaded.config.lanes.batch == expected
    assert (loaded.origin("lanes.batch").kind == "default") == (not said)


@pytest.mark.parametrize(
    ("text", "keys"),
    [("abc", ("abc",)), ("abc, def", ("abc", "def")), ('["a,b"]', ("a,b",)), ("12345", ("12345",)), ("", ())],
)
def test_a_list_in_a_variable_may_be_plain_text(text: str, keys: tuple[str, ...]) -> None:
    assert load(environ={"SAMOVAR__SERVER__API_KEYS": text}).config.server.api_keys == keys


@pytest.mark.parametrize("text", ["1234", "true", "2024-01-01", "'1234'", "a = b"])
def test_text_that_looks_like_another_type_stays_text_where_text_is_wanted(text: str) -> None:
    assert load(assignments=[f"model.path={text}"]).config.model.path == text.strip("'")


def test_a_section_may_be_assigned_as_a_table() -> None:
    loaded = load(assignments=['cache.ssd={dir = "/x", max = "1GiB"}'])
    assert (loaded.config.cache.ssd.dir, loaded.config.cache.ssd.max) == ("/x", 1 << 30)


def test_lines_are_found_past_comments_dotted_keys_and_long_strings(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        '# port = 1\nserver.host = "localhost" # x\n[model]\npath = """\\\nport = 3\\\n"""\n'
        '[ cache . ssd ] # y\n"max" = "1GiB"\n[model.adapters]\n',
    )
    loaded = load([file])
    assert [
        loaded.origin(key).line for key in ("server.host", "model.path", "cache.ssd.max", "model.adapters")
    ] == [
        2,
        4,
        8,
        9,
    ]


def test_words_resolve_to_what_they_stand_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = Config()
    assert config.cache.ssd.folder() == tmp_path / "samovar" / "kv"
    assert (config.lanes.prefill_chunk_on(cpu=True), config.lanes.prefill_chunk_on(cpu=False)) == (512, 2048)
    chosen = load(assignments=["lanes.prefill_chunk=7", "cache.ssd.dir=off", "cache.ram.max=2GiB"]).config
    assert (chosen.lanes.prefill_chunk_on(cpu=True), chosen.cache.ssd.folder()) == (7, None)
    assert chosen.cache.ram.hard_max_bytes == 3 << 30


def test_nothing_given_is_the_built_in_configuration() -> None:
    loaded: Loaded = load()
    assert loaded.config == Config()
    assert {str(loaded.origin(spec.dotted)) for spec in all_keys()} == {"default"}
    assert all(value_of(loaded.config, spec.path) == spec.default for spec in all_keys())
