"""An mmproj file, which has the encoder of a GGUF file's model: which one belongs to it, and its metadata as the
`vision_config` and `preprocessor_config.json` of the same model. Keys are those of llama.cpp (tools/mtmd/clip-impl.h).
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
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
_MAX_PIXELS = 1 << 30


class _Encoder:
    """Sizes of an encoder. What metadata leaves out or has wrong in old files comes from the shapes of tensors."""

    def __init__(self, gguf: Gguf, projector: "_Projector") -> None:
        self.keys, self.gguf = Keys(gguf), gguf
        self.width = self.keys.size("vision.embedding_length")
        self.depth = self.keys.size("vision.block_count", most=1024)
        first, last = projector.linears
        self.output_width = self.shape(last, 2)[0]
        self.merge = self.keys.size(projector.merge_key, 2)
        self.keys.require(projector.merge_key, self.merge**2 * self.width, self.shape(first, 2)[1])
        self.patch_size = self.keys.size("vision.patch_size")
        self.keys.require("vision.patch_size", self.patch_size, self.shape("v.patch_embd.weight", 4)[-1])
        self.num_heads = self.keys.size("vision.attention.head_count")

    @property
    def intermediate_size(self) -> int:
        """Width inside the MLPs."""
        return self.shape(f"v.blk.0.ffn_{'down' if swaps_mlp(self.gguf) else 'up'}.weight", 2)[0]

    @property
    def norm_eps(self) -> float:
        """What norms add to the mean square."""
        return self.keys.number("vision.attention.layer_norm_epsilon")

    @property
    def statistics(self) -> dict[str, Any]:
        """Fields of `preprocessor_config.json` that say how pixels are normalized."""
        mean, std = (self.keys.numbers(f"vision.image_{name}", 3) for name in ("mean", "std"))
        if min(std) <= 0:
            self.keys.refuse("vision.image_std", "positive numbers", std)
        return {"image_mean": mean, "image_std": std}

    def deepstack(self) -> list[int]:
        """Returns the blocks whose outputs the decoder's first layers add."""
        flags = self.gguf.numbers("clip.vision.is_deepstack_layers")
        return [] if flags is None else np.flatnonzero(flags).tolist()

    def shape(self, name: str, num_dims: int) -> tuple[int, ...]:
        """Returns a tensor's shape. Raises CheckpointError if it is not there or has other dimensions."""
        tensor = self.gguf.tensors.get(name)
        if tensor is None or len(tensor.shape) != num_dims:
            found = "none" if tensor is None else f"shape {[*tensor.shape]}"
            raise CheckpointError(f"mmproj: expected a tensor {name!r} of {num_dims} dimensions, got {found}")
        return tensor.shape


def _qwen(encoder: _Encoder) -> dict[str, Any]:
    encoder.keys.require("vision.attention.layer_norm_epsilon", encoder.norm_eps, _NORM_EPS)
    return {
        "depth": encoder.depth,
        "num_heads": encoder.num_heads,
        "in_channels": 3,
        "patch_size": encoder.patch_size,
        "spatial_merge_size": encoder.merge,
        "temporal_patch_size": _FRAMES,
    }


def _qwen2_vl(encoder: _Encoder) -> dict[str, Any]:
    return {
        **_qwen(encoder),
        "embed_dim": encoder.width,
        "hidden_size": encoder.output_width,
        "mlp_ratio": encoder.intermediate_size / encoder.width,
    }


def _qwen2_5_vl(encoder: _Encoder) -> dict[str, Any]:
    every = encoder.keys.size("vision.n_wa_pattern")
    return {
        **_qwen(encoder),
        "hidden_size": encoder.width,
        "out_hidden_size": encoder.output_width,
        "intermediate_size": encoder.intermediate_size,
        "window_size": encoder.keys.size("vision.window_size", 112),
        "fullatt_block_indexes": [*range(every - 1, encoder.depth, every)],
        "tokens_per_second": 2,
    }


def _qwen3_vl(encoder: _Encoder) -> dict[str, Any]:
    return {
        **_qwen(encoder),
        "hidden_size": encoder.width,
        "out_hidden_size": encoder.output_width,
        "intermediate_size": encoder.intermediate_size,
        "num_position_embeddings": encoder.shape("v.position_embd.weight", 2)[0],
        "deepstack_visual_indexes": encoder.deepstack(),
    }


def _idefics3(encoder: _Encoder) -> dict[str, Any]:
    return {
        "hidden_size": encoder.width,
        "intermediate_size": encoder.intermediate_size,
        "num_hidden_layers": encoder.depth,
        "num_attention_heads": encoder.num_heads,
        "image_size": encoder.keys.size("vision.image_size"),
        "patch_size": encoder.patch_size,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": encoder.norm_eps,
    }


def _qwen_files(
    encoder: _Encoder, *, min_pixels: int, max_pixels: int, videos: Mapping[str, Any] | None = None
) -> dict[str, dict[str, Any]]:
    """Returns the preprocessors' files.

    Args:
        min_pixels, max_pixels: the published limits of images, which metadata may lack.
        videos: what the file about videos has besides; None: there is no such file.
    """
    shared: dict[str, Any] = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": encoder.patch_size,
        "merge_size": encoder.merge,
        "temporal_patch_size": _FRAMES,
        **encoder.statistics,
    }
    limits = {
        f"{name}_pixels": encoder.keys.size(f"vision.image_{name}_pixels", default, most=_MAX_PIXELS)
        for name, default in (("min", min_pixels), ("max", max_pixels))
    }
    files = {"preprocessor_config.json": shared | limits}
    return files if videos is None else {**files, "video_preprocessor_config.json": {**shared, **videos}}


def _idefics3_files(encoder: _Encoder) -> dict[str, dict[str, Any]]:
    side = encoder.keys.size("vision.image_size")
    images = {
        "max_image_size": {"longest_edge": side},
        "size": {"longest_edge": encoder.keys.size("vision.preproc_image_size", 4 * side)},
        "resample": 1,
        "video_sampling": {"fps": 1, "max_frames": 64, "video_size": {"longest_edge": side}},
    }
    return {"preprocessor_config.json": images | encoder.statistics}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Projector:
    """A value of `clip.projector_type` that is served."""

    architectures: Mapping[str, str]
    """Names in `architectures` of `config.json`, by the `general.architecture` of decoders."""
    linears: tuple[str, str] = ("mm.0.weight", "mm.2.weight")
    """The first and the last matrix of the projector."""
    merge_key: str = "vision.spatial_merge_size"
    """Key of how many patches lie along each side of the square that becomes one token."""
    vision_config: Callable[[_Encoder], dict[str, Any]]
    activation: str | None = None
    """Flag that names the function inside MLPs; None: quick GELU."""
    files: Callable[[_Encoder], dict[str, dict[str, Any]]]
    """Returns the files that say how images and videos are resized, by name."""
    placeholders: Mapping[str, str] = field(default_factory=lambda: _QWEN_PLACEHOLDERS)
    """Tokens whose ids `config.json` has."""
    has_mrope: bool = True
    """Positions of the decoder have three axes."""


_QWEN_PLACEHOLDERS: Mapping[str, str] = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
_PROJECTORS: Mapping[str, _Projector] = {
    "qwen2vl_merger": _Projector(
        architectures={"qwen2vl": "Qwen2VLForConditionalGeneration"},
        vision_config=_qwen2_vl,
        files=partial(_qwen_files, min_pixels=3136, max_pixels=12_845_056),
    ),
    "qwen2.5vl_merger": _Projector(
        architectures={"qwen2vl": "Qwen2_5_VLForConditionalGeneration"},
        vision_config=_qwen2_5_vl,
        activation="use_silu",
        files=partial(_qwen_files, min_pixels=3136, max_pixels=12_845_056),
    ),
    "qwen3vl_merger": _Projector(
        architectures={
            "qwen3vl": "Qwen3VLForConditionalGeneration",
            "qwen3vlmoe": "Qwen3VLMoeForConditionalGeneration",
        },
        vision_config=_qwen3_vl,
        activation="use_gelu",
        files=partial(
            _qwen_files,
            min_pixels=65_536,
            max_pixels=16_777_216,
            videos={"size": {"shortest_edge": 4096, "longest_edge": 25_165_824}},
        ),
    ),
    "idefics3": _Projector(
        architectures={"llama": "Idefics3ForConditionalGeneration"},
        linears=("mm.model.fc.weight", "mm.model.fc.weight"),
        merge_key="vision.projector.scale_factor",
        vision_config=_idefics3,
        activation="use_gelu",
        files=_idefics3_files,
        placeholders={"image_token_id": "<image>"},
        has_mrope=False,
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
    shows_images = "<image>" in str(gguf.get("tokenizer.chat_template"))
    if not found and (architecture_of(gguf).has_encoder or shows_images):
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
    encoder, keys = _Encoder(mmproj, _projector(mmproj)), Keys(text)
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
    projector = _projector(mmproj)
    encoder, keys = _Encoder(mmproj, projector), Keys(text)
    for flag in ("use_gelu", "use_silu"):
        encoder.keys.require(flag, bool(encoder.keys.get(flag)), flag == projector.activation)
    outer = ("dtype", "tie_word_embeddings", "quantization_config")
    decoder = {name: value for name, value in config.items() if name not in outer}
    return {
        "architectures": [_architecture(projector, text, mmproj)],
        **{name: config[name] for name in outer if name in config},
        "text_config": {**decoder, **_mrope(config, keys)} if projector.has_mrope else decoder,
        "vision_config": projector.vision_config(encoder),
        "scale_factor": encoder.merge,
        **_placeholders(text, projector.placeholders),
    }


def read_preprocessors(mmproj: Gguf) -> dict[str, dict[str, Any]]:
    """Returns the files that say how images and videos are resized, by name. Raises CheckpointError."""
    projector = _projector(mmproj)
    return projector.files(_Encoder(mmproj, projector))


def _architecture(projector: _Projector, text: Gguf, mmproj: Gguf) -> str:
    name = projector.architectures[str(text.get("general.architecture"))]
    # Of the models with this encoder, only SmolVLM2 reads videos, and only its name tells it.
    is_smolvlm2 = any("smolvlm2" in str(each.get("general.name")).lower() for each in (text, mmproj))
    return "SmolVLMForConditionalGeneration" if name.startswith("Idefics3") and is_smolvlm2 else name


def _mrope(config: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    """Returns the fields of rotary positions with three axes."""
    keys.require("rope.scaling.type", config["rope_scaling"] and config["rope_scaling"]["rope_type"], None)
    sections = [int(size) for size in keys.numbers("rope.dimension_sections", 3)]
    if sum(sections) != config["head_dim"] // 2 or min(sections) < 0:
        keys.refuse("rope.dimension_sections", f"numbers that add up to {config['head_dim'] // 2}", sections)
    rope = {"rope_type": "default", "rope_theta": config["rope_theta"], "mrope_section": sections}
    return {"rope_parameters": rope}


def _projector(mmproj: Gguf) -> _Projector:
    return _PROJECTORS[str(mmproj.get(PROJECTOR))]


def _placeholders(text: Gguf, placeholders: Mapping[str, str]) -> dict[str, int]:
    tokens = text.texts("tokenizer.ggml.tokens") or []
    for token in placeholders.values():
        if token not in tokens:
            raise CheckpointError(f"GGUF metadata: 'tokenizer.ggml.tokens': expected {token!r} among them")
    return {name: tokens.index(token) for name, token in placeholders.items()}
