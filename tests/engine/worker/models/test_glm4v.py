"""GLM-4.1V and GLM-4.6V-Flash: logits and greedy answers are those of transformers, with time stamps of videos."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import models

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.model_config.encoders import GlmVisionConfig
from glimpse.engine.checkpoint.model_config.model import read_json
from glimpse.engine.worker.models.encoders.qwen2_vl_vision import patch_positions
from glimpse.engine.worker.models.glm import LearnedPositions
from glimpse.media.kind import MediaKind
from tests.checkpoints.files import write_json
from tests.checkpoints.glm import TOKEN_IDS, make_glm4v_checkpoint
from tests.checkpoints.refusals import refused
from tests.engine.harness import PlacedMedium, Prompt, prompt_with
from tests.engine.worker.models.steps import LevelSteps, agreement
from tests.oracles.qwen_vl import greedy_answer

Glm4vVisionEmbeddings = models.glm4v.modeling_glm4v.Glm4vVisionEmbeddings

CHECKPOINT = make_glm4v_checkpoint
_SIDE = 28  # of a token in pixels


def make_prompt(seed: int, *parts: int | tuple[int, ...]) -> Prompt:
    """Returns a prompt of numbers of text tokens, and of rows and columns of images in tokens, after a number of frames
    for a video, in which random text follows each pair of frames."""

    def place(random: np.random.Generator, size: tuple[int, ...]) -> PlacedMedium:
        *frames, rows, columns = size
        shape = (*frames, rows * _SIDE, columns * _SIDE, 3)
        depth = -(-sum(frames) // 2) or 1
        token_ids: list[int] = []
        runs: list[tuple[int, int]] = []
        for _ in range(depth):
            runs.append((len(token_ids), rows * columns))
            token_ids += [TOKEN_IDS["<|image|>"]] * (rows * columns)
            token_ids += random.integers(0, 256, 3).tolist() if frames else []
        return PlacedMedium(
            token_ids=token_ids,
            kind=MediaKind.VIDEO if frames else MediaKind.IMAGE,
            grid=(depth, 2 * rows, 2 * columns),
            content=random.integers(0, 256, shape, dtype=np.uint8),
            runs=tuple(runs),
        )

    return prompt_with(seed, parts, place)


PROMPTS = {
    "text": make_prompt(1, 150),
    "image": make_prompt(2, 5, (3, 2), 9),
    "images": make_prompt(3, 3, (1, 1), 1, (2, 7), 1, (9, 1), 4),
    "video": make_prompt(4, 5, (5, 3, 2), 9, (2, 1, 4), 3),
}


class TestSteps(LevelSteps):
    agrees = staticmethod(agreement(greedy_answer, "spans", "images"))
    divided, cached = "video", ("image", "video")
    blocks = (1,)


@given(rows=st.integers(1, 9), columns=st.integers(1, 9), side=st.integers(1, 9))
@torch.inference_mode()
def test_positions_are_interpolated_as_in_the_reference(rows: int, columns: int, side: int) -> None:
    grid, width = (2, 2 * rows, 2 * columns), 4
    config = GlmVisionConfig(
        depth=1, embed_dim=width, hidden_size=4, num_heads=1, intermediate_size=4, in_channels=3, patch_size=14,
        spatial_merge_size=2, temporal_patch_size=2, merger_size=4, position_side=side,
    )  # fmt: skip
    ours, values = LearnedPositions(config, side), torch.randn(side**2, width)
    ours.table.copy_(values)
    ours.norm.weight.zero_()
    reference: Any = torch.nn.Module()
    reference.position_embedding, reference.interpolated_method = torch.nn.Embedding.from_pretrained(values), "bicubic"
    patches = torch.zeros(2 * grid[1] * grid[2], width)
    rows_of, columns_of = patch_positions(grid, 2, patches.device).unbind(1)
    arguments = (patches, [len(patches)], torch.tensor([grid]), rows_of, columns_of)
    expected = Glm4vVisionEmbeddings.forward(reference, *arguments)
    assert torch.allclose(ours(patches, grid), expected, atol=1e-5)


def test_reads_fields_as_transformers_4_writes_them(tmp_path: Path, checkpoint: Path) -> None:
    config = read_json(checkpoint / "config.json")
    text = config["text_config"]
    rope = text.pop("rope_parameters")
    text |= {name: rope.pop(name) for name in ("rope_theta", "partial_rotary_factor")} | {"rope_scaling": rope}
    write_json(tmp_path / "config.json", config)
    assert load_model_config(tmp_path).text == load_model_config(checkpoint).text


test_refuses_unsupported_configurations = refused(
    (
        {"vision_config": {"attention_bias": True}},
        "'vision_config.attention_bias': expected False, got True",
    ),
    (
        {"vision_config": {"rope_parameters": {"rope_theta": 5000.0}}},
        "'vision_config.rope_parameters.rope_theta': expected 10000.0, got 5000.0",
    ),
)
