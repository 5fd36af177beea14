"""The encoder of PaddleOCR-VL."""

from functools import partial
from typing import Any

from glimpse.engine.checkpoint.gguf.encoder import MmprojEncoder, Projector
from glimpse.engine.checkpoint.gguf.encoders.qwen import qwen_files
from glimpse.engine.checkpoint.gguf.encoders.vit import vit, vit_names


def _paddleocr_vl(encoder: MmprojEncoder) -> dict[str, Any]:
    """Returns the fields of the encoder, whose `image_size` in files is the root of the most pixels."""
    fields = vit(encoder, model_type="paddleocr_vl_vision", hidden_act="gelu_pytorch_tanh")
    return {**fields, "image_size": encoder.position_side, "spatial_merge_size": encoder.merge}


PADDLEOCR_VL = Projector(
    architectures={"paddleocr": "PaddleOCRVLForConditionalGeneration"},
    names={
        **vit_names("visual.vision_model"),
        "mm.input_norm": "mlp_AR.pre_norm",
        "mm.1": "mlp_AR.linear_1",
        "mm.2": "mlp_AR.linear_2",
    },
    squares="mm.1.weight",
    encoder_config=_paddleocr_vl,
    activation="use_gelu",
    files=partial(qwen_files, min_pixels=147_384, max_pixels=2_822_400, frames=1),
    placeholders={"image_token_id": ("<|IMAGE_PLACEHOLDER|>",)},
    has_mrope=True,
)
