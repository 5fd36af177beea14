"""What a GGUF file says of its model becomes a checkpoint's files, or is refused by name."""

import json
import os
import struct
from pathlib import Path

import pytest

from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.gguf.architectures import GGUF_ARCHITECTURES
from glimpse.engine.checkpoint.gguf.folder import folder_of, read_files
from glimpse.engine.checkpoint.gguf.header import Gguf
from glimpse.engine.checkpoint.location import default_name, resolve_checkpoint
from glimpse.engine.checkpoint.model_config.sampling_defaults import SamplingDefaults, read_sampling_defaults
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.pooling_params import PoolingMode, PoolingParams
from glimpse.engine.worker.loading.weight_files import StoredTensor, checkpoint_digest, read_headers
from tests.hostile.gguf_files import ARRAY, BOOL, FLOAT32, MODEL, STRING, UINT32, array, model, text


def number(value: int) -> tuple[int, bytes]:
    return UINT32, struct.pack("<I", value)


def real(value: float) -> tuple[int, bytes]:
    return FLOAT32, struct.pack("<f", value)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = tmp_path / "Small.Q4_0.gguf"
    made.write_bytes(model())
    return made


def test_a_file_is_a_folder(file: Path) -> None:
    folder = resolve_checkpoint(str(file))
    config = load_model_config(folder)
    assert (config.architecture, config.text.num_layers, config.text.hidden_size) == ("LlamaForCausalLM", 1, 32)
    assert (config.text.rms_norm_eps, config.eos_token_ids) == (1e-5, (3,))
    assert (folder / "chat_template.jinja").read_text() == "{{ messages }}"
    assert read_headers(folder) == {"model.embed_tokens.blocks": StoredTensor("U8", (4, 18))}  # it is the head too
    assert default_name(str(file), folder) == "Small.Q4_0"
    assert checkpoint_digest([str(folder)]) == checkpoint_digest([str(resolve_checkpoint(str(file)))])


def test_the_folder_is_made_once_and_anew_for_another_file(file: Path) -> None:
    folder = folder_of(file)
    (folder / "mark").touch()
    assert (folder_of(file) / "mark").exists()
    file.write_bytes(model({"llama.block_count": number(2)}))
    os.utime(file, ns=(0, 0))
    assert json.loads((folder_of(file) / "config.json").read_bytes())["num_hidden_layers"] == 2
    assert sorted(each.name for each in folder.parent.iterdir()) == sorted({folder.name, folder_of(file).name})


def test_a_cache_folder_that_cannot_be_written_is_told(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    with pytest.raises(CheckpointError, match="XDG_CACHE_HOME names another"):
        folder_of(file)


def test_a_folder_of_files_is_told_to_name_one(file: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no config\.json; name one of its files: Small\.Q4_0\.gguf"):
        resolve_checkpoint(str(file.parent))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"the file .* does not exist"):
        resolve_checkpoint(str(tmp_path / "none.gguf"))


def test_another_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "model.safetensors").write_bytes(b"12345678{}")
    with pytest.raises(CheckpointError, match="folder or a file that begins with 'GGUF', got one that begins with"):
        resolve_checkpoint(str(tmp_path / "model.safetensors"))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "general.architecture",
            (STRING, text("mamba")),
            f"expected one of {', '.join(GGUF_ARCHITECTURES)}; got 'mamba'",
        ),
        (
            "general.architecture",
            None,
            f"expected one of {', '.join(GGUF_ARCHITECTURES)}; got None",
        ),
        ("split.count", number(3), "expected 1, as the name of the first says (NAME-00001-of-COUNT.gguf), got 3"),
        ("llama.block_count", number(0), "expected a whole number from 1 to 1024, got 0"),
        ("llama.block_count", number(1 << 31), "expected a whole number from 1 to 1024, got 2147483648"),
        ("llama.block_count", None, "expected a whole number from 1 to 1024, got None"),
        ("llama.block_count", real(1), "expected a whole number from 1 to 1024, got 1.0"),
        ("llama.attention.head_count", number(0), "expected a whole number from 1"),
        ("llama.attention.head_count_kv", (ARRAY, array(UINT32, 1, bytes(4))), "expected one value, got an array of 1"),
        ("llama.attention.value_length", number(16), "'llama.attention.value_length': expected 8, got 16"),
        ("llama.rope.dimension_count", number(4), "'llama.rope.dimension_count': expected 8, got 4"),
        ("llama.expert_count", number(8), "'llama.expert_count': expected 0, got 8"),
        ("llama.attention.layer_norm_rms_epsilon", real(float("nan")), "expected a positive number, got nan"),
        ("llama.rope.freq_base", real(-1), "expected a positive number, got -1.0"),
        ("llama.rope.freq_base", (STRING, text("1e4")), "expected a positive number, got '1e4'"),
        ("llama.attention.causal", (BOOL, b"\0"), "'llama.attention.causal': expected True, got False"),
        ("llama.pooling_type", number(2), "expected 0 (none), 1 (mean) or 3 (last token), got 2"),
        ("tokenizer.ggml.model", None, "expected gpt2, llama or gemma4, got None"),
        ("tokenizer.ggml.merges", None, "expected the merges of a BPE, got none"),
        ("tokenizer.ggml.tokens", None, "expected the vocabulary, got none"),
    ],
)
def test_metadata_is_refused_by_name(tmp_path: Path, key: str, value: tuple[int, bytes] | None, message: str) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(model({key: value}))
    with pytest.raises(CheckpointError) as caught:
        read_files(Gguf(file))
    assert key in str(caught.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "mode"),
    [(None, PoolingMode.LAST_TOKEN), (0, PoolingMode.LAST_TOKEN), (1, PoolingMode.MEAN), (3, PoolingMode.LAST_TOKEN)],
)
def test_embeddings_are_pooled_as_the_metadata_says(file: Path, kind: int | None, mode: PoolingMode) -> None:
    file.write_bytes(model({"llama.pooling_type": None if kind is None else number(kind)}))
    assert load_model_config(folder_of(file)).pooling == PoolingParams(mode=mode)


def test_sampling_defaults_are_the_metadata_s(file: Path) -> None:
    assert read_sampling_defaults("auto", folder_of(file)) == SamplingDefaults()
    stored = {
        "temp": real(0.6),
        "top_k": number(20),
        "top_p": real(0.95),
        "min_p": real(0),
        "penalty_repeat": real(1.05),
    }
    file.write_bytes(model({f"general.sampling.{name}": value for name, value in stored.items()}))
    expected = SamplingDefaults(temperature=0.6, top_k=20, top_p=0.95, min_p=0.0, repetition_penalty=1.05)
    assert read_sampling_defaults("auto", folder_of(file)) == expected


def test_experts_whose_inputs_and_outputs_could_be_confused_are_refused(tmp_path: Path) -> None:
    changes = {key.replace("llama.", "qwen3moe."): value for key, value in MODEL.items() if key.startswith("llama.")}
    changes |= {"general.architecture": (STRING, text("qwen3moe")), "qwen3moe.expert_feed_forward_length": number(32)}
    file = tmp_path / "model.gguf"
    file.write_bytes(model(changes))
    with pytest.raises(
        CheckpointError, match=r"expert_feed_forward_length': expected .* other than that of embeddings"
    ):
        read_files(Gguf(file))


def test_a_type_that_is_not_served_is_refused_before_an_engine_starts(tmp_path: Path) -> None:
    file, whole = tmp_path / "model.gguf", model()
    place = whole.index(b"token_embd.weight") + len(b"token_embd.weight") + 4 + 16
    file.write_bytes(whole[:place] + struct.pack("<I", 39) + whole[place + 4 :])  # MXFP4's blocks are smaller
    with pytest.raises(CheckpointError, match=r"'token_embd\.weight': type: expected one of F32, .*, got MXFP4"):
        read_files(Gguf(file))


def test_more_tokens_than_embeddings_are_refused(tmp_path: Path) -> None:
    texts = b"".join(text(f"t{index}") for index in range(5))
    changes = {
        "tokenizer.ggml.tokens": (ARRAY, array(STRING, 5, texts)),
        "tokenizer.ggml.token_type": None,
        "tokenizer.ggml.scores": None,
    }
    file = tmp_path / "model.gguf"
    file.write_bytes(model(changes))
    with pytest.raises(CheckpointError, match=r"'tokenizer\.ggml\.tokens': expected at most 4, .* got 5"):
        read_files(Gguf(file))
