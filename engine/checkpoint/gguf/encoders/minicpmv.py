"""The encoders of MiniCPM-V."""

from typing import Any

from glimpse.engine.checkpoint.gguf.architectures import Change
from glimpse.engine.checkpoint.gguf.encoder import Files, MmprojEncoder, Projector
from glimpse.engine.checkpoint.gguf.encoders.vit import PREPROCESSOR, VIDEO_PREPROCESSOR, siglip, vit_names
from glimpse.engine.checkpoint.gguf.header import Gguf
from glimpse.engine.errors import CheckpointError

_VERSIONS = {3: ("2.6", "qwen2"), 6: ("4.5", "qwen3")}
"""Versions by their numbers in files, with their decoders' architectures."""


def _check_version(text: Gguf, mmproj: Gguf) -> None:
    """Raises CheckpointError unless the decoder is that of the encoder's version, which is served."""
    number, architecture = mmproj.get("clip.minicpmv_version"), text.get("general.architecture")
    if (number, architecture) not in {(each, kind) for each, (_, kind) in _VERSIONS.items()}:
        served = " or ".join(f"{each} with {kind}, MiniCPM-V {name}" for each, (name, kind) in _VERSIONS.items())
        raise CheckpointError(
            f"mmproj: 'clip.minicpmv_version': expected {served}; got {number!r:.80} with {architecture}"
        )


def minicpmv(encoder: MmprojEncoder) -> dict[str, Any]:
    """Returns the fields of SigLIP in MiniCPM-V, whose `image_size` in files is that of slices."""
    return {**siglip(encoder), "image_size": encoder.position_side}


def minicpmv_config(encoder: MmprojEncoder) -> dict[str, Any]:
    """Returns the fields of the resampler."""
    version, _ = _VERSIONS[encoder.keys.size("minicpmv_version")]
    return {"version": version, "query_num": encoder.shape("resampler.query", 2)[0]}


def minicpmv_files(encoder: MmprojEncoder) -> Files:
    """Returns the preprocessor's file."""
    statistics = {name.replace("image", "norm"): value for name, value in encoder.statistics.items()}
    return {PREPROCESSOR: {"scale_resolution": encoder.image_size, **statistics}}


def minicpmv4_6(encoder: MmprojEncoder) -> dict[str, Any]:
    encoder.keys.require("vision.projector.scale_factor", encoder.merge, 4)
    return {**minicpmv(encoder), "model_type": "minicpmv4_6_vision"}


def minicpmv4_6_config(encoder: MmprojEncoder) -> dict[str, Any]:
    """Returns after which layer patches are merged."""
    return {"insert_layer_id": int(encoder.keys.numbers("vision.wa_layer_indexes", 1)[0])}


def minicpmv4_6_files(encoder: MmprojEncoder) -> Files:
    """Returns the preprocessors' files."""
    shared = {"scale_resolution": encoder.image_size, "patch_size": encoder.patch_size, **encoder.statistics}
    return dict.fromkeys((PREPROCESSOR, VIDEO_PREPROCESSOR), shared)


MINICPMV = Projector(
    architectures=dict.fromkeys(("qwen2", "qwen3"), "MiniCPMV"),
    variant=_check_version,
    names={
        **vit_names("vpm"),
        **{
            f"resampler.attn.{part}.{kind}": f"resampler.attn.in_proj_{kind}"
            for part in "qkv"
            for kind in ("weight", "bias")
        },
        "resampler.attn.out": "resampler.attn.out_proj",
        "resampler.kv": "resampler.kv_proj",
        "resampler.proj.weight": "resampler.proj",
    },
    unused="resampler.pos_embed_k",  # which is computed
    changes={"resampler.proj": Change.TRANSPOSED},
    output=("resampler.proj.weight", 0),
    squares=None,
    encoder_config=minicpmv,
    config=minicpmv_config,
    activation="use_gelu",
    files=minicpmv_files,
    placeholders={},
    is_flat=True,
)
MINICPMV4_6 = Projector(
    architectures={"qwen35": "MiniCPMV4_6ForConditionalGeneration"},
    names={
        **vit_names("vision_tower"),
        "v.vit_merger.ln1": "vision_tower.vit_merger.layer_norm1",
        "v.vit_merger.attn_q": "vision_tower.vit_merger.self_attn.q_proj",
        "v.vit_merger.attn_k": "vision_tower.vit_merger.self_attn.k_proj",
        "v.vit_merger.attn_v": "vision_tower.vit_merger.self_attn.v_proj",
        "v.vit_merger.attn_out": "vision_tower.vit_merger.self_attn.out_proj",
        "v.vit_merger.ds_ln": "vision_tower.vit_merger.pre_norm",
        "v.vit_merger.ds_ffn_up": "vision_tower.vit_merger.linear_1",
        "v.vit_merger.ds_ffn_down": "vision_tower.vit_merger.linear_2",
        "mm.input_norm": "merger.mlp.0.pre_norm",
        "mm.up": "merger.mlp.0.linear_1",
        "mm.down": "merger.mlp.0.linear_2",
    },
    output=("mm.down.weight", 0),
    squares=None,
    merge_key="vision.projector.scale_factor",
    merge=4,
    encoder_config=minicpmv4_6,
    config=minicpmv4_6_config,
    activation="use_gelu",
    files=minicpmv4_6_files,
)
