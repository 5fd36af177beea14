"""Makes a training folder with a tiny network and runs the training script on it."""

import json
import subprocess
import sys
from pathlib import Path

from models.training.batching.tokenizer import learn_tokenizer
from models.training.learning.network import Sizes
from models.training.mix import CHAT_TEMPLATE, corpus

TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_layers": 2,
    "num_heads": 2,
    "num_kv_heads": 1,
    "mrope_section": [4, 6, 6],
    "vision_depth": 1,
    "vision_width": 32,
    "vision_heads": 1,
    "vision_mlp_ratio": 2,
}


def tiny_sizes() -> Sizes:
    return Sizes(**TINY)  # type: ignore[arg-type]


def make_folder(path: Path) -> Path:
    """Makes a folder with a vocabulary, which saves learning one from many samples."""
    path.mkdir()
    learn_tokenizer(corpus(0, 200), max_words=300).save(str(path / "tokenizer.json"))
    (path / "chat_template.jinja").write_text(CHAT_TEMPLATE.read_text())
    return path


def command(folder: Path, *options: str, threads: int = 1) -> list[str]:
    """The script with these options. Each thread is two processes, and each of these takes seconds to import torch."""
    script = [sys.executable, "-m", "models.training.train", "--out", str(folder), "--plain", f"--threads={threads}"]
    return [*script, "--budget", "400", "--vision-steps", "2", *options]


def train(folder: Path, *options: str, threads: int = 1) -> None:
    """Runs the script."""
    subprocess.run(command(folder, *options, threads=threads), check=True, capture_output=True)


def begin(folder: Path, *options: str, threads: int = 1) -> None:
    train(folder, "--sizes", json.dumps(TINY), *options, threads=threads)
