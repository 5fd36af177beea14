"""One attack in a process of its own: `python -m tests.chaos.attacker ORDER`; writes what it saw as JSON."""

import asyncio
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tests.chaos.attack import Arena, ClientAttack
from tests.chaos.attacks.registry import ATTACKS
from tests.chaos.ledger import Ending
from tests.chaos.target import Target
from tests.chaos.transcript import Outcome

_NICENESS = 5
"""The attacker's share of a small machine is not what is measured."""


class AttackerError(Exception):
    """The attack's own process failed."""


async def run_apart(arena: Arena, *, seconds: float) -> None:
    """Runs a client's attack in a process of its own and enters what it saw into the arena.

    Raises:
        AttackerError: the process failed, or took longer than `seconds`.
    """
    order = {
        "attack": arena.attack,
        "target": asdict(arena.target),
        "seed": arena.rng.getrandbits(32),
        "scale": arena.scale,
        "hang_seconds": arena.hang_seconds,
        "compares": arena.compares,
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.chaos.attacker", json.dumps(order)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        process_group=0,  # Ctrl-C in a terminal is for the campaign
    )
    try:
        async with asyncio.timeout(seconds):
            output, errors = await process.communicate()
    except TimeoutError:
        raise AttackerError(f"{arena.attack} did not end within {seconds:.0f} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise AttackerError(f"{arena.attack} failed:\n{errors.decode(errors='replace')[-2000:]}")
    report = json.loads(output)
    arena.counts.update(report["counts"])
    arena.endings += [_ending(each) for each in report["endings"]]


def _ending(values: Mapping[str, Any]) -> Ending:
    tolerates = frozenset[str](values["tolerates"])
    rest: dict[str, Any] = {**values, "outcome": Outcome(values["outcome"]), "tolerates": tolerates}
    return Ending(**rest)


def main() -> None:
    order = json.loads(sys.argv[1])
    os.nice(_NICENESS)
    attack = ATTACKS[order["attack"]]
    if not isinstance(attack, ClientAttack):
        raise TypeError(f"expected an attack of a client, got {attack.name}")
    arena = Arena(
        attack=attack.name,
        target=Target(**order["target"]),
        rng=random.Random(order["seed"]),
        scale=order["scale"],
        hang_seconds=order["hang_seconds"],
        compares=order["compares"],
        counts=Counter(),
    )
    asyncio.run(attack.run(arena))
    endings = [asdict(ending) | {"tolerates": sorted(ending.tolerates)} for ending in arena.endings]
    json.dump({"counts": arena.counts, "endings": endings}, sys.stdout)


if __name__ == "__main__":
    main()
