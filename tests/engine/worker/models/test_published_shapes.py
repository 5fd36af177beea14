"""Published checkpoints load: our models, built from the published configurations, have their tensors."""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel, core_model_loading

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.worker.layers.quantized import QuantizationScheme
from glimpse.engine.worker.loading.build_model import empty_model
from glimpse.engine.worker.loading.weights import checkpoint_name
from glimpse.engine.worker.models.model import Model
from glimpse.engine.worker.tensors.kv_cache import CacheShape
from models.published.table import PublishedCheckpoint, load_table
from tests.oracles.deepseek_ocr2 import make_network as make_deepseek_network
from tests.oracles.minicpmv import Network as MiniCPMVNetwork
from tests.oracles.phi3v import make_network
from tests.oracles.ultravox import Network as UltravoxNetwork
from tests.paths import ROOT

revert_weight_conversion = core_model_loading.revert_weight_conversion

TABLE = {checkpoint.name: checkpoint for checkpoint in load_table()}
FIRST_OF_ARCHITECTURE = {each.config["architectures"][0]: each.name for each in reversed(TABLE.values())}.values()
"""Checkpoints of one architecture have the same old names, which take long to find."""
FEW_EXPERTS = 8
"""The number that computes a token. Experts are all alike, and thousands take long to build."""
Shapes = Mapping[str, tuple[int, ...]]
OWN_ORACLES: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "Phi3VForCausalLM": make_network,
    "MiniCPMV": MiniCPMVNetwork,
    "DeepseekOCR2ForCausalLM": make_deepseek_network,
    "UltravoxModel": UltravoxNetwork,
}
"""Architectures that transformers lacks → how a `config.json` becomes a network with the published names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A published checkpoint, built without values."""

    published: PublishedCheckpoint
    """Has as many experts as are built."""
    folder: Path
    """Folder of its configuration."""
    model: Model
    oracle: Any
    """transformers' model, or one put together of its parts."""


@pytest.fixture(scope="module", params=TABLE)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build_both(with_experts(TABLE[request.param], FEW_EXPERTS), tmp_path_factory.mktemp("published"))


def build_both(published: PublishedCheckpoint, folder: Path) -> Built:
    model = build(published, folder)
    architecture = published.config["architectures"][0]
    with torch.device("meta"):
        if architecture in OWN_ORACLES:
            oracle = OWN_ORACLES[architecture](published.config)
        else:
            oracle = getattr(transformers, architecture)(transformers.AutoConfig.from_pretrained(folder))
    return Built(published=published, folder=folder, model=model, oracle=oracle)


def with_experts(published: PublishedCheckpoint, number: int) -> PublishedCheckpoint:
    """Returns a checkpoint with a number of experts, if it has any; all else is as published."""

    def replaced(config: Mapping[str, Any]) -> dict[str, Any]:
        config = {name: replaced(value) if isinstance(value, dict) else value for name, value in config.items()}
        return config | ({"num_experts": number} if config.get("num_experts") else {})

    return replace(published, config=replaced(published.config))


def build(
    checkpoint: PublishedCheckpoint, folder: Path, scheme: QuantizationScheme | None = None, *, uses_mtp: bool = False
) -> Model:
    """Returns our model without values."""
    config = load_model_config(checkpoint.write(folder))
    config = replace(config, text=replace(config.text, uses_mtp=uses_mtp))
    return empty_model(folder, config, torch.bfloat16, scheme, scale_dtype=torch.bfloat16, num_ranks=1)


def as_loaded(stored: Mapping[str, Tensor], built: Built) -> Shapes:
    """Returns the shapes of a checkpoint's tensors with the names, and in the parts, that loading gives them."""
    model, text = built.model, built.model.decoder.config
    needed = dict(model.named_weights())
    names = {checkpoint_name(name, model.renamed_prefixes): tensor for name, tensor in stored.items()}
    names = {name: tensor for name, tensor in names.items() if name in needed or not model.is_unused(name)}
    split = (part for name, tensor in names.items() for part in model.split_weight(name, tensor, text))
    parts = (part for name, tensor in split for part in model.arrange(name, tensor, text))
    return {name: tuple(tensor.shape) for name, tensor in parts}


def test_model_has_the_tensors_of_the_published_checkpoint_under_old_and_new_names(built: Built) -> None:
    ours = {name: tuple(tensor.shape) for name, tensor in built.model.named_weights()}
    stored = dict(built.oracle.state_dict())
    assert as_loaded(stored, built) == ours
    if isinstance(built.oracle, PreTrainedModel) and built.published.name in FIRST_OF_ARCHITECTURE:
        assert as_loaded(revert_weight_conversion(built.oracle, stored), built) == ours
    if built.model.decoder.config.num_mtp_layers:
        drafting = replace(built, model=build(built.published, built.folder, uses_mtp=True))
        ours = {name: tuple(tensor.shape) for name, tensor in drafting.model.named_weights()}
        assert as_loaded({**stored, **multi_token_prediction(stored, drafting.model)}, drafting) == ours


def multi_token_prediction(stored: Mapping[str, Tensor], model: Model) -> Mapping[str, Tensor]:
    """Returns the tensors of the layer that transformers ignores: those of any layer of attention, and some more."""
    text = model.decoder.config
    layer, width = f".layers.{text.layer_kinds.index('full')}.", text.hidden_size
    found = {f"mtp.layers.0.{name.partition(layer)[2]}": tensor for name, tensor in stored.items() if layer in name}
    if not text.mtp_repeats_normed:  # GLM, where these are a layer more
        last = f"model.language_model.layers.{text.num_layers}."
        found = {name.replace("mtp.layers.0.", last): tensor for name, tensor in found.items()}
        norms = ("enorm", "hnorm", "shared_head.norm")
        found |= {f"{last}{name}.weight": torch.empty(width, device="meta") for name in norms}
        return found | {f"{last}eh_proj.weight": torch.empty(width, 2 * width, device="meta")}
    norms = ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
    found |= {f"mtp.{name}.weight": torch.empty(width, device="meta") for name in norms}
    return found | {"mtp.fc.weight": torch.empty(width, 2 * width, device="meta")}


def test_model_has_as_many_parameters_as_the_hub_counts(built: Built, tmp_path: Path) -> None:
    published = TABLE[built.published.name]
    if published.num_parameters is None:
        pytest.skip("the hub's count is not known here")
    count = num_parameters(built)
    experts = load_model_config(published.write(tmp_path)).text.experts
    if experts is not None:
        more = build_both(with_experts(published, FEW_EXPERTS + 1), tmp_path)
        count += (experts.num_experts - FEW_EXPERTS) * (num_parameters(more) - count)
    assert count == published.num_parameters


def num_parameters(built: Built) -> int:
    """Returns how many parameters the checkpoint's files have."""
    ours, renamed = dict(built.model.named_weights()), built.model.renamed_prefixes
    stored = ((checkpoint_name(name, renamed), tensor) for name, tensor in built.oracle.named_parameters())
    # The hub counts also what the model does not compute with.
    unused = [tensor for name, tensor in stored if name not in ours and built.model.is_unused(name)]
    return sum(tensor.numel() for tensor in (*ours.values(), *unused))


def test_configuration_reads_the_same_after_transformers_has_saved_it(built: Built, tmp_path: Path) -> None:
    if built.published.config["architectures"][0] in OWN_ORACLES:
        pytest.skip("transformers lacks the architecture")
    transformers.AutoConfig.from_pretrained(built.folder).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for name in ("generation_config.json", "preprocessor_config.json"):
        shutil.copy(built.folder / name, tmp_path)
    # A model adds the architecture when it is saved.
    architectures = {"architectures": built.published.config["architectures"]}
    (tmp_path / "config.json").write_text(json.dumps(config | architectures))
    assert load_model_config(tmp_path) == load_model_config(built.folder)


AWQ_VISION = {"in_chans": 3, "spatial_patch_size": 14}
SHORT_CONFIGS: Mapping[str, Mapping[str, Any]] = {
    # As in Qwen/Qwen2-VL-2B-Instruct-AWQ and Qwen/Qwen2.5-VL-7B-Instruct-AWQ.
    "Qwen/Qwen2-VL-2B-Instruct": {"vision_config": AWQ_VISION | {"hidden_size": 1536}},
    "Qwen/Qwen2.5-VL-7B-Instruct": {"vision_config": AWQ_VISION | {"hidden_size": 1280, "tokens_per_second": 2}},
    "Qwen/Qwen2-Audio-7B-Instruct": {"audio_config": {"model_type": "qwen2_audio_encoder"}},
}


@pytest.mark.parametrize("name", SHORT_CONFIGS)
def test_fields_that_transformers_4_leaves_out_have_its_defaults(name: str, tmp_path: Path) -> None:
    whole = load_model_config(TABLE[name].write(tmp_path))
    (tmp_path / "config.json").write_text(json.dumps({**TABLE[name].config, **SHORT_CONFIGS[name]}))
    assert load_model_config(tmp_path) == whole


def test_weights_are_taken_for_what_the_decoder_says_if_nothing_else_says_it(tmp_path: Path) -> None:
    assert load_model_config(TABLE["Qwen/Qwen2-Audio-7B-Instruct"].write(tmp_path)).dtype == "bfloat16"


@pytest.mark.parametrize("size", ["2B", "7B", "72B"])
def test_gpu_page_says_how_much_memory_the_published_shapes_take(size: str, tmp_path: Path) -> None:
    checkpoint = TABLE[f"Qwen/Qwen2-VL-{size}-Instruct"]
    column = 1 + ("2B", "7B", "72B").index(size)
    schemes: tuple[tuple[str, QuantizationScheme | None], ...] = (
        ("weights in bfloat16", None),
        ("`--quantization int8`", "int8"),
        ("4-bit", "int4"),
    )
    for row, scheme in schemes:
        num_bytes = sum(tensor.nbytes for tensor in build(checkpoint, tmp_path, scheme).parameters())
        assert gpu_page_row(row)[column] == f"{num_bytes / 1e9:.{0 if num_bytes > 100e9 else 1}f} GB"
    text = load_model_config(tmp_path).text
    kv_bytes = CacheShape.of(text).block_bytes(1, torch.bfloat16)
    assert gpu_page_row("KV cache per token")[column] == f"{kv_bytes // 1024} KiB"


@cache
def gpu_page_row(start: str) -> list[str]:
    """Returns the cells of the row of docs/gpu.md's first table that starts with these words."""
    row = re.search(rf"^\| {re.escape(start)}.*$", (ROOT / "docs/gpu.md").read_text(), re.MULTILINE)
    assert row is not None
    return [cell.strip() for cell in row[0].strip("|").split("|")]
