"""The type that each tensor of a file in Q4_K_M has.

They are those of llama.cpp's `llama-quantize` (src/llama-quant.cpp), so that files of both have one size and one speed.
"""

import re
from collections.abc import Mapping

from glimpse.engine.checkpoint.gguf.header import Gguf
from glimpse.engine.checkpoint.gguf.keys import Keys
from glimpse.engine.checkpoint.gguf.tensor_types import TENSOR_TYPES

FILE_TYPE: Mapping[str, int] = {"general.quantization_version": 2, "general.file_type": 15}
"""What metadata say of Q4_K_M (include/llama.h, `LLAMA_FTYPE_MOSTLY_Q4_K_M`)."""
_KEPT = re.compile(r"_norm\.weight$|ffn_gate_inp\.|per_layer_model_proj|ssm_conv1d|shortconv\.conv\.")
"""Names of matrices that stay as they are."""
_EMBEDDINGS = ("token_embd.weight", "per_layer_token_embd.weight")
_FALLBACKS: Mapping[str, str] = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}
"""Types of matrices whose rows are no whole blocks of 256."""
_WITH_70B = ("llama", "qwen2", "qwen2vl")
_LAYERS_OF_70B = 80
_BLOCK_SIZE: Mapping[str, int] = {kind.name: kind.block_size for kind in TENSOR_TYPES.values()}


def q4_k_m_types(gguf: Gguf) -> dict[str, str]:
    """Returns the type of each tensor that is quantized, by its name in the file."""
    keys = Keys(gguf)
    values = sorted((name for name in gguf.tensors if re.search(r"attn_(v|qkv)\.weight", name)), key=_layer)
    downs = sorted((name for name in gguf.tensors if "ffn_down" in name), key=_layer)
    precise = {name for index, name in enumerate(values) if _is_precise(index, len(values))}
    precise |= {name for index, name in enumerate(downs) if _is_precise(index, keys.size("block_count"))}
    precise |= {"output.weight"} if "output.weight" in gguf.tensors else {*_EMBEDDINGS}
    kinds = dict.fromkeys(gguf.tensors, "Q4_K")
    if _is_70b(gguf, keys):
        kinds |= dict.fromkeys(values, "Q5_K")
    kinds |= dict.fromkeys(precise & gguf.tensors.keys(), "Q6_K")
    return {
        name: _fitting(kinds[name], tensor.shape[-1])
        for name, tensor in gguf.tensors.items()
        if name.endswith("weight") and not _KEPT.search(name) and len(tensor.shape) > 1
    }


def _layer(name: str) -> int:
    return int(name.split(".")[1]) if name.startswith("blk.") else -1


def _is_precise(index: int, count: int) -> bool:
    """Returns whether a layer is one of the first or last eighth, or each third of those between."""
    eighth = count // 8
    return index < eighth or index >= 7 * count // 8 or (index - eighth) % 3 == 2


def _is_70b(gguf: Gguf, keys: Keys) -> bool:
    heads = keys.size("attention.head_count")
    is_grouped = gguf.get("general.architecture") != "llama" or keys.get("attention.head_count_kv") not in (None, heads)
    return gguf.get("general.architecture") in _WITH_70B and keys.size("block_count") == _LAYERS_OF_70B and is_grouped


def _fitting(kind: str, num_inputs: int) -> str:
    own = kind if num_inputs % _BLOCK_SIZE[kind] == 0 else _FALLBACKS[kind]
    return own if num_inputs % _BLOCK_SIZE[own] == 0 else "F16"
