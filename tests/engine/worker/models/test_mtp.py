"""Multi-token prediction: the layer computes what transformers' modules compute, and its drafts change no answer."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    Qwen3_5DecoderLayer,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5RMSNorm,
)
from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import (
    Qwen3_5MoeDecoderLayer,
    Qwen3_5MoeForConditionalGeneration,
)

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.core.limits import SchedulerLimits
from glimpse.engine.core.ngram_proposer import ModelProposer
from glimpse.engine.core.plan import NO_STATE, ChunkStates, SequenceChunk
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.worker.loading import load_engine
from glimpse.engine.worker.loading.load_engine import load_core, load_model
from glimpse.engine.worker.native.backend import use_native
from glimpse.engine.worker.tensors.batch import SequenceLayout
from glimpse.engine.worker.tensors.batch_builder import make_batch
from glimpse.engine.worker.tensors.kv_cache import CacheShape
from tests.checkpoints.qwen3_5 import make_qwen3_5_checkpoint
from tests.checkpoints.text import make_text_checkpoint
from tests.engine.checking_runner import answers, run_until_idle
from tests.engine.harness import request_of
from tests.engine.qwen3_vl_prompts import make_qwen3_prompt

CPU = torch.device("cpu")
NUM_DRAFTS = 3
PROMPTS = [
    make_qwen3_prompt(1, 70),
    make_qwen3_prompt(2, 5),
    make_qwen3_prompt(3, 3, (32, 32), 1, (64, 224), 1),
]


class Reference:
    """transformers' model, and the layer of multi-token prediction of its modules."""

    def __init__(self, path: Path, *, experts: bool) -> None:
        model = Qwen3_5MoeForConditionalGeneration if experts else Qwen3_5ForConditionalGeneration
        self.model: Any = model.from_pretrained(path, dtype=torch.float32).eval()
        self.text: Any = self.model.model.language_model
        config, layer = self.text.config, Qwen3_5MoeDecoderLayer if experts else Qwen3_5DecoderLayer
        weights = {name.removeprefix("mtp."): tensor for name, tensor in load_file(path / "model.safetensors").items()}
        width = config.hidden_size
        parts: dict[str, Any] = {name: Qwen3_5RMSNorm(width, eps=config.rms_norm_eps) for name in ("norm", "enorm")}
        parts |= {
            "hnorm": Qwen3_5RMSNorm(width, eps=config.rms_norm_eps),
            "fc": nn.Linear(2 * width, width, bias=False),
        }
        parts["layer"] = layer(config, config.layer_types.index("full_attention")).eval()
        names = {"norm": "norm", "enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "fc": "fc"}
        names["layer"] = "layers.0"
        for part, name in names.items():
            own = {key.removeprefix(f"{name}."): value for key, value in weights.items() if key.startswith(f"{name}.")}
            parts[part].load_state_dict(own)
        self.parts = parts

    def states(self, hidden: Tensor, following: Sequence[int]) -> Tensor:
        """[1, tokens, hidden_size] and the tokens that follow → the layer's normalized outputs."""
        parts, embedded = self.parts, self.text.embed_tokens(torch.tensor([following]))
        joined = parts["fc"](torch.cat([parts["enorm"](embedded), parts["hnorm"](hidden)], dim=-1))
        positions = torch.arange(len(following)).expand(3, 1, -1)
        return parts["norm"](parts["layer"](joined, position_embeddings=self.text.rotary_emb(joined, positions)))

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """Returns [tokens - 1, vocab_size], of what follows the token after each."""
        hidden = self.text(input_ids=torch.tensor([token_ids[:-1]])).last_hidden_state
        return self.model.lm_head(self.states(hidden, token_ids[1:]))[0]

    def proposals(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Returns the likeliest tokens after a sequence, each computed from the layer's output for the one before."""
        hidden = self.text(input_ids=torch.tensor([token_ids[:-1]])).last_hidden_state
        following = list(token_ids[1:])
        for _ in range(NUM_DRAFTS):
            states = self.states(hidden, following)
            following.append(int(self.model.lm_head(states[0, -1]).argmax()))
            hidden = torch.cat([hidden, states[:, -1:]], dim=1)
        return tuple(following[-NUM_DRAFTS:])


@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize("experts", [False, True])
@torch.inference_mode()
def test_logits_are_those_of_transformers_modules(tmp_path: Path, experts: bool, backend: str) -> None:
    path = make_qwen3_5_checkpoint(tmp_path, experts=experts)
    config = load_model_config(path)
    config = replace(config, text=replace(config.text, uses_mtp=True))
    model = load_model(path, config, CPU, torch.float32, lambda *_: None)
    if backend == "native":
        model.ops = use_native(model, dtype=torch.float32)
    token_ids = PROMPTS[0].token_ids
    num_tokens = len(token_ids) - 1
    cache = CacheShape.of(config.text).allocate(4, 32, torch.float32, CPU, num_states=1)
    chunk = SequenceChunk(
        sequence_id=0,
        start=0,
        token_ids=tuple(token_ids[:-1]),
        block_table=[2, 0, 3],
        samples=True,
        states=ChunkStates(reads=NO_STATE, writes=((num_tokens, 0),)),
    )
    layout: SequenceLayout = model.layout(num_tokens, ())
    batch = make_batch([chunk], {0: layout}, block_size=32, device=CPU)
    hidden = model.decoder.norm(model.hidden_states(batch, cache, {}))
    states = model.draft_states(batch, torch.tensor(token_ids[1:]), hidden, cache, {})
    expected = Reference(path, experts=experts).logits(token_ids)
    torch.testing.assert_close(model.draft_logits(states), expected, atol=1e-4, rtol=1e-4)


def answers_of(path: Path, samplings: Sequence[SamplingParams], **options: Any) -> list[list[int]]:
    config = EngineConfig(
        model_path=str(path), dtype="float32", num_threads=1, kv_cache_bytes=4 << 20, max_batch_tokens=40, **options
    )
    core = load_core(config, on_progress=lambda *_: None).core
    for number, (prompt, sampling) in enumerate(zip(PROMPTS, samplings, strict=True)):
        core.submit(request_of(str(number), prompt, sampling))
    found = answers(run_until_idle(core))
    return [found[str(number)] for number in range(len(PROMPTS))]


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_drafts_are_the_layers_own_and_change_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """Verifies known answers in which each third token is wrong, since the layer's own are hardly ever accepted."""
    path = make_qwen3_5_checkpoint(tmp_path)
    samplings = [
        SamplingParams(temperature=0, max_tokens=14, ignore_eos=True),
        SamplingParams(temperature=0.9, seed=3, max_tokens=12, ignore_eos=True),
        SamplingParams(temperature=0.7, seed=5, max_tokens=9, ignore_eos=True),
    ]
    expected = answers_of(path, samplings, backend=backend, speculative="off")
    known = {len(prompt.token_ids): answer for prompt, answer in zip(PROMPTS, expected, strict=True)}
    proposed: list[tuple[list[int], tuple[int, ...]]] = []
    offer = ModelProposer.offer

    def offer_known(self: ModelProposer, token_ids: Sequence[int], own: tuple[int, ...]) -> None:
        proposed.append((list(token_ids), own))
        start = next(length for length in known if tuple(token_ids[:length]) in prompts)
        answer = known[start][len(token_ids) - start :][:NUM_DRAFTS]
        offer(self, token_ids, tuple(id_ if (len(token_ids) + i) % 3 else id_ ^ 1 for i, id_ in enumerate(answer)))

    prompts = {tuple(prompt.token_ids) for prompt in PROMPTS}
    monkeypatch.setattr(ModelProposer, "offer", offer_known)
    always = partial(SchedulerLimits, adaptive_drafts=False)
    monkeypatch.setattr(load_engine, "SchedulerLimits", lambda **limits: always(**limits | {"adaptive_drafts": False}))
    found = answers_of(path, samplings, backend=backend, speculative="mtp", num_speculative_tokens=NUM_DRAFTS)
    assert found == expected
    assert len(proposed) < sum(map(len, expected)) - 10, "draft tokens were accepted"
    reference, length = Reference(path, experts=False), len(PROMPTS[0].token_ids)
    own = [each for each in proposed if tuple(each[0][:length]) == tuple(PROMPTS[0].token_ids)]
    with torch.inference_mode():
        for token_ids, drafts in own:
            assert drafts == reference.proposals(token_ids)[: len(drafts)]
    assert {len(drafts) for _, drafts in own} >= {NUM_DRAFTS}


def test_a_checkpoint_without_the_layer_refuses_it_by_name(tmp_path: Path) -> None:
    config = EngineConfig(model_path=str(make_text_checkpoint(tmp_path, "qwen3")), speculative="mtp")
    with pytest.raises(CheckpointError, match=r"'--speculative mtp': expected a checkpoint .*; write auto or ngram"):
        load_core(config, on_progress=lambda *_: None)
