"""Loading of safetensors files, single or in several files, and the errors for invalid checkpoints."""

import json
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.loading.load_engine import load_model
from glimpse.engine.worker.models.model import Model
from tests.checkpoints.qwen2_vl import make_checkpoint

Tensors = dict[str, Tensor]


@pytest.fixture
def path(tmp_path: Path, tiny_checkpoint: Path) -> Path:
    return shutil.copytree(tiny_checkpoint, tmp_path / "copy")


def load(path: Path, dtype: torch.dtype = torch.float32) -> Model:
    return load_model(path, load_model_config(path), torch.device("cpu"), dtype, lambda stage, fraction: None)


def rewrite(path: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(path / "model.safetensors")
    change(tensors)
    save_file(tensors, path / "model.safetensors")


def rename(tensors: Tensors, old: str, new: str) -> None:
    tensors[new] = tensors.pop(old)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.norm.weight"), r"has no tensors model\.norm\.weight"),
        (lambda t: t.pop("visual.merger.mlp.2.bias"), r"has no tensors visual\.merger\.mlp\.2\.bias"),
        (
            lambda t: t.update({"model.norm.weight": torch.ones(65)}),
            r"'model\.norm\.weight': expected shape \[64\] from config\.json, got \[65\]",
        ),
        (lambda t: t.update({"model.layers.0.extra": torch.ones(1)}), r"unexpected tensors: model\.layers\.0\.extra"),
        (lambda t: rename(t, "model.norm.weight", "norm.weight"), r"has no tensors model\.norm\.weight"),
        (lambda t: t.clear() or t.update({"a": torch.ones(1)}), r"has no tensors .* and \d+ more"),
    ],
)
def test_refuses_tensors_that_do_not_fit_the_model(path: Path, change: Callable[[Tensors], object], message: str):
    rewrite(path, change)
    with pytest.raises(CheckpointError, match=message):
        load(path)


def test_ignores_an_output_head_with_tied_weights(path: Path):
    rewrite(path, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(384, 64)}))
    load(path)


def test_requires_an_output_head_without_tied_weights(tmp_path: Path):
    path = make_checkpoint(tmp_path, tied=False)
    rewrite(path, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(CheckpointError, match=r"has no tensors lm_head\.weight"):
        load(path)


def test_loads_a_checkpoint_of_several_files(path: Path):
    whole = dict(load(path).named_weights())
    tensors = load_file(path / "model.safetensors")
    (path / "model.safetensors").unlink()
    shard_of = {name: f"model-{index % 3}.safetensors" for index, name in enumerate(tensors)}
    for shard in set(shard_of.values()):
        save_file({name: tensor for name, tensor in tensors.items() if shard_of[name] == shard}, path / shard)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shard_of}))
    for name, tensor in load(path).named_weights():
        assert torch.equal(tensor, whole[name])
    (path / "model-1.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"has no model-1\.safetensors"):
        load(path)


def test_refuses_int8_tensors_as_unquantized_weights(path: Path):
    rewrite(path, lambda tensors: tensors.update({"model.norm.weight": torch.ones(64, dtype=torch.int8)}))
    with pytest.raises(CheckpointError, match=r"'model\.norm\.weight': expected float32 from config\.json, got int8"):
        load(path)


def test_progress_is_measured_in_bytes(path: Path):
    fractions: list[float] = []
    config, cpu = load_model_config(path), torch.device("cpu")
    load_model(path, config, cpu, torch.float32, lambda stage, fraction: fractions.append(fraction))
    steps = [after - before for before, after in pairwise(fractions)]
    tensors = load_file(path / "model.safetensors")
    share = tensors["model.embed_tokens.weight"].nbytes / sum(tensor.nbytes for tensor in tensors.values())
    assert min(steps) >= 0
    assert any(step == pytest.approx(0.9 * share) for step in [fractions[0], *steps])


def test_converts_weights_to_the_models_dtype(path: Path):
    stored = load_file(path / "model.safetensors")
    for name, tensor in load(path, torch.bfloat16).named_weights():
        assert torch.equal(tensor, stored[name].to(torch.bfloat16))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("model.safetensors", None, r"has no model\.safetensors"),
        ("model.safetensors", b"\x08\0\0\0\0\0\0\0nonsense", r"model\.safetensors cannot be read"),
        ("model.safetensors.index.json", b"{}", "no readable weight_map"),
        ("preprocessor_config.json", None, r"has no preprocessor_config\.json"),
        ("preprocessor_config.json", b"{", r"preprocessor_config\.json is not JSON"),
        ("preprocessor_config.json", b"{}", "missing field 'image_mean'"),
    ],
)
def test_refuses_missing_and_unreadable_files(path: Path, name: str, content: bytes | None, message: str):
    (path / name).unlink(missing_ok=True)
    if content is not None:
        (path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=message):
        load(path)
