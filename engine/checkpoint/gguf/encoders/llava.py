"""The encoders of LLaVA-1.5 and LLaVA-NeXT."""

from functools import partial
from typing import Any

from glimpse.engine.checkpoint.gguf.encoder import Files, MmprojEncoder, Projector
from glimpse.engine.checkpoint.gguf.encoders.vit import PREPROCESSOR, vit, vit_names

_NEWLINE = "model.image_newline"


def llava_config(encoder: MmprojEncoder) -> dict[str, Any]:
    """Returns which layer's features LLaVA takes: by default of the last that there is, unlike in `config.json`."""
    layers = encoder.gguf.numbers("clip.vision.feature_layer")
    if layers is not None and len(layers) != 1:
        encoder.keys.refuse("vision.feature_layer", "one layer", layers.tolist())
    resolutions = _resolutions(encoder)
    return {
        "vision_feature_layer": -1 if layers is None else int(layers[0]),
        **({"image_grid_pinpoints": resolutions} if resolutions else {}),
    }


def llava_files(encoder: MmprojEncoder) -> Files:
    """Returns the preprocessor's file, that of `-hf` checkpoints."""
    side, resolutions = encoder.image_size, _resolutions(encoder)
    images = {
        "size": {"shortest_edge": side},
        "crop_size": {"height": side, "width": side},
        **({"image_grid_pinpoints": resolutions} if resolutions else {}),
    }
    return {PREPROCESSOR: images | encoder.statistics}


def _resolutions(encoder: MmprojEncoder) -> list[list[int]]:
    """Returns the resolutions of images that are cut into tiles; none if they are the published ones."""
    numbers = encoder.gguf.numbers("clip.vision.image_grid_pinpoints")
    if numbers is not None and len(numbers) % 2:
        encoder.keys.refuse("vision.image_grid_pinpoints", "pairs of numbers", numbers.tolist())
    return [] if numbers is None else numbers.astype(int).reshape(-1, 2).tolist()


# LLaVA-1.5 and LLaVA-NeXT, of old and new files.
LLAVA = Projector(
    architectures=dict.fromkeys(("llama", "qwen2"), "LlavaForConditionalGeneration"),
    variant=lambda _, mmproj: "LlavaNextForConditionalGeneration" if _NEWLINE in mmproj.tensors else None,
    names={
        **vit_names("vision_tower.vision_model"),
        "mm.0": "multi_modal_projector.linear_1",
        "mm.2": "multi_modal_projector.linear_2",
        _NEWLINE: "image_newline",
    },
    squares=None,
    encoder_config=partial(vit, model_type="clip_vision_model", hidden_act="quick_gelu"),
    config=llava_config,
    files=llava_files,
    placeholders={"image_token_index": ("<image>", "<unk>")},
)
