"""The registry: architecture → family; and the reader of a checkpoint's configuration."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glimpse.engine.errors import CheckpointError
from glimpse.engine.families.qwen2_audio import QWEN2_AUDIO
from glimpse.engine.families.qwen2_vl import QWEN2_5_VL, QWEN2_VL
from glimpse.engine.families.spec import FamilySpec
from glimpse.engine.families.text import LLAMA, MISTRAL, PHI3, QWEN2, QWEN3
from glimpse.engine.model_config import ModelConfig, read_json
from glimpse.engine.quantization import checkpoint_quantization

FAMILIES: Mapping[str, FamilySpec] = {
    "Qwen2VLForConditionalGeneration": QWEN2_VL,
    "Qwen2_5_VLForConditionalGeneration": QWEN2_5_VL,
    "Qwen2AudioForConditionalGeneration": QWEN2_AUDIO,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen3ForCausalLM": QWEN3,
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": MISTRAL,
    "Phi3ForCausalLM": PHI3,
}
"""Name in `architectures` of `config.json` → family."""


def load_model_config(path: Path) -> ModelConfig:
    """Reads a checkpoint's configuration, in the layout of the published checkpoints or of transformers 5.

    Raises:
        CheckpointError: a file is missing or not JSON, a field is missing, or the architecture is not supported.
    """
    config = read_json(path / "config.json")
    architecture = str((config.get("architectures") or ["?"])[0])
    spec = FAMILIES.get(architecture)
    if spec is None:
        supported = ", ".join(FAMILIES)
        raise CheckpointError(f"config.json: 'architectures': expected one of {supported}; got {architecture!r}")
    try:
        family = spec.read_config(config)
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


def _eos_token_ids(path: Path, text: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[int, ...]:
    generation: Mapping[str, Any] = {}
    if (path / "generation_config.json").exists():
        generation = read_json(path / "generation_config.json")
    eos = generation.get("eos_token_id", config.get("eos_token_id", text.get("eos_token_id")))
    if eos is None:
        return ()
    return (eos,) if isinstance(eos, int) else tuple(eos)
