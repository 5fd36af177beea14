"""A GGUF file with its mmproj answers about images and videos as transformers does with the same weights."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from glimpse import LLM, SamplingParams
from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.checkpoint.gguf import folder
from glimpse.engine.checkpoint.location import resolve_checkpoint
from glimpse.engine.checkpoint.quantization import GgufQuantization
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import Quantization
from glimpse.engine.worker.layers.group_quantized import GroupQuantizedLinear
from glimpse.engine.worker.layers.linear import Linear
from glimpse.engine.worker.layers.quantized import kept_blocks, resolve_scheme
from glimpse.engine.worker.loading import load_engine
from glimpse.engine.worker.loading.build_model import model_as_computed
from glimpse.engine.worker.loading.load_engine import load_model
from glimpse.engine.worker.loading.resolve import Computing, NativeAvailability
from glimpse.engine.worker.loading.tensor_check import check_tensors
from glimpse.engine.worker.loading.weight_files import checkpoint_digest, read_headers
from glimpse.engine.worker.native.library import Level
from tests.checkpoints.files import write_json
from tests.checkpoints.gemma3 import make_gemma3_checkpoint
from tests.checkpoints.gemma4 import make_gemma4_checkpoint, make_large_gemma4_checkpoint
from tests.checkpoints.gguf import fit_scale
from tests.checkpoints.glm import make_glm4v_checkpoint, make_glm_ocr_checkpoint
from tests.checkpoints.idefics3 import Family, make_idefics3_checkpoint
from tests.checkpoints.internvl import Variant, make_internvl_checkpoint, make_original_checkpoint
from tests.checkpoints.lfm2 import TILES, make_lfm2_vl_checkpoint
from tests.checkpoints.llava import IMAGE_TOKEN_ID, make_llava_checkpoint, make_next_checkpoint
from tests.checkpoints.minicpmv import make_minicpmv_checkpoint
from tests.checkpoints.minicpmv4_6 import make_minicpmv4_6_checkpoint
from tests.checkpoints.mistral3 import make_mistral3_checkpoint
from tests.checkpoints.mmproj import write_mmproj, write_pair, write_rounded
from tests.checkpoints.paddleocr_vl import make_paddleocr_vl_checkpoint
from tests.checkpoints.qwen2_audio import make_audio_checkpoint
from tests.checkpoints.qwen2_vl import make_checkpoint
from tests.checkpoints.qwen3_5 import make_qwen3_5_checkpoint
from tests.checkpoints.qwen3_vl import make_qwen3_vl_checkpoint
from tests.checkpoints.tokenizer import VOCAB_SIZE
from tests.checkpoints.ultravox import AUDIO_TOKEN_ID, make_ultravox_checkpoint
from tests.engine.harness import Harness, make_prompt
from tests.engine.idefics3_prompts import tiled_prompt
from tests.engine.levels import assert_stays_near_float32, needs_kernels
from tests.engine.offline.audio_inputs import BASE64
from tests.engine.qwen3_vl_prompts import make_qwen3_prompt
from tests.engine.worker.models.steps import assert_same
from tests.oracles.idefics3 import greedy_answer as tiled_answer
from tests.oracles.qwen_vl import greedy_answer


def make_internvl_chat(path: Path, variant: Variant) -> Path:
    return make_original_checkpoint(make_internvl_checkpoint(path.parent / "internvl", variant), path)


def without_sizes(checkpoint: Path) -> Path:
    """Leaves the sizes of tiles, which files do not have, to defaults."""
    file = checkpoint / "preprocessor_config.json"
    document = json.loads(file.read_bytes())
    write_json(file, {name: value for name, value in document.items() if name not in TILES})
    return checkpoint


def with_published_sizes(checkpoint: Path) -> Path:
    """Leaves the budget of an image's tokens, which files do not have, to the default."""
    file = checkpoint / "processor_config.json"
    document = json.loads(file.read_bytes())
    del document["image_processor"]["max_soft_tokens"], document["video_processor"]["max_soft_tokens"]
    write_json(file, document)
    return checkpoint


def without_rope_scaling(checkpoint: Path) -> Path:
    document = json.loads((checkpoint / "config.json").read_bytes())
    del document["text_config"]["rope_scaling"]
    write_json(checkpoint / "config.json", document)
    return checkpoint


MAKERS: dict[str, Callable[[Path], Path]] = {
    "qwen2vl": make_checkpoint,
    "qwen2.5vl": partial(make_checkpoint, family="qwen2_5_vl"),
    "qwen3vl": make_qwen3_vl_checkpoint,
    "qwen3vlmoe": partial(make_qwen3_vl_checkpoint, experts=True),
    "smolvlm": make_idefics3_checkpoint,
    "gemma3": lambda path: fit_scale(make_gemma3_checkpoint(path)),
    "internvl3": partial(make_internvl_chat, variant="300M"),
    "internvl2.5": partial(make_internvl_chat, variant="6B"),
    "lfm2-vl": lambda path: without_sizes(make_lfm2_vl_checkpoint(path)),
    "qwen3.5": make_qwen3_5_checkpoint,
    "pixtral": partial(make_mistral3_checkpoint, kind="pixtral"),
    "ministral3": partial(make_mistral3_checkpoint, kind="ministral3"),
    "lightonocr": partial(make_mistral3_checkpoint, kind="lighton_ocr"),
    "qwen2audio": make_audio_checkpoint,
    "glm4.1v": make_glm4v_checkpoint,
    "glm4.6v": partial(make_glm4v_checkpoint, kind="Glm46V"),
    "glm-ocr": make_glm_ocr_checkpoint,
    "paddleocr-vl": make_paddleocr_vl_checkpoint,
    "minicpmv2.6": make_minicpmv_checkpoint,
    "gemma4": lambda path: with_published_sizes(make_gemma4_checkpoint(path)),
    "gemma4 audio": lambda path: with_published_sizes(make_gemma4_checkpoint(path)),
    "gemma4 31b": lambda path: with_published_sizes(make_large_gemma4_checkpoint(path)),
    "minicpmv4.5": partial(make_minicpmv_checkpoint, version="4.5"),
    "minicpmv4.6": make_minicpmv4_6_checkpoint,
    "ultravox": lambda path: without_rope_scaling(make_ultravox_checkpoint(path)),
    "llava1.5": make_llava_checkpoint,
    "llava1.6": make_next_checkpoint,
}
PROMPTS = [make_prompt(1, 9), make_prompt(3, 3, (28, 28), 1, (56, 196), 1, (140, 28), 4, (4, 56, 84), 6)]
QWEN3_PROMPTS = [make_qwen3_prompt(1, 9), make_qwen3_prompt(6, 3, (4, 64, 96), 2, (96, 64), 1, (32, 160), 4)]
NUM_TOKENS = 8
RENAMED = ("InternVLChatModel", "InternVLForConditionalGeneration")
UNNAMED = {"llava1.6": (IMAGE_TOKEN_ID, 0), "ultravox": (AUDIO_TOKEN_ID, VOCAB_SIZE - 1)}
"""What stands for media in the checkpoint, and the token that does where files do not have or name it."""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "cache_folder", lambda: tmp_path / "cache")  # the kernels stay where they are


@pytest.mark.parametrize(
    ("family", "kind", "changes"),
    [
        ("qwen2vl", "F32", {}),
        ("qwen2vl", "F16", {"swapped": True}),
        ("qwen2.5vl", "Q8_0", {}),
        ("qwen3vl", "F32", {}),
        ("qwen3vl", "Q8_0", {}),
        ("qwen3vlmoe", "BF16", {}),
    ],
)
def test_pairs_agree(tmp_path: Path, family: str, kind: str, changes: dict[str, Any]) -> None:
    checkpoint = MAKERS[family](tmp_path / "checkpoint")
    path = resolve_checkpoint(str(write_pair(tmp_path / "files", checkpoint, kind, **changes)))
    headers = read_headers(path)
    assert headers is not None
    assert check_tensors(headers, path, load_model_config(path)).fits
    expected, harness = write_rounded(tmp_path / "rounded", checkpoint, kind), Harness(path)
    for prompt in QWEN3_PROMPTS if family.startswith("qwen3") else PROMPTS:
        answered = harness.answer(harness.begin(prompt), NUM_TOKENS)
        assert_same(answered, greedy_answer(expected, prompt.token_ids, prompt.spans, prompt.images, NUM_TOKENS))


@pytest.mark.parametrize(("family", "kind"), [("smolvlm", "F32"), ("idefics3", "Q8_0")])
def test_pairs_of_tiles_agree(tmp_path: Path, family: Family, kind: str) -> None:
    checkpoint = make_idefics3_checkpoint(tmp_path / "checkpoint", family)
    path = resolve_checkpoint(str(write_pair(tmp_path / "files", checkpoint, kind)))
    assert load_model_config(path).architecture == load_model_config(checkpoint).architecture
    rounded, prompt = (
        write_rounded(tmp_path / "rounded", checkpoint, kind),
        tiled_prompt(1, family, 3, (3,), 2, (7,), 6),
    )
    harness = Harness(path)
    answered = harness.answer(harness.begin(prompt), NUM_TOKENS)
    assert_same(answered, tiled_answer(rounded, prompt.token_ids, prompt.images, NUM_TOKENS))


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("qwen2.5vl", "F32"),
        ("qwen3vl", "F32"),
        ("smolvlm", "F32"),
        ("gemma3", "F32"),
        ("gemma3", "Q8_0"),
        ("internvl3", "Q8_0"),
        ("internvl2.5", "F32"),
        ("lfm2-vl", "Q8_0"),
        ("qwen3.5", "F16"),
        ("pixtral", "F32"),
        ("ministral3", "F32"),
        ("lightonocr", "Q8_0"),
        ("qwen2audio", "F16"),
        ("glm4.1v", "F32"),
        ("glm4.6v", "F32"),
        ("glm-ocr", "Q8_0"),
        ("paddleocr-vl", "Q8_0"),
        ("gemma4", "F32"),
        ("gemma4 audio", "F32"),
        ("gemma4 31b", "Q8_0"),
        ("minicpmv2.6", "F32"),
        ("minicpmv4.5", "Q8_0"),
        ("minicpmv4.6", "F32"),
        ("ultravox", "F16"),
        ("llava1.5", "Q8_0"),
        ("llava1.6", "F32"),
    ],
)
def test_answers_about_media_are_those_of_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, kind: str
) -> None:
    checkpoint = MAKERS[family](tmp_path / "checkpoint")
    lacks = ("<image>", "<pad>") if family == "llava1.6" else ()
    file = write_pair(tmp_path / "files", checkpoint, kind, lacks=lacks)
    path = resolve_checkpoint(str(file))
    headers = read_headers(path)
    assert headers is not None
    config = load_model_config(path)
    assert config.architecture == load_model_config(checkpoint).architecture.replace(*RENAMED)
    check = check_tensors(headers, path, config)
    assert check.fits, check
    pixels = np.random.default_rng(0).integers(0, 256, (61, 97, 3), dtype=np.uint8)
    medium: Any = {"type": "image_pil", "image_pil": Image.fromarray(pixels)}
    if family in ("qwen2audio", "ultravox", "gemma4 audio"):
        medium = {"type": "input_audio", "input_audio": {"data": BASE64, "format": "wav"}}
    messages: Any = [{"role": "user", "content": [medium, {"type": "text", "text": "What is this?"}]}]
    greedy = SamplingParams(temperature=0, max_tokens=6, logprobs=3)
    answers: list[Any] = []
    # As kernels have them: torch dequantizes in each step.
    monkeypatch.setattr(load_engine, "kept_blocks", lambda scheme, _, **__: kept_blocks(scheme, "native"))
    for model in (write_rounded(tmp_path / "rounded", checkpoint, kind), file):
        llm = LLM(model, dtype="float32", device="cpu", backend="torch")
        (output,) = llm.chat(messages, greedy, use_tqdm=False)
        answers.append((output.prompt_token_ids, output.outputs[0]))
    (prompt, expected), (own_prompt, found) = answers
    stands, own = UNNAMED.get(family, (0, 0))
    prompt = [own if token == stands else token for token in prompt]
    assert (own_prompt, found.token_ids) == (prompt, expected.token_ids)
    assert [each.logprob for each in found.logprobs] == pytest.approx(
        [each.logprob for each in expected.logprobs], abs=1e-4
    )


@pytest.mark.parametrize(
    ("level", "dtype", "kept"),
    [(Level.AVX2, torch.bfloat16, True), (Level.AMX, torch.float32, True), (Level.AMX, torch.bfloat16, False)],
)
def test_encoders_keep_their_types_except_where_tiles_are_multiplied(
    tmp_path: Path, level: Level, dtype: torch.dtype, kept: bool
) -> None:
    path = resolve_checkpoint(str(write_pair(tmp_path / "files", make_checkpoint(tmp_path / "checkpoint"), "Q8_0")))
    config, cpu = load_model_config(path), torch.device("cpu")
    scheme, native = config.quantization, NativeAvailability(cpu, None, lambda _stage, _fraction: None)
    computing = Computing(device=cpu, dtype=dtype, backend="native", level=level, scheme=scheme, native=native)
    checked = model_as_computed(path, config, computing, scheme, num_ranks=1)
    loaded = load_model(path, config, cpu, dtype, lambda *_: None, scheme=scheme, backend="native", level=level)
    sizes = [{name: tensor.shape for name, tensor in model.named_weights()} for model in (checked, loaded)]
    assert sizes[0] == sizes[1]
    assert isinstance(loaded.decoder.layers[0].get_submodule("mixer.out"), GroupQuantizedLinear)
    assert loaded.encoder is not None
    kinds = {type(each) for each in loaded.encoder.modules() if isinstance(each, Linear | GroupQuantizedLinear)}
    assert kinds == ({Linear, GroupQuantizedLinear} if kept else {Linear})  # patches are a kernel, which no block has


@pytest.mark.parametrize("quantization", ["int8", "auto"])
def test_a_decoder_is_not_quantized_beside_an_encoder_that_is(quantization: Quantization) -> None:
    of_encoder = GgufQuantization(types={"visual.blocks.0.attn.qkv": "Q8_0"})
    with pytest.raises(
        CheckpointError, match=f"--quantization {quantization}: expected none with an encoder stored as"
    ):
        resolve_scheme(quantization, of_encoder)
    of_both = GgufQuantization(types={**of_encoder.types, "model.layers.0.mlp.down_proj": "Q8_0"})
    assert resolve_scheme(quantization, of_both) == of_both


@needs_kernels
def test_native_kernels_encode_with_blocks(tmp_path: Path) -> None:
    path = resolve_checkpoint(str(write_pair(tmp_path / "files", make_checkpoint(tmp_path / "checkpoint"), "Q8_0")))
    assert_stays_near_float32(path, PROMPTS, torch.bfloat16, quantization="none", tolerance=0.1)


def test_another_mmproj_is_another_checkpoint(tmp_path: Path) -> None:
    checkpoint = make_checkpoint(tmp_path / "checkpoint")
    file = write_pair(tmp_path / "files", checkpoint)
    other = write_mmproj(tmp_path / "encoder.gguf", checkpoint, "F16")
    paths = [resolve_checkpoint(str(file)), resolve_checkpoint(str(file), mmproj=other)]
    assert len({checkpoint_digest([str(path)]) for path in paths}) == 2


def test_a_decoder_alone_reads_text(tmp_path: Path) -> None:
    checkpoint = make_qwen3_vl_checkpoint(tmp_path / "checkpoint")
    file = write_pair(tmp_path / "files", checkpoint)
    (tmp_path / "files" / "mmproj-model.gguf").unlink()
    path = resolve_checkpoint(str(file))
    assert load_model_config(path).architecture == "Qwen3ForCausalLM"
    prompt, harness = QWEN3_PROMPTS[0], Harness(path)
    answered = harness.answer(harness.begin(prompt), NUM_TOKENS)
    assert_same(answered, greedy_answer(checkpoint, prompt.token_ids, (), (), NUM_TOKENS))
