"""Companions: which checkpoints another one names as its parts, where they are, and what is read from them."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from glimpse.engine.checkpoint.families.companions import named_companions, resolve_companions
from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.text.media_inputs import read_media
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.loading.load_engine import load_model
from glimpse.engine.worker.loading.tensor_check import check_tensors
from glimpse.engine.worker.loading.weight_files import read_headers
from glimpse.engine.worker.models.model import Model
from tests.checkpoints.files import write_json
from tests.checkpoints.ultravox import TOKEN_IDS, make_ultravox_checkpoint, split_ultravox_checkpoint


def edit(file: Path, **fields: Any) -> None:
    write_json(file, json.loads(file.read_text()) | fields)


def loaded(path: Path) -> Model:
    config = load_model_config(path, folders_of(path))
    return load_model(path, config, torch.device("cpu"), torch.float32, lambda _stage, _fraction: None)


def folders_of(path: Path) -> dict[str, str]:
    return resolve_companions(path, {f"org/{name}": str(path.parent / name) for name in ("llama", "whisper")})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A checkpoint whose parts are in three folders."""
    return split_ultravox_checkpoint(make_ultravox_checkpoint(tmp_path / "whole"), tmp_path / "parts")


def test_finds_what_config_json_names(path: Path) -> None:
    assert named_companions(path) == {"text_model_id": "org/llama", "audio_model_id": "org/whisper"}
    assert folders_of(path) == {
        "text_model_id": str(path.parent / "llama"),
        "audio_model_id": str(path.parent / "whisper"),
    }


def test_a_whole_checkpoint_names_none(path: Path, tiny_checkpoint: Path) -> None:
    assert resolve_companions(path.parent.parent / "whole", {}) == {}
    assert resolve_companions(tiny_checkpoint, {}) == {}


def test_refuses_a_companion_that_is_not_named(path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"--companion org/qwen=…: .* it names 'org/llama', 'org/whisper'"):
        resolve_companions(path, {"org/qwen": "/x"})


def test_names_the_field_whose_companion_is_missing(path: Path) -> None:
    edit(path / "config.json", text_model_id=str(path.parent / "llama"), audio_model_id="/no/such/whisper")
    with pytest.raises(CheckpointError, match=r"'audio_model_id': .* pass --companion /no/such/whisper=FOLDER"):
        resolve_companions(path, {})


def test_refuses_a_name_that_is_no_string(path: Path) -> None:
    edit(path / "config.json", text_model_id=3)
    with pytest.raises(CheckpointError, match="'text_model_id': expected a string, got 3"):
        resolve_companions(path, {})


def test_end_tokens_are_those_of_the_decoder_s_checkpoint(path: Path) -> None:
    assert load_model_config(path, folders_of(path)).eos_token_ids == (TOKEN_IDS["<|eot_id|>"],)


def test_end_tokens_of_the_checkpoint_itself_come_first(path: Path) -> None:
    write_json(path / "generation_config.json", {"eos_token_id": 7})
    assert load_model_config(path, folders_of(path)).eos_token_ids == (7,)


def test_quantization_is_that_of_the_decoder_s_checkpoint(path: Path) -> None:
    awq = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm", "zero_point": True}
    edit(path.parent / "llama" / "config.json", quantization_config=awq)
    assert load_model_config(path, folders_of(path)).quantization is not None


def test_audio_processing_is_that_of_the_encoder_s_checkpoint(path: Path) -> None:
    edit(path.parent / "whisper" / "preprocessor_config.json", chunk_length=30)
    with pytest.raises(ValueError, match="chunk_length does not match max_source_positions"):
        read_media(path, load_model_config(path, folders_of(path)))


def test_without_a_preprocessor_configuration_audio_is_processed_as_for_whisper(path: Path) -> None:
    config = load_model_config(path, folders_of(path))
    expected = read_media(path, config)
    (path.parent / "whisper" / "preprocessor_config.json").unlink()
    assert read_media(path, config) == expected


def test_a_tensor_that_the_checkpoint_has_itself_comes_from_there(path: Path) -> None:
    name, norm = "audio_tower.layer_norm.weight", torch.full((32,), 3.0)
    save_file(load_file(path / "model.safetensors") | {name: norm}, path / "model.safetensors")
    assert torch.equal(dict(loaded(path).named_weights())[name], norm)
    own, encoder, decoder = (read_headers(folder) for folder in (path, path.parent / "whisper", path.parent / "llama"))
    assert own is not None
    assert encoder is not None
    assert decoder is not None
    companions = {f"audio_tower.{name}": tensor for name, tensor in encoder.items()}
    companions |= {f"language_model.{name}": tensor for name, tensor in decoder.items()}
    assert check_tensors(own, path, load_model_config(path, folders_of(path)), companions=companions).fits


def test_a_tensor_that_no_checkpoint_has_is_missing(path: Path) -> None:
    stored = load_file(path.parent / "llama" / "model.safetensors")
    del stored["lm_head.weight"]
    save_file(stored, path.parent / "llama" / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"no tensors language_model\.lm_head\.weight"):
        loaded(path)
