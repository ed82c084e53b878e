"""The command line as a user meets it: a process, its output, its exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def samovar(
    *args: str, folder: Path, env: dict[str, str] | None = None, module: str = "samovar.runtime.cli"
) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SAMOVAR")}
    return subprocess.run(
        [sys.executable, "-m", module, *args],
        cwd=folder,
        env=clean | {"XDG_CACHE_HOME": str(folder / "cache")} | (env or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=19,
    )


@pytest.mark.parametrize(
    "args",
    [
        (),
        ("brew",),
        ("chat", "a", "b", "c"),
        ("config",),
        ("config", "paint"),
        ("serve", "a", "b"),
        ("serve", "--por", "1"),
        ("config", "show", "--port", "1"),
        ("models",),
        ("models", "pull"),
    ],
)
def test_a_wrong_command_line_is_a_usage_error(tmp_path: Path, args: tuple[str, ...]) -> None:
    ended = samovar(*args, folder=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "usage: samovar" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("command", [("config", "check"), ("config", "show"), ("serve",)])
def test_every_fault_is_one_line_and_the_code_is_2(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / "bad.toml").write_text("[server]\nprot = 1\n[lanes]\nbatch = 0\n")
    ended = samovar(*command, "--config", "bad.toml", "--config", "none.toml", folder=tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    lines = ended.stderr.splitlines()
    assert [line.split(": ")[:3] for line in lines] == [
        ["samovar", "error", "bad.toml:2"],
        ["samovar", "error", "none.toml"],
        ["samovar", "error", "bad.toml:4"],
    ]
    assert 'did you mean "server.port"?' in lines[0]


@pytest.mark.parametrize(
    ("args", "complaint"),
    [
        (("--port", "80a"), '--port: server.port: found "80a"; expected a whole number from 0 to 65535'),
        (("--port", "-1"), "--port: server.port: found -1"),
        (("--ram", "lots"), '--ram: cache.ram.max: found "lots"'),
        (("--ram", "0"), "--ram: cache.ram.max"),
        (("--batch", "0"), "--batch: lanes.batch: found 0"),
        (("--kv", "kv3"), '--kv: kv.scheme: found "kv3"'),
        (("--kv", "turbo:k8v3"), "--kv: kv.scheme"),
        (("--host", "0.0.0.0"), "--host: server.host"),
        ((""), "MODEL: model.path"),
    ],
)
def test_a_bad_flag_of_serve_is_named_as_it_was_typed(
    tmp_path: Path, args: tuple[str, ...], complaint: str
) -> None:
    ended = samovar("serve", *(args or ("",)), folder=tmp_path)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"samovar: error: {complaint}")
    assert ended.stderr.count("\n") == 1


def test_an_unknown_variable_stops_even_a_check(tmp_path: Path) -> None:
    ended = samovar("config", "check", folder=tmp_path, env={"SAMOVAR__SERVER__PROT": "1"})
    assert ended.returncode == 2
    assert "environment SAMOVAR__SERVER__PROT" in ended.stderr


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (("pull", "no such model"), 2),
        (("pull", "./nowhere"), 1),
        (("convert", "smollm2"), 2),
        (("convert", "nowhere.gguf"), 1),
        (("rm", "nothing"), 1),
    ],
)
def test_a_model_that_is_not_there_is_one_clear_line(
    tmp_path: Path, args: tuple[str, ...], code: int
) -> None:
    ended = samovar("models", *args, folder=tmp_path)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert ended.stderr.startswith("samovar: error: ")
    assert ended.stderr.count("\n") == 1


def test_models_lists_nothing_where_there_is_nothing(tmp_path: Path) -> None:
    ended = samovar("models", "ls", "--json", folder=tmp_path)
    assert (ended.returncode, json.loads(ended.stdout)) == (0, [])


def test_check_says_ok_and_warns_of_what_is_not_there_yet(tmp_path: Path) -> None:
    ended = samovar("config", "check", "--set", "cache.ssd.layout=blocks", folder=tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "ok\n")
    assert ended.stderr.startswith("samovar: warning: --set cache.ssd.layout")


def test_show_prints_values_and_origins(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text("[server]\nport = 9000\n")
    args = ("--config", "mine.toml", "--set", "lanes.batch=2")
    shown = samovar("config", "show", *args, folder=tmp_path, env={"SAMOVAR__LANES__QUEUE": "3"})
    assert (shown.returncode, shown.stderr) == (0, "")
    document = tomllib.loads(shown.stdout)
    assert (document["server"]["port"], document["lanes"]["batch"], document["lanes"]["queue"]) == (
        9000,
        2,
        3,
    )
    listed = json.loads(samovar("config", "show", "--json", *args, folder=tmp_path).stdout)
    assert listed["server.port"] == {"value": 9000, "origin": "mine.toml:2"}
    assert listed["lanes.batch"] == {"value": 2, "origin": "--set lanes.batch"}
    assert listed["server.host"] == {"value": "127.0.0.1", "origin": "default"}


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_show_never_shows_a_key(tmp_path: Path, form: tuple[str, ...]) -> None:
    (tmp_path / "mine.toml").write_text('[server]\napi_keys = ["sk-one", "sk-two"]\n')
    env = {"SAMOVAR__SERVER__ADMIN_KEYS": "sk-three"}
    shown = samovar("config", "show", "--config", "mine.toml", *form, folder=tmp_path, env=env)
    assert shown.returncode == 0
    assert "sk-" not in shown.stdout + shown.stderr
    assert "2 hidden" in shown.stdout
    assert "mine.toml:2" in shown.stdout
    assert "environment SAMOVAR__SERVER__ADMIN_KEYS" in shown.stdout


def test_schema_is_a_json_document(tmp_path: Path) -> None:
    ended = samovar("config", "schema", folder=tmp_path)
    assert ended.returncode == 0
    assert json.loads(ended.stdout)["properties"]["server"]["properties"]["port"]["default"] == 8080


def test_version_names_what_a_bug_report_needs(tmp_path: Path) -> None:
    ended = samovar("version", folder=tmp_path)
    assert ended.returncode == 0
    assert [line.split()[0] for line in ended.stdout.splitlines()] == [
        "samovar",
        "python",
        "mlx",
        "mlx-lm",
        "aiohttp",
        "anyio",
    ]


@pytest.mark.parametrize("args", [["version"], ["config", "check"], ["config", "show"], ["config", "schema"]])
def test_light_commands_load_nothing_heavy(tmp_path: Path, args: list[str]) -> None:
    program = (
        "import sys\n"
        "from samovar.runtime.cli import main\n"
        f"code = main({args!r})\n"
        "heavy = {'mlx', 'mlx_lm', 'aiohttp', 'numpy', 'structlog', 'rich', 'transformers', 'anyio'}\n"
        "sys.exit(f'loaded {heavy & sys.modules.keys()}' if heavy & sys.modules.keys() else code)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=19
    )
    assert (ended.returncode, ended.stderr) == (0, "")


def samovar_without(module: str, *args: str, folder: Path) -> subprocess.CompletedProcess[str]:
    program = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from samovar.runtime.cli import main\n"
        f"sys.exit(main({list(args)!r}))\n"
    )
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=os.environ | {"XDG_CACHE_HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=19,
    )


@pytest.mark.parametrize("args", [("models", "convert", "model.gguf"), ("serve", "--port", "0")])
def test_a_missing_mlx_is_one_clear_line(tmp_path: Path, args: tuple[str, ...]) -> None:
    (tmp_path / "model.gguf").write_bytes(b"")
    ended = samovar_without("mlx", *args, folder=tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "samovar[cpu]" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_fault_of_the_program_is_a_traceback(tmp_path: Path) -> None:
    ended = samovar_without("orjson", "models", "ls", folder=tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "Traceback" in ended.stderr


def test_doctor_finds_a_missing_mlx_and_goes_on(tmp_path: Path) -> None:
    ended = samovar_without("mlx", "doctor", "--set", "server.port=0", folder=tmp_path)
    assert ended.returncode == 1
    words = [line.split()[:2] for line in ended.stdout.splitlines()]
    assert ["fail", "mlx"] in words
    assert ["ok", "config"] in words
    assert ["ok", "port"] in words
    assert "to mend: install a build of MLX" in ended.stdout


def test_a_reader_that_leaves_early_causes_no_traceback(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-m", "samovar.runtime.cli", "config", "schema"],
        cwd=tmp_path,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=19,
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_the_installed_script_is_the_same_program() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"samovar": "samovar.runtime.cli:main"}


def test_doctor_reports_every_area_as_json(tmp_path: Path) -> None:
    ended = samovar("doctor", "--json", "--set", "server.port=0", folder=tmp_path)
    findings = json.loads(ended.stdout)
    assert {finding["check"] for finding in findings} >= {
        "machine",
        "python",
        "mlx",
        "blas",
        "config",
        "models",
        "port",
    }
    failed = [finding for finding in findings if finding["state"] == "fail"]
    assert ended.returncode == (1 if failed else 0)
    assert not (tmp_path / "cache").exists()
