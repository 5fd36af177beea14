"""SmolVLM and Idefics3: logits and greedy answers match transformers however prompts are divided into steps."""

from pathlib import Path

import pytest
import torch

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.model_config.encoders import TiledVisionConfig
from glimpse.engine.checkpoint.model_config.model import read_json
from tests.checkpoints.files import write_json
from tests.checkpoints.idefics3 import Family, make_idefics3_checkpoint
from tests.checkpoints.refusals import refused
from tests.engine.harness import Prompt
from tests.engine.idefics3_prompts import NUM_TILE_TOKENS, tiled_prompt
from tests.engine.worker.models.steps import LevelSteps, NativeSteps, agreement
from tests.oracles.idefics3 import greedy_answer

NUM_TOKENS = 10


@pytest.fixture(scope="module", params=["smolvlm", "idefics3"])
def family(request: pytest.FixtureRequest) -> Family:
    return request.param


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory, family: Family) -> Path:
    return make_idefics3_checkpoint(tmp_path_factory.mktemp("models") / family, family)


@pytest.fixture(scope="module")
def prompts(family: Family) -> dict[str, Prompt]:
    parts = {"text": (23,), "image": (5, (1,), 9), "images": (3, (3,), 2, (7,), 6), "first": ((2,), 1)}
    parts |= {"many tiles": (2, (19,), 2)}  # more than are encoded at once
    return {name: tiled_prompt(seed, family, *each) for seed, (name, each) in enumerate(parts.items(), 1)}


assert_agrees = agreement(greedy_answer, "images")


class TestSteps(NativeSteps, LevelSteps):
    agrees = staticmethod(assert_agrees)
    kernels = ((torch.float32, "none", 1e-5), (torch.bfloat16, "none", 0.25), (torch.bfloat16, "int8", 0.25))
    names = ("text", "image", "images", "first", "many tiles")
    divided, cached = "images", ("images",)
    blocks = (1, 2, 5)
    num_tokens = NUM_TOKENS


def test_reads_published_documents_of_the_first_release(tmp_path: Path, checkpoint: Path) -> None:
    document = dict(read_json(checkpoint / "config.json"))
    vision = {name: value for name, value in document["vision_config"].items() if name != "model_type"}
    rope = document["text_config"].pop("rope_parameters")
    text = document["text_config"] | {"rope_theta": rope["rope_theta"], "rope_scaling": None}
    write_json(tmp_path / "config.json", document | {"vision_config": vision, "text_config": text})
    assert load_model_config(tmp_path) == load_model_config(checkpoint)


def test_the_whole_document_says_whether_the_output_head_is_tied(tmp_path: Path, checkpoint: Path) -> None:
    document = dict(read_json(checkpoint / "config.json"))
    del document["tie_word_embeddings"]
    document["text_config"] = document["text_config"] | {"tie_word_embeddings": True}
    for fields, tied in (({}, False), ({"tie_word_embeddings": True}, True)):
        write_json(tmp_path / "config.json", document | fields)
        assert load_model_config(tmp_path).text.tie_word_embeddings == tied


test_refuses_unsupported_configurations = refused(
    ({"scale_factor": 5}, r"'scale_factor': expected a divisor of \d patches on each side, got 5"),
    ({"text_config": {"model_type": "phi"}}, r"'text_config.model_type': expected one of llama, .*; got 'phi'"),
)


def test_counts_the_tokens_of_a_tile(checkpoint: Path) -> None:
    encoder = load_model_config(checkpoint).encoder
    assert isinstance(encoder, TiledVisionConfig)
    assert encoder.num_tile_tokens == NUM_TILE_TOKENS
