"""Training lowers the loss, resumes exactly, and stops cleanly on SIGTERM."""

import json
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from models.training.batching.packing import Batch, pack
from models.training.batching.prompts import sample_prompt
from models.training.batching.vocabulary import load_vocabulary
from models.training.learning.blocks import make_compute
from models.training.learning.learner import Learner
from models.training.learning.optimizer import Rates, orthogonalise, update
from models.training.learning.plan import Plan, draw_batch
from models.training.learning.shared import allocate, attach_weights, num_values, slots, store_gradients, store_weights
from models.training.learning.state import load_state
from models.training.mix import draw_sample
from tests.models.training_folder import begin, command, make_folder, tiny_sizes, train

CPU = torch.device("cpu")


def one_batch(folder: Path) -> Batch:
    vocabulary = load_vocabulary(folder)
    rng = random.Random(0)
    tasks = ("colour", "shape", "read", "motion", "small_talk", "two_images", "schema", "choice")
    return pack([sample_prompt(draw_sample(task, rng, largest_side=84), vocabulary) for task in tasks])


def test_a_few_steps_lower_every_loss(tmp_path: Path):
    batch = one_batch(make_folder(tmp_path / "run"))
    torch.manual_seed(0)
    learner = Learner(tiny_sizes(), make_compute(torch.float32, compiled=False))
    memory = allocate(num_values(learner), 1, 1, CPU)
    places = slots(learner, memory)
    store_weights(learner, places)
    attach_weights(learner, places)
    losses: list[dict[str, float]] = []
    for step in range(25):
        figures = learner.learn(batch, CPU)
        losses.append({name: total / count for name, (total, count) in figures.items() if name != "samples"})
        store_gradients(learner, places, 0)
        update(list(places.values()), Rates(), 1.0, step)
    assert {name for name in losses[0] if losses[-1][name] > 0.9 * losses[0][name]} <= {"vision.offset"}


def test_text_only_leaves_the_vision_encoder_as_it_is(tmp_path: Path):
    learner = Learner(tiny_sizes(), make_compute(torch.float32, compiled=False), learns_to_see=False)
    learner.learn(one_batch(make_folder(tmp_path / "run")), CPU)
    learnt = {name.split(".")[1] for name, parameter in learner.named_parameters() if parameter.grad is not None}
    assert learnt == {"model"}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder after one step of two threads."""
    folder = make_folder(tmp_path_factory.mktemp("training") / "begun")
    begin(folder, "--steps", "1", threads=2)
    return folder


def test_resuming_is_exact(begun: Path, tmp_path: Path):
    whole, parts = make_folder(tmp_path / "whole"), tmp_path / "parts"
    shutil.copytree(begun, parts)
    begin(whole, "--steps", "2", threads=2)
    train(parts, "--resume", "--steps", "1", threads=2)
    expected, resumed = load_state(whole), load_state(parts)
    assert expected.step == resumed.step == 2
    for name in ("weights", "first", "second"):
        assert torch.equal(getattr(expected, name), getattr(resumed, name))
    lines = [json.loads(line) for line in (parts / "log.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines]  # on a slow machine, also some steps in between
    assert (steps[0], steps[-1], steps) == (1, 2, sorted(set(steps)))
    assert all(line["loss"]["vision.what"] > 0 for line in lines)


def test_saves_and_exits_on_sigterm(begun: Path, tmp_path: Path):
    folder = tmp_path / "run"
    shutil.copytree(begun, folder)
    with subprocess.Popen(command(folder, "--resume", "--save-minutes", "0"), stdout=subprocess.PIPE) as process:
        while load_state(folder).step < 2:
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 0
    assert load_state(folder).step >= 2
    assert not (folder / "training.pt.part").exists()


def test_batch_depends_only_on_seed_step_and_worker(tmp_path: Path):
    vocabulary = load_vocabulary(make_folder(tmp_path / "run"))
    plan = Plan(budget=500, vision_steps=0)

    def tokens(step: int, worker: int) -> list[int]:
        return draw_batch(plan, vocabulary, step, worker).token_ids.tolist()

    assert tokens(3, 0) == tokens(3, 0)
    assert tokens(3, 0) != tokens(3, 1)
    assert tokens(3, 0) != tokens(4, 0)


def test_newton_schulz_brings_singular_values_near_one():
    generator = torch.Generator().manual_seed(0)
    for shape in ((1, 32, 64), (2, 64, 24)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape, generator=generator)))
        assert values.min() > 0.5
        assert values.max() < 1.4
