"""Loads LoRA adapters for a model: finds the linears that their tensors belong to."""

import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import NamedTuple, cast

import torch
from safetensors import SafetensorError, deserialize
from torch import Tensor, nn

from glimpse.engine.checkpoint.lora import WEIGHTS_NAME, LoraAdapter
from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.layers.group_quantized import GroupQuantizedLinear
from glimpse.engine.worker.layers.linear import Linear
from glimpse.engine.worker.layers.low_rank import LowRankUpdate, LowRankUpdatePart
from glimpse.engine.worker.layers.mixers import Attention, DeltaNetMixer, ShortConvMixer
from glimpse.engine.worker.layers.mlp import ExpertsMLP, GatedMLP
from glimpse.engine.worker.loading.weights import checkpoint_name
from glimpse.engine.worker.models.decoder import DecoderLayer
from glimpse.engine.worker.models.encoders.encoder import Encoder
from glimpse.engine.worker.models.model import Model
from glimpse.engine.worker.parallel.shards import shard_tensor

_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])(?:\.default)?\.weight")
_DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64}
_MOST_HEADER_BYTES = 8 << 20
"""Limit for the file of an adapter, which has some hundred tensors."""
_ROW_PARALLEL = ("o_proj.weight", "down_proj.weight", "conv.out_proj.weight", "linear_attn.out_proj.weight")
"""Matrices whose inputs are divided over ranks, as `shard_tensor` does; of all others it divides the outputs."""
_EXPECTED = (
    "linears of the encoder, and of attention, delta nets, short convolutions, MLPs and experts in the decoder, as"
    " lora_A and lora_B"
)


class _Part(NamedTuple):
    """One of the matrices that a linear stacks."""

    linear: nn.Module
    start: int
    """First output feature in the linear."""
    size: int


class _Matrices(NamedTuple):
    """What an adapter adds to a part of a linear: up · down."""

    part: _Part
    down: Tensor
    """[rank, in]"""
    up: Tensor
    """[size, rank], multiplied by the adapter's scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedAdapter:
    """What an adapter adds, in host memory."""

    digest: bytes
    """See `LoraAdapter.weights`."""
    added: Mapping[nn.Module, LowRankUpdate]
    encodes: bool
    """Whether it changes the encoder."""


class AdapterLoader:
    """Loads adapters for a model. It is made once the model's weights are loaded, before a backend packs them."""

    def __init__(
        self, model: Model, text: TextConfig, dtype: torch.dtype, *, rank: int = 0, num_ranks: int = 1
    ) -> None:
        """
        Args:
            text: sizes of the whole decoder, of which the model may be a shard.
            dtype: of activations.
        """
        shard = partial(shard_tensor, text=text, rank=rank, num_ranks=num_ranks)
        self._model = model
        places = {} if model.encoder is None else dict(_encoder_places(model.encoder))
        self._reader = _Reader(model, text, shard, places, num_ranks)
        self._device, self._dtype = model.decoder.norm.weight.device, dtype

    def load(self, adapter: LoraAdapter, *, max_rank: int | None = None) -> StagedAdapter:
        """Reads what an adapter adds to linears. May run beside steps.

        Args:
            max_rank: highest rank that bounds the size of the file, which is not read otherwise. None: nothing does.

        Raises:
            CheckpointError: it does not fit the model, or changes more than linears of the encoder and those of
                `_linears`.
        """
        found: dict[nn.Module, list[_Matrices]] = defaultdict(list)
        max_bytes = sys.maxsize if max_rank is None else self._max_bytes(max_rank)
        weights, digest = adapter.weights(max_bytes)
        for matrices in self._reader.read(adapter, weights):
            if not all(each.to(self._dtype).isfinite().all() for each in (matrices.down, matrices.up)):
                raise CheckpointError(f"adapter {adapter.name!r}: expected matrices that their scale leaves finite")
            found[matrices.part.linear].append(matrices)
        added = {linear: self._stack(matrices) for linear, matrices in found.items()}
        encoder = self._model.encoder
        encodes = encoder is not None and not added.keys().isdisjoint(encoder.modules())
        return StagedAdapter(digest=digest, added=added, encodes=encodes)

    def put(self, loaded: StagedAdapter) -> None:
        """Adds an adapter to those of the model, on the device of the model's norms, between steps."""
        if loaded.digest not in self._model.adapters.slots:
            added = {linear: update.to(self._device) for linear, update in loaded.added.items()}
            self._model.adapters.put(loaded.digest, added, encodes=loaded.encodes)

    def load_all(self, adapters: Iterable[LoraAdapter]) -> None:
        """Adds adapters to those of the model. Raises CheckpointError as `load` does."""
        for adapter in adapters:
            loaded = self.load(adapter)
            self.put(loaded)
            self._model.adapters.digests[adapter.name] = loaded.digest

    def _max_bytes(self, rank: int) -> int:
        """Returns more bytes than a file has with matrices of this rank, in any type, for all linears."""
        return _MOST_HEADER_BYTES + 2 * torch.float64.itemsize * rank * self._reader.num_features

    def _stack(self, matrices: Sequence[_Matrices]) -> LowRankUpdate:
        distinct = {id(each.down): each.down for each in matrices}  # parts of a stacked matrix share theirs
        ends = accumulate(map(len, distinct.values()))
        ranks = {key: slice(end - len(down), end) for (key, down), end in zip(distinct.items(), ends, strict=True)}
        parts = [
            LowRankUpdatePart(
                ranks=ranks[id(each.down)],
                outputs=slice(each.part.start, each.part.start + each.part.size),
                up=each.up.to(self._dtype),
            )
            for each in matrices
        ]
        return LowRankUpdate(down=torch.cat(list(distinct.values())).to(self._dtype), parts=parts)


def _encoder_places(encoder: Encoder) -> Iterator[tuple[str, tuple[str, int, int]]]:
    """Yields the names of matrices of an encoder's linears: with the path of the linear, which a backend replaces, the
    first output feature and their number."""
    linears = {
        linear.weight.untyped_storage(): (path, linear.weight.shape[1])
        for path, linear in encoder.named_modules()
        if isinstance(linear, Linear | GroupQuantizedLinear)
    }
    for name, tensor in encoder.named_weights():
        path, width = linears.get(tensor.untyped_storage(), ("", 0))
        if path and tensor.shape[1:] == (width,) and tensor.stride() == (width, 1):
            yield name.removesuffix(".weight"), (path, tensor.storage_offset() // width, len(tensor))


def _decoder_parts(model: Model) -> Iterator[tuple[str, _Part]]:
    """Yields the matrices that adapters may change, with the names that `Model.arrange` gives them."""
    for index, layer in enumerate(cast("Iterator[DecoderLayer]", iter(model.decoder.layers))):
        for names, linear in _linears(layer):
            start = 0
            for name, size in zip(names, _sizes(linear), strict=True):
                yield f"{model.decoder_prefix}model.layers.{index}.{name}", _Part(linear, start, size)
                start += size


def _linears(layer: DecoderLayer) -> Iterator[tuple[tuple[str, ...], nn.Module]]:
    mixer, mlp = layer.mixer, layer.mlp
    if isinstance(mixer, Attention):
        names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        yield (names if mixer.stores else names[:1]), mixer.qkv_proj
        yield ("self_attn.o_proj",), mixer.out
        if mixer.gate_proj is not None:
            yield ("self_attn.q_gate",), mixer.gate_proj
    if isinstance(mixer, DeltaNetMixer):
        yield ("linear_attn.in_proj_qkv", "linear_attn.in_proj_z"), mixer.net.in_proj
        yield ("linear_attn.in_proj_b", "linear_attn.in_proj_a"), mixer.net.rates_proj
        yield ("linear_attn.out_proj",), mixer.out
    if isinstance(mixer, ShortConvMixer):
        yield ("conv.in_proj", "conv.in_proj_c", "conv.in_proj_x"), mixer.layer.in_proj
        yield ("conv.out_proj",), mixer.out
    for name, each in _gated_mlps(mlp):
        yield (f"{name}.gate_proj", f"{name}.up_proj"), each.gate_up_proj
        yield (f"{name}.down_proj",), each.down_proj


def _gated_mlps(mlp: nn.Module) -> Iterator[tuple[str, GatedMLP]]:
    if isinstance(mlp, GatedMLP):
        yield "mlp", mlp
    if isinstance(mlp, ExpertsMLP):
        for index, expert in enumerate(cast("Iterator[GatedMLP]", iter(mlp.experts))):
            yield f"mlp.{mlp.name_of(index)}", expert


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads adapters of a model."""

    model: Model
    text: TextConfig
    shard: Callable[[str, Tensor], Tensor]
    """Returns this rank's shard of a matrix, by its name."""
    encoder_places: Mapping[str, tuple[str, int, int]]
    """See `_encoder_places`."""
    num_ranks: int

    @property
    def num_features(self) -> int:
        """Inputs and outputs of all linears, on all ranks."""
        return self.num_ranks * sum(_num_inputs(part.linear) + part.size for part in self._parts().values())

    def read(self, adapter: LoraAdapter, weights: bytes) -> Iterator[_Matrices]:
        """Yields an adapter's matrices. Raises CheckpointError for the first that does not fit the model."""
        parts, used = self._parts(), set[_Part]()
        for module, down, up in _pairs(adapter, weights):
            for name, rows in self._arranged(module, up * adapter.scale(module)):
                if (part := parts.get(name.removesuffix(".weight"))) is None:
                    if self.model.encoder is not None and self.model.encoder.is_unused(name):
                        continue
                    raise CheckpointError(f"adapter {adapter.name!r}: expected {_EXPECTED}, got {module!r}")
                if part in used:
                    raise CheckpointError(f"adapter {adapter.name!r}: expected one lora_A of {module!r}, got several")
                used.add(part)
                is_row_parallel = name.endswith(_ROW_PARALLEL)
                own_down, own_up = (self.shard(name, down), rows) if is_row_parallel else (down, self.shard(name, rows))
                rank, num_inputs = adapter.rank(module), _num_inputs(part.linear)
                if (*own_down.shape, *own_up.shape) != (rank, num_inputs, part.size, rank):
                    raise CheckpointError(
                        f"adapter {adapter.name!r}: {module!r}: expected matrices of rank {rank} for {num_inputs}"
                        f" inputs and {part.size} outputs, got {[*own_down.shape]} and {[*own_up.shape]}"
                    )
                yield _Matrices(part, own_down, own_up)

    def _parts(self) -> Mapping[str, _Part]:
        parts = dict(_decoder_parts(self.model))
        if (encoder := self.model.encoder) is not None:
            for name, (path, start, size) in self.encoder_places.items():
                parts[name] = _Part(encoder.get_submodule(path), start, size)
        return parts

    def _arranged(self, module: str, up: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yields the parts of a matrix as linears store them, whose output features are those of the weight."""
        name = checkpoint_name(module, self.model.renamed_prefixes)
        for part, rows in self.model.split_weight(f"{name}.weight", up, self.text):
            yield from self.model.arrange(part, rows, self.text)


def _pairs(adapter: LoraAdapter, weights: bytes) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yields the name of each module with its A and B, float32."""
    stored = _tensors(adapter, weights)
    for module, pair in sorted(_names(adapter, stored).items()):
        if len(pair) < len("AB"):
            raise CheckpointError(f"adapter {adapter.name!r}: expected lora_A and lora_B of {module!r}, got one")
        down, up = (stored[pair[which]] for which in "AB")
        if not _DTYPES.keys() >= (types := {down.dtype, up.dtype}):
            raise CheckpointError(
                f"adapter {adapter.name!r}: {module!r}: expected one of {', '.join(sorted(_DTYPES))}, got"
                f" {', '.join(sorted(types))}"
            )
        if [*down.shape[:1], *up.shape[1:]] != [adapter.rank(module)] * 2:
            raise CheckpointError(
                f"adapter {adapter.name!r}: {module!r}: expected matrices of rank {adapter.rank(module)}, got"
                f" {down.shape} and {up.shape}"
            )
        yield module, _finite(adapter, module, down), _finite(adapter, module, up)


class _Stored(NamedTuple):
    dtype: str
    shape: list[int]
    data: bytearray


def _tensors(adapter: LoraAdapter, weights: bytes) -> Mapping[str, _Stored]:
    """Returns the tensors of a file by name: the length of its header in 8 bytes, the header, and their data."""
    if (num_bytes := int.from_bytes(weights[:8], "little")) > _MOST_HEADER_BYTES:
        raise CheckpointError(
            f"adapter {adapter.name!r}: {WEIGHTS_NAME}: expected a header of at most {_MOST_HEADER_BYTES} bytes, got"
            f" {num_bytes}"
        )
    try:
        return {name: _Stored(**fields) for name, fields in deserialize(weights)}
    except SafetensorError as error:
        raise CheckpointError(f"adapter {adapter.name!r}: {WEIGHTS_NAME} cannot be read: {error}") from error


def _names(adapter: LoraAdapter, names: Iterable[str]) -> Mapping[str, Mapping[str, str]]:
    """Returns the names of tensors by module, and A or B."""
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for name in names:
        if (parts := _TENSOR.fullmatch(name)) is None:
            raise CheckpointError(f"adapter {adapter.name!r}: expected {_EXPECTED}, got the tensor {name!r}")
        if parts[2] in found[parts[1]]:
            raise CheckpointError(f"adapter {adapter.name!r}: expected one lora_A of {parts[1]!r}, got several")
        found[parts[1]][parts[2]] = name
    if not found:
        raise CheckpointError(f"adapter {adapter.name!r}: expected {_EXPECTED}, got no tensors")
    return found


def _finite(adapter: LoraAdapter, module: str, stored: _Stored) -> Tensor:
    if not stored.data:  # of no inputs or outputs, which `frombuffer` does not read
        raise CheckpointError(f"adapter {adapter.name!r}: {module!r}: expected numbers, got {stored.shape}")
    matrix = torch.frombuffer(stored.data, dtype=_DTYPES[stored.dtype]).view(stored.shape).float()
    if not matrix.isfinite().all():
        raise CheckpointError(f"adapter {adapter.name!r}: {module!r}: expected finite numbers")
    return matrix


def _num_inputs(linear: nn.Module) -> int:
    return cast("int", linear.in_features)


def _sizes(linear: nn.Module) -> tuple[int, ...]:
    return cast("tuple[int, ...]", linear.sizes)
