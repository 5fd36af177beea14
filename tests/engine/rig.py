"""A runner on a checkpoint, driven by hand: each test says which tokens of which sequence a step computes."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from engine.config import load_model_config
from engine.kv_cache import allocate_kv_cache
from engine.layers.linear import quantize
from engine.load import load_model
from engine.native.backend import use_native
from engine.native.library import Level
from engine.plan import Encode, MediaKind, MediaSpan, SequenceChunk, SequenceStart, StepPlan
from engine.runner import ModelRunner
from engine.sampling_params import SamplingParams

BLOCK_SIZE = 8
NUM_BLOCKS = 1024
IMAGE_TOKEN_ID = 277
GREEDY = SamplingParams(temperature=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Token ids with pictures among them."""

    token_ids: tuple[int, ...]
    spans: tuple[MediaSpan, ...] = ()
    images: tuple[np.ndarray, ...] = ()
    """uint8 [height, width, 3], one for each span."""


@dataclass(slots=True, kw_only=True, eq=False)
class Driven:
    """A sequence under way."""

    sequence_id: int
    prompt: Prompt
    blocks: tuple[int, ...]
    sampling: SamplingParams
    token_ids: list[int]
    num_computed: int = 0
    started: bool = False
    logits: list[Tensor] = field(default_factory=list[Tensor])

    @property
    def answer(self) -> list[int]:
        return self.token_ids[len(self.prompt.token_ids) :]


class Rig:
    """A runner, and a record of the logits that it sampled."""

    def __init__(
        self, path: Path, dtype: torch.dtype = torch.float32, *, level: Level | None = None, int8: bool = False
    ) -> None:
        """`level` puts the model onto the native kernels of that level; None leaves it on torch."""
        config = load_model_config(path)
        text, device = config.text, torch.device("cpu")
        model = load_model(path, config, device, dtype, lambda stage, fraction: None)
        if int8:
            quantize(model.layers)
        if level is not None:
            model.ops = use_native(model, level)
        cache = allocate_kv_cache(
            num_layers=text.num_layers,
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            num_kv_heads=text.num_kv_heads,
            head_dim=text.head_dim,
            dtype=dtype,
            device=device,
        )
        self.runner = ModelRunner(
            model=model, cache=cache, eos_token_ids=config.eos_token_ids, spatial_merge_size=2, device=device
        )
        self._logits: list[Tensor] = []
        model.register_forward_hook(lambda module, args, output: self._logits.append(output.clone()))
        self._free_blocks = list(range(NUM_BLOCKS))
        self._encoded: set[bytes] = set()
        self._num_sequences = 0

    def begin(
        self, prompt: Prompt, *, sampling: SamplingParams = GREEDY, cached: Driven | None = None, num_cached: int = 0
    ) -> Driven:
        """A new sequence; its first `num_cached` tokens are those of `cached`, in whose blocks they lie."""
        shared = cached.blocks[: num_cached // BLOCK_SIZE] if cached else ()
        num_blocks = len(prompt.token_ids) // BLOCK_SIZE + 8
        # From the end, so that block tables are not simply ascending.
        own = tuple(self._free_blocks.pop() for _ in range(num_blocks - len(shared)))
        self._num_sequences += 1
        return Driven(
            sequence_id=self._num_sequences,
            prompt=prompt,
            blocks=shared + own,
            sampling=sampling,
            token_ids=list(prompt.token_ids),
            num_computed=num_cached,
        )

    def step(self, *work: tuple[Driven, int]) -> None:
        """Computes so many tokens of each of these sequences in one step."""
        chunks = tuple(_chunk(driven, num_tokens) for driven, num_tokens in work)
        beginning = [driven for driven, _ in work if not driven.started]
        plan = StepPlan(
            started=tuple(_start(driven) for driven in beginning),
            encode=tuple(item for driven in beginning for item in self._encode(driven)),
            chunks=chunks,
        )
        result = self.runner.execute(plan)
        rows = iter(self._logits.pop())
        for (driven, num_tokens), chunk in zip(work, chunks, strict=True):
            driven.started = True
            driven.num_computed += num_tokens
            assert chunk.samples == (driven.sequence_id in result.samples)
            if chunk.samples:
                driven.token_ids.append(result.samples[driven.sequence_id].token_id)
                driven.logits.append(next(rows))

    def answer(self, driven: Driven, num_tokens: int, *, chunks: Sequence[int] = ()) -> Driven:
        """Prefills in chunks of these sizes and one for the rest, then decodes alone."""
        for size in chunks:
            self.step((driven, size))
        self.step((driven, len(driven.prompt.token_ids) - driven.num_computed))
        for _ in range(num_tokens - 1):
            self.step((driven, 1))
        return driven

    def _encode(self, driven: Driven) -> list[Encode]:
        missing = {
            span.key: Encode(key=span.key, kind=span.kind, grid_thw=span.grid_thw, pixels=memoryview(image.tobytes()))
            for span, image in zip(driven.prompt.spans, driven.prompt.images, strict=True)
            if span.key not in self._encoded
        }
        self._encoded |= missing.keys()
        return list(missing.values())


def make_prompt(seed: int, *parts: int | tuple[int, int]) -> Prompt:
    """Random text and pictures: a number is that many text tokens, a pair a picture of that height and width."""
    random = np.random.default_rng(seed)
    token_ids: list[int] = []
    spans: list[MediaSpan] = []
    images: list[np.ndarray] = []
    for part in parts:
        if isinstance(part, int):
            token_ids += random.integers(0, 256, part).tolist()
            continue
        image = random.integers(0, 256, (*part, 3), dtype=np.uint8)
        num_tokens = part[0] * part[1] // 28**2
        spans.append(
            MediaSpan(
                kind=MediaKind.IMAGE,
                start=len(token_ids),
                num_tokens=num_tokens,
                key=hashlib.sha256(image.tobytes()).digest(),
                grid_thw=(1, part[0] // 14, part[1] // 14),
            )
        )
        images.append(image)
        token_ids += [IMAGE_TOKEN_ID] * num_tokens
    return Prompt(token_ids=tuple(token_ids), spans=tuple(spans), images=tuple(images))


def _start(driven: Driven) -> SequenceStart:
    return SequenceStart(
        sequence_id=driven.sequence_id,
        prompt_token_ids=driven.prompt.token_ids,
        spans=driven.prompt.spans,
        sampling=driven.sampling,
    )


def _chunk(driven: Driven, num_tokens: int) -> SequenceChunk:
    end = driven.num_computed + num_tokens
    return SequenceChunk(
        sequence_id=driven.sequence_id,
        start=driven.num_computed,
        token_ids=tuple(driven.token_ids[driven.num_computed : end]),
        block_table=driven.blocks[: -(-end // BLOCK_SIZE)],
        samples=end == len(driven.token_ids),
    )
