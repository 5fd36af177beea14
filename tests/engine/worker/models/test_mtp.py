"""Multi-token prediction: the layer computes what transformers' modules compute, and its drafts change no answer."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import (
    GlmOcrForConditionalGeneration,
    Qwen3_5ForConditionalGeneration,
    Qwen3_5MoeForConditionalGeneration,
)

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.gguf import folder
from glimpse.engine.checkpoint.location import resolve_checkpoint
from glimpse.engine.core.limits import SchedulerLimits
from glimpse.engine.core.ngram_proposer import ModelProposer
from glimpse.engine.core.plan import NO_STATE, ChunkStates, SequenceChunk
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import ChosenBackend, EngineConfig, Quantization
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.worker.layers.quantized import resolve_scheme
from glimpse.engine.worker.loading import load_engine
from glimpse.engine.worker.loading.build_model import with_mtp
from glimpse.engine.worker.loading.load_engine import load_core, load_model
from glimpse.engine.worker.loading.weight_files import read_headers
from glimpse.engine.worker.native.backend import use_native
from glimpse.engine.worker.tensors.batch import SequenceLayout
from glimpse.engine.worker.tensors.batch_builder import make_batch
from glimpse.engine.worker.tensors.kv_cache import CacheShape
from tests.checkpoints.compressed import CompressedFormat, compress_checkpoint
from tests.checkpoints.gguf import write_gguf
from tests.checkpoints.glm import make_glm_ocr_checkpoint
from tests.checkpoints.quantized import WeightFormat, quantize_checkpoint
from tests.checkpoints.qwen3_5 import make_qwen3_5_checkpoint
from tests.checkpoints.text import make_text_checkpoint
from tests.engine.checking_runner import answers, run_until_idle
from tests.engine.harness import request_of
from tests.engine.levels import needs_kernels
from tests.engine.qwen3_vl_prompts import make_qwen3_prompt

CPU = torch.device("cpu")
NUM_DRAFTS = 3
PROMPTS = [
    make_qwen3_prompt(1, 70),
    make_qwen3_prompt(2, 5),
    make_qwen3_prompt(3, 3, (32, 32), 1, (64, 224), 1),
]
"""GLM has the same, but the one with images: those of Qwen are not its own."""


Kind = Literal["dense", "experts", "glm"]
MAKE: Mapping[Kind, Callable[[Path], Path]] = {
    "dense": make_qwen3_5_checkpoint,
    "experts": partial(make_qwen3_5_checkpoint, experts=True),
    "glm": make_glm_ocr_checkpoint,
}
NETWORKS: Mapping[Kind, Any] = {
    "dense": Qwen3_5ForConditionalGeneration,
    "experts": Qwen3_5MoeForConditionalGeneration,
    "glm": GlmOcrForConditionalGeneration,
}
QWEN_NAMES = {"fc": "fc", "enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "norm": "norm"}
GLM_NAMES = {"fc": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "norm": "shared_head.norm"}


class Reference:
    """transformers' model, and the layer of multi-token prediction of its modules."""

    def __init__(self, path: Path, kind: Kind) -> None:
        self.model: Any = NETWORKS[kind].from_pretrained(path, dtype=torch.float32).eval()
        self.text: Any = self.model.model.language_model
        self.repeats_normed = kind != "glm"
        prefix, names = "mtp.", {**QWEN_NAMES, "layer": "layers.0"}
        if kind == "glm":
            prefix = f"model.language_model.layers.{self.text.config.num_hidden_layers}."
            names = {**GLM_NAMES, "layer": ""}
        width = self.text.config.hidden_size
        layer = next(each for each in self.text.layers if hasattr(each, "self_attn"))
        self.parts: dict[str, Any] = {name: deepcopy(self.text.norm) for name in ("norm", "enorm", "hnorm")}
        self.parts |= {"fc": nn.Linear(2 * width, width, bias=False), "layer": deepcopy(layer)}
        weights = load_file(path / "model.safetensors")
        for part, name in names.items():
            stem = f"{prefix}{name}{'.' if name else ''}"
            own = {key.removeprefix(stem): value for key, value in weights.items() if key.startswith(stem)}
            known = self.parts[part].state_dict()
            self.parts[part].load_state_dict({key: value for key, value in own.items() if key in known})

    def states(self, hidden: Tensor, following: Sequence[int]) -> Tensor:
        """[1, tokens, hidden_size] and the tokens that follow → the layer's outputs."""
        parts, embedded = self.parts, self.text.embed_tokens(torch.tensor([following]))
        joined = parts["fc"](torch.cat([parts["enorm"](embedded), parts["hnorm"](hidden)], dim=-1))
        positions = torch.arange(len(following)).expand(3, 1, -1)
        mask = torch.full((len(following),) * 2, -torch.inf).triu(1)[None, None]
        rotation = self.text.rotary_emb(joined, positions)
        return parts["layer"](joined, position_embeddings=rotation, attention_mask=mask)

    def head(self, states: Tensor) -> Tensor:
        return self.model.lm_head(self.parts["norm"](states))

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """Returns [tokens - 1, vocab_size], of what follows the token after each."""
        hidden = self.text(input_ids=torch.tensor([token_ids[:-1]])).last_hidden_state
        return self.head(self.states(hidden, token_ids[1:]))[0]

    def proposals(self, token_ids: Sequence[int]) -> tuple[int, ...]:
        """Returns the likeliest tokens after a sequence, each computed from the layer's output for the one before."""
        hidden = self.text(input_ids=torch.tensor([token_ids[:-1]])).last_hidden_state
        following = list(token_ids[1:])
        for _ in range(NUM_DRAFTS):
            states = self.states(hidden, following)
            last = states[:, -1:]
            following.append(int(self.head(last).argmax()))
            hidden = torch.cat([hidden, self.parts["norm"](last) if self.repeats_normed else last], dim=1)
        return tuple(following[-NUM_DRAFTS:])


@torch.inference_mode()
def draft_logits(path: Path, backend: ChosenBackend, quantization: Quantization = "none") -> Tensor:
    """Returns [tokens - 1, vocab_size], of what follows the token after each of a prompt."""
    config = with_mtp(load_model_config(path), read_headers(path))
    scheme = resolve_scheme(quantization, config.quantization)
    model = load_model(path, config, CPU, torch.float32, lambda *_: None, scheme=scheme, backend=backend)
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
        states=None if config.text.states is None else ChunkStates(reads=NO_STATE, writes=((num_tokens, 0),)),
    )
    layout: SequenceLayout = model.layout(num_tokens, ())
    batch = make_batch([chunk], {0: layout}, block_size=32, device=CPU)
    hidden = model.decoder.norm(model.hidden_states(batch, cache, {}))
    states = model.draft_states(batch, torch.tensor(token_ids[1:]), hidden, cache, {})
    return model.draft_logits(states)


@pytest.mark.parametrize("backend", ["torch", "native"])
@pytest.mark.parametrize("kind", MAKE)
def test_logits_are_those_of_transformers_modules(tmp_path: Path, kind: Kind, backend: ChosenBackend) -> None:
    path = MAKE[kind](tmp_path)
    with torch.inference_mode():
        expected = Reference(path, kind).logits(PROMPTS[0].token_ids)
    torch.testing.assert_close(draft_logits(path, backend), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("ignore", ["$", r"mtp\."], ids=["quantized", "left as floats"])
@pytest.mark.parametrize("method", ["awq", "gptq", "fp8 blocks", "compressed-tensors"])
def test_the_layer_of_quantized_checkpoints_is_read(tmp_path: Path, method: str, ignore: str) -> None:
    plain = make_qwen3_5_checkpoint(tmp_path / "plain")
    if method == "compressed-tensors":
        forms = {"Linear": CompressedFormat()}
        paths = compress_checkpoint(plain, tmp_path, forms, [r"re:.*in_proj_[ab]$", r"re:.*mtp\.fc", f"re:{ignore}"])
    else:
        paths = quantize_checkpoint(plain, tmp_path, WeightFormat(method=method), ignore=ignore)
    found, expected = (draft_logits(path, "torch") for path in paths)
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


@needs_kernels
@pytest.mark.parametrize("kind", ["dense", "experts"])
def test_the_layer_of_gguf_files_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    monkeypatch.setattr(folder, "cache_folder", lambda: tmp_path / "cache")
    plain = MAKE[kind](tmp_path / "plain")
    expected = draft_logits(plain, "torch")
    formats: Sequence[tuple[str, ChosenBackend, float]] = (("F32", "torch", 1e-4), ("Q8_0", "native", 0.2))
    for stored, backend, tolerance in formats:
        file = write_gguf(tmp_path / f"{stored}.gguf", plain, "qwen35" if kind == "dense" else "qwen35moe", stored)
        assert difference(draft_logits(resolve_checkpoint(str(file)), backend), expected) < tolerance


@needs_kernels
@pytest.mark.parametrize("scheme", ["int8", "int4"])
def test_the_layer_is_quantized_with_the_others(tmp_path: Path, scheme: Quantization) -> None:
    path = make_qwen3_5_checkpoint(tmp_path)
    exact, expected = draft_logits(path, "torch"), draft_logits(path, "torch", scheme)
    assert difference(expected, exact) > 0.01
    assert difference(draft_logits(path, "native", scheme), expected) < 0.1


def difference(found: Tensor, expected: Tensor) -> float:
    """Returns the root mean square of differences, as a share of the standard deviation."""
    return float((found - expected).square().mean().sqrt() / expected.std())


def answers_of(path: Path, samplings: Sequence[SamplingParams], **options: Any) -> list[list[int]]:
    config = EngineConfig(
        model_path=str(path), dtype="float32", num_threads=1, kv_cache_bytes=4 << 20, max_batch_tokens=40, **options
    )
    core = load_core(config, on_progress=lambda *_: None).core
    for number, (prompt, sampling) in enumerate(zip(PROMPTS, samplings, strict=False)):
        core.submit(request_of(str(number), prompt, sampling))
    found = answers(run_until_idle(core))
    return [found[str(number)] for number in range(len(samplings))]


@pytest.mark.parametrize(("kind", "backend"), [("dense", "torch"), ("dense", "native"), ("glm", "native")])
def test_drafts_are_the_layers_own_and_change_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind, backend: str
) -> None:
    """Verifies known answers in which each third token is wrong, since the layer's own are hardly ever accepted."""
    path = MAKE[kind](tmp_path)
    samplings = [
        SamplingParams(temperature=0, max_tokens=14, ignore_eos=True),
        SamplingParams(temperature=0.9, seed=3, max_tokens=12, ignore_eos=True),
        SamplingParams(temperature=0.7, seed=5, max_tokens=9, ignore_eos=True),
    ]
    samplings = samplings[:2] if kind == "glm" else samplings
    expected = answers_of(path, samplings, backend=backend, speculative="off")
    known = {len(prompt.token_ids): answer for prompt, answer in zip(PROMPTS, expected, strict=False)}
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
    reference, length = Reference(path, kind), len(PROMPTS[0].token_ids)
    own = [each for each in proposed if tuple(each[0][:length]) == tuple(PROMPTS[0].token_ids)]
    with torch.inference_mode():
        for token_ids, drafts in own:
            assert drafts == reference.proposals(token_ids)[: len(drafts)]
    assert {len(drafts) for _, drafts in own} >= {NUM_DRAFTS}


def test_a_checkpoint_without_the_layer_refuses_it_by_name(tmp_path: Path) -> None:
    config = EngineConfig(model_path=str(make_text_checkpoint(tmp_path, "qwen3")), speculative="mtp")
    with pytest.raises(CheckpointError, match=r"'--speculative mtp': expected a checkpoint .*; write auto or ngram"):
        load_core(config, on_progress=lambda *_: None)
