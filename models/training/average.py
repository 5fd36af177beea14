"""Averages the weights of two training folders into the second: `python -m models.training.average FIRST SECOND`.

The ends of two consecutive runs err in different places; their mean is often as good as either everywhere (arXiv
2203.05482). The second folder keeps its log, vocabulary and plan, because it continued the first.
"""

import argparse
from dataclasses import replace
from pathlib import Path

from models.training.learning.state import load_state, save_state


def average(first: Path, second: Path) -> None:
    """Replaces the checkpoint of the folder `second`.

    Raises:
        ValueError: the networks are of different sizes.
    """
    one, other = load_state(first), load_state(second)
    if one.sizes != other.sizes:
        raise ValueError("the networks are of different sizes")
    save_state(second, replace(other, weights=(one.weights + other.weights) / 2))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Put the mean of two training folders' weights into the second.")
    parser.add_argument("first", type=Path, help="folder of a training")
    parser.add_argument("second", type=Path, help="folder of one that went on from it; its checkpoint is replaced")
    arguments = parser.parse_args()
    average(arguments.first, arguments.second)


if __name__ == "__main__":
    main()
