"""Runs a campaign: starts the server, learns the answers, and attacks for as long as the time lasts."""

import asyncio
import contextlib
import random
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.chaos import processes
from tests.chaos.attack import Arena, ClientAttack, Inside
from tests.chaos.attacker import AttackerError, run_apart
from tests.chaos.attacks.registry import ATTACKS, Attack
from tests.chaos.bystanders import Bystanders
from tests.chaos.ledger import Ending, Ledger, Window, fault_counts
from tests.chaos.measures import Measures
from tests.chaos.options import Options
from tests.chaos.probes import Latency, Probes
from tests.chaos.stack import NotServingError, Stack, supervised_stack
from tests.chaos.transcript import Outcome

KILLS = ("kill-engine", "kill-worker", "kill-envoy", "kill-front-end")
_READY_SECONDS = 30.0
"""For which an attack waits for what another one has killed."""


@dataclass(slots=True, kw_only=True)
class Run:
    """What all runs of one attack did."""

    seconds: list[float] = field(default_factory=list[float])
    counts: Counter[str] = field(default_factory=Counter[str])
    recoveries: list[float] = field(default_factory=list[float])


@dataclass(slots=True, kw_only=True)
class Campaign:
    """A campaign and all that it saw."""

    options: Options
    ledger: Ledger = field(default_factory=Ledger)
    runs: dict[str, Run] = field(default_factory=dict[str, Run])
    measures: Measures | None = None
    probes: Probes | None = None
    bystanders: Bystanders | None = None
    restarts: int = 0
    began: float = field(default_factory=time.monotonic)
    exit_status: int | None = None
    """Exit status of the server, which is stopped in the end."""
    is_interrupted: bool = False
    leftovers: list[str] = field(default_factory=list[str])
    """Roles of processes that went on after the server was stopped; they are killed."""
    _attacking: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Runs it to its end, or until it is interrupted: then attacks end at once, and all else in order.

        Raises:
            NotServingError: the server did not come up.
            UnsteadyAnswersError: it has no answers to compare with.
            asyncio.CancelledError: it was interrupted before the attacks began, or twice.
        """
        this = asyncio.current_task()
        assert this is not None
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt, this)
        with processes.marked_environment() as marker:
            try:
                await self._run()
            finally:
                self.leftovers = await processes.kill_leftovers(marker)

    async def _run(self) -> None:
        with TemporaryDirectory(prefix="glimpse-chaos-") as name:
            log = self.options.log or Path(name, "glimpse.log")
            async with supervised_stack(self.options.serve_args, log) as stack:
                self._say(f"serving at {stack.target.url}; seed {self.options.seed}")
                await self._among_bystanders(stack)
                self.restarts = stack.restarts
                self.exit_status = await stack.stop()

    def _interrupt(self, campaign: asyncio.Task[None]) -> None:
        attacking = None if self.is_interrupted else self._attacking
        measures_again = attacking and self.measures and self.measures.before
        rest = f"measuring memory after {self.options.rest_seconds:g} s (again: at once)"
        self._say(f"interrupted; {rest if measures_again else 'stopping the server'}")
        self.is_interrupted = True
        (attacking or campaign).cancel()

    async def _among_bystanders(self, stack: Stack) -> None:
        options, target = self.options, stack.target
        self.measures = Measures(stack=stack)
        self.probes = Probes(target=target, ledger=self.ledger)
        self.bystanders = Bystanders(
            target=target,
            ledger=self.ledger,
            rng=random.Random(options.seed),
            hang_seconds=options.hang_seconds,
            pause_seconds=options.pause_seconds,
            compares=options.compares,
        )
        await self.bystanders.learn()
        self._say(f"{len(self.bystanders.expected)} answers are known")
        measuring = asyncio.create_task(self.measures.run())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.bystanders.run())
            tasks.create_task(self.probes.run())
            self._attacking = tasks.create_task(self._attack_and_measure(stack, self.measures))
            await asyncio.wait([self._attacking])
            self.probes.stop()
            self.bystanders.stop()
        measuring.cancel()

    async def _attack_and_measure(self, stack: Stack, measures: Measures) -> None:
        options = self.options
        await asyncio.sleep(options.rest_seconds)
        if options.warm_up_seconds:
            await self._attack_for(options.warm_up_seconds, stack, random.Random(options.seed - 1))
            await asyncio.sleep(options.rest_seconds)
        measures.before = await measures.hold()
        try:
            await self._attack_all(stack)
        except asyncio.CancelledError:
            if not self.is_interrupted:
                raise
        await asyncio.sleep(options.rest_seconds)
        measures.after = await measures.hold()

    async def _attack_all(self, stack: Stack) -> None:
        deadline = time.monotonic() + self.options.seconds
        rng = random.Random(self.options.seed)
        async with asyncio.TaskGroup() as tasks:
            if self.options.kills:
                tasks.create_task(self._kill_all(stack, deadline, random.Random(rng.random())))
            await self._attack_for(self.options.seconds, stack, rng)

    async def _attack_for(self, seconds: float, stack: Stack, rng: random.Random) -> None:
        deadline = time.monotonic() + seconds
        for attack in draws(self._drawn(), rng):
            if time.monotonic() >= deadline:
                return
            await self._attack(attack, stack, random.Random(rng.random()))

    def _drawn(self) -> list[Attack]:
        """The attacks that are drawn: without kills, if they have a schedule of their own."""
        chosen = [ATTACKS[name] for name in self.options.attacks]
        others = [attack for attack in chosen if attack.name not in KILLS]
        return others if self.options.kills and others else chosen

    async def _kill_all(self, stack: Stack, deadline: float, rng: random.Random) -> None:
        kills = [name for name in KILLS if name in self.options.attacks] * self.options.kills
        rng.shuffle(kills)
        for done, name in enumerate(kills):
            pause = (deadline - time.monotonic()) / (len(kills) - done)
            began = time.monotonic()
            await self._attack(ATTACKS[name], stack, random.Random(rng.random()))
            await asyncio.sleep(max(0.0, began + pause - time.monotonic()))

    async def _attack(self, attack: Attack, stack: Stack, rng: random.Random) -> None:
        if isinstance(attack, ClientAttack):  # one beside it may have killed what it connects to
            with contextlib.suppress(TimeoutError):
                await stack.wait_until_ready(seconds=_READY_SECONDS)
        window = Window(attack=attack.name, start=time.monotonic(), tolerates=attack.tolerates)
        self.ledger.windows.append(window)
        inside = Inside(
            attack=attack.name,
            target=stack.target,
            rng=rng,
            scale=self.options.scale,
            hang_seconds=self.options.hang_seconds,
            stack=stack,
            serve_args=self.options.serve_args,
            compares=self.options.compares,
        )
        failure = ""
        try:
            failure = await self._failure(attack, inside)
        finally:
            window.end = time.monotonic()
            self._enter(attack, inside, window, failure)
        self._say(self._progress(attack, inside, window, failure))

    async def _failure(self, attack: Attack, inside: Inside) -> str:
        """Runs the attack; returns why it could not be run to its end, or nothing."""
        seconds = attack.seconds + self.options.hang_seconds
        try:
            if isinstance(attack, ClientAttack):
                await run_apart(inside, seconds=seconds)
            else:
                async with asyncio.timeout(seconds):
                    await attack.run(inside)
        except (AttackerError, NotServingError) as error:
            return str(error)
        except TimeoutError:
            return f"{attack.name} did not end within {seconds:.0f} s"
        except Exception:  # a fault in this program must not end an hour of attacks, and must not pass either
            return f"{attack.name} failed:\n{traceback.format_exc()[-2000:]}"
        return ""

    def _enter(self, attack: Attack, inside: Inside, window: Window, failure: str) -> None:
        run = self.runs.setdefault(attack.name, Run())
        run.seconds.append(window.end - window.start)
        run.counts.update(inside.counts)
        run.recoveries += inside.recoveries
        self.ledger.endings += inside.endings
        if failure:
            who = f"attack {attack.name}"
            ending = Ending(who=who, start=window.start, end=window.end, outcome=Outcome.UNFINISHED, detail=failure)
            self.ledger.add(ending)

    def _progress(self, attack: Attack, arena: Arena, window: Window, failure: str) -> str:
        faults = fault_counts(self.ledger.faults())
        numbers = ", ".join(f"{count} {fault}" for fault, count in faults.items() if count) or "no faults"
        counts = ", ".join(f"{name} {count}" for name, count in arena.counts.most_common(4))
        worst = max((each.seconds for each in self._probed_since(window.start)), default=0.0)
        seconds = window.end - window.start
        return (
            f"{failure or f'{attack.name}: {counts}'}; {seconds:.1f} s,"
            f" probes up to {1000 * worst:.0f} ms; so far {numbers}"
        )

    def _probed_since(self, start: float) -> Iterator[Latency]:
        for latencies in self.probes.latencies.values() if self.probes else ():
            for each in reversed(latencies):
                if each.at < start - 20:
                    break
                if each.at >= start:
                    yield each

    def _say(self, text: str) -> None:
        print(f"[{time.monotonic() - self.began:6.1f} s] {text}", flush=True)


def draws(attacks: list[Attack], rng: random.Random) -> Iterator[Attack]:
    """Yields each attack once, heavy ones rather sooner, and then for ever by weight."""
    # Efraimidis and Spirakis: the order of weighted draws without replacement.
    yield from sorted(attacks, key=lambda attack: rng.random() ** (1 / attack.weight), reverse=True)
    while True:
        yield from rng.choices(attacks, [attack.weight for attack in attacks])
