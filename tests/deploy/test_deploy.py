"""The files in deploy/ fit the program: they cannot be run here, but what they say can be checked."""

from __future__ import annotations

import plistlib
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from samovar.runtime.cli.parser import build_parser
from samovar.runtime.config import Config, ConfigError, load
from samovar.runtime.config.units import parse_duration

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

# systemd.unit(5), systemd.service(5), systemd.exec(5), systemd.kill(5), systemd.resource-control(5).
UNIT_KEYS = {
    "Unit": "Description After Wants StartLimitIntervalSec StartLimitBurst",
    "Service": "Type NotifyAccess ExecStart TimeoutStartSec TimeoutStopSec WatchdogSec Restart RestartSec"
    " RestartPreventExitStatus User Group CacheDirectory CacheDirectoryMode Environment UMask NoNewPrivileges"
    " CapabilityBoundingSet AmbientCapabilities ProtectSystem ProtectHome PrivateTmp ProtectProc ProtectClock"
    " ProtectHostname ProtectKernelLogs ProtectKernelModules ProtectKernelTunables ProtectControlGroups"
    " RestrictNamespaces RestrictRealtime RestrictSUIDSGID LockPersonality RestrictAddressFamilies"
    " SystemCallArchitectures SystemCallFilter SystemCallErrorNumber KeyringMode DevicePolicy DeviceAllow"
    " LimitNOFILE LimitCORE",
    "Install": "WantedBy",
}
# From the manual page launchd.plist.
PLIST_KEYS = {
    "Label",
    "ProgramArguments",
    "WorkingDirectory",
    "EnvironmentVariables",
    "RunAtLoad",
    "KeepAlive",
    "ThrottleInterval",
    "ExitTimeOut",
    "ProcessType",
    "Umask",
    "StandardErrorPath",
    "SoftResourceLimits",
}


def unit() -> dict[str, dict[str, list[str]]]:
    """Return sections, keys and their values; a key may be there more than once."""
    sections: dict[str, dict[str, list[str]]] = {}
    here: dict[str, list[str]] = {}
    for line in (DEPLOY / "samovar.service").read_text("utf-8").splitlines():
        if re.fullmatch(r"\[\w+\]", line):
            here = sections.setdefault(line[1:-1], {})
        elif line and not line.startswith("#"):
            name, sign, value = line.partition("=")
            assert sign, line
            here.setdefault(name, []).append(value)
    return sections


def starts(command: list[str]) -> list[str]:
    """Check that samovar takes the command's arguments; return its configuration files."""
    assert Path(command[0]).name == "samovar"
    args = build_parser().parse_args(command[1:])
    assert command[1] == "serve"
    return [Path(file).name for file in args.config]


def seconds(text: str) -> float:
    return parse_duration(text.replace("min", "m"))


def test_the_unit_says_only_what_systemd_knows() -> None:
    for section, keys in unit().items():
        assert set(keys) <= set(UNIT_KEYS[section].split()), section


def test_the_unit_starts_watches_and_stops_the_server_as_it_wants_to_be() -> None:
    service = {name: values[-1] for name, values in unit()["Service"].items()}
    assert starts(shlex.split(service["ExecStart"])) == ["samovar.toml", "keys.toml"]
    assert (service["Type"], service["NotifyAccess"]) == ("notify-reload", "main")
    limits = [Config(), load([ROOT / "configs" / "linux-gpu.toml"]).config]
    assert seconds(service["TimeoutStopSec"]) > max(config.server.shutdown_timeout for config in limits)
    assert seconds(service["WatchdogSec"]) >= 10
    assert service["RestartPreventExitStatus"] == "2"
    folder = f"/var/cache/{service['CacheDirectory']}"
    assert limits[1].cache.ssd.dir.startswith(folder)
    assert f"XDG_CACHE_HOME={Path(folder).parent}" in unit()["Service"]["Environment"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_systemd_finds_no_fault_with_the_unit(tmp_path: Path) -> None:
    text = (DEPLOY / "samovar.service").read_text("utf-8")
    copy = tmp_path / "samovar.service"
    copy.write_text(text.replace("/opt/samovar/bin/samovar", shutil.which("true") or "/bin/true"))
    ended = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, check=False, timeout=15
    )
    if "Failed to initialize" in ended.stderr or "Operation not permitted" in ended.stderr:
        pytest.skip(f"systemd-analyze does not work here: {ended.stderr.strip()}")
    faults = [line for line in ended.stderr.splitlines() if "samovar.service" in line]
    # systemd before 253 does not know the type yet.
    assert [line for line in faults if "service type, ignoring: notify-reload" not in line] == []


def test_the_plist_says_only_what_launchd_knows_and_starts_the_server() -> None:
    with (DEPLOY / "org.samovar.server.plist").open("rb") as file:
        plist = plistlib.load(file)
    assert set(plist) <= PLIST_KEYS
    assert f"{plist['Label']}.plist" == "org.samovar.server.plist"
    (profile,) = starts(plist["ProgramArguments"])
    config = load([ROOT / "configs" / profile], plist["EnvironmentVariables"]).config
    assert config.logging.format == "json"
    assert plist["ExitTimeOut"] > config.server.shutdown_timeout
    assert plist["Umask"] == 0o077
    assert plist["KeepAlive"] == {"SuccessfulExit": False}


def instructions() -> list[tuple[str, str]]:
    text = (DEPLOY / "Containerfile").read_text("utf-8").replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines)]


def test_the_container_copies_what_exists_and_all_of_the_packages() -> None:
    known = {"FROM", "ARG", "WORKDIR", "COPY", "RUN", "USER", "ENV", "VOLUME", "EXPOSE", "STOPSIGNAL"}
    names = [name for name, _ in instructions()]
    assert set(names) <= known | {"HEALTHCHECK", "ENTRYPOINT"}
    copied = [
        source
        for name, rest in instructions()
        if name == "COPY" and "--from" not in rest
        for source in rest.split()[:-1]
    ]
    assert [source for source in copied if not (ROOT / source).exists()] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    folders = project["tool"]["setuptools"]["package-dir"].values()
    assert set(copied) >= {*folders, "pyproject.toml", project["project"]["readme"], "LICENSE"}
    extra = next(rest.partition("=")[2] for name, rest in instructions() if name == "ARG")
    assert extra in project["project"]["optional-dependencies"]


def test_the_container_starts_the_server_and_only_with_keys() -> None:
    found = dict(instructions())
    assert starts(plist_like(found["ENTRYPOINT"])) == ["container.toml"]
    file = DEPLOY / "container.toml"
    with pytest.raises(ConfigError, match="api_keys"):
        load([file])
    config = load([file], {"SAMOVAR__SERVER__API_KEYS": "sk-1"}).config
    assert str(config.server.port) == found["EXPOSE"]
    assert config.cache.ssd.dir.startswith(found["VOLUME"])
    assert f"127.0.0.1:{config.server.port}/ready" in found["HEALTHCHECK"]
    assert found["STOPSIGNAL"] == "SIGTERM"
    assert found["USER"] not in {"root", "0"}


def plist_like(text: str) -> list[str]:
    """Return the words of a command in exec form: only then is the server process 1."""
    assert text.startswith("[")
    return tomllib.loads(f"words = {text}")["words"]
