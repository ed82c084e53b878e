"""Every kernel test runs twice: with the kit's tap, and without it, where idle actors answer by hand-off."""

from __future__ import annotations

import inspect
from types import CodeType

import pytest

from tests.kit import KitSystem

STEERING = {"hold", "step", "crash_on", "handled"}


def names(code: CodeType) -> set[str]:
    """Return the names that a test uses, in functions within it too."""
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*map(names, inner))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    used = names(inspect.unwrap(metafunc.function).__code__)
    if "KitSystem" in used and not used & STEERING:
        metafunc.parametrize("mode", ["tap", "hand-off"], indirect=True)


@pytest.fixture(autouse=True)
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KitSystem, "tapped", getattr(request, "param", "tap") == "tap")
