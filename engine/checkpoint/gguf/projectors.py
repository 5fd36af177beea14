"""The values of `clip.projector_type` that are served.

Names are those of gguf-py/gguf/tensor_mapping.py of llama.cpp; what the converter does is in conversion/.
"""

from collections.abc import Mapping

from glimpse.engine.checkpoint.gguf.encoder import Projector
from glimpse.engine.checkpoint.gguf.encoders.audio import QWEN2_AUDIO, ULTRAVOX
from glimpse.engine.checkpoint.gguf.encoders.gemma4 import GEMMA4
from glimpse.engine.checkpoint.gguf.encoders.glm import GLM4V
from glimpse.engine.checkpoint.gguf.encoders.llava import LLAVA
from glimpse.engine.checkpoint.gguf.encoders.minicpmv import MINICPMV, MINICPMV4_6
from glimpse.engine.checkpoint.gguf.encoders.paddleocr import PADDLEOCR_VL
from glimpse.engine.checkpoint.gguf.encoders.pixtral import LIGHTON_OCR, PIXTRAL
from glimpse.engine.checkpoint.gguf.encoders.qwen import QWEN2_5_VL, QWEN2_VL, QWEN3_VL
from glimpse.engine.checkpoint.gguf.encoders.tiles import GEMMA3, IDEFICS3, INTERNVL, LFM2_VL
from glimpse.engine.checkpoint.gguf.header import Gguf

PROJECTOR = "clip.projector_type"
PROJECTORS: Mapping[str, Projector] = {
    "qwen2vl_merger": QWEN2_VL,
    "qwen2.5vl_merger": QWEN2_5_VL,
    "qwen3vl_merger": QWEN3_VL,
    "idefics3": IDEFICS3,
    "gemma3": GEMMA3,
    "gemma4v": GEMMA4,
    "internvl": INTERNVL,
    "lfm2": LFM2_VL,
    "pixtral": PIXTRAL,
    "lightonocr": LIGHTON_OCR,
    "glm4v": GLM4V,
    "paddleocr": PADDLEOCR_VL,
    "resampler": MINICPMV,
    "minicpmv4_6": MINICPMV4_6,
    "qwen2a": QWEN2_AUDIO,
    "ultravox": ULTRAVOX,
    "mlp": LLAVA,
}


def projector_name(mmproj: Gguf) -> object:
    """Returns the kind of projector of a file with an encoder."""
    # Files with several encoders have one for each kind of media. Old files of LLaVA do not name it.
    return (
        mmproj.get(PROJECTOR)
        or mmproj.get("clip.vision.projector_type")
        or ("mlp" if mmproj.get("clip.has_llava_projector") else None)
    )


def projector_of(mmproj: Gguf) -> Projector | None:
    """Returns the projector of a file with an encoder; None if it is not served."""
    return PROJECTORS.get(str(projector_name(mmproj)))
