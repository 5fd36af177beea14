"""Trains the embedded model: `python -m models.training.train --out DIR`.

Trains the vision encoder alone with direct labels, then everything jointly. A run ends after --minutes, --steps, or on
a signal; `--resume` continues it.
"""

import argparse
import json
import os
from dataclasses import asdict, replace
from pathlib import Path

import torch

from models.training.batching.vocabulary import learn_vocabulary
from models.training.learning.blocks import make_compute
from models.training.learning.learner import Learner
from models.training.learning.network import Sizes
from models.training.learning.optimizer import Rates
from models.training.learning.plan import Plan
from models.training.learning.run import FIGURES, TrainingRun, train
from models.training.learning.shared import Memory, allocate, num_values, slots, store_weights
from models.training.learning.state import load_state


def begin(arguments: argparse.Namespace) -> tuple[TrainingRun, Memory]:
    """Prepares a new or resumed run and its memory."""
    folder: Path = arguments.out
    folder.mkdir(parents=True, exist_ok=True)
    state = load_state(folder) if arguments.resume else None
    sizes = state.sizes if state else Sizes(**json.loads(arguments.sizes))
    plan = state.plan if state else Plan(seed=arguments.seed)
    given = {name: getattr(arguments, name) for name in ("vision_steps", "budget", "largest_share", "pages")}
    plan = replace(plan, **{name: value for name, value in given.items() if value is not None})
    if arguments.emphasis is not None:
        plan = replace(plan, emphasis=json.loads(arguments.emphasis))
    learn_vocabulary(folder, most_tokens=sizes.vocab_size)
    on_cpu = arguments.device == "cpu"
    run = TrainingRun(
        folder=folder,
        sizes=sizes,
        plan=plan,
        rates=Rates(muon=arguments.muon, adamw=arguments.adamw),
        device=arguments.device,
        num_workers=arguments.threads if on_cpu else 1,
        num_producers=1 if on_cpu else arguments.threads,
        compiled=not arguments.plain,
        dtype=torch.float32 if arguments.plain else torch.bfloat16,
        first_step=state.step if state else 0,
        begun=state.begun if state else 0,
        max_steps=arguments.steps,
        max_seconds=arguments.minutes * 60 if arguments.minutes else None,
        decays=arguments.decay,
        learns_to_see=not arguments.text_only,
        save_seconds=arguments.save_minutes * 60,
    )
    torch.manual_seed(plan.seed)
    learner = Learner(sizes, make_compute(torch.float32, compiled=False))
    memory = allocate(num_values(learner), run.num_workers, len(FIGURES), torch.device(run.device))
    store_weights(learner, slots(learner, memory))
    if state:
        state.restore(memory)
    return run, memory


def parser() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train the embedded model.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the checkpoint and the log")
    parser.add_argument("--resume", action="store_true", help="continue from the folder's checkpoint")
    parser.add_argument("--minutes", type=float, help="stop after this many minutes")
    parser.add_argument("--steps", type=int, help="stop after this many steps")
    parser.add_argument("--decay", action="store_true", help="decay the learning rate to zero until the end")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    threads = "workers on the CPU, of one thread each; beside a GPU the processes that draw samples"
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help=threads)
    parser.add_argument("--seed", type=int, default=0, help="seed of weights and samples")
    parser.add_argument("--sizes", default="{}", help='sizes of the network as JSON, such as {"num_layers": 3}')
    parser.add_argument("--vision-steps", type=int, help="steps of the first phase (default: 3000)")
    parser.add_argument("--budget", type=int, help="patches and tokens in a worker's part of a batch (default: 5600)")
    parser.add_argument("--largest-share", type=float, help="share of samples with images of any size (default: 0.25)")
    parser.add_argument("--pages", type=float, help="share of a batch for the vision encoder alone (default: 0.25)")
    parser.add_argument("--text-only", action="store_true", help="leave the vision encoder as it is")
    parser.add_argument("--emphasis", help='factors of the tasks\' shares as JSON, such as {"read": 2}')
    parser.add_argument("--muon", type=float, default=Rates().muon, help="learning rate of inner matrices")
    parser.add_argument("--adamw", type=float, default=Rates().adamw, help="learning rate of everything else")
    parser.add_argument("--save-minutes", type=float, default=3, help="time between two checkpoints")
    parser.add_argument("--plain", action="store_true", help="do not compile; compute in float32")
    return parser


def main() -> None:
    """Runs training."""
    # Inherited by workers: caches the preparation of matrix products.
    os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "8192")
    run, memory = begin(parser().parse_args())
    print(json.dumps(asdict(run) | {"folder": str(run.folder)}, default=str), flush=True)
    train(run, memory)


if __name__ == "__main__":
    main()
