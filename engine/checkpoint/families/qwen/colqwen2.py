"""ColQwen2 (arXiv 2407.01449): Qwen2-VL or Qwen2.5-VL with a vector for each token, for late interaction."""

from glimpse.engine.checkpoint.families.qwen.qwen2_vl import QWEN2_5_VL, QWEN2_VL
from glimpse.engine.checkpoint.families.reading.late_interaction import RetrievalPrompts, retriever

_IMAGE = "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|><|endoftext|>"
_PROMPTS = RetrievalPrompts(
    query=("Query: ", "<|endoftext|>" * 10 + "\n"),  # the padding token
    image=_IMAGE,
    fields={"query_prefix": "Query: ", "visual_prompt_prefix": _IMAGE},
)
"""The prompts of transformers' models/colqwen2/processing_colqwen2.py."""
COLQWEN2 = retriever(QWEN2_VL, _PROMPTS, {"qwen2_vl": QWEN2_VL.read_config, "qwen2_5_vl": QWEN2_5_VL.read_config})
