"""Makes a training folder of a published checkpoint: `python -m models.training.restore models/nano DIR`.

The inverse of `models.training.export`, to continue training from shipped weights. Optimizer state and the heads that
train the vision encoder start fresh.
"""

import argparse
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from glimpse.engine.checkpoint.families.registry import load_model_config
from models.training.learning.blocks import make_compute
from models.training.learning.history import load_history
from models.training.learning.learner import Learner
from models.training.learning.network import Sizes
from models.training.learning.shared import allocate, num_values, slots, store_weights
from models.training.learning.state import State, save_state

VOCABULARY = ("tokenizer.json", "chat_template.jinja")
PATCH_EMBED = "visual.patch_embed.proj.weight"


def restore(source: Path, target: Path) -> None:
    """Creates the folder `target` from the checkpoint `source`, which `export` wrote.

    Raises:
        FileExistsError: the folder exists.
    """
    history = load_history(source)
    sizes = read_sizes(source)
    target.mkdir(parents=True)
    for name in VOCABULARY:
        shutil.copy(source / name, target / name)
    history.log(target)
    learner = Learner(sizes, make_compute(torch.float32, compiled=False))
    put_weights(learner, load_file(source / "model.safetensors"))
    memory = allocate(num_values(learner), 1, 1, torch.device("cpu"))
    store_weights(learner, slots(learner, memory))
    save_state(target, State.of(memory, step=history.step, begun=history.step, sizes=sizes, plan=history.plan))


@torch.no_grad()
def put_weights(learner: Learner, weights: Mapping[str, Tensor]) -> None:
    """Loads published weights into a network; its heads stay unchanged."""
    for name, parameter in learner.network.named_parameters():
        if not name.startswith("visual.patch_embed."):
            parameter.copy_(weights[name])
    learner.network.visual.patch_embed.learn_again(weights[PATCH_EMBED].float())


def read_sizes(source: Path) -> Sizes:
    """Returns the sizes of a checkpoint's network."""
    config = load_model_config(source)
    text, vision = config.text, config.vision
    return Sizes(
        vocab_size=text.vocab_size,
        hidden_size=text.hidden_size,
        intermediate_size=text.intermediate_size,
        num_layers=text.num_layers,
        num_heads=text.num_heads,
        num_kv_heads=text.num_kv_heads,
        rope_theta=text.rope_theta,
        mrope_section=text.mrope_section,
        max_position_embeddings=text.max_position_embeddings,
        vision_depth=vision.depth,
        vision_width=vision.embed_dim,
        vision_heads=vision.num_heads,
        vision_mlp_ratio=vision.intermediate_size // vision.embed_dim,
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Make a training folder of a published checkpoint.")
    parser.add_argument("source", type=Path, help="folder of the checkpoint")
    parser.add_argument("target", type=Path, help="folder to make, to train on in with --resume")
    arguments = parser.parse_args()
    restore(arguments.source, arguments.target)


if __name__ == "__main__":
    main()
