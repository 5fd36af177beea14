"""GGUF files made of checkpoints of text models by llama.cpp's own package, and their weights as it reads them."""

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gguf import MODEL_ARCH_NAMES, GGMLQuantizationType, GGUFReader, GGUFWriter, get_tensor_name_map
from gguf.constants import GGML_QUANT_SIZES, RopeScalingType
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file
from torch import Tensor

from tests.checkpoints.files import write_json

_PACKAGE_WRITES = frozenset(("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"))
MIXES = {
    "Q4_K_M": ("Q4_K", {"attn_v": "Q6_K", "ffn_down": "Q6_K", "token_embd": "Q6_K", "output": "Q6_K"}),
    "Q8_0 beside BF16": ("Q8_0", {"attn_k": "BF16", "ffn_up": "Q4_1"}),
}
"""Types of most matrices and of some, by the name of their mixture."""
PRECISE = re.compile(
    r"conv1d\.weight|conv1d\.\d\.bias|\.conv\.conv|mlp\.gate\.|shared_expert_gate|(pos|position|class)_emb|embed_pos"
)
"""Names of matrices that are always stored as F32."""
_CONTROL, _NORMAL = 3, 1


class Conversion(NamedTuple):
    """What llama.cpp's converter does to some tensors."""

    names: str
    """Expression of names in checkpoints without an encoder."""
    forward: Callable[[Tensor, Mapping[str, Any]], Tensor]
    """From a tensor and the decoder's fields of `config.json`."""
    inverse: Callable[[Tensor, Mapping[str, Any]], Tensor]


def permuted(tensor: Tensor, num_heads: int) -> Tensor:
    """Returns rows as llama.cpp's converter orders those of Llama: dimensions that rotate together are adjacent."""
    half = len(tensor) // num_heads // 2
    order = [
        head * 2 * half + part * half + pair for head in range(num_heads) for pair in range(half) for part in (0, 1)
    ]
    return tensor[order]


def _permutation(names: str, heads: str) -> Conversion:
    def inverse(tensor: Tensor, config: Mapping[str, Any]) -> Tensor:
        order = permuted(torch.arange(len(tensor)), config[heads])
        return torch.empty_like(tensor).index_copy_(0, order, tensor)

    return Conversion(names, lambda tensor, config: permuted(tensor, config[heads]), inverse)


_PERMUTATIONS = (
    _permutation(r"\.q_proj\.", "num_attention_heads"),
    _permutation(r"\.k_proj\.", "num_key_value_heads"),
)


def _halves(names: str, heads: str) -> Conversion:
    """Returns what is done to dimensions that rotate in pairs: the first ones of pairs are in front."""

    def order(tensor: Tensor, config: Mapping[str, Any], *, back: bool = False) -> Tensor:
        rows = tensor.unflatten(0, (config[heads], -1))
        size = int(rows.shape[1] * config["rope_parameters"].get("partial_rotary_factor", 1.0))
        parts = (2, size // 2) if back else (size // 2, 2)
        rotating = rows[:, :size].unflatten(1, parts).transpose(1, 2).flatten(1, 2)
        return torch.cat([rotating, rows[:, size:]], dim=1).flatten(0, 1)

    return Conversion(names, order, partial(order, back=True))


def _tiled(values: Tensor, config: Mapping[str, Any], *, back: bool = False) -> Tensor:
    """Returns rows of values with the first head of each group in front, behind rows of queries and keys."""
    groups, heads = config["linear_num_key_heads"], config["linear_num_value_heads"]
    width = min(len(values), heads * config["linear_value_head_dim"])
    others, rows = values[:-width], values[-width:]
    sizes = (heads // groups, groups) if back else (groups, heads // groups)
    return torch.cat([others, rows.unflatten(0, (*sizes, -1)).transpose(0, 1).flatten(0, 2)])


def _untiled(values: Tensor, config: Mapping[str, Any]) -> Tensor:
    return _tiled(values, config, back=True)


_NORMS = Conversion(r"norm\.weight$", lambda tensor, _: tensor + 1, lambda tensor, _: tensor - 1)
_DELTA_NET = (
    Conversion(
        r"\.A_log$",
        lambda tensor, config: -_tiled(tensor, config).exp(),
        lambda tensor, config: _untiled((-tensor).log(), config),
    ),
    Conversion(
        r"\.conv1d\.",
        lambda tensor, config: _tiled(tensor.squeeze(1), config),
        lambda tensor, config: _untiled(tensor, config)[:, None],
    ),
    Conversion(
        r"linear_attn\.out_proj\.",
        lambda tensor, config: _tiled(tensor.T, config).T.contiguous(),
        lambda tensor, config: _untiled(tensor.T, config).T.contiguous(),
    ),
    Conversion(r"linear_attn\.norm\.", lambda tensor, _: tensor, lambda tensor, _: tensor),
    Conversion(r"\.linear_attn\.", _tiled, _untiled),
    _NORMS,
)
_CONVERSIONS: Mapping[str, tuple[Conversion, ...]] = {
    "qwen35": _DELTA_NET,
    "qwen35moe": _DELTA_NET,
    "llama": _PERMUTATIONS,
    "mistral3": _PERMUTATIONS,
    "lfm2": (Conversion(r"conv\.conv\.", lambda tensor, _: tensor.squeeze(1), lambda tensor, _: tensor[:, None]),),
    "gemma3": (_NORMS,),
    "glm4": (_halves(r"\.q_proj\.", "num_attention_heads"), _halves(r"\.k_proj\.", "num_key_value_heads")),
}
"""By `general.architecture`."""


def _conversion(name: str, architecture: str) -> Conversion:
    found = (each for each in _CONVERSIONS.get(architecture, ()) if re.search(each.names, name))
    return next(found, Conversion("", lambda tensor, _: tensor, lambda tensor, _: tensor))


def write_gguf(
    file: Path,
    checkpoint: Path,
    architecture: str,
    kind: str = "F32",
    *,
    pre: str = "qwen2",
    most_tensors: int = 0,
    lacks: Sequence[str] = (),
    change: Callable[[GGUFWriter], None] = lambda writer: None,
) -> Path:
    """Writes a checkpoint as one file, or as several, of which it returns the first.

    Args:
        file: where to.
        checkpoint: folder of a checkpoint, with a byte-level BPE. An encoder is left out; see `write_mmproj`.
        architecture: value of `general.architecture`.
        kind: type of the matrices, or one of `MIXES`. Types that the package cannot quantize to have random blocks.
        pre: value of `tokenizer.ggml.pre`.
        most_tensors: of a file, if there are several.
        lacks: special tokens that the file does not have.
        change: adds further metadata.
    """
    document = json.loads((checkpoint / "config.json").read_bytes())
    config = document | document.get("text_config", document.get("llm_config", {}))
    writer = GGUFWriter(file, architecture, split_max_tensors=most_tensors)
    rope = config.get("rope_parameters") or config
    rope = rope.get("full_attention", rope)
    drafting = _num_drafting(config)
    writer.add_block_count(config["num_hidden_layers"] + drafting)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    if config.get("intermediate_size") and architecture != "gemma4":
        writer.add_feed_forward_length(_mlp_width(config))
    writer.add_head_count(config["num_attention_heads"])
    if architecture != "gemma4":
        writer.add_head_count_kv(_heads_of_layers(config) if architecture == "lfm2" else config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config.get("norm_eps") or config["rms_norm_eps"])
    writer.add_rope_freq_base(rope.get("rope_theta", config.get("rope_theta", 10_000.0)))
    if config.get("head_dim") and architecture != "gemma4":
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    _add_traits(writer, config, rope)
    if drafting:
        writer.add_nextn_predict_layers(drafting)
    _add_tokenizer(writer, checkpoint, config["vocab_size"], pre, lacks)
    change(writer)
    generator = np.random.default_rng(0)
    for name, tensor in decoder_tensors(checkpoint).items():
        stored_name, (most, others) = gguf_name(name, architecture, config), MIXES.get(kind, (kind, {}))
        part, converted = stored_name.split(".")[-2], _conversion(name, architecture).forward(tensor.float(), config)
        own_kind = "F32" if PRECISE.search(name) else others.get(part, most)
        add_tensor(writer, stored_name, converted.numpy(), own_kind, generator)
    finish(writer)
    return min(file.parent.glob(f"{file.stem}-00001-of-*.gguf")) if most_tensors else file


def _num_drafting(config: Mapping[str, Any]) -> int:
    """Returns how many layers only draft tokens."""
    return config.get("mtp_num_hidden_layers") or config.get("num_nextn_predict_layers") or 0


def _add_traits(writer: GGUFWriter, config: Mapping[str, Any], rope: Mapping[str, Any]) -> None:
    """Adds what only some decoders have."""
    architecture = writer.arch
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope.get("rope_type") == "yarn":
        _add_yarn(writer, rope)
    if "mrope_section" in (config.get("rope_scaling") or {}):
        writer.add_rope_dimension_sections([*config["rope_scaling"]["mrope_section"], 0])
        if blocks := config["vision_config"].get("deepstack_visual_indexes"):
            writer.add_num_deepstack_layers(len(blocks))
    if architecture == "phi3":
        _add_phi3(writer, config, rope)
    if architecture.startswith("qwen35"):
        _add_delta_net(writer, config, rope)
    if architecture in ("qwen3moe", "qwen3vlmoe", "qwen35moe"):
        writer.add_expert_count(config.get("num_local_experts") or config["num_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if architecture in ("glm4", "paddleocr"):
        _add_axes(writer, config, rope)
    if architecture == "lfm2":
        writer.add_shortconv_l_cache(config["conv_L_cache"])
    if architecture == "gemma4":
        _add_gemma4(writer, config)
    if architecture == "gemma3":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern(config["layer_types"].index("full_attention") + 1)


def _add_delta_net(writer: GGUFWriter, config: Mapping[str, Any], rope: Mapping[str, Any]) -> None:
    writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(config["linear_key_head_dim"])
    writer.add_ssm_group_count(config["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(config["linear_num_value_heads"])
    writer.add_ssm_inner_size(config["linear_num_value_heads"] * config["linear_value_head_dim"])
    writer.add_full_attention_interval(config["layer_types"].index("full_attention") + 1)
    writer.add_rope_dimension_count(int(config["head_dim"] * rope["partial_rotary_factor"]))
    writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
    if "shared_expert_intermediate_size" in config:
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])


def _add_axes(writer: GGUFWriter, config: Mapping[str, Any], rope: Mapping[str, Any]) -> None:
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1.0)))
    writer.add_rope_dimension_sections([*rope["mrope_section"], 0])


def _add_gemma4(writer: GGUFWriter, config: Mapping[str, Any]) -> None:
    is_sliding = [kind == "sliding_attention" for kind in config["layer_types"]]
    layers: Mapping[str, Mapping[str, Any]] = config["per_layer_config"]
    heads = [layers.get(str(index), {}).get("num_key_value_heads") for index in range(len(is_sliding))]
    head_dim = next(each["head_dim"] for each in layers.values())
    first = len(is_sliding) - config["num_kv_shared_layers"]
    width, wide = config["intermediate_size"], 2 if config["use_double_wide_mlp"] else 1
    writer.add_feed_forward_length([width if index < first else wide * width for index in range(len(is_sliding))])
    writer.add_head_count_kv([each or config["num_key_value_heads"] for each in heads])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_key_length_swa(config["head_dim"])
    writer.add_value_length_swa(config["head_dim"])
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base_swa(config["rope_parameters"]["sliding_attention"]["rope_theta"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(is_sliding)
    writer.add_shared_kv_layers(config["num_kv_shared_layers"])
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"] or 0)
    if config["final_logit_softcapping"]:
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    rotating = int(head_dim * config["rope_parameters"]["full_attention"]["partial_rotary_factor"]) // 2
    factors = np.array([1.0] * rotating + [1e30] * (head_dim // 2 - rotating), np.float32)
    writer.add_tensor("rope_freqs.weight", factors)


def _add_phi3(writer: GGUFWriter, config: Mapping[str, Any], rope: Mapping[str, Any]) -> None:
    rotary_dim = int(rope.get("partial_rotary_factor", 1.0) * config["hidden_size"]) // config["num_attention_heads"]
    writer.add_rope_dimension_count(rotary_dim)
    writer.add_sliding_window(config.get("sliding_window") or 0)
    if rope.get("rope_type") == "longrope":
        context, original = config["max_position_embeddings"], rope["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        stretch = max(1.0, context / original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(stretch) / math.log(original)))
        for name in ("short", "long"):
            factors = np.array(rope[f"{name}_factor"], np.float32)
            writer.add_tensor(f"rope_factors_{name}.weight", factors)


def _add_yarn(writer: GGUFWriter, rope: Mapping[str, Any]) -> None:
    writer.add_rope_scaling_type(RopeScalingType.YARN)
    writer.add_rope_scaling_factor(rope["factor"])
    writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
    writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
    writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])


def _mlp_width(config: Mapping[str, Any]) -> int:
    """Returns the width of MLPs, which LFM2's documents have before it is adjusted."""
    size: int = config["intermediate_size"]
    if not config.get("block_auto_adjust_ff_dim"):
        return size
    multiple = config["block_multiple_of"]
    return -(-int(config["block_ffn_dim_multiplier"] * int(2 * size / 3)) // multiple) * multiple


def _heads_of_layers(config: Mapping[str, Any]) -> list[int]:
    return [0 if kind == "conv" else config["num_key_value_heads"] for kind in config["layer_types"]]


def fit_scale(checkpoint: Path) -> Path:
    """Makes a checkpoint of Gemma 3 scale scores by the width of heads: files do not tell of another scale. Returns
    it."""
    document = json.loads((checkpoint / "config.json").read_bytes())
    text = document.get("text_config", document)
    text["query_pre_attn_scalar"] = text["head_dim"]
    write_json(checkpoint / "config.json", document)
    return checkpoint


_ENCODERS = re.compile(
    r"(visual|vision_(model|tower|encoder|projection)|audio_tower|connector|multi_modal_projector|mlp1|vpm|resampler"
    r"|merger|mlp_AR|projector|embed_vision|embed_audio)\.|image_newline"
)

_OF_MTP = {
    "fc": "eh_proj",
    "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
    "norm": "shared_head_norm",
}
"""Names around the layer of multi-token prediction, in checkpoints and in files."""


def decoder_tensors(checkpoint: Path) -> dict[str, Tensor]:
    """Returns the decoder's tensors by their names in checkpoints without an encoder; the matrices of experts as one,
    named as in files."""
    decoder: dict[str, Tensor] = {}
    document = json.loads((checkpoint / "config.json").read_bytes())
    text = document.get("text_config") or document.get("llm_config") or document
    hidden_size, depth = text["hidden_size"], text["num_hidden_layers"]
    for stored, tensor in load_file(checkpoint / "model.safetensors").items():
        name = re.sub(
            r"^(model\.)?((language|text)_model|llm)\.(model\.)?(?=layers|embed|norm|per_layer)", "model.", stored
        )
        name = re.sub(r"^(language_model|llm)\.lm_head", "lm_head", name)
        name = name.replace("mtp.layers.0.", f"model.layers.{depth}.")
        name = re.sub(r"^mtp\.(\w+)", lambda found: f"blk.{depth}.nextn.{_OF_MTP[found[1]]}", name)
        layer, _, stack = name.rpartition(".mlp.experts.")
        if _ENCODERS.search(name):
            continue
        parts = {"gate_up_proj": ("gate", "up"), "down_proj": ("down",)}.get(stack, ())
        is_transposed = tensor.shape[-1 if stack == "down_proj" else 1] == hidden_size if parts else False
        rows = tensor.mT if is_transposed else tensor
        for part, matrices in zip(parts, rows.chunk(len(parts), dim=1) if parts else (), strict=True):
            decoder |= {f"{layer}.mlp.experts.{index}.{part}_proj.weight": each for index, each in enumerate(matrices)}
        if not parts:
            decoder[name] = tensor
    return _with_stacks(decoder)


def _with_stacks(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns tensors with the matrices of a layer's experts as one, named as in files."""
    experts: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        if found := re.fullmatch(r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(\w+)_proj\.weight", name):
            layer, expert, part = found.groups()
            experts.setdefault(f"blk.{layer}.ffn_{part}_exps.weight", {})[int(expert)] = tensor
    plain = {name: tensor for name, tensor in tensors.items() if ".mlp.experts." not in name}
    return plain | {name: torch.stack([parts[index] for index in range(len(parts))]) for name, parts in experts.items()}


def dequantized(
    file: Path, config: Mapping[str, Any], architecture: str, checkpoint_names: Iterable[str]
) -> dict[str, Tensor]:
    """Returns a file's weights as llama.cpp's package reads them, by their names in published checkpoints.

    Args:
        config: the decoder's fields of `config.json`.
        checkpoint_names: those of `decoder_tensors`.
    """
    stored = {
        str(each.name): torch.from_numpy(np.array(dequantize(each.data, each.tensor_type), dtype=np.float32))
        for each in GGUFReader(file).tensors
    }
    names = {name: gguf_name(name, architecture, config) for name in checkpoint_names}
    assert sorted(names.values()) == sorted(name for name in stored if not name.startswith("rope_"))
    weights = {
        name: _conversion(name, architecture).inverse(stored[theirs], config)
        for name, theirs in names.items()
        if not name.startswith("blk.")
    }
    for layer in {name.split(".")[1] for name in names if name.startswith("blk.")}:  # as transformers has them
        gate, up, down = (stored[f"blk.{layer}.ffn_{part}_exps.weight"] for part in ("gate", "up", "down"))
        experts = f"model.layers.{layer}.mlp.experts"
        weights |= {f"{experts}.gate_up_proj": torch.cat([gate, up], 1), f"{experts}.down_proj": down}
    return weights


def random_blocks(kind: str, num_blocks: int, generator: np.random.Generator) -> np.ndarray:
    """Returns uint8 [blocks, bytes of a block] whose factors are of the size of a trained model's."""
    _, num_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]]
    blocks = generator.integers(0, 256, (num_blocks, num_bytes), dtype=np.uint8)
    places = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)} | dict.fromkeys(
        ("Q4_K", "Q5_K", "Q4_1", "Q5_1"), (0, 2)
    )
    largest = {"Q2_K": 4e-3, "Q3_K": 1e-3, "Q4_K": 2e-4, "Q5_K": 1e-4, "Q6_K": 5e-5, "IQ4_XS": 5e-5, "IQ4_NL": 1e-3}
    for place in places.get(kind, (0,)):
        factors = largest.get(kind, 1e-2) * generator.uniform(0.5, 1, num_blocks).astype("<f2")
        blocks[:, place : place + 2] = factors.view(np.uint8).reshape(-1, 2)
    return blocks


def finish(writer: GGUFWriter) -> None:
    """Writes the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tensor(writer: GGUFWriter, name: str, values: np.ndarray, kind: str, generator: np.random.Generator) -> None:
    """Adds a tensor, in this type if it is a matrix."""
    if values.ndim == 1:
        writer.add_tensor(name, values)
        return
    if values.shape[-1] % 32 and kind == "Q8_0":
        kind = "F16"  # rows are no whole blocks
    number = GGMLQuantizationType[kind]
    if kind in _PACKAGE_WRITES:
        blocks = quantize(values, number)
    else:
        size, num_bytes = GGML_QUANT_SIZES[number]
        made = random_blocks(kind, values.size // size, generator)
        blocks = made.reshape(len(values), values.shape[1] // size * num_bytes)
    writer.add_tensor(name, blocks, raw_dtype=number)


_tensor_names = cache(get_tensor_name_map)  # each takes 7 ms


def gguf_name(name: str, architecture: str, config: Mapping[str, Any]) -> str:
    """Returns the name of a decoder's tensor in files, by the package's own table."""
    if name.startswith("blk."):
        return name
    kind = next(each for each, written in MODEL_ARCH_NAMES.items() if written == architecture)
    known = name.replace(".dt_bias", ".dt_proj.bias").replace(".layer_scalar", ".layer_scalar.weight")
    num_layers = config["num_hidden_layers"] + _num_drafting(config)
    stored = _tensor_names(kind, num_layers).get_name(known, try_suffixes=(".weight", ".bias"))
    assert stored is not None, name
    return stored


def _add_tokenizer(writer: GGUFWriter, checkpoint: Path, vocab_size: int, pre: str, lacks: Sequence[str]) -> None:
    document = json.loads((checkpoint / "tokenizer.json").read_bytes())
    document["added_tokens"] = [token for token in document["added_tokens"] if token["content"] not in lacks]
    if document["model"].get("byte_fallback"):
        _add_sentencepiece(writer, document, vocab_size)
    else:
        add_byte_level(writer, document, pre, vocab_size)
    config = json.loads((checkpoint / "tokenizer_config.json").read_bytes())
    ids = document["model"]["vocab"] | {token["content"]: token["id"] for token in document["added_tokens"]}
    writer.add_eos_token_id(ids[config["eos_token"]])
    if config.get("bos_token"):
        writer.add_bos_token_id(ids[config["bos_token"]])
    separate, own = checkpoint / "chat_template.json", checkpoint / "chat_template.jinja"
    template = (
        own.read_text()
        if own.exists()
        else (json.loads(separate.read_bytes()) if separate.exists() else config)["chat_template"]
    )
    writer.add_chat_template(template)


def _add_sentencepiece(writer: GGUFWriter, document: Mapping[str, Any], vocab_size: int) -> None:
    """Adds the tokens of a `tokenizer.json`, of which those that are merged first have the best scores."""
    tokens = {index: token for token, index in document["model"]["vocab"].items()}
    merged = {"".join(pair): -float(place) for place, pair in enumerate(document["model"]["merges"])}
    special = {token["id"]: token["content"] for token in document["added_tokens"]}
    texts = [(tokens | special).get(index, f"[PAD{index}]") for index in range(vocab_size)]
    writer.add_tokenizer_model("gemma4" if writer.arch == "gemma4" else "llama")
    if writer.arch == "gemma4":
        writer.add_token_merges([" ".join(pair) for pair in document["model"]["merges"]])
    writer.add_token_list(texts)
    writer.add_token_scores([merged.get(text, -1000.0) for text in texts])
    writer.add_token_types(
        [
            3 if index in special else 5 if index not in tokens else 6 if re.fullmatch("<0x..>", text) else 1
            for index, text in enumerate(texts)
        ]
    )
    writer.add_add_space_prefix("Prepend" in json.dumps(document["normalizer"]))


def add_byte_level(writer: GGUFWriter, document: Mapping[str, Any], pre: str, vocab_size: int) -> None:
    """Adds the tokens and merges of a `tokenizer.json`, and tokens that fill gaps, as llama.cpp's converter does."""
    tokens = {index: token for token, index in document["model"]["vocab"].items()}
    added = {token["id"]: token["content"] for token in document["added_tokens"]}
    texts = tokens | added
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([texts.get(index, f"[PAD{index}]") for index in range(vocab_size)])
    writer.add_token_types(
        [_CONTROL if index in added else _NORMAL if index in tokens else 5 for index in range(vocab_size)]
    )
    writer.add_token_merges([" ".join(pair) for pair in document["model"]["merges"]])
