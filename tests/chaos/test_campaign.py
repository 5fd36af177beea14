"""A campaign that is interrupted, or whose server does not start, says what it can."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.campaign import Campaign
from tests.chaos.measures import Measures
from tests.chaos.options import parse
from tests.chaos.processes import Holding
from tests.chaos.stack import Stack
from tests.chaos.target import Target
from tests.paths import ROOT

HELD = {"engine": Holding(memory_bytes=1, num_descriptors=2, num_threads=3)}


class Attacked:
    """A campaign amid its attacks, which do not end by themselves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        options = parse(["--rest=0"])
        assert options is not None
        self.campaign = Campaign(options=options)
        self.begun, self.measuring, self.measured = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.stack = Stack(
            target=Target(http_port=1, grpc_port=2, metrics_port=3), command=(), log_path=Path(), ready=self._never
        )
        self.measures = Measures(stack=self.stack)
        monkeypatch.setattr(Campaign, "_attack_all", self._attack)
        monkeypatch.setattr(Measures, "hold", self._hold)

    async def run(self) -> None:
        campaign: Any = self.campaign
        campaign._attacking = asyncio.create_task(campaign._attack_and_measure(self.stack, self.measures))
        await campaign._attacking

    async def _attack(self, *_: object) -> None:
        self.begun.set()
        await asyncio.Event().wait()

    async def _hold(self, *_: object) -> dict[str, Holding]:
        if self.begun.is_set():
            self.measuring.set()
            await self.measured.wait()
        return HELD

    async def _never(self) -> bool:
        return False


async def test_interrupted_campaign_measures_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    attacked = Attacked(monkeypatch)
    running = asyncio.create_task(attacked.run())
    await attacked.begun.wait()
    interrupt(attacked, running)
    attacked.measured.set()
    await running
    assert attacked.measures.after == HELD


async def test_second_interrupt_ends_the_campaign_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    attacked = Attacked(monkeypatch)
    running = asyncio.create_task(attacked.run())
    await attacked.begun.wait()
    interrupt(attacked, running)
    await attacked.measuring.wait()
    interrupt(attacked, running)
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not attacked.measures.after


def interrupt(attacked: Attacked, running: "asyncio.Task[None]") -> None:
    campaign: Any = attacked.campaign
    campaign._interrupt(running)


def test_wrong_flags_of_the_server_are_named() -> None:
    command = (sys.executable, "-m", "tests.chaos", "--serve-args=--bogus")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "tests.chaos: wrong flags:" in done.stderr
    assert "--bogus" in done.stderr
    assert "Traceback" not in done.stderr
