"""The registry: architecture → family; and the reader of a checkpoint's configuration."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from glimpse.engine.checkpoint.families.deepseek_ocr2 import DEEPSEEK_OCR2, DEEPSEEK_OCR2_PUBLISHED
from glimpse.engine.checkpoint.families.gemma.gemma3 import GEMMA3, GEMMA3_TEXT
from glimpse.engine.checkpoint.families.gemma.gemma4 import GEMMA4, GEMMA4_TEXT, GEMMA4_UNIFIED
from glimpse.engine.checkpoint.families.gemma.paligemma import COLPALI, PALIGEMMA
from glimpse.engine.checkpoint.families.glm.glm4v import GLM4V, GLM46V
from glimpse.engine.checkpoint.families.glm.glm_ocr import GLM_OCR
from glimpse.engine.checkpoint.families.idefics3 import IDEFICS3, SMOLVLM
from glimpse.engine.checkpoint.families.internvl.internvl import INTERNVL
from glimpse.engine.checkpoint.families.internvl.internvl_chat import INTERNVL_CHAT
from glimpse.engine.checkpoint.families.lfm2 import LFM2, LFM2_VL
from glimpse.engine.checkpoint.families.llava.llava import LLAVA
from glimpse.engine.checkpoint.families.llava.llava_onevision import LLAVA_NEXT, LLAVA_ONEVISION
from glimpse.engine.checkpoint.families.minicpm.minicpmv import MINICPMV
from glimpse.engine.checkpoint.families.minicpm.minicpmv4_6 import MINICPMV4_6
from glimpse.engine.checkpoint.families.mistral3 import LIGHTON_OCR, MISTRAL3, PIXTRAL
from glimpse.engine.checkpoint.families.paddleocr_vl import PADDLEOCR_VL
from glimpse.engine.checkpoint.families.phi3v import PHI3V
from glimpse.engine.checkpoint.families.qwen.colqwen2 import COLQWEN2
from glimpse.engine.checkpoint.families.qwen.qwen2_audio import QWEN2_AUDIO
from glimpse.engine.checkpoint.families.qwen.qwen2_vl import QWEN2_5_VL, QWEN2_VL
from glimpse.engine.checkpoint.families.qwen.qwen3_5 import QWEN3_5
from glimpse.engine.checkpoint.families.qwen.qwen3_5_text import QWEN3_5_TEXT
from glimpse.engine.checkpoint.families.qwen.qwen3_vl import QWEN3_VL
from glimpse.engine.checkpoint.families.reading.pooling import read_max_tokens, read_pooling
from glimpse.engine.checkpoint.families.reading.tokenizer_files import has_tokenizer, read_tokenizer
from glimpse.engine.checkpoint.families.spec import FamilySpec
from glimpse.engine.checkpoint.families.text import LLAMA, MISTRAL, PHI3, QWEN2, QWEN3, QWEN3_MOE
from glimpse.engine.checkpoint.families.ultravox import ULTRAVOX
from glimpse.engine.checkpoint.model_config.generation_config import bad_phrases, suppressed_tokens, unapplied_fields
from glimpse.engine.checkpoint.model_config.model import Companion, ModelConfig, read_json
from glimpse.engine.checkpoint.quantization_config import checkpoint_blocks, checkpoint_quantization
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.pooling_params import PoolingMode, PoolingParams
from glimpse.media.processing.preprocessor import PREPROCESSOR, PROCESSOR

FAMILIES: Mapping[str, FamilySpec] = {
    "Qwen2VLForConditionalGeneration": QWEN2_VL,
    "Qwen2_5_VLForConditionalGeneration": QWEN2_5_VL,
    "ColQwen2ForRetrieval": COLQWEN2,
    "ColPaliForRetrieval": COLPALI,
    "Qwen3VLForConditionalGeneration": QWEN3_VL,
    "Qwen3VLMoeForConditionalGeneration": QWEN3_VL,
    "Qwen3_5ForConditionalGeneration": QWEN3_5,
    "Qwen3_5MoeForConditionalGeneration": QWEN3_5,
    "Qwen2AudioForConditionalGeneration": QWEN2_AUDIO,
    "SmolVLMForConditionalGeneration": SMOLVLM,
    "Idefics3ForConditionalGeneration": IDEFICS3,
    "LlavaForConditionalGeneration": LLAVA,
    "LlavaNextForConditionalGeneration": LLAVA_NEXT,
    "LlavaOnevisionForConditionalGeneration": LLAVA_ONEVISION,
    "InternVLForConditionalGeneration": INTERNVL,
    "InternVLChatModel": INTERNVL_CHAT,
    "Gemma3ForConditionalGeneration": GEMMA3,
    "PaliGemmaForConditionalGeneration": PALIGEMMA,
    "Mistral3ForConditionalGeneration": MISTRAL3,
    "LightOnOcrForConditionalGeneration": LIGHTON_OCR,
    "Gemma4ForConditionalGeneration": GEMMA4,
    "Gemma4UnifiedForConditionalGeneration": GEMMA4_UNIFIED,
    "GlmOcrForConditionalGeneration": GLM_OCR,
    "Lfm2VlForConditionalGeneration": LFM2_VL,
    "Glm4vForConditionalGeneration": GLM4V,
    "Glm46VForConditionalGeneration": GLM46V,
    "PaddleOCRVLForConditionalGeneration": PADDLEOCR_VL,
    "DeepseekOcr2ForConditionalGeneration": DEEPSEEK_OCR2,
    "DeepseekOCR2ForCausalLM": DEEPSEEK_OCR2_PUBLISHED,
    "PixtralForConditionalGeneration": PIXTRAL,
    "UltravoxModel": ULTRAVOX,
    "MiniCPMV": MINICPMV,
    "MiniCPMV4_6ForConditionalGeneration": MINICPMV4_6,
    "Phi3VForCausalLM": PHI3V,
    "Qwen2ForCausalLM": QWEN2,
    "Qwen3ForCausalLM": QWEN3,
    "Qwen3MoeForCausalLM": QWEN3_MOE,
    "Qwen3_5ForCausalLM": QWEN3_5_TEXT,
    "Qwen3_5MoeForCausalLM": QWEN3_5_TEXT,
    "Lfm2ForCausalLM": LFM2,
    "LlamaForCausalLM": LLAMA,
    "MistralForCausalLM": MISTRAL,
    "Phi3ForCausalLM": PHI3,
    "Gemma3ForCausalLM": GEMMA3_TEXT,
    "Gemma4ForCausalLM": GEMMA4_TEXT,
    "Qwen2Model": QWEN2,
    "Qwen3Model": QWEN3,
    "LlamaModel": LLAMA,
    "MistralModel": MISTRAL,
}
"""Name in `architectures` of `config.json` → family. Those of text models that end in "Model" are decoders
without an output head."""

_DECODER = "text_config"
"""Field that has the decoder's configuration in documents of models with an encoder."""


def load_model_config(path: Path, folders: Mapping[str, str] | None = None) -> ModelConfig:
    """Reads a checkpoint's configuration, in the layout of the published checkpoints or of transformers 5.

    Args:
        path: folder of the checkpoint.
        folders: those of the checkpoints that it names as parts of the model, as `resolve_companions` returns them.

    Raises:
        CheckpointError: a file is missing or not JSON, a field is missing, or the architecture is not supported.
    """
    config = read_json(path / "config.json")
    architecture = architecture_of(config, path)
    spec = FAMILIES.get(architecture)
    if spec is None:
        supported = ", ".join(FAMILIES)
        raise CheckpointError(f"config.json: 'architectures': expected one of {supported}; got {architecture!r}")
    companions = _companions(config, spec, folders or {})
    parts = _parts(spec, companions)
    config = {**config, **parts}
    # The decoder's own checkpoint says how its weights are stored, and where its answers end.
    decoder = [each.path for each in companions if spec.companions[each.field].document == _DECODER]
    stored = parts.get(_DECODER, {}) if "quantization_config" not in config else config
    generation = _generation([path, *decoder])
    try:
        family = spec.read_config(config)
        named = _eos_token_ids(generation, config.get(_DECODER) or config, config) or family.eos_token_ids
        eos_token_ids = _with_end_tokens(path, named, family.end_tokens)
        model = ModelConfig(
            architecture=architecture,
            # Qwen2-Audio has it only among the decoder's fields.
            dtype=_dtype(config) or _dtype(config.get(_DECODER, {})) or family.dtype,
            text=family.text,
            encoder=family.encoder,
            placeholder_ids={**family.placeholder_ids, **_token_ids(path, family.placeholder_tokens)},
            placeholder_texts=family.placeholder_texts,
            eos_token_ids=eos_token_ids,
            suppressed_token_ids=suppressed_tokens(generation, eos_token_ids, family.text.vocab_size),
            bad_phrases=bad_phrases(generation, family.text.vocab_size),
            unapplied_fields=unapplied_fields(generation),
            quantization=checkpoint_quantization(stored),
            fp8_blocks=checkpoint_blocks(stored),
            pooling=PoolingParams(mode=PoolingMode.TOKEN) if family.token_embedding_size else read_pooling(path),
            is_embedding_model=(architecture.endswith("Model") and family.encoder is None)
            or (path / "modules.json").exists()
            or family.token_embedding_size is not None,
            has_output_head=family.token_embedding_size is None,
            token_embedding_size=family.token_embedding_size,
            companions=companions,
        )
    except KeyError as error:
        raise CheckpointError(f"config.json has no field {error.args[0]!r}") from error
    max_tokens = read_max_tokens(path)
    if max_tokens is None or max_tokens >= model.text.max_position_embeddings:
        return model
    return replace(model, text=replace(model.text, max_position_embeddings=max_tokens)).within(max_tokens)


def architecture_of(config: Mapping[str, Any], folder: Path | None = None) -> str:
    """Returns the name in `architectures` of a `config.json`; "?" without one.

    Pixtral's documents have LLaVA's name: its own is vLLM's. Those of GLM-4.6V-Flash have GLM-4.1V's: its own, which is
    transformers', follows from the processor, by the files in the checkpoint's folder.
    """
    name = str((config.get("architectures") or ["?"])[0])
    is_llava = name == "LlavaForConditionalGeneration"
    if is_llava and config.get("vision_config", {}).get("model_type") == "pixtral":
        return "PixtralForConditionalGeneration"
    if name == "Glm4vForConditionalGeneration" and folder is not None:
        files = (read_json(folder / file, is_optional=True) for file in (PROCESSOR, PREPROCESSOR))
        is_later = any(each.get("processor_class") == "Glm46VProcessor" for each in files)
        return "Glm46VForConditionalGeneration" if is_later else name
    return name


def _companions(config: Mapping[str, Any], spec: FamilySpec, folders: Mapping[str, str]) -> tuple[Companion, ...]:
    for field in spec.companions:
        if config.get(field) is not None and field not in folders:
            raise CheckpointError(f"config.json: '{field}': expected the folder of {config[field]!r}, got none")
    return tuple(
        Companion(field=field, path=Path(folders[field]), prefix=part.prefix)
        for field, part in spec.companions.items()
        if field in folders
    )


def _parts(spec: FamilySpec, companions: Iterable[Companion]) -> dict[str, Any]:
    """Returns the configurations of companions, by the fields in which the model's own would have them."""
    return {spec.companions[each.field].document: read_json(each.path / "config.json") for each in companions}


def _token_ids(path: Path, tokens: Mapping[str, str]) -> Mapping[str, int]:
    """Returns the ids of special tokens, by the same names."""
    if not tokens:
        return {}
    added = _added_tokens(path)
    missing = [token for token in tokens.values() if token not in added]
    if missing:
        raise CheckpointError(f"tokenizer.json: 'added_tokens': expected {missing[0]!r} among them")
    return {name: added[token] for name, token in tokens.items()}


def _with_end_tokens(path: Path, named: tuple[int, ...], end_tokens: Sequence[str]) -> tuple[int, ...]:
    """Returns the end tokens, and those of `end_tokens` that the tokenizer has; none if there is no tokenizer."""
    added = _added_tokens(path) if end_tokens and has_tokenizer(path) else {}
    return tuple(dict.fromkeys((*named, *(added[token] for token in end_tokens if token in added))))


def _added_tokens(path: Path) -> Mapping[str, int]:
    """Returns the ids of the tokenizer's added tokens."""
    try:
        document: Mapping[str, Any] = json.loads(read_tokenizer(path))
    except ValueError as error:
        raise CheckpointError(f"the checkpoint's tokenizer.json is not JSON: {error}") from error
    return {token["content"]: token["id"] for token in document.get("added_tokens", ())}


def _dtype(fields: Mapping[str, Any]) -> Any:
    """Returns the stored weights' type, which transformers 5 and 4 name differently."""
    return fields.get("dtype") or fields.get("torch_dtype")


def family_of(config: ModelConfig) -> FamilySpec:
    """Returns the family of a model."""
    return FAMILIES[config.architecture]


def _generation(folders: Iterable[Path]) -> Mapping[str, Any]:
    """Returns the first `generation_config.json` in these folders."""
    files = (file for folder in folders if (file := folder / "generation_config.json").exists())
    return next(map(read_json, files), {})


def _eos_token_ids(
    generation: Mapping[str, Any], text: Mapping[str, Any], config: Mapping[str, Any]
) -> tuple[int, ...]:
    eos = generation.get("eos_token_id", config.get("eos_token_id", text.get("eos_token_id")))
    if eos is None:
        return ()
    return (eos,) if isinstance(eos, int) else tuple(eos)
