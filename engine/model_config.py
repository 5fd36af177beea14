"""Reads a checkpoint's `config.json` and `generation_config.json`.

The front end needs it to make prompts; the engine builds the model from it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from glimpse.engine.errors import CheckpointError
from glimpse.engine.quantization import CheckpointQuantization, checkpoint_quantization


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowConfig:
    """Window attention of a vision encoder: most of its blocks attend within square windows of a frame."""

    side: int
    """Side of a window in tokens. Windows at the right and bottom edges may be smaller."""
    full_attention_blocks: frozenset[int]
    """Indices of the blocks that attend to the whole frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    """Vision encoder of Qwen2-VL or Qwen2.5-VL."""

    depth: int
    embed_dim: int
    """Width inside the encoder."""
    hidden_size: int
    """Width of its output, which is the decoder's."""
    num_heads: int
    intermediate_size: int
    """Width inside the MLPs."""
    in_channels: int
    patch_size: int
    """Side of a patch in pixels."""
    spatial_merge_size: int
    """Patches along each side of a square that is merged into one token."""
    temporal_patch_size: int
    """Frames in a patch. An image is repeated to fill it."""
    gated: bool = False
    """True: RMSNorm and gated MLPs, as in Qwen2.5-VL. False: LayerNorm and quick-GELU, as in Qwen2-VL."""
    windows: WindowConfig | None = None
    """None: all blocks attend to the whole frame."""
    tokens_per_second: int | None = None
    """Positions on the time axis for each second of video; None: one for each temporal patch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioConfig:
    """Audio encoder of Qwen2-Audio."""

    num_mel_bins: int
    width: int
    intermediate_size: int
    """Width inside the MLPs."""
    num_layers: int
    num_heads: int
    max_positions: int
    """Most positions of an input: a position is two mel frames, and a token is two positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextConfig:
    """Decoder of the Qwen2 family."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    mrope_section: tuple[int, int, int]
    """Pairs of a head's dimensions that rotate with time, height and width; (all, 0, 0) if positions have one axis."""
    max_position_embeddings: int
    tie_word_embeddings: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """The parts of a checkpoint's `config.json` and `generation_config.json` that serving needs."""

    architecture: str
    """Name in `architectures`, such as "Qwen2VLForConditionalGeneration"."""
    dtype: Literal["float32", "bfloat16", "float16"]
    """Type of the stored weights."""
    text: TextConfig
    encoder: VisionConfig | AudioConfig
    """Encoder of the model's media: images and videos, or audio."""
    placeholder_ids: Mapping[str, int]
    """Placeholder token id of each kind of media that the model supports: "image", "video", "audio"."""
    eos_token_ids: tuple[int, ...]
    quantization: CheckpointQuantization | None
    """Quantization of the decoder's stored weights, if any."""

    @property
    def vision(self) -> VisionConfig:
        """The encoder of a model with a vision encoder."""
        assert isinstance(self.encoder, VisionConfig)
        return self.encoder


def load_model_config(path: Path) -> ModelConfig:
    """Reads a checkpoint's configuration, in the layout of the published checkpoints or of transformers 5.

    Raises:
        CheckpointError: a file is missing or not JSON, a field is missing, or the architecture is not supported.
    """
    config = read_json(path / "config.json")
    architecture = str((config.get("architectures") or ["?"])[0])
    read = _FAMILIES.get(architecture)
    if read is None:
        supported = ", ".join(_FAMILIES)
        raise CheckpointError(f"config.json: 'architectures': expected one of {supported}; got {architecture!r}")
    try:
        family = read(config)
        return ModelConfig(
            architecture=architecture,
            dtype=config.get("dtype") or config.get("torch_dtype") or "float32",
            text=family.text,
            encoder=family.encoder,
            placeholder_ids=family.placeholder_ids,
            eos_token_ids=_eos_token_ids(path, config.get("text_config") or config, config),
            quantization=checkpoint_quantization(config),
        )
    except KeyError as error:
        raise CheckpointError(f"config.json has no field {error.args[0]!r}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _Family:
    """The fields that each family of models spells differently."""

    text: TextConfig
    encoder: VisionConfig | AudioConfig
    placeholder_ids: Mapping[str, int]


def _vision_family(
    config: Mapping[str, Any], read_vision: Callable[[Mapping[str, Any], Mapping[str, Any]], VisionConfig]
) -> _Family:
    """Reads text fields from the top level (published checkpoints) or from `text_config` (transformers 5)."""
    text: Mapping[str, Any] = config.get("text_config") or config
    # transformers 5: `rope_parameters`, with theta in it. Published checkpoints: `rope_scaling` and `rope_theta`.
    rope: Mapping[str, Any] = text.get("rope_parameters") or text["rope_scaling"]
    return _Family(
        text=_text_config(text, config, rope, mrope_section=tuple(rope["mrope_section"])),
        encoder=read_vision(config["vision_config"], text),
        placeholder_ids={"image": config["image_token_id"], "video": config["video_token_id"]},
    )


_QWEN2_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 151_936,
    "hidden_size": 4096,
    "intermediate_size": 22_016,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
}
"""Defaults for fields that published checkpoints leave out (transformers, models/qwen2/configuration_qwen2.py)."""


def _qwen2_audio(config: Mapping[str, Any]) -> _Family:
    text: Mapping[str, Any] = {**_QWEN2_DEFAULTS, **config["text_config"]}
    rope: Mapping[str, Any] = text.get("rope_parameters") or text.get("rope_scaling") or {}
    _require("rope_type", rope.get("rope_type", rope.get("type", "default")), "default")
    half_head = text["hidden_size"] // text["num_attention_heads"] // 2
    audio: Mapping[str, Any] = config["audio_config"]
    _require("audio_config.activation_function", audio.get("activation_function", "gelu"), "gelu")
    return _Family(
        text=_text_config(text, config, rope, mrope_section=(half_head, 0, 0)),
        encoder=AudioConfig(
            num_mel_bins=audio["num_mel_bins"],
            width=audio["d_model"],
            intermediate_size=audio["encoder_ffn_dim"],
            num_layers=audio["encoder_layers"],
            num_heads=audio["encoder_attention_heads"],
            max_positions=audio["max_source_positions"],
        ),
        placeholder_ids={"audio": config["audio_token_index"]},
    )


def _text_config(
    text: Mapping[str, Any],
    config: Mapping[str, Any],
    rope: Mapping[str, Any],
    *,
    mrope_section: tuple[int, int, int],
) -> TextConfig:
    return TextConfig(
        vocab_size=text["vocab_size"],
        hidden_size=text["hidden_size"],
        intermediate_size=text["intermediate_size"],
        num_layers=text["num_hidden_layers"],
        num_heads=text["num_attention_heads"],
        num_kv_heads=text["num_key_value_heads"],
        head_dim=text["hidden_size"] // text["num_attention_heads"],
        rms_norm_eps=text["rms_norm_eps"],
        rope_theta=float(rope["rope_theta"] if "rope_theta" in rope else text["rope_theta"]),
        mrope_section=mrope_section,
        max_position_embeddings=text["max_position_embeddings"],
        tie_word_embeddings=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))),
    )


def _qwen2_vl_vision(vision: Mapping[str, Any], text: Mapping[str, Any]) -> VisionConfig:
    return VisionConfig(
        embed_dim=vision["embed_dim"],
        hidden_size=vision.get("hidden_size", text["hidden_size"]),
        intermediate_size=int(vision["embed_dim"] * vision.get("mlp_ratio", 4)),
        **_shared_fields(vision),
    )


def _qwen2_5_vl_vision(vision: Mapping[str, Any], text: Mapping[str, Any]) -> VisionConfig:
    _require("vision_config.hidden_act", vision.get("hidden_act", "silu"), "silu")
    shared = _shared_fields(vision)
    token_side = shared["patch_size"] * shared["spatial_merge_size"]
    if (window_size := vision.get("window_size", 112)) < token_side:
        raise CheckpointError(
            f"config.json: 'vision_config.window_size': expected at least {token_side}, got {window_size}"
        )
    return VisionConfig(
        embed_dim=vision["hidden_size"],
        hidden_size=vision.get("out_hidden_size", text["hidden_size"]),
        intermediate_size=vision["intermediate_size"],
        gated=True,
        windows=WindowConfig(
            side=window_size // token_side,
            full_attention_blocks=frozenset(vision.get("fullatt_block_indexes", (7, 15, 23, 31))),
        ),
        tokens_per_second=vision.get("tokens_per_second", 4),
        **shared,
    )


_FAMILIES: Mapping[str, Callable[[Mapping[str, Any]], _Family]] = {
    "Qwen2VLForConditionalGeneration": partial(_vision_family, read_vision=_qwen2_vl_vision),
    "Qwen2_5_VLForConditionalGeneration": partial(_vision_family, read_vision=_qwen2_5_vl_vision),
    "Qwen2AudioForConditionalGeneration": _qwen2_audio,
}


def _require(field: str, value: object, supported: str) -> None:
    if value != supported:
        raise CheckpointError(f"config.json: '{field}': expected {supported!r}, got {value!r}")


def _shared_fields(vision: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "depth": vision["depth"],
        "num_heads": vision["num_heads"],
        # Published checkpoints write `in_chans`, transformers writes `in_channels`.
        "in_channels": vision.get("in_channels", vision.get("in_chans", 3)),
        "patch_size": vision.get("patch_size", vision.get("spatial_patch_size", 14)),
        "spatial_merge_size": vision.get("spatial_merge_size", 2),
        "temporal_patch_size": vision.get("temporal_patch_size", 2),
    }


def _eos_token_ids(path: Path, text: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[int, ...]:
    generation: Mapping[str, Any] = {}
    if (path / "generation_config.json").exists():
        generation = read_json(path / "generation_config.json")
    eos = generation.get("eos_token_id", config.get("eos_token_id", text.get("eos_token_id")))
    if eos is None:
        return ()
    return (eos,) if isinstance(eos, int) else tuple(eos)


def read_json(path: Path) -> Mapping[str, Any]:
    """Reads a JSON file of a checkpoint. Raises CheckpointError if it is missing or not JSON."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise CheckpointError(f"the checkpoint has no {path.name}") from error
    except ValueError as error:
        raise CheckpointError(f"the checkpoint's {path.name} is not JSON: {error}") from error
