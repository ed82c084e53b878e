from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from samovar.runtime import folder_checks
from samovar.runtime.config import Config, load
from samovar.runtime.doctor import (
    check_listening,
    check_memory_cache,
    check_model,
    check_open_files,
    examine,
)
from samovar.runtime.folder_checks import check_folder, check_folders, check_medium, check_privacy, mounts

if TYPE_CHECKING:
    import pytest
    from samovar.runtime.finding import Finding


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
    monkeypatch.setattr(folder_checks, "SLOW_DISK_MB_S", 1e12)
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


def test_a_folder_that_others_may_read_is_warned_about(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    assert list(check_privacy("cache", folder)) == []
    folder.mkdir()
    folder.chmod(0o750)
    (found,) = check_privacy("cache", folder)
    assert (found.state, found.mend) == ("warn", f"chmod 700 {folder}")
    folder.chmod(0o700)
    assert list(check_privacy("cache", folder)) == []


def test_a_folder_of_somebody_else_is_warned_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    (found,) = check_privacy("cache", tmp_path)
    assert (found.state, "another user" in found.found) == ("warn", True)


def test_the_closest_mount_says_what_a_folder_lies_on(tmp_path: Path) -> None:
    def state(*mounted: tuple[str, str]) -> list[str]:
        return [
            found.found.rpartition(" is ")[2] for found in check_medium("cache", tmp_path / "new", mounted)
        ]

    above, here = str(tmp_path.parent), str(tmp_path)
    assert state() == []
    assert state(("/", "nfs4"), (above, "ext4")) == []
    assert state(("/", "ext4"), (above, "nfs4")) == ["on a network file system (nfs4)"]
    assert state(("/", "ext4"), (above, "ext4"), (here, "fuse.sshfs")) == [
        "on a network file system (fuse.sshfs)"
    ]
    assert state((here, "tmpfs")) == ["in memory (tmpfs)"]
    assert state(("/", "ext4"), (here + "-other", "cifs")) == []


def test_mounts_of_this_machine_are_read() -> None:
    found = dict(mounts())
    assert "/" in found
    assert all(Path(point).is_absolute() and kind for point, kind in found.items())


def test_few_open_files_are_warned_about() -> None:
    assert check_open_files(256).state == "warn"
    assert check_open_files(4096).state == "ok"


def test_a_memory_cache_larger_than_memory_is_warned_about() -> None:
    config = load(assignments=["cache.ram.max=8GiB"]).config
    (found,) = check_memory_cache(config, 8 * 2**30)
    assert (found.state, "4GiB" in found.mend) == ("warn", True)
    assert list(check_memory_cache(config, 64 * 2**30)) == []
    assert list(check_memory_cache(config, None)) == []


def test_a_model_that_is_not_there_fails_and_one_to_be_fetched_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))

    def found(model: str) -> Finding:
        return check_model(load(assignments=[f"model.path={model}"]).config)

    (tmp_path / "empty").mkdir()
    for model in (str(tmp_path / "none"), str(tmp_path / "empty"), "no model"):
        assert found(model).state == "fail"
        assert found(model).mend
    assert found("smollm2").state == "ok"
    assert "samovar models pull smollm2" in found("smollm2").found
