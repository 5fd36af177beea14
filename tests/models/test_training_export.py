"""An exported checkpoint gives the same answers in transformers, in the engine and in training."""

import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.worker.loading.load_engine import load_core
from glimpse.offline.run import run_batch
from models.training.batching.packing import pack
from models.training.batching.prompts import Prompt, make_prompt
from models.training.batching.vocabulary import load_vocabulary
from models.training.evaluate import evaluate, request
from models.training.export import export, restore_network
from models.training.learning.history import load_history
from models.training.learning.learner import to_layout
from models.training.learning.network import Network, PackedMedia, PackedText
from models.training.learning.state import load_state
from models.training.mix import draw_sample
from models.training.restore import restore
from models.training.sample import SampleImage
from tests.models.training_folder import begin, make_folder, train
from tests.oracles.qwen_vl import greedy_answer

NUM_TOKENS = 8


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The training folder after some steps, and the checkpoint exported from it."""
    source, target = tmp_path_factory.mktemp("training") / "run", tmp_path_factory.mktemp("training") / "nano"
    begin(make_folder(source), "--steps", "6")
    export(source, target)
    return source, target


def prompts(folder: Path, *tasks: str) -> list[Prompt]:
    vocabulary = load_vocabulary(folder)
    rng = random.Random(1)
    samples = [draw_sample(task, rng, largest_side=112) for task in tasks]
    return [
        make_prompt(sample.turns[:-1], vocabulary, task=sample.task, tools=sample.tools, answering=True)
        for sample in samples
    ]


def test_engine_and_transformers_give_the_same_greedy_answers(folders: tuple[Path, Path]):
    _, checkpoint = folders
    questions = prompts(checkpoint, "colour", "two_images", "small_talk")
    config = EngineConfig(model_path=str(checkpoint), dtype="float32", num_threads=1, kv_cache_bytes=16 << 20)
    engine = load_core(config, on_progress=lambda _stage, _part: None)
    requests = [request(prompt, str(index), max_tokens=NUM_TOKENS) for index, prompt in enumerate(questions)]
    outputs = run_batch(engine.core, requests, load_vocabulary(checkpoint).tokenizer, progress=False)
    for prompt, output in zip(questions, outputs, strict=True):
        pixels = [medium.pixels for medium in prompt.media if isinstance(medium, SampleImage)]
        expected = greedy_answer(checkpoint, prompt.token_ids.tolist(), prompt.spans, pixels, NUM_TOKENS)
        assert output.outputs[0].token_ids == expected.token_ids[: len(output.outputs[0].token_ids)]


@torch.no_grad()
def rounded(network: Network) -> Network:
    """Rounds the network's weights as the checkpoint stores them."""
    stored = network.visual.patch_embed.weight().bfloat16().float()
    for parameter in network.parameters():
        parameter.data = parameter.data.bfloat16().float()
    network.visual.patch_embed.weight = lambda: stored
    return network


@torch.inference_mode()
def test_training_logits_match_the_reference(folders: tuple[Path, Path]):
    source, checkpoint = folders
    (prompt,) = prompts(checkpoint, "colour")
    batch = pack([prompt])
    network = rounded(restore_network(load_state(source)))
    media = PackedMedia(
        patches=torch.from_numpy(batch.patches),
        positions=torch.from_numpy(batch.patch_positions),
        layout=to_layout(batch.patch_runs, torch.device("cpu")),
    )
    text = PackedText(
        token_ids=torch.from_numpy(batch.token_ids),
        positions=torch.from_numpy(batch.positions),
        layout=to_layout(batch.token_runs, torch.device("cpu")),
        media_tokens=torch.from_numpy(batch.media_tokens),
        media_rows=torch.from_numpy(batch.media_rows),
    )
    scores = network(text, network.visual(media), torch.tensor([len(prompt.token_ids) - 1]))
    pixels = [medium.pixels for medium in prompt.media if isinstance(medium, SampleImage)]
    expected = greedy_answer(checkpoint, prompt.token_ids.tolist(), prompt.spans, pixels, 1)
    assert (scores - expected.logits).abs().max() < 1e-3 * expected.logits.std()


def test_transformers_tokenizes_equally(folders: tuple[Path, Path]):
    _, checkpoint = folders
    reference = AutoTokenizer.from_pretrained(checkpoint)
    tokenizer = load_vocabulary(checkpoint).tokenizer
    for text in (
        "What colour is the circle?",
        'It says "Zürich 😀".\n\n  <tool_call>\n{"name": 1}',
        "<|im_start|>user\n",
    ):
        assert reference(text)["input_ids"] == tokenizer.encode(text)
        assert reference.decode(tokenizer.encode(text)) == text


def test_training_resumes_from_an_exported_checkpoint(folders: tuple[Path, Path], tmp_path: Path):
    _, checkpoint = folders
    folder, again = tmp_path / "run", tmp_path / "again"
    restore(checkpoint, folder)
    export(folder, again)
    expected, weights = (load_file(each / "model.safetensors") for each in (checkpoint, again))
    assert expected.keys() == weights.keys()
    for name, tensor in expected.items():
        # Training keeps only some frequencies of patches, so bfloat16 rounding errors outside them are lost.
        tolerance = 1e-3 if "patch_embed" in name else 0.0
        torch.testing.assert_close(weights[name], tensor, rtol=0.0, atol=tolerance)
    for file in checkpoint.iterdir():
        assert file.suffix == ".safetensors" or (again / file.name).read_bytes() == file.read_bytes()
    train(folder, "--resume", "--steps", "2")
    export(folder, again)
    before, after = load_history(checkpoint), load_history(again)
    assert after.step == before.step + 2
    assert after.samples > before.samples
    assert sum(after.seconds.values()) > sum(before.seconds.values())


def test_evaluation_reports_scores_by_task(folders: tuple[Path, Path]):
    _, checkpoint = folders
    scores = evaluate(checkpoint, ["colour", "motion"], 3, num_threads=1)
    assert [(score.task, score.num_samples) for score in scores] == [("colour", 3), ("motion", 3)]
    assert all(0 <= score.accuracy <= 1 for score in scores)
