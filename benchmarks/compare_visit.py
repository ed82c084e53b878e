"""One server taken through the scenarios: samples of what it gets through, reasons for what it does not."""

from __future__ import annotations

import signal
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .compare_agent import NoTexts
from .compare_scenarios import SCENARIOS, Plan
from .compare_server import Server
from .serving_chat import ChatFailed, Prompts
from .serving_process import NoStart

if TYPE_CHECKING:
    from .compare_report import Outcomes
    from .peers import Environments, Peer
    from .serving_measures import Samples

SEEDS_A_ROUND = 100


@dataclass
class Contender:
    """A server of the run and what is known of it so far."""

    peer: Peer
    versions: dict[str, str]
    samples: Samples = field(default_factory=dict)
    outcomes: Outcomes = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)

    def take(self, samples: Samples) -> None:
        """Add the samples of one scenario."""
        for name, values in samples.items():
            self.samples.setdefault(name, []).extend(values)

    def missed(self, scenario: str, why: str) -> None:
        """Say why there are no samples of a scenario."""
        self.outcomes.setdefault(scenario, []).append(why)


@dataclass(frozen=True)
class Visit:
    """One round of one server: until when (monotonic s), and from which seed its prompts come.

    A scenario has the same prompts for every server, whatever came of the scenarios before it.
    """

    environments: Environments
    model: Path
    plan: Plan
    seed: int
    until_s: float

    def make(self, contender: Contender) -> None:
        """Take the server through the plan's scenarios, in a folder of its own."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
            folder = Path(name)
            server = Server(self.environments, contender.peer, self.model, folder, self.until_s)
            with server:
                for number, scenario in enumerate(SCENARIOS):
                    if scenario in self.plan.names:
                        self._through(contender, server, scenario, number)
            contender.command = server.command
            contender.notes += server.notes

    def _through(self, contender: Contender, server: Server, scenario: str, number: int) -> None:
        if time.monotonic() > self.until_s:
            contender.missed(scenario, "no time")
            return
        prompts = Prompts(self.seed * SEEDS_A_ROUND + number, self.model)
        try:
            if scenario != "start" and not server.alive:
                server.start(prompts)
            contender.take(SCENARIOS[scenario](server, prompts, self.plan))
        except NoTexts as error:
            contender.missed(scenario, f"skipped: {error}")
        except NoStart as error:
            contender.missed(scenario, f"failed: {error}"[:600])
            server.end(signal.SIGKILL)
        except ChatFailed as error:
            said = f" (it wrote: {server.tail()})" if error.hung else ""
            contender.missed(scenario, f"failed: {error}{said}"[:600])
            if error.hung or not server.alive:
                server.end(signal.SIGKILL)
