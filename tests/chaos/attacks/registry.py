"""All attacks, by name."""

from tests.chaos.attack import ClientAttack, ProcessAttack
from tests.chaos.attacks import (
    adapters,
    bodies,
    files,
    floods,
    headers,
    hogs,
    hostile,
    kills,
    restarts,
    shares,
    slow,
    streams,
    surroundings,
)

Attack = ClientAttack | ProcessAttack

ATTACKS: dict[str, Attack] = {
    attack.name: attack
    for module in (
        *(kills, streams, floods, slow, bodies, files, shares, hogs, hostile, headers),
        *(restarts, surroundings, adapters),
    )
    for attack in module.ATTACKS
}
