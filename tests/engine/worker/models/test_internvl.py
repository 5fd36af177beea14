"""InternVL: logits and greedy answers match transformers however prompts are divided into steps."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.model_config.encoders import InternVisionConfig
from glimpse.engine.checkpoint.model_config.model import read_json
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.loading.build_model import make_model
from glimpse.engine.worker.loading.weights import checkpoint_name
from glimpse.media.kind import MediaKind
from tests.checkpoints.files import write_changed_config, write_json
from tests.checkpoints.internvl import (
    NUM_TILE_TOKENS,
    SIDE,
    TOKEN_IDS,
    Variant,
    make_internvl_checkpoint,
    make_original_checkpoint,
)
from tests.checkpoints.refusals import refused
from tests.engine.harness import Harness, PlacedMedium, prompt_with
from tests.engine.worker.models.steps import LevelSteps, agreement
from tests.oracles.internvl import greedy_answer, load_oracle

NUM_TOKENS = 8


@pytest.fixture(scope="module", params=["300M", "6B", "llama"])
def variant(request: pytest.FixtureRequest) -> Variant:
    return request.param


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, variant: Variant) -> Path:
    return make_internvl_checkpoint(tmp_path_factory.mktemp("models") / variant, variant)


def place(random: np.random.Generator, part: tuple[int, ...]) -> PlacedMedium:
    """Returns an image of n tiles for (n,), and for (n, 1) a video of n frames, which are a run of tokens each."""
    is_video = len(part) == 2
    run, num_runs = (NUM_TILE_TOKENS, part[0]) if is_video else (NUM_TILE_TOKENS * part[0], 1)
    run_ids = [TOKEN_IDS["<img>"], *[TOKEN_IDS["<IMG_CONTEXT>"]] * run, TOKEN_IDS["</img>"]]
    return PlacedMedium(
        token_ids=run_ids * num_runs,
        kind=MediaKind.VIDEO if is_video else MediaKind.IMAGE,
        grid=part,
        content=random.integers(0, 256, (part[0], SIDE, SIDE, 3), dtype=np.uint8),
        runs=tuple((index * len(run_ids) + 1, run) for index in range(num_runs)),
    )


PROMPTS = {
    "text": prompt_with(1, (23,), place),
    "image": prompt_with(2, (5, (1,), 9), place),
    "images": prompt_with(3, (3, (3,), 2, (7,), 6), place),
    "video": prompt_with(4, ((2,), 4, (3, 1), 1), place),
    "many tiles": prompt_with(5, (2, (19,), 2), place),  # more than are encoded at once
}


assert_agrees = agreement(greedy_answer, "images")


class TestSteps(LevelSteps):
    agrees = staticmethod(assert_agrees)
    divided, cached = "video", ("images", "video")
    blocks = (1, 2, 3)


def test_tensors_have_the_names_inside_transformers_too(checkpoint: Path, variant: Variant) -> None:
    model = make_model(checkpoint, load_model_config(checkpoint))
    names = {checkpoint_name(name, model.renamed_prefixes) for name in load_oracle(checkpoint).state_dict()}
    if variant == "6B":  # tied
        names.remove("language_model.lm_head.weight")
    assert names == {name for name, _ in model.named_weights()}


def test_the_original_layout_is_the_same_model(tmp_path: Path, checkpoint: Path) -> None:
    path = make_original_checkpoint(checkpoint, tmp_path)
    names = set(load_file(path / "model.safetensors"))
    assert "vision_model.encoder.layers.0.attn.qkv.weight" in names
    assert not any("vision_tower" in name or "multi_modal" in name for name in names)
    harness = Harness(path)
    for name in ("text", "image", "images", "video"):
        assert_agrees(harness.answer(harness.begin(PROMPTS[name]), NUM_TOKENS), checkpoint)


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"llm_config": {"model_type": "internlm2"}}, "'llm_config.model_type': .*'internlm2'; .* ends in -hf"),
        ({"ps_version": "v1"}, "'ps_version': expected 'v2', got 'v1'"),
        ({"select_layer": -2}, "'select_layer': expected -1, got -2"),
        ({"use_thumbnail": False}, "'use_thumbnail': expected True, got False"),
        ({"force_image_size": 112}, "'force_image_size': expected 56, got 112"),
    ],
)
def test_refuses_other_original_models_by_name(
    tmp_path: Path, checkpoint: Path, fields: dict[str, Any], complaint: str
) -> None:
    path = make_original_checkpoint(checkpoint, tmp_path / "original")
    with pytest.raises(CheckpointError, match=complaint):
        load_model_config(changed(tmp_path, path, **fields))


def changed(tmp_path: Path, checkpoint: Path, **fields: Any) -> Path:
    return write_changed_config(tmp_path, read_json(checkpoint / "config.json"), **fields)


def test_reads_documents_of_transformers_4(tmp_path: Path, checkpoint: Path, variant: Variant) -> None:
    """The documents leave out defaults, and have the fields of rotary embedding apart."""
    document: Any = dict(read_json(checkpoint / "config.json"))
    rope = document["text_config"].pop("rope_parameters")
    scaling = None if rope["rope_type"] == "default" else {"type": rope["rope_type"], "factor": rope["factor"]}
    document["text_config"] |= {"rope_theta": rope["rope_theta"], "rope_scaling": scaling}
    if variant != "6B":
        del document["tie_word_embeddings"], document["text_config"]["tie_word_embeddings"]
    for name in ("vision_feature_layer", "vision_feature_select_strategy", "projector_hidden_act", "downsample_ratio"):
        del document[name]
    document["vision_config"] |= {"image_size": SIDE, "patch_size": 14}
    write_json(tmp_path / "config.json", document)
    assert load_model_config(tmp_path) == load_model_config(checkpoint)


@pytest.mark.parametrize(("whole", "decoder", "tied"), [(True, False, False), (True, True, True), (False, True, False)])
def test_weights_are_tied_if_the_decoder_says_so(
    tmp_path: Path, checkpoint: Path, whole: bool, decoder: bool, tied: bool
) -> None:
    path = changed(tmp_path, checkpoint, tie_word_embeddings=whole, text_config={"tie_word_embeddings": decoder})
    assert load_model_config(path).text.tie_word_embeddings is tied


def test_missing_fields_are_those_of_the_published_encoder(tmp_path: Path, checkpoint: Path) -> None:
    document = dict(read_json(checkpoint / "config.json"))
    write_json(tmp_path / "config.json", document | {"vision_config": {}, "image_seq_length": 256})
    encoder = load_model_config(tmp_path).encoder
    assert isinstance(encoder, InternVisionConfig)
    assert (encoder.width, encoder.num_layers, encoder.num_tile_tokens) == (1024, 24, 256)


test_refuses_other_models_by_name = refused(
    ({"downsample_ratio": 0.25}, "'downsample_ratio': expected 0.5, got 0.25"),
    ({"vision_feature_layer": -2}, "'vision_feature_layer': expected -1, got -2"),
    ({"image_seq_length": 5}, "'image_seq_length': expected 4, got 5"),
    ({"text_config": {"model_type": "qwen3_moe"}}, "'text_config.model_type': expected one of .*'qwen3_moe'"),
    ({"vision_config": {"use_mean_pooling": False}}, "'vision_config.use_mean_pooling': expected True, got False"),
    (
        {"vision_config": {"norm_type": "batch"}},
        "'vision_config.norm_type': expected 'layer_norm' or 'rms_norm', got 'batch'",
    ),
    ({"vision_config": {"image_size": [56, 28]}}, r"'vision_config.image_size': expected a square, got \[56, 28\]"),
    ({"vision_config": {"image_size": 42}}, "'vision_config.image_size': expected a multiple of 2 · 14 pixels"),
)
