"""An mmproj file, which has the encoder of a GGUF file's model: which one belongs to it, and its metadata as the
`vision_config` and `preprocessor_config.json` of the same model. Keys are those of llama.cpp (tools/mtmd/clip-impl.h).
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glimpse.engine.checkpoint.gguf.config import Keys, architecture_of
from glimpse.engine.checkpoint.gguf.header import Gguf
from glimpse.engine.checkpoint.gguf.names import MMPROJ, PROJECTOR, swaps_mlp
from glimpse.engine.errors import CheckpointError

_log = logging.getLogger(__name__)

_NORM_EPS = 1e-6
_FRAMES = 2
"""Frames of a patch: two tensors have its projection."""
_PLACEHOLDERS = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
_MAX_PIXELS = 1 << 30


class _Encoder:
    """Sizes of an encoder. What metadata leaves out or has wrong in old files comes from the shapes of tensors."""

    def __init__(self, gguf: Gguf) -> None:
        self.keys, self._gguf = Keys(gguf), gguf
        self.width, self.depth = (
            self.keys.size("vision.embedding_length"),
            self.keys.size("vision.block_count", most=1024),
        )
        self.output_width, self._merged_width = self.shape("mm.2.weight", 2)[0], self.shape("mm.0.weight", 2)[1]

    @property
    def intermediate_size(self) -> int:
        """Width inside the MLPs."""
        return self.shape(f"v.blk.0.ffn_{'down' if swaps_mlp(self._gguf) else 'up'}.weight", 2)[0]

    @property
    def num_positions(self) -> int:
        """Learned positions."""
        return self.shape("v.position_embd.weight", 2)[0]

    @property
    def shared(self) -> dict[str, Any]:
        """Fields of `vision_config` that all have."""
        keys, merge = self.keys, self.keys.size("vision.spatial_merge_size", 2)
        keys.require("vision.spatial_merge_size", merge**2 * self.width, self._merged_width)
        keys.require("vision.patch_size", keys.size("vision.patch_size"), self.shape("v.patch_embd.weight", 4)[-1])
        keys.require(
            "vision.attention.layer_norm_epsilon", keys.number("vision.attention.layer_norm_epsilon"), _NORM_EPS
        )
        return {
            "depth": self.depth,
            "num_heads": keys.size("vision.attention.head_count"),
            "in_channels": 3,
            "patch_size": keys.size("vision.patch_size"),
            "spatial_merge_size": merge,
            "temporal_patch_size": _FRAMES,
        }

    def deepstack(self) -> list[int]:
        """Returns the blocks whose outputs the decoder's first layers add."""
        flags = self._gguf.numbers("clip.vision.is_deepstack_layers")
        return [] if flags is None else np.flatnonzero(flags).tolist()

    def shape(self, name: str, num_dims: int) -> tuple[int, ...]:
        """Returns a tensor's shape. Raises CheckpointError if it is not there or has other dimensions."""
        tensor = self._gguf.tensors.get(name)
        if tensor is None or len(tensor.shape) != num_dims:
            found = "none" if tensor is None else f"shape {[*tensor.shape]}"
            raise CheckpointError(f"mmproj: expected a tensor {name!r} of {num_dims} dimensions, got {found}")
        return tensor.shape


def _qwen2_vl(encoder: _Encoder) -> dict[str, Any]:
    return {
        "embed_dim": encoder.width,
        "hidden_size": encoder.output_width,
        "mlp_ratio": encoder.intermediate_size / encoder.width,
    }


def _qwen2_5_vl(encoder: _Encoder) -> dict[str, Any]:
    every = encoder.keys.size("vision.n_wa_pattern")
    return {
        "hidden_size": encoder.width,
        "out_hidden_size": encoder.output_width,
        "intermediate_size": encoder.intermediate_size,
        "window_size": encoder.keys.size("vision.window_size", 112),
        "fullatt_block_indexes": [*range(every - 1, encoder.depth, every)],
        "tokens_per_second": 2,
    }


def _qwen3_vl(encoder: _Encoder) -> dict[str, Any]:
    return {
        "hidden_size": encoder.width,
        "out_hidden_size": encoder.output_width,
        "intermediate_size": encoder.intermediate_size,
        "num_position_embeddings": encoder.num_positions,
        "deepstack_visual_indexes": encoder.deepstack(),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Projector:
    """A value of `clip.projector_type` that is served."""

    architectures: Mapping[str, str]
    """Names in `architectures` of `config.json`, by the `general.architecture` of decoders."""
    vision_config: Callable[[_Encoder], dict[str, Any]]
    """Returns fields of `vision_config`; see `_Encoder.shared` for others."""
    activation: str | None = None
    """Flag that names the function inside MLPs; None: quick GELU."""
    min_pixels: int
    """The published limits of images, which files may lack."""
    max_pixels: int
    videos: Mapping[str, Any] | None = None
    """What `video_preprocessor_config.json` has besides; None: there is no such file."""


_PROJECTORS: Mapping[str, _Projector] = {
    "qwen2vl_merger": _Projector(
        architectures={"qwen2vl": "Qwen2VLForConditionalGeneration"},
        vision_config=_qwen2_vl,
        min_pixels=3136,
        max_pixels=12_845_056,
    ),
    "qwen2.5vl_merger": _Projector(
        architectures={"qwen2vl": "Qwen2_5_VLForConditionalGeneration"},
        vision_config=_qwen2_5_vl,
        activation="use_silu",
        min_pixels=3136,
        max_pixels=12_845_056,
    ),
    "qwen3vl_merger": _Projector(
        architectures={
            "qwen3vl": "Qwen3VLForConditionalGeneration",
            "qwen3vlmoe": "Qwen3VLMoeForConditionalGeneration",
        },
        vision_config=_qwen3_vl,
        activation="use_gelu",
        min_pixels=65_536,
        max_pixels=16_777_216,
        videos={"size": {"shortest_edge": 4096, "longest_edge": 25_165_824}},
    ),
}


def find_mmproj(file: Path, gguf: Gguf, candidates: Sequence[Path] | None = None) -> Path | None:
    """Returns the mmproj file that belongs to a model's file; None without one, which is logged.

    Args:
        candidates: files that may be it; None: those in the folder of the model's file.

    Raises:
        CheckpointError: there are several.
    """
    found: list[Path] = []
    for path in sorted(file.parent.glob("*mmproj*.gguf")) if candidates is None else candidates:
        try:
            check_pair(gguf, Gguf(path))
            found.append(path)
        except CheckpointError as error:
            _log.warning("%s is not used: %s", path.name, error)
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise CheckpointError(f"several files beside {file.name!r} have its encoder: {names}; name one: --mmproj FILE")
    if not found and architecture_of(gguf).has_encoder:
        _log.warning(
            "%s is served for text alone: its encoder is in a file of its own; put mmproj-*.gguf beside it,"
            " or pass --mmproj FILE",
            file.name,
        )
    return found[0] if found else None


def check_pair(text: Gguf, mmproj: Gguf) -> None:
    """Raises CheckpointError unless an mmproj file has the encoder of a model's file."""
    architecture, kind = text.get("general.architecture"), mmproj.get("general.architecture")
    if kind != MMPROJ:
        raise CheckpointError(f"mmproj: 'general.architecture': expected {MMPROJ!r}, got {kind!r:.80}")
    name = mmproj.get(PROJECTOR)
    served = [each for each, projector in _PROJECTORS.items() if architecture in projector.architectures]
    if name not in served:
        expected = " or ".join(served) or "no mmproj"
        raise CheckpointError(f"mmproj: '{PROJECTOR}': expected {expected} for {architecture!r}, got {name!r:.80}")
    encoder, keys = _Encoder(mmproj), Keys(text)
    if (width := keys.size("embedding_length")) != encoder.output_width:
        raise CheckpointError(
            f"mmproj: expected outputs of the decoder's width, {width}, got {encoder.output_width}; it is of another"
            " model"
        )
    if (layers := keys.get("n_deepstack_layers") or 0) != len(encoder.deepstack()):
        raise CheckpointError(
            f"mmproj: 'clip.vision.is_deepstack_layers': expected {layers} layers, as many as the decoder has, got"
            f" {len(encoder.deepstack())}"
        )


def with_encoder(config: Mapping[str, Any], text: Gguf, mmproj: Gguf) -> dict[str, Any]:
    """Returns what `config.json` says of a decoder and its encoder, which `check_pair` has compared.

    Args:
        config: what it says of the decoder.

    Raises:
        CheckpointError: a value is missing or not supported.
    """
    mmproj.check_types()
    projector, encoder, keys = _projector(mmproj), _Encoder(mmproj), Keys(text)
    for flag in ("use_gelu", "use_silu"):
        encoder.keys.require(flag, bool(encoder.keys.get(flag)), flag == projector.activation)
    keys.require("rope.scaling.type", config["rope_scaling"] and config["rope_scaling"]["rope_type"], None)
    sections = [int(size) for size in keys.numbers("rope.dimension_sections", 3)]
    if sum(sections) != config["head_dim"] // 2 or min(sections) < 0:
        keys.refuse("rope.dimension_sections", f"numbers that add up to {config['head_dim'] // 2}", sections)
    rope = {"rope_type": "default", "rope_theta": config["rope_theta"], "mrope_section": sections}
    outer = ("dtype", "tie_word_embeddings", "quantization_config")
    return {
        "architectures": [projector.architectures[str(text.get("general.architecture"))]],
        **{name: config[name] for name in outer if name in config},
        "text_config": {name: value for name, value in config.items() if name not in outer} | {"rope_parameters": rope},
        "vision_config": encoder.shared | projector.vision_config(encoder),
        **_placeholders(text),
    }


def read_preprocessors(mmproj: Gguf) -> dict[str, dict[str, Any]]:
    """Returns the files that say how images and videos are resized, by name. Raises CheckpointError."""
    projector, encoder = _projector(mmproj), _Encoder(mmproj)
    keys, shared = encoder.keys, encoder.shared
    images: dict[str, Any] = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "min_pixels": keys.size("vision.image_min_pixels", projector.min_pixels, most=_MAX_PIXELS),
        "max_pixels": keys.size("vision.image_max_pixels", projector.max_pixels, most=_MAX_PIXELS),
        "patch_size": shared["patch_size"],
        "merge_size": shared["spatial_merge_size"],
        "temporal_patch_size": _FRAMES,
        "image_mean": keys.numbers("vision.image_mean", 3),
        "image_std": keys.numbers("vision.image_std", 3),
    }
    if min(images["image_std"]) <= 0:
        keys.refuse("vision.image_std", "positive numbers", images["image_std"])
    files = {"preprocessor_config.json": images}
    if projector.videos is not None:
        videos = {name: value for name, value in images.items() if not name.endswith("_pixels")}
        files["video_preprocessor_config.json"] = {**videos, **projector.videos}
    return files


def _projector(mmproj: Gguf) -> _Projector:
    return _PROJECTORS[str(mmproj.get(PROJECTOR))]


def _placeholders(text: Gguf) -> dict[str, int]:
    tokens = text.texts("tokenizer.ggml.tokens") or []
    for token in _PLACEHOLDERS.values():
        if token not in tokens:
            raise CheckpointError(f"GGUF metadata: 'tokenizer.ggml.tokens': expected {token!r} among them")
    return {name: tokens.index(token) for name, token in _PLACEHOLDERS.items()}
