"""Tokenization, labels, packing, attention and the model card's figures."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn import functional

from glimpse.engine.checkpoint.model_config.encoders import VisionConfig
from glimpse.engine.worker.models.encoders.qwen2_vl_vision import cut_patches, patch_positions
from models.training.batching.packing import NOTHING, TOTAL_STEP, cut, lay_out, pack
from models.training.batching.prompts import make_prompt, sample_prompt
from models.training.batching.tokenizer import SPECIAL_TOKENS, learn_tokenizer
from models.training.batching.vocabulary import load_vocabulary
from models.training.card import hours, missed
from models.training.learning.blocks import attend, make_compute
from models.training.learning.history import totals
from models.training.learning.learner import to_layout
from models.training.learning.network import PatchEmbed, normalise
from models.training.learning.vision_pretraining import COLOUR_IDS, IGNORE, NUM_POINTS, SIZES, WHATS, label
from models.training.mix import TASKS, corpus, draw_sample
from models.training.resized import PROCESSING, resize, resized
from models.training.sample import Sample, SampleImage, SampleVideo, Seen, Turn
from models.training.tasks.check import Agrees
from tests.models.training_folder import make_folder

VISION = VisionConfig(
    depth=1,
    embed_dim=8,
    hidden_size=8,
    num_heads=1,
    intermediate_size=8,
    in_channels=3,
    patch_size=14,
    spatial_merge_size=2,
    temporal_patch_size=2,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("training") / "run")


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


def test_words_are_single_tokens_and_quoted_text_is_characters():
    tokenizer = learn_tokenizer(corpus(0, 300), max_words=300)
    assert tokenizer.encode("What colour is the circle?").tokens == ["What", "Ġcolour", "Ġis", "Ġthe", "Ġcircle", "?"]
    assert tokenizer.encode('"circle"').tokens == ['"', *"circle", '"']
    assert len(tokenizer.encode("<|im_start|><|image_pad|></tool_call>").ids) == 3
    assert tokenizer.decode(tokenizer.encode("naïve 😀\n").ids) == "naïve 😀\n"
    assert set(SPECIAL_TOKENS) <= set(tokenizer.get_vocab())


@pytest.mark.parametrize(("height", "width", "expected"), [(56, 84, (112, 140)), (140, 56, (196, 84))])
def test_enlarging_an_image_scales_its_labels(height: int, width: int, expected: tuple[int, int]):
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[14:28, 28:42] = 255
    seen = Seen(kind="shape", name="square", colour="white", size="small", cx=35, cy=21, box=(28, 14, 42, 28))
    questions = Turn(role="user", content=("What?", SampleImage(pixels=pixels, objects=(seen,))))
    sample = Sample(task="shape", turns=(questions,), check=Agrees(True))
    words, image = resized(sample).turns[0].content
    assert words == "What?"
    assert isinstance(image, SampleImage)
    assert image.pixels.shape == (*expected, 3)
    rows, columns = np.nonzero(image.pixels[..., 0] > 127)
    [moved] = image.objects
    assert moved.box == pytest.approx((columns.min(), rows.min(), columns.max() + 1, rows.max() + 1), abs=1)
    assert (moved.cx, moved.cy) == pytest.approx((columns.mean(), rows.mean()), abs=1)


def test_image_within_bounds_is_unchanged():
    image = SampleImage(pixels=noise(112, 112, 3))
    assert resize(image, PROCESSING) is image
    assert resize(SampleImage(pixels=noise(448, 476, 3)), PROCESSING).pixels.shape == (420, 448, 3)


@pytest.mark.parametrize("medium", [SampleImage(pixels=noise(56, 84, 3)), SampleVideo(frames=noise(4, 28, 56, 3))])
def test_patches_and_positions_match_the_engine(medium: SampleImage | SampleVideo):
    frames = medium.pixels[None] if isinstance(medium, SampleImage) else medium.frames
    grid_thw = (-(-len(frames) // 2), frames.shape[1] // 14, frames.shape[2] // 14)
    cpu = torch.device("cpu")
    patches = cut_patches(frames.data.cast("B"), grid_thw, VISION, cpu).flatten(1)
    batch = pack([], [medium])
    assert np.array_equal(cut(medium), patches.numpy())
    assert np.array_equal(batch.patch_positions[: len(patches)], patch_positions(grid_thw, 2, cpu).numpy())


def test_stored_patch_embedding_is_equivalent():
    torch.manual_seed(0)
    embed, patches = PatchEmbed(8), torch.from_numpy(cut(SampleVideo(frames=noise(2, 28, 28, 3))))
    stored = normalise(patches, torch.float32).view(-1, 3, 2, 14, 14)
    expected = torch.einsum("pcfhw,ocfhw->po", stored, embed.stored())
    assert torch.allclose(embed(patches, torch.float32), expected, atol=1e-4)


def test_labels_describe_what_covers_each_cell():
    red = Seen(kind="shape", name="circle", colour="red", size="large", cx=28, cy=14, box=(14, 0, 42, 28))
    letter = Seen(kind="text", name="i", colour="black", size="medium", cx=70, cy=14, box=(69, 5, 71, 23))
    labels = label([red, letter], 28, 84)
    what, colour = labels.classes[:, :NUM_POINTS], labels.classes[:, NUM_POINTS : 2 * NUM_POINTS]
    circle, row = WHATS["circle"], [0, 0, WHATS["circle"], WHATS["circle"]]
    assert what[0].tolist() == row * 2
    assert what[1].tolist() == [circle, circle, 0, 0] * 2
    assert np.count_nonzero(what[2] == WHATS["i"]) == 2  # a thin letter is labelled at the points next to it
    assert set(colour[0]) == {0, COLOUR_IDS["red"]}
    size, place, shapes, characters = labels.classes[:, 2 * NUM_POINTS :].T
    assert size.tolist() == [SIZES["large"], SIZES["large"], IGNORE]
    assert place.tolist() == [3 + 1, 3 + 1, 3 + 2]
    assert (shapes.tolist(), characters.tolist()) == ([0, 1, 0], [0, 0, 1])
    assert labels.offsets[0].tolist() == [0.5, 0.0]


def test_targets_are_exactly_the_assistant_tokens(folder: Path):
    vocabulary = load_vocabulary(folder)
    rng = random.Random(0)
    prompts = [sample_prompt(draw_sample(task, rng, largest_side=84), vocabulary) for task in TASKS]
    batch = pack(prompts)
    assert len(batch.token_ids) % TOTAL_STEP == len(batch.patches) % TOTAL_STEP == 0
    for index, task in enumerate(batch.tasks):
        questions = (batch.owners == index) & (batch.targets != NOTHING)
        (prompt,) = (each for each in prompts if each.task == task)
        assert batch.targets[questions].tolist() == prompt.token_ids[prompt.learnt].tolist()
        assert (batch.token_ids[batch.predicted[questions] + 1] == batch.targets[questions]).all()
    placeholders = (vocabulary.image_id, vocabulary.video_id)
    assert sorted(batch.media_tokens) == np.flatnonzero(np.isin(batch.token_ids, placeholders)).tolist()


def test_shared_image_is_packed_once(folder: Path):
    vocabulary = load_vocabulary(folder)
    image = SampleImage(pixels=noise(56, 56, 3))
    prompts = [
        make_prompt(
            [Turn(role="user", content=(image, text)), Turn(role="assistant", content=("It is red.",))],
            vocabulary,
            task="colour",
            tools=(),
            answering=False,
        )
        for text in ("What colour is it?", "Which colour?")
    ]
    batch = pack(prompts)
    assert batch.num_media == 1
    assert batch.media_rows.tolist() == [0, 1, 2, 3] * 2


def test_card_sums_runs_and_lists_missed_targets():
    runs = [(5, 9.0, "a"), (9, 20.0, "a"), (3, 7.0, "a"), (4, 7200.0, "b")]
    lines = [{"samples": samples, "seconds": seconds, "machine": machine} for samples, seconds, machine in runs]
    assert totals(lines) == (16, {"a": 27.0, "b": 7200.0})
    assert hours({"a": 3600.0, "b": 7200.0}) == "1.0 hours on a and 2.0 hours on b"
    tasks = {"shape": {"samples": 100, "right": 90}, "colour": {"samples": 100, "right": 99}}
    assert missed(tasks) == "Below target: shape by 5.0 points."


def test_fewer_samples_mean_a_new_run():
    lines = [{"samples": 38, "seconds": 3.5, "machine": "a"}, {"samples": 8, "seconds": 3.8, "machine": "a"}]
    assert totals(lines) == (46, {"a": 7.3})


def test_attention_stays_inside_segments():
    generator = torch.Generator().manual_seed(0)
    lengths, total = [5, 40, 33, 1, 40], 130
    runs = lay_out(lengths, total)
    layout = to_layout(runs, torch.device("cpu"))
    query = torch.randn(total, 4, 8, generator=generator, requires_grad=True)
    key, value = (torch.randn(total, 2, 8, generator=generator, requires_grad=True) for _ in range(2))
    compute = make_compute(torch.float32, compiled=False)
    upstream = torch.randn(total, 32, generator=generator)
    for causal in (False, True):
        parts: list[torch.Tensor] = []
        for q, k, v in zip(
            *(tensor.split([*lengths, total - sum(lengths)]) for tensor in (query, key, value)), strict=True
        ):
            heads = (q.transpose(0, 1), k.transpose(0, 1), v.transpose(0, 1))
            part = functional.scaled_dot_product_attention(*heads, is_causal=causal, enable_gqa=True)
            parts.append(part.transpose(0, 1).flatten(1))
        expected = torch.cat([*parts[:-1], torch.zeros_like(parts[-1])])
        attended = attend(query, key, value, layout, compute, causal=causal)
        assert torch.allclose(attended, expected, atol=1e-6)
        tensors = (query, key, value)
        gradients = torch.autograd.grad(attended, tensors, upstream)
        for gradient, right in zip(gradients, torch.autograd.grad(expected, tensors, upstream), strict=True):
            assert torch.allclose(gradient, right, atol=1e-5)
