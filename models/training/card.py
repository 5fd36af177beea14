"""Writes the model card from what training and scoring left: `python -m models.training.card DIR models/nano`."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

from models.training.export import restore_network
from models.training.learning.history import History
from models.training.learning.state import load_state

BARS: Mapping[str, float] = {
    "shape": 0.95,
    "colour": 0.95,
    "place": 0.95,
    "count_to_4": 0.95,
    "yes_no": 0.95,
    "motion": 0.95,
    "two_pictures": 0.9,
    "describe_1_to_3": 0.9,
    "read_to_4": 0.9,
}
"""Task → the accuracy that was aimed at."""

_TEXT = """\
# Glimpse nano

The checkpoint that comes with Glimpse: a Qwen2-VL of {parameters:.1f} million parameters, {vision:.1f} of them its
eyes. It was trained from nothing by `models/training`, on pictures, clips and conversations that the script draws
itself; it has seen no photo and no text that anybody else wrote. It runs through the same engine code as any other
Qwen2-VL and loads in transformers as it is.

## What it knows

Eight shapes in eleven colours, up to six of them in a picture: what, which colour, how large, where, how many. Digits
and short words in print. What moves where in a clip, what changes its colour, what comes first. Two pictures beside
each other, questions that follow one another, answers as JSON, a call of a function that it is given, and small talk.
Of everything else it says that it does not know it. Where an answer follows from several things that it sees, it tells
them first: what it counts, what is in each of two pictures, what a yes or a no rests on.

## How often it is right

Greedy answers of Glimpse's own engine, judged by their meaning, to questions drawn from a seed that training does not
use, with wordings, words and looks of letters that training does not use.

| task | right | aimed at | samples |
|---|---|---|---|
{rows}

{missed}

## What it cannot do

Photos, other objects, longer texts, handwriting, other languages, and anything that takes knowledge of the world. It
was trained on pictures from 56 to 448 pixels a side, those of less than 112 by 112 pixels enlarged; larger ones are
reduced, and what is then smaller than a dozen pixels is not seen. It has little sense of how sure it is. Asked how two
pictures differ, it mostly says rightly what is in each and then often wrongly which of that is the difference.

## How it was made

{samples:,} samples in {hours}:
{steps:,} steps, the first {eyes_steps:,} of the vision tower alone, which is told directly what lies where; see
`models/training/train.py`. It was trained in stretches with changing learning rates, the last ones down to nothing; the
weights are the mean of the ends of the last two (`models.training.average`). To train one like it:

```
python -m models.training.train --out DIR --minutes 240
python -m models.training.train --out DIR --resume --minutes 30 --decay
python -m models.training.export DIR models/nano
python -m models.training.evaluate models/nano --samples {num_samples}
python -m models.training.card DIR models/nano
```

To let this one learn more, begin with `python -m models.training.restore models/nano DIR` in place of the first line.
"""


def write_card(source: Path, target: Path) -> None:
    """Writes the card of a training folder's checkpoint, which was exported to `target` and scored there."""
    state = load_state(source)
    network = restore_network(state)
    tasks: Mapping[str, Mapping[str, int]] = json.loads((target / "scores.json").read_text())["tasks"]
    history = History.of(source, state)
    card = _TEXT.format(
        parameters=sum(parameter.numel() for parameter in network.parameters()) / 1e6,
        vision=sum(parameter.numel() for parameter in network.visual.parameters()) / 1e6,
        rows="\n".join(_row(task, **counts) for task, counts in tasks.items()),
        missed=missed(tasks),
        samples=history.samples,
        hours=hours(history.seconds),
        steps=state.step,
        eyes_steps=state.plan.eyes_steps,
        num_samples=max(counts["samples"] for counts in tasks.values()),
    )
    (target / "README.md").write_text(card, encoding="utf-8")


def hours(seconds: Mapping[str, float]) -> str:
    """How long it took on which machine."""
    return " and ".join(f"{each / 3600:.1f} hours on {machine}" for machine, each in seconds.items())


def _row(task: str, *, samples: int, right: int) -> str:
    bar = f"{BARS[task]:.0%}" if task in BARS else ""
    return f"| {task.replace('_', ' ')} | {right / samples:.1%} | {bar} | {samples} |"


def missed(tasks: Mapping[str, Mapping[str, int]]) -> str:
    """Where it is worse than aimed at, and by how much."""
    gaps = {task: bar - tasks[task]["right"] / tasks[task]["samples"] for task, bar in BARS.items() if task in tasks}
    missed = [f"{task.replace('_', ' ')} by {100 * gap:.1f} points" for task, gap in gaps.items() if gap > 0]
    return f"It misses what was aimed at in {', '.join(missed)}." if missed else "It reaches all that was aimed at."


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Write the model card.")
    parser.add_argument("source", type=Path, help="folder of the training")
    parser.add_argument("target", type=Path, help="folder of the exported checkpoint and its scores")
    arguments = parser.parse_args()
    write_card(arguments.source, arguments.target)


if __name__ == "__main__":
    main()
