"""Quantizes a model's decoder while it computes a text, with the memory of one layer at a time."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import torch
from safetensors import safe_open
from torch import Tensor, nn
from torch.nn import functional

from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.core.plan import NO_STATE, ChunkStates, SequenceChunk
from glimpse.engine.worker.loading.weight_files import weight_files
from glimpse.engine.worker.loading.weights import checkpoint_name
from glimpse.engine.worker.models.decoder_weights import layer_index
from glimpse.engine.worker.models.model import Model
from glimpse.engine.worker.quantize.layers import Pass, QuantizingLayer, Round, StoredPart, Write, fill
from glimpse.engine.worker.tensors.batch import Batch
from glimpse.engine.worker.tensors.batch_builder import make_batch
from glimpse.engine.worker.tensors.kv_cache import CacheShape

_BLOCK_SIZE = 16
_ROWS_AT_ONCE = 256
"""Rows whose logits are in memory."""
_CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """Token ids of texts, each computed by itself."""

    seen: Sequence[Sequence[int]]
    """Texts that decide how matrices are rounded."""
    held_out: Sequence[Sequence[int]]
    """Texts that measure what is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What rounding does to the perplexity of the texts that are held out."""

    exact: float
    """Perplexity before."""
    quantized: float
    """Perplexity after."""

    @property
    def increase(self) -> float:
        """The growth of the perplexity, as a part of that before."""
        return self.quantized / self.exact - 1


class StoredTensors(Protocol):
    """The tensors of a model's checkpoint, read one at a time."""

    layers: Sequence[Sequence[str]]
    """Names, in the files, of the tensors of each layer."""
    others: Sequence[str]
    """Names of all other tensors."""

    def checkpoint_name(self, name: str) -> str:
        """Returns the checkpoint name of a tensor by its name in the file."""
        ...

    def whole(self, name: str) -> StoredPart:
        """Reads a tensor by its name in the file."""
        ...

    def parts(self, names: Sequence[str]) -> Iterator[StoredPart]:
        """Reads tensors in the parts that are rounded apart."""
        ...


def by_layer(
    names: Iterable[tuple[str, str]], model: Model, text: TextConfig
) -> tuple[Sequence[Sequence[str]], Sequence[str]]:
    """Divides names in files, with the checkpoint name of each: into those of each layer, and all others."""
    layers: list[list[str]] = [[] for _ in range(text.num_layers)]
    others: list[str] = []
    for name, source in names:
        is_of_layer = source.startswith(f"{model.decoder_prefix}model.layers.")
        (layers[layer_index(source)] if is_of_layer else others).append(name)
    return layers, others


class SafetensorsTensors:
    """The tensors of a checkpoint's folder."""

    def __init__(self, path: Path, model: Model, text: TextConfig) -> None:
        self._model, self._text = model, text
        self._files: dict[str, Path] = {}
        for file in weight_files(path):
            with safe_open(file, framework="pt") as tensors:
                self._files |= dict.fromkeys(tensors.keys(), file)
        self.layers, self.others = by_layer(((name, self.checkpoint_name(name)) for name in self._files), model, text)

    def checkpoint_name(self, name: str) -> str:
        """See `StoredTensors`."""
        return checkpoint_name(name, self._model.renamed_prefixes)

    @property
    def kept_modules(self) -> list[str]:
        """Names, in the files, of the modules beside the decoder, such as "visual", and of its output head."""
        decoder = {f"{self._model.decoder_prefix}{name}" for name, _ in self._model.decoder.named_weights()}
        beside = (name for name in self.others if self.checkpoint_name(name) not in decoder)
        return sorted({"lm_head", *(".".join(name.split(".")[: 1 + name.startswith("model.")]) for name in beside)})

    def whole(self, name: str) -> StoredPart:
        """See `StoredTensors`."""
        source = self.checkpoint_name(name)

        def arrange(tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
            for part, piece in self._model.split_weight(source, tensor, self._text):
                yield from self._model.arrange(part, piece, self._text)

        return StoredPart(name=name, tensor=self._read(name), arrange=arrange)

    def parts(self, names: Sequence[str]) -> Iterator[StoredPart]:
        """Reads tensors in the parts that the model tells apart."""
        for name in names:
            source = self.checkpoint_name(name)
            for part, tensor in self._model.split_weight(source, self._read(name), self._text):
                arrange = partial(self._model.arrange, part, text=self._text)
                yield StoredPart(name=name if part == source else part, tensor=tensor, arrange=arrange)

    def _read(self, name: str) -> Tensor:
        with safe_open(self._files[name], framework="pt") as tensors:
            return tensors.get_tensor(name)


def quantize_decoder(
    model: Model,
    stored: StoredTensors,
    texts: Texts,
    *,
    round_parts: Round,
    write: Write,
    on_progress: Callable[[float], None],
) -> Loss:
    """Writes all tensors of a model's checkpoint, some matrices rounded.

    Each layer's inputs are those that the rounded layers before it compute.

    Args:
        model: from `empty_model`, in float32; of no use afterwards.
        on_progress: called with the fraction of layers that is done.
    """
    decoder, layers, text = model.decoder, model.decoder.layers, model.decoder.config
    decoder.layers = nn.ModuleList()
    decoder.to_empty(device=_CPU)
    used = {name: tensor for name, tensor in model.named_weights() if not tensor.is_meta}
    names_used = [name for name in stored.others if stored.checkpoint_name(name) in used]
    fill(used, map(stored.whole, names_used))

    def read(index: int) -> Iterator[StoredPart]:
        on_progress(index / len(layers))
        return stored.parts(stored.layers[index])

    batch = _batch(model, [*texts.seen, *texts.held_out])
    num_states = len(batch.query_lengths) if text.states is not None else 0
    num_blocks = sum(map(_num_blocks, batch.query_lengths))
    allocate = partial(
        CacheShape.of(text).allocate, num_blocks, _BLOCK_SIZE, torch.float32, _CPU, num_states=num_states
    )
    cache = allocate()
    embedded, embed_layers = decoder.embed(batch.token_ids), decoder.layer_embeddings
    shared = Pass(
        round_parts=round_parts,
        write=write,
        num_seen=sum(map(len, texts.seen)),
        exact=embedded,
        exact_added=None if embed_layers is None else embed_layers(batch, embedded, model.ops),
        exact_cache=allocate() if text.num_sharing_layers else cache,
    )
    for name in stored.others:
        shared.round_and_write([stored.whole(name)], None, used)
    for index, layer in enumerate(layers):
        prefix = f"{model.decoder_prefix}model.layers.{index}."
        decoder.layers.append(QuantizingLayer(layer, prefix, partial(read, index), shared))  # type: ignore[arg-type]
    hidden = model.hidden_states(batch, cache, {})
    quantized = _perplexity(model, hidden[shared.num_seen :], texts.held_out)
    fill(used, map(stored.whole, names_used))  # embeddings and output head may have been rounded
    exact = _perplexity(model, shared.exact[shared.num_seen :], texts.held_out)
    return Loss(exact=exact, quantized=quantized)


def _num_blocks(num_tokens: int) -> int:
    return -(-num_tokens // _BLOCK_SIZE)


def _batch(model: Model, texts: Sequence[Sequence[int]]) -> Batch:
    """Returns one step that computes all texts, each a sequence."""
    chunks: list[SequenceChunk] = []
    first_block = 0
    for index, text in enumerate(texts):
        end = first_block + _num_blocks(len(text))
        states = ChunkStates(reads=NO_STATE, writes=((len(text), index),))
        chunk = SequenceChunk(
            sequence_id=index,
            start=0,
            token_ids=tuple(text),
            block_table=range(first_block, end),
            samples=False,
            states=None if model.decoder.config.states is None else states,
        )
        chunks.append(chunk)
        first_block = end
    layouts = {index: model.layout(len(text), ()) for index, text in enumerate(texts)}
    return make_batch(chunks, layouts, block_size=_BLOCK_SIZE, device=_CPU)


def _perplexity(model: Model, hidden: Tensor, texts: Sequence[Sequence[int]]) -> float:
    """Returns e to the mean negative log-probability of all tokens but the first of each text.

    Args:
        hidden: [tokens of all texts, hidden_size]
    """
    losses: list[Tensor] = []
    for text, rows in zip(texts, hidden.split([*map(len, texts)]), strict=True):
        for some, labels in zip(
            rows[:-1].split(_ROWS_AT_ONCE), torch.tensor(text[1:]).split(_ROWS_AT_ONCE), strict=True
        ):
            losses.append(functional.cross_entropy(model.logits_of_rows(some), labels, reduction="none"))
    return math.exp(torch.cat(losses).double().mean().item())
