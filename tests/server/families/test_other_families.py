"""Families of every kind of media answer OpenAI's client through Envoy, and again from the prefix cache.

Most have a file with further tests; those of this file have none. Of families that read media in the same way, which
differ in what `tests/engine` compares with transformers, one is tried; with EVERY_FAMILY=1 in the environment, all.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path

import pytest

from glimpse.engine.checkpoint.families.registry import FAMILIES
from glimpse.engine.checkpoint.families.spec import FamilySpec
from tests.checkpoints.deepseek_ocr2 import make_deepseek_ocr2_checkpoint
from tests.checkpoints.deepseek_ocr2 import make_original_checkpoint as make_original_deepseek_checkpoint
from tests.checkpoints.gemma4 import make_unified_gemma4_checkpoint
from tests.checkpoints.glm import make_glm4v_checkpoint, make_glm_ocr_checkpoint
from tests.checkpoints.idefics3 import make_idefics3_checkpoint
from tests.checkpoints.internvl import make_internvl_checkpoint, make_original_checkpoint
from tests.checkpoints.lfm2 import make_lfm2_vl_checkpoint
from tests.checkpoints.llava import make_next_checkpoint
from tests.checkpoints.minicpmv4_6 import make_minicpmv4_6_checkpoint
from tests.checkpoints.mistral3 import make_mistral3_checkpoint
from tests.checkpoints.paddleocr_vl import make_paddleocr_vl_checkpoint
from tests.checkpoints.paligemma import make_paligemma_checkpoint
from tests.checkpoints.qwen2_vl import make_checkpoint
from tests.checkpoints.qwen3_5 import make_qwen3_5_checkpoint
from tests.checkpoints.qwen3_vl import make_qwen3_vl_checkpoint
from tests.e2e.stack import Stack
from tests.server.families import (
    test_audio,
    test_gemma3,
    test_gemma4,
    test_llava,
    test_qwen2_5_vl,
    test_qwen3_vl,
    test_tiled_images,
    test_ultravox,
)
from tests.server.families.second_answers import check_second_answers
from tests.server.services import test_late_interaction

TRIED: Mapping[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "Qwen3_5MoeForConditionalGeneration": (
        lambda path: make_qwen3_5_checkpoint(path, experts=True),
        ("image", "video"),
    ),
    "GlmOcrForConditionalGeneration": (make_glm_ocr_checkpoint, ("image",)),
    "Glm4vForConditionalGeneration": (make_glm4v_checkpoint, ("image", "video")),
    "DeepseekOcr2ForConditionalGeneration": (make_deepseek_ocr2_checkpoint, ("image",)),
    "Lfm2VlForConditionalGeneration": (make_lfm2_vl_checkpoint, ("image",)),
    "PaddleOCRVLForConditionalGeneration": (make_paddleocr_vl_checkpoint, ("image",)),
    "MiniCPMV4_6ForConditionalGeneration": (make_minicpmv4_6_checkpoint, ("image", "video")),
    "Mistral3ForConditionalGeneration": (make_mistral3_checkpoint, ("image",)),
    "PaliGemmaForConditionalGeneration": (make_paligemma_checkpoint, ("image",)),
    "Idefics3ForConditionalGeneration": (lambda path: make_idefics3_checkpoint(path, "idefics3"), ("image",)),
    "LlavaNextForConditionalGeneration": (make_next_checkpoint, ("image",)),
    "InternVLChatModel": (
        lambda path: make_original_checkpoint(make_internvl_checkpoint(path / "source"), path),
        ("image", "video"),
    ),
}
"""Architecture → what writes a tiny checkpoint into a folder, and the media that the model supports."""
ALIKE: Mapping[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "Qwen2VLForConditionalGeneration": (make_checkpoint, ("image", "video")),
    "Qwen3VLMoeForConditionalGeneration": (
        lambda path: make_qwen3_vl_checkpoint(path, experts=True),
        ("image", "video"),
    ),
    "Qwen3_5ForConditionalGeneration": (make_qwen3_5_checkpoint, ("image", "video")),
    "Glm46VForConditionalGeneration": (lambda path: make_glm4v_checkpoint(path, kind="Glm46V"), ("image", "video")),
    "DeepseekOCR2ForCausalLM": (make_original_deepseek_checkpoint, ("image",)),
    "Gemma4UnifiedForConditionalGeneration": (make_unified_gemma4_checkpoint, ("image", "video", "audio")),
    "PixtralForConditionalGeneration": (lambda path: make_mistral3_checkpoint(path, kind="pixtral"), ("image",)),
    "LightOnOcrForConditionalGeneration": (
        lambda path: make_mistral3_checkpoint(path, kind="lighton_ocr"),
        ("image",),
    ),
}
"""Likewise, of families that read media as another one does."""
ALL = TRIED | ALIKE
OTHERS = (
    test_audio,
    test_gemma3,
    test_gemma4,
    test_llava,
    test_qwen2_5_vl,
    test_qwen3_vl,
    test_tiled_images,
    test_ultravox,
    test_late_interaction,
)


@pytest.fixture(scope="module", params=ALL if "EVERY_FAMILY" in os.environ else TRIED)
def architecture(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def checkpoint(architecture: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    make, _ = ALL[architecture]
    return make(tmp_path_factory.mktemp("checkpoints") / "model")


def test_every_way_to_read_media_is_tried() -> None:
    elsewhere = {name for module in OTHERS for name in module.ARCHITECTURES}
    (without_media,) = (each.default for each in fields(FamilySpec) if each.name == "read_media")
    tried = {FAMILIES[name].read_media for name in (*TRIED, *elsewhere)}
    assert tried == {spec.read_media for spec in FAMILIES.values()} - {without_media}
    with_media = {name for name, spec in FAMILIES.items() if spec.read_media is not without_media}
    assert ALL.keys() | elsewhere == with_media


def test_second_answer_is_identical_and_comes_from_the_prefix_cache(
    stack: Stack, checkpoint: Path, architecture: str
) -> None:
    _, kinds = ALL[architecture]
    check_second_answers(stack, checkpoint, architecture, *kinds)
