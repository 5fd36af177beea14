"""The metadata of a GGUF file as the `config.json` and `generation_config.json` of the same model, so that families
read both alike. Keys are those of llama.cpp (gguf-py/gguf/constants.py)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from glimpse.engine.checkpoint.gguf.header import Gguf
from glimpse.engine.checkpoint.gguf.names import MMPROJ, ROPE_FACTORS, packed_types
from glimpse.engine.checkpoint.gguf.tokenizer import CONTROL
from glimpse.engine.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufArchitecture:
    """A value of `general.architecture` that is served."""

    architecture: str
    """Name in `architectures` of `config.json`."""
    model_type: str
    permutes_heads: bool = False
    """Rows of the projections of queries and keys are permuted: pairs of dimensions that rotate together are adjacent
    (`permute` in llama.cpp's convert_hf_to_gguf.py)."""
    has_experts: bool = False
    """All layers have experts, whose weights add up to 1 for each token, in place of a gated MLP."""
    has_encoder: bool = False
    """The encoder is in an mmproj file (`gguf.mmproj`). Without it, the model reads text alone."""


GGUF_ARCHITECTURES: Mapping[str, GgufArchitecture] = {
    "llama": GgufArchitecture(architecture="LlamaForCausalLM", model_type="llama", permutes_heads=True),
    "qwen2": GgufArchitecture(architecture="Qwen2ForCausalLM", model_type="qwen2"),
    "qwen3": GgufArchitecture(architecture="Qwen3ForCausalLM", model_type="qwen3"),
    "qwen3moe": GgufArchitecture(architecture="Qwen3MoeForCausalLM", model_type="qwen3_moe", has_experts=True),
    # Decoders of vision models. Without media their positions are those of text models.
    "qwen2vl": GgufArchitecture(architecture="Qwen2ForCausalLM", model_type="qwen2", has_encoder=True),
    "qwen3vl": GgufArchitecture(architecture="Qwen3ForCausalLM", model_type="qwen3", has_encoder=True),
    "qwen3vlmoe": GgufArchitecture(
        architecture="Qwen3MoeForCausalLM", model_type="qwen3_moe", has_experts=True, has_encoder=True
    ),
}

_MAX_LAYERS = 1024
_MAX_SIZE = 1 << 30
_END_TOKENS = frozenset(
    ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "</s>")
)
"""Special tokens that end an answer, whether or not the metadata names them."""


def architecture_of(gguf: Gguf) -> GgufArchitecture:
    """Returns the architecture of a file. Raises CheckpointError if it is not served."""
    name = gguf.get("general.architecture")
    if not isinstance(name, str) or name not in GGUF_ARCHITECTURES:
        supported = ", ".join(GGUF_ARCHITECTURES)
        if name == MMPROJ:
            raise CheckpointError("the GGUF file is an encoder, an mmproj; name the file of its decoder as the model")
        raise CheckpointError(f"GGUF metadata: 'general.architecture': expected one of {supported}; got {name!r:.80}")
    return GGUF_ARCHITECTURES[name]


def read_config(gguf: Gguf) -> dict[str, Any]:
    """Returns what `config.json` says of the model.

    Raises:
        CheckpointError: the architecture is not served, or a value is missing or not supported.
    """
    served, keys = architecture_of(gguf), Keys(gguf)
    gguf.check_types()
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None:
        raise CheckpointError("GGUF: expected a tensor 'token_embd.weight', got none")
    num_heads, hidden_size = keys.size("attention.head_count"), keys.size("embedding_length")
    head_dim = keys.size("attention.key_length", hidden_size // num_heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        keys.require(name, keys.size(name, head_dim), head_dim)
    context = keys.size("context_length")
    config = {
        "architectures": [served.architecture],
        "model_type": served.model_type,
        "dtype": _dtype(gguf),
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden_size,
        "intermediate_size": keys.size("feed_forward_length"),
        "num_hidden_layers": keys.size("block_count", most=_MAX_LAYERS),
        "num_attention_heads": num_heads,
        "num_key_value_heads": keys.size("attention.head_count_kv", num_heads),
        "head_dim": head_dim,
        "max_position_embeddings": context,
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.number("rope.freq_base", 10_000.0),
        "rope_scaling": _rope_scaling(gguf, keys, context, head_dim),
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        **_experts(keys, served),
    }
    if types := packed_types(gguf):
        config["quantization_config"] = {"quant_method": "gguf", "types": types}
    if keys.get("attention.sliding_window"):  # a Mistral's: those of llama.cpp are of its architecture
        window = keys.size("attention.sliding_window")
        config |= {"sliding_window": window, "use_sliding_window": True}
    return config


def read_generation_config(gguf: Gguf) -> dict[str, Any]:
    """Returns what `generation_config.json` says of the model: the tokens that end an answer."""
    tokens, kinds = gguf.texts("tokenizer.ggml.tokens") or [], gguf.numbers("tokenizer.ggml.token_type")
    named = [gguf.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    ids = [each for each in named if type(each) is int and 0 <= each < len(tokens)]
    if kinds is not None and len(kinds) == len(tokens):
        ids += [index for index in np.flatnonzero(kinds == CONTROL).tolist() if tokens[index] in _END_TOKENS]
    return {"eos_token_id": list(dict.fromkeys(ids))} if ids else {}


class Keys:
    """The values of an architecture, whose keys begin with its name."""

    def __init__(self, gguf: Gguf) -> None:
        self._gguf = gguf
        self._prefix = gguf.get("general.architecture")

    def get(self, name: str) -> Any:
        """Returns a value; None without it."""
        return self._gguf.get(f"{self._prefix}.{name}")

    def size(self, name: str, default: int | None = None, *, most: int = _MAX_SIZE) -> int:
        """Returns a number from 1 to `most`."""
        value = default if (found := self.get(name)) is None else found
        if type(value) is not int or not 1 <= value <= most:
            self.refuse(name, f"a whole number from 1 to {most}", value)
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Returns a positive number."""
        value = default if (found := self.get(name)) is None else found
        if not isinstance(value, int | float) or isinstance(value, bool) or not 1e-30 < value < 1e30:
            self.refuse(name, "a positive number", value)
        # Written as float32: the shortest decimal number that rounds to it is the one that was meant.
        return float(str(np.float32(value)))

    def numbers(self, name: str, count: int) -> list[float]:
        """Returns the first numbers of an array that has at least `count`."""
        values = self._gguf.numbers(f"{self._prefix}.{name}")
        if values is None or len(values) < count or not np.isfinite(values).all():
            self.refuse(name, f"at least {count} numbers", None if values is None else values.tolist())
        return [float(str(value)) for value in values[:count]]

    def require(self, name: str, value: object, supported: object) -> None:
        """Raises CheckpointError if a value is not the only supported one."""
        if value != supported:
            self.refuse(name, repr(supported), value)

    def refuse(self, name: str, expected: str, value: object) -> NoReturn:
        """Raises CheckpointError."""
        raise CheckpointError(f"GGUF metadata: '{self._prefix}.{name}': expected {expected}, got {value!r:.80}")


def _experts(keys: Keys, served: GgufArchitecture) -> dict[str, Any]:
    if not served.has_experts:
        keys.require("expert_count", keys.get("expert_count") or 0, 0)
        return {}
    width = keys.size("expert_feed_forward_length")
    if width == keys.size("embedding_length"):  # then inputs and outputs of their matrices could be confused
        keys.require("expert_feed_forward_length", width, "a size other than that of embeddings")
    return {
        "num_experts": keys.size("expert_count"),
        "num_experts_per_tok": keys.size("expert_used_count"),
        "moe_intermediate_size": width,
        "norm_topk_prob": True,
    }


def _rope_scaling(gguf: Gguf, keys: Keys, context: int, head_dim: int) -> dict[str, Any] | None:
    """Returns `rope_scaling` of `config.json`; None for unscaled rotary frequencies."""
    if ROPE_FACTORS in gguf.tensors:  # Llama 3.1's, as one factor for each wavelength
        factors = _rope_factors(gguf, head_dim)
        return {
            "rope_type": "longrope",
            "short_factor": factors,
            "long_factor": factors,
            "original_max_position_embeddings": context,
            "attention_factor": 1.0,
        }
    kind = keys.get("rope.scaling.type")
    if kind in (None, "none") and keys.get("rope.scale_linear") is not None:
        return {"rope_type": "linear", "factor": keys.number("rope.scale_linear")}
    match kind:
        case None | "none":
            return None
        case "linear":
            return {"rope_type": "linear", "factor": keys.number("rope.scaling.factor")}
        case "yarn":
            return {
                "rope_type": "yarn",
                "factor": keys.number("rope.scaling.factor"),
                "original_max_position_embeddings": keys.size("rope.scaling.original_context_length", context),
            }
        case other:
            keys.require("rope.scaling.type", other, "none, linear or yarn")
            return None


def _rope_factors(gguf: Gguf, head_dim: int) -> list[float]:
    stored = gguf.tensors[ROPE_FACTORS]
    if stored.type.name != "F32" or stored.shape != (head_dim // 2,):
        raise CheckpointError(
            f"GGUF tensor {ROPE_FACTORS!r}: expected F32 of shape [{head_dim // 2}], got {stored.type.name} of"
            f" shape {[*stored.shape]}"
        )
    factors = np.frombuffer(stored.data, "<f4", head_dim // 2, stored.offset)
    if not np.isfinite(factors).all() or not (factors > 0).all():
        raise CheckpointError(f"GGUF tensor {ROPE_FACTORS!r}: expected positive numbers, got others")
    return factors.tolist()


def _dtype(gguf: Gguf) -> str:
    """Returns the type of the unquantized matrices, or the one that most models were trained in."""
    found = {each.type.name for each in gguf.tensors.values() if len(each.shape) > 1}
    return "float32" if found == {"F32"} else "float16" if found == {"F16"} else "bfloat16"
