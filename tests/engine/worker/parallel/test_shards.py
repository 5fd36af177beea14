"""Sharding of weights and step plans over ranks, without processes."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glimpse.engine.checkpoint.model_config.decoder import ExpertsConfig, ShortConvSizes, TextConfig
from glimpse.engine.core.plan import Encode, SequenceChunk, SequenceStart, StepPlan
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.media import Embeddings
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.worker.parallel.distributed_runner import assign_encoder_ranks, shard_plan
from glimpse.engine.worker.parallel.shards import shard_config, shard_tensor
from glimpse.media.kind import MediaKind

HEAD_DIM = 2


def text_config(num_heads: int, num_kv_heads: int, intermediate_size: int) -> TextConfig:
    return TextConfig(
        vocab_size=8,
        hidden_size=num_heads * HEAD_DIM,
        intermediate_size=intermediate_size,
        layer_kinds=("full",),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=HEAD_DIM,
        rms_norm_eps=1e-6,
        rope_theta=1e4,
        mrope_section=(1, 0, 0),
        max_position_embeddings=16,
        tie_word_embeddings=True,
        experts=ExpertsConfig(
            num_experts=2, num_chosen=1, intermediate_size=8, renormalized=True, layers=frozenset({0}), shared_size=8
        ),
        states=ShortConvSizes(conv_width=8, conv_size=3),
    )


def shards(name: str, tensor: torch.Tensor, text: TextConfig, num_ranks: int) -> list[torch.Tensor]:
    return [shard_tensor(name, tensor, text, rank=rank, num_ranks=num_ranks) for rank in range(num_ranks)]


@pytest.mark.parametrize(
    ("name", "shape", "dim"),
    [
        ("model.layers.0.self_attn.q_proj.weight", (8, 8), 0),
        ("model.layers.0.self_attn.q_proj.bias", (8,), 0),
        ("model.layers.17.self_attn.k_proj.weight", (4, 8), 0),
        ("model.layers.0.self_attn.v_proj.bias", (4,), 0),
        ("model.layers.0.self_attn.o_proj.weight", (8, 8), 1),
        ("model.layers.0.mlp.gate_proj.weight", (6, 8), 0),
        ("language_model.model.layers.3.mlp.up_proj.weight", (6, 8), 0),
        ("model.layers.0.mlp.down_proj.weight", (8, 6), 1),
        ("model.layers.0.self_attn.q_proj.scale", (8, 1), 0),
        ("model.layers.0.mlp.up_proj.zero", (6, 4), 0),
        ("model.layers.0.mlp.down_proj.scale", (8, 2), 1),  # two groups of three inputs
        ("model.layers.0.mlp.experts.1.up_proj.weight", (8, 8), 0),
        ("model.layers.0.mlp.experts.1.down_proj.weight", (8, 8), 1),
        ("model.layers.0.mlp.shared_expert.gate_proj.weight", (8, 8), 0),
        ("model.layers.0.mlp.shared_expert.down_proj.weight", (8, 8), 1),
        ("model.layers.0.conv.in_proj_c.weight", (8, 8), 0),
        ("model.layers.0.conv.conv.weight", (8, 1, 3), 0),
        ("model.layers.0.conv.out_proj.weight", (8, 8), 1),
    ],
)
def test_shards_make_up_the_tensor(name: str, shape: tuple[int, ...], dim: int):
    tensor = torch.arange(torch.Size(shape).numel()).view(shape)
    first, second = shards(name, tensor, text_config(4, 2, 6), 2)
    assert first.shape == second.shape
    assert torch.equal(torch.cat([first, second], dim=dim), tensor)


@pytest.mark.parametrize(
    "name",
    [
        "model.embed_tokens.weight",
        "lm_head.weight",
        "model.norm.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.mlp.gate.weight",
        "model.layers.0.mlp.shared_expert_gate.weight",
        "visual.blocks.0.attn.qkv.weight",
        "audio_tower.layers.0.self_attn.q_proj.weight",
    ],
)
def test_replicates_tensors_outside_the_decoders_products(name: str):
    tensor = torch.zeros(8, 8)
    assert all(shard is tensor for shard in shards(name, tensor, text_config(4, 2, 6), 2))


def test_replicates_a_scale_for_all_inputs():
    scale = torch.ones(8, 1)
    assert all(shard is scale for shard in shards("model.layers.0.mlp.down_proj.scale", scale, text_config(4, 2, 6), 2))


def test_refuses_to_shard_groups_in_activation_order():
    with pytest.raises(CheckpointError, match="groups in activation order"):
        shards("model.layers.0.mlp.up_proj.group_index", torch.zeros(8), text_config(4, 2, 6), 2)


def test_replicates_key_value_heads_if_there_are_fewer_than_ranks():
    text = text_config(8, 2, 8)
    keys = torch.arange(4).view(4, 1)
    held = shards("model.layers.0.self_attn.k_proj.weight", keys, text, 4)
    assert [shard.flatten().tolist() for shard in held] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert shard_config(text, 4).num_kv_heads == 1


@given(
    kv_heads=st.sampled_from([1, 2, 4, 8]), group=st.sampled_from([1, 2, 7]), num_ranks=st.sampled_from([1, 2, 4, 8])
)
def test_each_rank_has_the_key_value_heads_of_its_queries(kv_heads: int, group: int, num_ranks: int):
    text = text_config(kv_heads * group, kv_heads, 8)
    if text.num_heads % num_ranks:
        return
    sizes = shard_config(text, num_ranks)
    queries = torch.arange(text.num_heads).repeat_interleave(HEAD_DIM)  # [rows]: head of each row
    keys = torch.arange(kv_heads).repeat_interleave(HEAD_DIM)
    for rank in range(num_ranks):
        own = [
            shard_tensor(f"model.layers.0.self_attn.{name}.weight", rows, text, rank=rank, num_ranks=num_ranks)
            for name, rows in (("q_proj", queries), ("k_proj", keys))
        ]
        query_heads, key_heads = (rows[::HEAD_DIM].tolist() for rows in own)
        assert (len(query_heads), len(key_heads)) == (sizes.num_heads, sizes.num_kv_heads)
        own_group = sizes.num_heads // sizes.num_kv_heads
        assert [key_heads[index // own_group] for index in range(len(query_heads))] == [
            head // group for head in query_heads
        ]


@pytest.mark.parametrize(
    ("heads", "kv_heads", "features", "num_ranks", "reason"),
    [
        (4, 2, 6, 3, "4 attention heads"),
        (12, 6, 8, 4, "6 key-value heads"),
        (4, 2, 6, 4, "6 features"),
    ],
)
def test_refuses_a_decoder_that_cannot_be_sharded_evenly(
    heads: int, kv_heads: int, features: int, num_ranks: int, reason: str
):
    with pytest.raises(
        CheckpointError, match=f"'--tensor-parallel-size': expected .* the model's {reason}.*, got {num_ranks}"
    ):
        shard_config(text_config(heads, kv_heads, features), num_ranks)


def image(number: int, height: int) -> Encode:
    return Encode(key=bytes([number]), kind=MediaKind.IMAGE, grid=(1, height, 4), content=memoryview(bytes(height)))


@given(heights=st.lists(st.integers(1, 50), max_size=20), num_ranks=st.integers(1, 8))
def test_no_rank_encodes_more_than_its_share_plus_one_image(heights: list[int], num_ranks: int):
    media = tuple(image(index, height) for index, height in enumerate(heights))
    owners = assign_encoder_ranks(media, num_ranks)
    loads = [sum(height for height, owner in zip(heights, owners, strict=True) if owner == rank) for rank in range(8)]
    assert max(loads) <= sum(heights) / num_ranks + max(heights, default=0)


def test_each_media_item_goes_to_one_rank_and_sampling_to_rank_0():
    sampling = SamplingParams(temperature=0.5, seed=3)
    start = SequenceStart(sequence_id=1, prompt_token_ids=(7, 8, 9), spans=(), sampling=sampling)
    chunk = SequenceChunk(
        sequence_id=1, start=0, token_ids=(7, 8, 9), block_table=(0,), samples=True, num_draft_tokens=1
    )
    embeddings = Embeddings(dtype="float32", data=memoryview(bytes(8)))
    embedded = Encode(key=b"e", kind=MediaKind.IMAGE, grid=(1, 90, 90), content=embeddings)
    media = (image(1, 4), image(2, 2), embedded, image(3, 2))
    plan = StepPlan(ended=(4,), evicted=(b"k",), started=(start,), encode=media, chunks=(chunk,))
    plans = shard_plan(plan, 2)
    assert [contents(shard.encode) for shard in plans] == [
        [bytes(4), None, "embeddings", None],
        [None, bytes(2), None, bytes(2)],
    ]
    assert [shard.started[0].sampling for shard in plans] == [sampling, SamplingParams()]
    assert [(shard.chunks[0].samples, shard.chunks[0].num_draft_tokens) for shard in plans] == [(True, 1), (False, 0)]
    for shard in plans:
        assert (shard.ended, shard.evicted, shard.chunks[0].token_ids) == ((4,), (b"k",), (7, 8, 9))


def contents(media: Sequence[Encode]) -> list[bytes | str | None]:
    return [
        bytes(medium.content) if isinstance(medium.content, memoryview) else medium.content and "embeddings"
        for medium in media
    ]
