"""A runner on a checkpoint with scripted steps: each test decides which tokens of which sequence a step computes.

It runs on the CPU, or with GLIMPSE_TEST_DEVICE=cuda on a GPU with its kernels.
"""

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.grammar.matcher import GrammarCompiler
from glimpse.engine.checkpoint.lora import read_adapters
from glimpse.engine.core.memory.sliding_window import SlidingWindow
from glimpse.engine.core.plan import NO_STATE, ChunkStates, Encode, SequenceChunk, SequenceStart, StepPlan
from glimpse.engine.core.request import namespace_key
from glimpse.engine.protocol.config import ChosenBackend, EngineConfig, Quantization
from glimpse.engine.protocol.media import MediaSpan
from glimpse.engine.protocol.messages import Generate, MediaInput
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.worker.cuda.backend import make_cuda_ops
from glimpse.engine.worker.execution.runner import ModelRunner
from glimpse.engine.worker.layers.lora import Adapters
from glimpse.engine.worker.layers.ops import Ops
from glimpse.engine.worker.layers.quantized import resolve_scheme
from glimpse.engine.worker.loading.adapters.load_adapters import AdapterLoader
from glimpse.engine.worker.loading.load_engine import load_model, load_vocabulary
from glimpse.engine.worker.native.backend import use_native
from glimpse.engine.worker.native.library import Level
from glimpse.engine.worker.native.low_rank import PackedAdapters
from glimpse.engine.worker.tensors.kv_cache import CacheShape
from glimpse.media.kind import MediaKind

BLOCK_SIZE = 8
NUM_BLOCKS = 1024
NUM_STATES = 64
PLACEHOLDER_IDS = {MediaKind.IMAGE: 277, MediaKind.VIDEO: 278}
GREEDY = SamplingParams(temperature=0.0)
DEVICE = torch.device(os.environ.get("GLIMPSE_TEST_DEVICE", "cpu"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Token ids with media among them."""

    token_ids: tuple[int, ...]
    spans: tuple[MediaSpan, ...] = ()
    images: tuple[np.ndarray, ...] = ()
    """uint8, one for each span: images are [height, width, 3], videos [frames, height, width, 3]."""
    sources: tuple[Any, ...] = ()
    """What the reference reads in place of `images`, where that is something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedMedium:
    """A medium and its tokens in a prompt."""

    token_ids: Sequence[int]
    kind: MediaKind
    grid: tuple[int, ...]
    content: np.ndarray
    key: bytes = b""
    """Default: a hash of the content."""
    runs: tuple[tuple[int, int], ...] = ()
    source: Any = None
    """See `Prompt.sources`."""


def prompt_with(
    seed: int,
    parts: Iterable[Any],
    place: Callable[[np.random.Generator, Any], PlacedMedium],
    *,
    text_ids: tuple[int, int] = (0, 256),
) -> Prompt:
    """Returns a prompt of random text and media.

    Args:
        parts: a number, not below 0, stands for that many text tokens; anything else for a medium.
        place: returns the medium of a part.
    """
    random = np.random.default_rng(seed)
    token_ids: list[int] = []
    spans: list[MediaSpan] = []
    media: list[PlacedMedium] = []
    for part in parts:
        if isinstance(part, int) and part >= 0:
            token_ids += random.integers(*text_ids, part).tolist()
            continue
        medium = place(random, part)
        key = medium.key or hashlib.sha256(medium.content.tobytes()).digest()
        spans.append(
            MediaSpan(
                kind=medium.kind,
                start=len(token_ids),
                num_tokens=len(medium.token_ids),
                key=key,
                grid=medium.grid,
                runs=medium.runs,
            )
        )
        media.append(medium)
        token_ids += medium.token_ids
    return Prompt(
        token_ids=tuple(token_ids),
        spans=tuple(spans),
        images=tuple(medium.content for medium in media),
        sources=tuple(medium.source for medium in media),
    )


def request_of(request_id: str, prompt: Prompt, sampling: SamplingParams) -> Generate:
    """Returns the request that a front end sends for a prompt."""
    media = [
        MediaInput(span=span, content=memoryview(image.tobytes()))
        for span, image in zip(prompt.spans, prompt.images, strict=True)
    ]
    return Generate(request_id=request_id, token_ids=list(prompt.token_ids), media=media, sampling=sampling)


@dataclass(slots=True, kw_only=True, eq=False)
class ScriptedSequence:
    """A sequence and its progress."""

    sequence_id: int
    prompt: Prompt
    blocks: tuple[int, ...]
    num_shared_blocks: int
    """The first blocks belong to another sequence."""
    sampling: SamplingParams
    adapter: bytes
    """See `SequenceStart`."""
    encoder_adapter: bytes
    """See `Encode`."""
    token_ids: list[int]
    num_computed: int = 0
    started: bool = False
    logits: list[Tensor] = field(default_factory=list[Tensor])
    state: int = NO_STATE
    """State that it writes; NO_STATE if the model's layers keep none."""
    reads: int = NO_STATE
    """State that its next chunk reads."""
    snapshots: dict[int, int] = field(default_factory=dict[int, int])
    """Number of tokens → state after them."""

    @property
    def answer(self) -> list[int]:
        return self.token_ids[len(self.prompt.token_ids) :]


class Harness:
    """A runner that records the logits that it samples from."""

    def __init__(
        self,
        path: Path,
        dtype: torch.dtype = torch.float32,
        *,
        level: Level | None = None,
        ops: Ops | None = None,
        quantization: Quantization = "none",
        keeps_blocks: bool = True,
        int8_head: bool = False,
        block_size: int = BLOCK_SIZE,
        max_model_len: int | None = None,
        adapters: Mapping[str, Path] | None = None,
        samples_on_device: bool = False,
    ) -> None:
        """
        Args:
            level: Runs the model on the native kernels of this level. Their attention needs blocks of 32; with other
                block sizes torch's attention is used.
            ops: Runs the model on these operations. Without `level` and `ops` it runs on torch, or on a GPU's kernels.
            quantization: Scheme of the decoder's layers.
            keeps_blocks: Whether the matrices of a GGUF file stay integers, as native kernels need them: torch
                dequantizes them in each step.
            int8_head: Whether the output head is quantized to int8.
            samples_on_device: Tokens are sampled on the device.
            adapters: Folders of LoRA adapters, by name.
        """
        config = load_model_config(path).within(max_model_len)
        text, device = config.text, DEVICE
        scheme = resolve_scheme(quantization, config.quantization)
        backend: ChosenBackend = "native" if keeps_blocks else "torch"
        model = load_model(path, config, device, dtype, lambda stage, fraction: None, scheme=scheme, backend=backend)
        loader = AdapterLoader(model, text, dtype)
        if int8_head:
            model.decoder.quantize_head()
        if level is not None:
            model.ops = use_native(model, level, dtype)
        if ops is None and level is None and device.type == "cuda":
            ops = make_cuda_ops("triton", num_heads=text.num_heads, device=device)
        if ops is not None:
            model.ops = ops
        if adapters is not None:
            names = {name: str(folder) for name, folder in adapters.items()}
            read = read_adapters(EngineConfig(model_path=str(path), lora_modules=names))
            model.adapters = (Adapters if level is None else PackedAdapters)(len(names))
            loader.load_all(read)
        self._digests, self._encoding = model.adapters.digests, model.adapters.encoding
        self._keeps_states = text.states is not None
        num_states = NUM_STATES if self._keeps_states else 0
        cache = CacheShape.of(text).allocate(NUM_BLOCKS, block_size, dtype, device, num_states=num_states)
        self.runner = ModelRunner(
            model=model,
            cache=cache,
            eos_token_ids=config.eos_token_ids,
            suppressed_token_ids=config.suppressed_token_ids,
            samples_on_device=samples_on_device,
            device=device,
            dtype=dtype,
            grammars=GrammarCompiler(load_vocabulary(path, text.vocab_size)),
        )
        self._block_size = block_size
        self._logits: list[Tensor] = []
        model.register_forward_hook(lambda module, args, output: self._logits.append(output.clone().cpu()))
        self._free_blocks = list(range(NUM_BLOCKS))
        self._window = None
        if text.sliding is not None and cache.sliding is not None:
            self._window = SlidingWindow(num_tokens=text.sliding.window, block_size=block_size)
            self._other_block = _sliding_block(self._free_blocks.pop())
            for tensor in cache.sliding:
                tensor[:, self._other_block] = 100.0  # shows in answers if it is attended to
        self._free_states = list(range(NUM_STATES))
        self._encoded: set[bytes] = set()
        self._num_sequences = 0

    def begin(
        self,
        prompt: Prompt,
        *,
        sampling: SamplingParams = GREEDY,
        cached: ScriptedSequence | None = None,
        num_cached: int = 0,
        snapshots: Sequence[int] = (),
        adapter: str | None = None,
    ) -> ScriptedSequence:
        """Returns a new sequence. Its first `num_cached` tokens are in the blocks of `cached`.

        If the model's layers keep states, `cached` has a snapshot after so many tokens. `snapshots`: where it has some.
        """
        shared = cached.blocks[: num_cached // self._block_size] if cached else ()
        num_blocks = len(prompt.token_ids) // self._block_size + 8
        # Taken from the end, so that block tables are not ascending.
        own = tuple(self._free_blocks.pop() for _ in range(num_blocks - len(shared)))
        self._num_sequences += 1
        digest = b"" if adapter is None else self._digests[adapter]
        encoder_adapter = digest if digest in self._encoding else b""
        sealed = (replace(span, key=namespace_key(span.key, "", encoder_adapter)) for span in prompt.spans)
        return ScriptedSequence(
            sequence_id=self._num_sequences,
            prompt=replace(prompt, spans=tuple(sealed)),
            blocks=shared + own,
            num_shared_blocks=len(shared),
            sampling=sampling,
            adapter=digest,
            encoder_adapter=encoder_adapter,
            token_ids=list(prompt.token_ids),
            num_computed=num_cached,
            state=self._free_states.pop() if self._keeps_states else NO_STATE,
            reads=cached.snapshots[num_cached] if self._keeps_states and cached and num_cached else NO_STATE,
            snapshots={place: self._free_states.pop() for place in snapshots} if self._keeps_states else {},
        )

    def step(self, *work: tuple[ScriptedSequence, int]) -> None:
        """Computes the given number of tokens of each sequence in one step."""
        chunks = tuple(self._in_window(_chunk(sequence, num_tokens, self._block_size)) for sequence, num_tokens in work)
        beginning = [sequence for sequence, _ in work if not sequence.started]
        plan = StepPlan(
            started=tuple(_start(sequence) for sequence in beginning),
            encode=tuple(item for sequence in beginning for item in self._encode(sequence)),
            chunks=chunks,
        )
        result = self.runner.execute(plan)
        rows = iter(self._logits.pop())
        for (sequence, num_tokens), chunk in zip(work, chunks, strict=True):
            sequence.started = True
            sequence.num_computed += num_tokens
            sequence.reads = sequence.state
            assert chunk.samples == (sequence.sequence_id in result.samples)
            if chunk.samples:
                sequence.token_ids.append(result.samples[sequence.sequence_id].token_id)
                sequence.logits.append(next(rows))

    def answer(self, sequence: ScriptedSequence, num_tokens: int, *, chunks: Sequence[int] = ()) -> ScriptedSequence:
        """Prefills in chunks of these sizes and one for the rest, then decodes the sequence alone."""
        for size in chunks:
            self.step((sequence, size))
        self.step((sequence, len(sequence.prompt.token_ids) - sequence.num_computed))
        for _ in range(num_tokens - 1):
            self.step((sequence, 1))
        return sequence

    def end(self, sequence: ScriptedSequence) -> None:
        """Ends a sequence and frees its own blocks."""
        self.runner.execute(StepPlan(ended=(sequence.sequence_id,)))
        self._free_blocks += sequence.blocks[sequence.num_shared_blocks :]
        if self._keeps_states:
            self._free_states += (sequence.state, *sequence.snapshots.values())

    def _in_window(self, chunk: SequenceChunk) -> SequenceChunk:
        """Gives sliding layers blocks of their own. Those before the window are others' by now."""
        if self._window is None:
            return chunk
        own = [_sliding_block(block_id) for block_id in chunk.block_table]
        first = self._window.first_block(chunk.start)
        return msgspec.structs.replace(chunk, sliding_table=[self._other_block] * first + own[first:])

    def _encode(self, sequence: ScriptedSequence) -> list[Encode]:
        missing = {
            span.key: Encode(
                key=span.key,
                kind=span.kind,
                grid=span.grid,
                content=memoryview(image.tobytes()),
                adapter=sequence.encoder_adapter,
            )
            for span, image in zip(sequence.prompt.spans, sequence.prompt.images, strict=True)
            if span.key not in self._encoded
        }
        self._encoded |= missing.keys()
        return list(missing.values())


def make_prompt(
    seed: int,
    *parts: int | tuple[int, int] | tuple[int, int, int],
    placeholder_ids: Mapping[MediaKind, int] = PLACEHOLDER_IDS,
) -> Prompt:
    """Returns a prompt of random text and media, of which squares of 28 pixels are tokens.

    A number stands for that many text tokens, a pair for an image of that height and width, and a triple for a video of
    that many frames, height and width.
    """

    def place(random: np.random.Generator, part: tuple[int, ...]) -> PlacedMedium:
        image = random.integers(0, 256, (*part, 3), dtype=np.uint8)
        *frames, height, width = part
        grid = (-(-sum(frames) // 2) or 1, height // 14, width // 14)
        kind = MediaKind.VIDEO if frames else MediaKind.IMAGE
        token_ids = [placeholder_ids[kind]] * (grid[0] * grid[1] * grid[2] // 4)
        return PlacedMedium(token_ids=token_ids, kind=kind, grid=grid, content=image)

    return prompt_with(seed, parts, place)


def encode_of(content: memoryview, grid: tuple[int, ...], kind: MediaKind = MediaKind.IMAGE) -> Encode:
    """Returns a medium for a model's encoder, without a key."""
    return Encode(key=b"", kind=kind, grid=grid, content=content)


def _start(sequence: ScriptedSequence) -> SequenceStart:
    return SequenceStart(
        sequence_id=sequence.sequence_id,
        prompt_token_ids=sequence.prompt.token_ids,
        spans=sequence.prompt.spans,
        sampling=sequence.sampling,
        adapter=sequence.adapter,
    )


def _sliding_block(block_id: int) -> int:
    return NUM_BLOCKS - 1 - block_id


def _chunk(sequence: ScriptedSequence, num_tokens: int, block_size: int) -> SequenceChunk:
    end = sequence.num_computed + num_tokens
    return SequenceChunk(
        sequence_id=sequence.sequence_id,
        start=sequence.num_computed,
        token_ids=tuple(sequence.token_ids[sequence.num_computed : end]),
        block_table=sequence.blocks[: -(-end // block_size)],
        samples=end == len(sequence.token_ids),
        states=None if sequence.state == NO_STATE else _states(sequence, end),
    )


def _states(sequence: ScriptedSequence, end: int) -> ChunkStates:
    writes: list[tuple[int, int]] = []
    first = sequence.num_computed
    for place, state in sorted(sequence.snapshots.items()):
        if first < place < end:
            writes.append((place - first, state))
            first = place
    writes.append((end - first, sequence.state))
    return ChunkStates(reads=sequence.reads, writes=tuple(writes))
