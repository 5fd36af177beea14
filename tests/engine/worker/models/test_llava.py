"""LLaVA-1.5: logits and greedy answers match transformers for any division into steps and cached prefixes."""

import json
from pathlib import Path

import pytest
import torch

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.model_config.encoders import LlavaConfig
from tests.checkpoints.llava import DECODERS, Names, make_llava_checkpoint
from tests.checkpoints.refusals import refused
from tests.engine.harness import Harness, Prompt
from tests.engine.llava_prompts import IMAGE, prompt_of
from tests.engine.worker.models.steps import PLAIN_KERNELS, NativeSteps, agreement
from tests.oracles.llava import greedy_answer

CHECKPOINT = make_llava_checkpoint
NUM_TOKENS = 8
TEXT = prompt_of(1, 23)
ONE_IMAGE = prompt_of(2, 5, IMAGE, 9)
TWO_IMAGES = prompt_of(3, 3, IMAGE, 2, IMAGE, 6)
IMAGE_FIRST = prompt_of(4, IMAGE, 1)
ADJACENT = prompt_of(5, 2, IMAGE, IMAGE, IMAGE, 3)
PROMPTS = {"text": TEXT, "one": ONE_IMAGE, "two": TWO_IMAGES, "first": IMAGE_FIRST, "adjacent": ADJACENT}


assert_agrees = agreement(greedy_answer, "images")


class TestSteps(NativeSteps):
    agrees = staticmethod(assert_agrees)
    kernels = (*PLAIN_KERNELS, (torch.bfloat16, "int8", 0.1))
    divided, cached = "two", ("one",)


def test_answers_depend_on_the_image(harness: Harness) -> None:
    prompts = [prompt_of(seed, IMAGE) for seed in range(4)]
    text = tuple(range(10, 20))
    prompts = [
        Prompt(token_ids=prompt.token_ids + text, spans=prompt.spans, images=prompt.images) for prompt in prompts
    ]
    assert len({tuple(harness.answer(harness.begin(prompt), 4).answer) for prompt in prompts}) == 4


@pytest.mark.parametrize("names", ["published", "saved", "nested"])
@pytest.mark.parametrize("decoder", DECODERS)
def test_decoders_and_stored_layouts(tmp_path: Path, decoder: str, names: Names) -> None:
    path = make_llava_checkpoint(tmp_path, decoder=decoder, names=names)
    harness = Harness(path)
    assert_agrees(harness.answer(harness.begin(TWO_IMAGES), NUM_TOKENS), path)


@pytest.mark.parametrize(("layer", "strategy", "image_tokens"), [(-1, "full", 17), (2, "default", 16), (1, "full", 17)])
def test_feature_layers_and_the_class_token(tmp_path: Path, layer: int, strategy: str, image_tokens: int) -> None:
    path = make_llava_checkpoint(tmp_path, layer=layer, strategy=strategy)
    harness = Harness(path)
    prompt = prompt_of(7, 4, IMAGE, 5, image_tokens=image_tokens)
    assert_agrees(harness.answer(harness.begin(prompt), NUM_TOKENS), path)


test_refuses_unsupported_configurations = refused(
    ({"text_config": {"model_type": "gemma"}}, "'text_config.model_type': expected one of llama.*; got 'gemma'"),
    ({"vision_feature_layer": [-2, -1]}, r"'vision_feature_layer': expected an integer, got \[-2, -1\]"),
    ({"vision_feature_select_strategy": "cls"}, "expected 'default' or 'full', got 'cls'"),
    ({"projector_hidden_act": "relu"}, "'projector_hidden_act': expected 'gelu', got 'relu'"),
    (
        {"vision_config": {"model_type": "siglip_vision_model"}},
        "expected 'full' for an encoder without class",
    ),
    ({"image_token_index": ...}, "no field 'image_token_index'"),
)


def test_reads_published_configurations_that_leave_out_defaults(tmp_path: Path) -> None:
    config = {
        "architectures": ["LlavaForConditionalGeneration"],
        "image_token_index": 32000,
        "text_config": {
            "max_position_embeddings": 4096,
            "model_type": "llama",
            "rms_norm_eps": 1e-05,
            "torch_dtype": "float16",
            "vocab_size": 32064,
        },
        "tie_word_embeddings": False,
        "torch_dtype": "float16",
        "vision_config": {
            "hidden_size": 1024,
            "image_size": 336,
            "intermediate_size": 4096,
            "model_type": "clip_vision_model",
            "num_attention_heads": 16,
            "num_hidden_layers": 24,
            "patch_size": 14,
        },
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = load_model_config(tmp_path)
    text, encoder = model.text, model.encoder
    assert isinstance(encoder, LlavaConfig)
    assert (text.hidden_size, text.intermediate_size, text.num_layers, text.num_kv_heads) == (4096, 11008, 32, 32)
    assert (text.qkv_bias, text.rope_theta, text.max_position_embeddings) == (False, 10_000.0, 4096)
    assert (encoder.num_tokens, encoder.vit.num_layers, model.placeholder_ids) == (576, 23, {"image": 32000})
    assert model.eos_token_ids == (2,)
