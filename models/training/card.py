"""Writes the model card from a training folder and its scores: `python -m models.training.card DIR models/nano`."""

import argparse
import json
import textwrap
from collections.abc import Mapping
from pathlib import Path

from models.training.export import restore_network
from models.training.learning.history import History
from models.training.learning.state import load_state

TARGETS: Mapping[str, float] = {
    "shape": 0.95,
    "colour": 0.95,
    "place": 0.95,
    "count_to_4": 0.95,
    "yes_no": 0.95,
    "motion": 0.95,
    "two_images": 0.9,
    "describe_1_to_3": 0.9,
    "read_to_4": 0.9,
    "choice": 0.9,
    "schema_of_one": 0.95,
    "schema_of_two": 0.9,
}
"""Task → target accuracy."""

_TEXT = """\
# Glimpse nano

The checkpoint that ships with Glimpse: a Qwen2-VL of {parameters:.1f} million parameters, {vision:.1f} million of them
in the vision encoder. `models/training` trained it from scratch on images, videos and conversations that it generates.
It has seen no photo and no text from elsewhere. It runs through the same engine code as any other Qwen2-VL and loads
in transformers unchanged.

## What it knows

Eight shapes in eleven colours, up to six in one image: which shape, which colour, how large, where, how many. Digits
and short printed words. In videos: what moves where, what changes colour, what appears first. Two images side by side,
follow-up questions, answers as JSON, calls of a given function, and small talk. Asked about anything else, it says
that it does not know. Where an answer follows from several observations, it states them first: what it counts, what
each of two images shows, why the answer is yes or no.

## Accuracy

Greedy answers from Glimpse's own engine, judged by meaning, on questions from a seed, wordings, words and typefaces
that training does not use. In "schema" and "choice" a grammar enforces a JSON Schema, or one of several words, that the
question does not mention: the shape and colour of the object that is asked for, among one to three, must be right.

| task | correct | target | samples |
|---|---|---|---|
{rows}

{missed}

## Limits

It does not know photos, other objects, longer texts, handwriting, other languages, or anything that needs world
knowledge. It was trained on images of 56 to 448 pixels a side; images below 112 by 112 pixels are enlarged and larger
ones reduced, and details of less than a dozen pixels are lost. It is often confident when wrong. Asked how two images
differ, it usually describes each correctly and then often names the wrong difference.

## Training

{samples:,} samples in {hours}: {steps:,} steps, the first {vision_steps:,} for the vision encoder alone, with direct
labels (`models/training/train.py`). The learning rate and the shares of the tasks changed between runs; the learning
rate decayed to zero in the last one. To train a similar model:

```
python -m models.training.train --out DIR --minutes 240
python -m models.training.train --out DIR --resume --minutes 30 --decay
python -m models.training.export DIR models/nano
python -m models.training.evaluate models/nano --samples {num_samples}
python -m models.training.card DIR models/nano
```

To continue training this one, replace the first line with `python -m models.training.restore models/nano DIR`."""


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
        vision_steps=state.plan.vision_steps,
        num_samples=max(counts["samples"] for counts in tasks.values()),
    )
    (target / "README.md").write_text("\n\n".join(map(_wrapped, card.split("\n\n"))) + "\n", encoding="utf-8")


def _wrapped(block: str) -> str:
    return block if block.startswith(("#", "|", "```")) else textwrap.fill(block, 120, break_on_hyphens=False)


def hours(seconds: Mapping[str, float]) -> str:
    """Hours of training on each machine, as text."""
    return " and ".join(f"{each / 3600:.1f} hours on {machine}" for machine, each in seconds.items())


def _row(task: str, *, samples: int, right: int) -> str:
    target = f"{TARGETS[task]:.0%}" if task in TARGETS else ""
    return f"| {task.replace('_', ' ')} | {right / samples:.1%} | {target} | {samples} |"


def missed(tasks: Mapping[str, Mapping[str, int]]) -> str:
    """The tasks below their targets, and by how much."""
    gaps = {
        task: target - tasks[task]["right"] / tasks[task]["samples"]
        for task, target in TARGETS.items()
        if task in tasks
    }
    missed = [f"{task.replace('_', ' ')} by {100 * gap:.1f} points" for task, gap in gaps.items() if gap > 0]
    return f"Below target: {', '.join(missed)}." if missed else "All targets are met."


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Write the model card.")
    parser.add_argument("source", type=Path, help="folder of the training")
    parser.add_argument("target", type=Path, help="folder of the exported checkpoint and its scores")
    arguments = parser.parse_args()
    write_card(arguments.source, arguments.target)


if __name__ == "__main__":
    main()
