"""Which mmproj file belongs to a GGUF file; its metadata becomes a checkpoint's files, or is refused by name."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from glimpse.engine.checkpoint.gguf import folder
from glimpse.engine.checkpoint.gguf.folder import ENCODER
from glimpse.engine.checkpoint.gguf.header import Gguf
from glimpse.engine.checkpoint.location import resolve_checkpoint
from glimpse.engine.errors import CheckpointError
from tests.checkpoints.glm import make_glm4v_checkpoint
from tests.checkpoints.mmproj import write_mmproj, write_pair
from tests.checkpoints.qwen2_vl import make_checkpoint
from tests.checkpoints.qwen3_vl import make_qwen3_vl_checkpoint
from tests.fuzz.targets import read_encoder
from tests.hostile.gguf_files import ENCODERS, IMAGE_MODEL, STRING, hostile_headers, mmproj, model, text


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_qwen3_vl_checkpoint(tmp_path_factory.mktemp("qwen3vl"))


@pytest.fixture(scope="module")
def pair(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pair(tmp_path_factory.mktemp("pair"), checkpoint)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "cache_folder", lambda: tmp_path / "cache")


def test_what_a_file_lacks_is_the_published_default(tmp_path: Path, checkpoint: Path, pair: Path) -> None:
    lacking = {"clip.vision.image_min_pixels": None, "clip.vision.image_max_pixels": None}
    mmproj = write_mmproj(tmp_path / "encoder.gguf", checkpoint, entries=lacking)
    path = resolve_checkpoint(str(pair), mmproj=mmproj)
    images = json.loads((path / "preprocessor_config.json").read_bytes())
    assert (images["min_pixels"], images["max_pixels"]) == (65_536, 16_777_216)
    assert images["image_mean"] == [0.5, 0.5, 0.5]
    videos = json.loads((path / "video_preprocessor_config.json").read_bytes())
    assert videos["size"] == {"shortest_edge": 4096, "longest_edge": 25_165_824}


def test_a_file_beside_that_does_not_fit_is_told_and_not_used(
    tmp_path: Path, pair: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = Path(shutil.copy(pair, tmp_path / "model.gguf"))
    write_mmproj(tmp_path / "other.mmproj-f16.gguf", make_checkpoint(tmp_path / "other"))
    path = resolve_checkpoint(str(file))
    assert not (path / ENCODER).exists()
    assert "expected qwen3vl_merger for 'qwen3vl', got 'qwen2vl_merger'" in caplog.text
    assert "model.gguf is served for text alone" in caplog.text
    (tmp_path / "smolvlm").mkdir()
    llama = tmp_path / "smolvlm" / "llama.gguf"
    llama.write_bytes(model({"tokenizer.chat_template": (STRING, text("{{ '<image>' }}"))}))
    resolve_checkpoint(str(llama))
    assert "llama.gguf is served for text alone" in caplog.text


def test_several_that_fit_are_refused_unless_one_is_named(tmp_path: Path, pair: Path) -> None:
    folder = Path(shutil.copytree(pair.parent, tmp_path / "pair"))
    second = Path(shutil.copy(folder / "mmproj-model.gguf", folder / "mmproj-F16.gguf"))
    with pytest.raises(CheckpointError, match=r"its encoder: mmproj-F16\.gguf, mmproj-model\.gguf; name one: --mmproj"):
        resolve_checkpoint(str(folder / pair.name))
    assert (resolve_checkpoint(str(folder / pair.name), mmproj=second) / ENCODER).readlink() == second


def test_an_mmproj_is_no_model_and_only_files_have_one(tmp_path: Path, checkpoint: Path, pair: Path) -> None:
    with pytest.raises(CheckpointError, match="is an encoder, an mmproj; name the file of its decoder"):
        resolve_checkpoint(str(pair.parent / "mmproj-model.gguf"))
    with pytest.raises(CheckpointError, match="'--mmproj': expected a GGUF file as the model"):
        resolve_checkpoint(str(checkpoint), mmproj=tmp_path / "encoder.gguf")
    llama = tmp_path / "llama.gguf"
    llama.write_bytes(model())
    with pytest.raises(CheckpointError, match=r"expected idefics3 or .* for 'llama', got 'qwen3vl_merger'"):
        resolve_checkpoint(str(llama), mmproj=pair.parent / "mmproj-model.gguf")
    with pytest.raises(CheckpointError, match=r"'general.architecture': expected 'clip', got 'llama'"):
        resolve_checkpoint(str(pair), mmproj=llama)


def test_a_decoder_whose_family_reads_images_needs_its_encoder(tmp_path: Path) -> None:
    file = write_pair(tmp_path / "files", make_glm4v_checkpoint(tmp_path / "checkpoint"))
    (file.parent / "mmproj-model.gguf").unlink()
    with pytest.raises(CheckpointError, match="a model of 'glm4' is served with its encoder alone"):
        resolve_checkpoint(str(file))


def test_a_pair_that_is_fuzzed_is_valid(tmp_path: Path) -> None:
    for name, content in (("model", model(IMAGE_MODEL)), ("mmproj", mmproj())):
        (tmp_path / f"{name}.gguf").write_bytes(content)
    path = resolve_checkpoint(str(tmp_path / "model.gguf"))
    assert json.loads((path / "config.json").read_bytes())["vision_config"]["image_size"] == 4


@pytest.mark.parametrize("kind", ENCODERS)
def test_encoders_that_are_fuzzed_are_valid(tmp_path: Path, kind: str) -> None:
    (tmp_path / "mmproj.gguf").write_bytes(mmproj(kind))
    config = read_encoder(Gguf(tmp_path / "mmproj.gguf"), tmp_path / "text.gguf")
    assert {"vision_config", "audio_config"} & {*config}


@pytest.mark.parametrize("name", ["empty", "text of 2^64 bytes", "size 2^64", "tensors overlap"])
def test_hostile_headers_are_refused(tmp_path: Path, pair: Path, name: str) -> None:
    content, message = hostile_headers()[name]
    (tmp_path / "encoder.gguf").write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        resolve_checkpoint(str(pair), mmproj=tmp_path / "encoder.gguf")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"clip.projector_type": "gemma3"}, "expected qwen3vl_merger for 'qwen3vl', got 'gemma3'"),
        ({"clip.projector_type": None}, "expected qwen3vl_merger for 'qwen3vl', got None"),
        (
            {"clip.vision.is_deepstack_layers": [True, False, False]},
            "expected 2 layers, as many as the decoder has, got 1",
        ),
        ({"clip.vision.patch_size": 14}, "'clip.vision.patch_size': expected 16, got 14"),
        ({"clip.vision.spatial_merge_size": 3}, "'clip.vision.spatial_merge_size': expected 192, got 432"),
        ({"clip.vision.block_count": 1 << 31}, "'clip.vision.block_count': expected a whole number from 1 to 1024"),
        ({"clip.vision.attention.layer_norm_epsilon": 1e-5}, "layer_norm_epsilon': expected 1e-06, got 1e-05"),
        ({"clip.use_gelu": None, "clip.use_silu": True}, "'clip.use_gelu': expected True, got False"),
        ({"clip.vision.image_mean": None}, "'clip.vision.image_mean': expected at least 3 numbers, got None"),
        ({"clip.vision.image_std": [0.0, 1.0, 1.0]}, "'clip.vision.image_std': expected positive numbers"),
        ({"clip.vision.image_min_pixels": 0}, "'clip.vision.image_min_pixels': expected a whole number from 1"),
    ],
)
def test_metadata_is_refused_by_name(
    tmp_path: Path, checkpoint: Path, pair: Path, entries: dict[str, Any], message: str
) -> None:
    mmproj = write_mmproj(tmp_path / "encoder.gguf", checkpoint, entries=entries)
    with pytest.raises(CheckpointError) as caught:
        resolve_checkpoint(str(pair), mmproj=mmproj)
    assert message in str(caught.value)


def test_widths_that_differ_are_refused(tmp_path: Path) -> None:
    pair = write_pair(tmp_path / "pair", make_checkpoint(tmp_path / "narrow"))
    wide = write_mmproj(tmp_path / "encoder.gguf", make_checkpoint(tmp_path / "wide", hidden=128))
    with pytest.raises(CheckpointError, match="expected outputs of the decoder's width, 64, got 128"):
        resolve_checkpoint(str(pair), mmproj=wide)
