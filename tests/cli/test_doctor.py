from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from samovar.runtime import doctor
from samovar.runtime.config import Config, load
from samovar.runtime.doctor import Finding, check_folder, check_folders, check_listening, examine

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def by_check(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings}


def test_a_port_in_use_fails_and_says_how_to_mend_it() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        config = load(assignments=[f"server.port={taken.getsockname()[1]}"]).config
        found = check_listening(config)
    assert (found.check, found.state) == ("port", "fail")
    assert "--port" in found.mend
    assert check_listening(config).state == "ok"


def test_a_host_that_does_not_exist_fails() -> None:
    config = load(assignments=["server.host=256.0.0.1", "server.allow_unauthenticated=true"]).config
    assert check_listening(config).state == "fail"


def test_a_socket_needs_its_folder(tmp_path: Path) -> None:
    def found(path: Path) -> Finding:
        return check_listening(load(assignments=[f"server.unix_socket={path}"]).config)

    assert found(tmp_path / "none" / "s").state == "fail"
    assert found(tmp_path / "s").state == "ok"


def test_a_file_in_the_way_of_a_folder_fails(tmp_path: Path) -> None:
    (tmp_path / "models").write_text("")
    found = check_folder("models", tmp_path / "models" / "deep", "choose another")
    assert found.state == "fail"
    assert "choose another" in found.mend


def test_a_folder_without_room_is_warned_about(tmp_path: Path) -> None:
    assert check_folder("models", tmp_path, "choose another", wanted_bytes=2**60).state == "warn"
    assert check_folder("cache", tmp_path, "choose another", wanted_share=1.0).state == "warn"


def test_a_folder_that_is_not_there_yet_is_probed_and_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    findings = by_check(list(check_folders(Config())))
    assert {finding.state for finding in findings.values()} <= {"ok", "warn"}
    assert f"{tmp_path / 'cache' / 'samovar' / 'models'}:" in findings["models"].found
    assert list(tmp_path.iterdir()) == []
    off = load(assignments=["cache.ssd.dir=off"]).config
    assert by_check(list(check_folders(off))).keys() == {"models"}


def test_a_slow_disk_is_warned_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SLOW_DISK_MB_S", 1e12)
    found = check_folder("models", tmp_path, "choose another")
    assert (found.state, bool(found.mend)) == ("warn", True)


def test_a_broken_configuration_fails_and_the_other_checks_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    findings = list(examine(lambda: load(assignments=["server.prot=1", "lanes.batch=0"])))
    assert [finding.state for finding in findings if finding.check == "config"] == ["fail", "fail"]
    assert by_check(findings).keys() >= {"machine", "python", "mlx", "device", "blas", "models", "port"}
    assert all(finding.mend for finding in findings if finding.state != "ok")


def test_a_setting_that_does_nothing_yet_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    findings = by_check(list(examine(lambda: load(assignments=["cache.ssd.layout=blocks"]))))
    assert findings["config"].state == "warn"
