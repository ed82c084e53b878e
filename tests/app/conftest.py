"""A server with the default model for each module of tests that wants one, and clients of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .clients import anthropic, openai
from .process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def model_server(default_model_dir: Path) -> Iterator[ServerProcess]:
    assert default_model_dir.is_dir()
    with ServerProcess("-m", "samovar.runtime.cli", "serve", "--port", "0") as process:
        yield process.wait_ready()


@pytest.fixture(scope="module")
def ai(model_server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{model_server.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def claude(model_server: ServerProcess) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=model_server.url, api_key="any", max_retries=0) as client:
        yield client
