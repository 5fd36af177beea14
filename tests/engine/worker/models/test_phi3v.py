"""Phi-3.5-vision: logits and greedy answers match the reference however prompts are divided into steps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.loading.load_engine import load_model
from glimpse.engine.worker.models.model import Model
from glimpse.engine.worker.models.phi3v import make_model
from tests.checkpoints.files import write_changed_config, write_json
from tests.checkpoints.phi3v import CONFIG, MAX_TILES, SIDE, make_phi3v_checkpoint
from tests.engine.harness import Prompt, encode_of
from tests.engine.phi3v_prompts import prompt_of
from tests.engine.prepared_media import image_of
from tests.engine.worker.models.steps import LevelSteps, agreement
from tests.media.images import scene
from tests.oracles.phi3v import encode, greedy_answer, load_oracle, tiles_of

CHECKPOINT = make_phi3v_checkpoint
NUM_TOKENS = 8


@pytest.fixture(scope="module")
def model(checkpoint: Path) -> Model:
    return loaded(checkpoint)


def loaded(path: Path) -> Model:
    cpu, config = torch.device("cpu"), load_model_config(path)
    return load_model(path, config, cpu, torch.float32, lambda stage, fraction: None, scheme=None)


PARTS: dict[str, tuple[int | tuple[int, int], ...]] = {
    "text": (23,),
    "square": (5, (20, 21), 9),
    "wide and tall": (3, (200, 61), 2, (37, 301), 6),
    "image first": ((300, 200), 4),
}


@pytest.fixture(scope="module")
def prompts(checkpoint: Path) -> dict[str, Prompt]:
    return {name: prompt_of(checkpoint, seed, *parts) for seed, (name, parts) in enumerate(PARTS.items())}


assert_agrees = agreement(greedy_answer, "sources")


class TestSteps(LevelSteps):
    agrees = staticmethod(assert_agrees)
    names = tuple(PARTS)
    divided, cached = "wide and tall", ("wide and tall",)
    blocks = (1, 2, 4)


@pytest.mark.parametrize("size", [(60, 60), (200, 61), (37, 301), (2, 1)])
def test_images_are_encoded_as_by_the_reference_processor_and_encoder(
    checkpoint: Path, model: Model, size: tuple[int, int]
) -> None:
    image = image_of(checkpoint, *size)
    (ours,) = model.encode([encode_of(image.pixels.data.cast("B"), image.grid)])
    pixels, grid = tiles_of(scene(*size), side=SIDE, most=MAX_TILES)
    assert grid == image.grid
    expected = encode(checkpoint, (pixels, grid))
    assert ours.shape == expected.shape
    # Pixels of tall images may differ by a rounding to 8 bits.
    assert (ours - expected).abs().max() <= (1e-4 if size[0] >= size[1] else 0.1)


def test_tiles_beyond_a_batch_are_encoded_alike(checkpoint: Path, model: Model) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, SIDE, SIDE, 3), dtype=np.uint8)
    (whole,) = model.encode([encode_of(pixels.data.cast("B"), (4, 5))])
    assert (whole - encode(checkpoint, (pixels, (4, 5)))).abs().max() <= 1e-4


def test_tensors_have_the_names_that_were_published(checkpoint: Path) -> None:
    model, stored = make_model(checkpoint, load_model_config(checkpoint)), load_oracle(checkpoint).state_dict()
    used = {name: tensor.shape for name, tensor in stored.items() if not model.is_unused(name)}
    used["lm_head.weight"] = stored["lm_head.weight"].shape  # unused only where the weights are tied
    text = load_model_config(checkpoint).text
    parts = (part for name, tensor in stored.items() if name in used for part in model.split_weight(name, tensor, text))
    assert {name: each.shape for name, each in model.named_weights()} == {name: each.shape for name, each in parts}
    tower = "model.vision_embed_tokens.img_processor.vision_model."
    assert model.is_unused(f"{tower}encoder.layers.2.mlp.fc1.weight")
    assert model.is_unused(f"{tower}post_layernorm.bias")
    assert not model.is_unused(f"{tower}encoder.layers.1.mlp.fc1.weight")


def test_embeddings_may_be_stored_twice(checkpoint: Path, tmp_path: Path, model: Model) -> None:
    for file in checkpoint.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    tensors = load_file(checkpoint / "model.safetensors")
    tensors["model.vision_embed_tokens.wte.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, tmp_path / "model.safetensors")
    again = dict(loaded(tmp_path).named_weights())
    assert all(torch.equal(again[name], tensor) for name, tensor in model.named_weights())


def changed(tmp_path: Path, **fields: Any) -> Path:
    return write_changed_config(tmp_path, CONFIG, **fields)


def test_the_published_encoder_is_known_by_its_name(tmp_path: Path) -> None:
    processor = {name: CONFIG["img_processor"][name] for name in ("name", "model_name")}
    document = {**CONFIG, "img_processor": {**processor, "image_dim_out": 1024, "num_img_tokens": 144}}
    write_json(tmp_path / "config.json", document)
    encoder: Any = load_model_config(tmp_path).encoder
    assert (encoder.vit.width, encoder.vit.num_layers, encoder.vit.image_size, encoder.side) == (1024, 23, 336, 12)
    assert encoder.num_tokens(4, 4) == 2509
    assert encoder.num_tokens(1, 2) == 457


def test_answers_end_also_where_the_published_files_do_not_say_so(checkpoint: Path) -> None:
    config = load_model_config(checkpoint)
    tokens = (checkpoint / "tokenizer.json").read_text()
    assert CONFIG["eos_token_id"] == config.eos_token_ids[0]
    for token, token_id in zip(("<|endoftext|>", "<|end|>"), config.eos_token_ids[1:], strict=True):
        assert f'"id": {token_id},\n      "content": "{token}"' in tokens


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"embd_layer": {"hd_transform_order": "glb_sub"}}, "'embd_layer.hd_transform_order': expected 'sub_glb', got"),
        ({"embd_layer": {"projection_cls": "linear"}}, "'embd_layer.projection_cls': expected 'mlp', got 'linear'"),
        ({"img_processor": {"model_name": "other"}}, "'img_processor.model_name': expected 'openai/clip-vit-large"),
        ({"img_processor": {"type_feature": "cls_patch"}}, "'img_processor.type_feature': expected 'patch', got"),
        ({"img_processor": {"num_img_tokens": 144}}, "'img_processor.num_img_tokens': expected 4, got 144"),
        ({"img_processor": {"image_dim_out": 1024}}, "'img_processor.image_dim_out': expected 32, got 1024"),
        (
            {"img_processor": {"image_size": 42}},
            "'img_processor': expected an even number of patches on each side, got 3",
        ),
        ({"attention_bias": True}, "'attention_bias': expected false, got true"),
    ],
)
def test_refuses_other_models_by_name(tmp_path: Path, fields: dict[str, Any], complaint: str) -> None:
    with pytest.raises(CheckpointError, match=complaint):
        load_model_config(changed(tmp_path, **fields))
