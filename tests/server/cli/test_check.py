"""`glimpse check` from outside, and what it prints."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from safetensors.torch import load_file

from glimpse.engine.checkpoint.families.registry import FAMILIES, load_model_config
from glimpse.engine.worker.loading.check_messages import (
    ComputingReport,
    Context,
    Decoding,
    Memory,
    ServingCheck,
    TensorCheck,
)
from glimpse.server.cli.check_text import ModelCheck, check_text
from glimpse.server.cli.run_check import template_origin
from glimpse.server.settings import ModelSettings
from tests.checkpoints.ultravox import make_ultravox_checkpoint, split_ultravox_checkpoint
from tests.fork_server import glimpse
from tests.server.cli.hub import serve_hub
from tests.server.cli.test_main import TORCH, loaded

pytestmark = pytest.mark.usefixtures("forks")

GIB = 1 << 30


def check(*arguments: str, **environment: str) -> tuple[int, Any, str]:
    """Returns the exit status, the result and what was written to standard error."""
    result = glimpse("check", "--json", "--num-threads=1", *arguments, environment=environment)
    return result.returncode, json.loads(result.stdout), result.stderr


def test_reads_a_model_of_the_hub_but_none_of_its_weights(tiny_checkpoint: Path, tmp_path: Path) -> None:
    with serve_hub({"org/name": tiny_checkpoint}) as hub:
        status, result, _ = check("org/name", HF_ENDPOINT=hub.url, HF_HUB_CACHE=str(tmp_path), HF_HUB_OFFLINE="0")
    assert (status, result["problems"]) == (0, [])
    assert (result["can_be_served"], result["weights_are_here"]) == (True, False)
    assert result["inputs"] == ["text", "image", "video"]
    assert result["template"] == "the checkpoint's"
    assert result["engine"]["tensors"] | {"expected": 0} == {
        "expected": 0,
        "missing": [],
        "unexpected": [],
        "unfit": [],
    }
    assert hub.sent_bytes["model.safetensors"] < (tiny_checkpoint / "model.safetensors").stat().st_size
    assert not [*tmp_path.rglob("*.safetensors")]


def test_a_repository_of_gguf_files_is_told_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    for name in ("small.Q8_0.gguf", "small.Q4_K_M-00001-of-00002.gguf", "mmproj-F16.gguf"):
        (tmp_path / "files" / name).write_bytes(b"GGUF")
    with serve_hub({"org/gguf": tmp_path / "files"}) as hub:
        _, result, _ = check("org/gguf", HF_ENDPOINT=hub.url, HF_HUB_CACHE=str(tmp_path), HF_HUB_OFFLINE="0")
    (problem,) = result["problems"]
    assert problem.endswith("name the type of one of its GGUF files, as org/gguf:Q4_K_M: Q4_K_M, Q8_0")


def test_counts_the_companions_of_a_checkpoint(tmp_path: Path) -> None:
    whole = make_ultravox_checkpoint(tmp_path / "whole")
    path = split_ultravox_checkpoint(whole, tmp_path / "parts")
    flag = f"--companion=org/whisper={tmp_path / 'parts' / 'whisper'}"
    with serve_hub({"org/llama": tmp_path / "parts" / "llama"}) as hub:
        environment = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "0"}
        status, result, _ = check(str(path), flag, **environment)
    assert (status, result["problems"], result["weights_are_here"]) == (0, [], False)
    tensors = load_file(whole / "model.safetensors")
    assert result["engine"]["num_parameters"] == sum(tensor.numel() for tensor in tensors.values())
    assert result["engine"]["tensors"] == {"expected": len(tensors), "missing": [], "unexpected": [], "unfit": []}


def test_names_the_field_of_a_companion_that_cannot_be_found(tmp_path: Path) -> None:
    path = split_ultravox_checkpoint(make_ultravox_checkpoint(tmp_path / "whole"), tmp_path / "parts")
    status, result, _ = check(str(path), HF_HUB_OFFLINE="1", HF_HUB_CACHE=str(tmp_path / "hub"))
    assert status == 1
    assert result["problems"][0].startswith("config.json: 'text_model_id': the model needs the checkpoint 'org/llama'")
    assert result["problems"][0].endswith("if it is in a folder, pass --companion org/llama=FOLDER")


def test_says_what_a_checkpoint_lacks(tiny_checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_checkpoint, tmp_path, dirs_exist_ok=True)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "preprocessor_config.json").unlink()
    (tmp_path / "model.safetensors").unlink()
    status, result, _ = check(str(tmp_path))
    assert status == 1
    assert result["problems"] == [
        "the checkpoint has no tokenizer.json",
        "the checkpoint has no preprocessor_config.json",
    ]


def test_says_where_the_chat_template_comes_from(tiny_checkpoint: Path) -> None:
    config = load_model_config(tiny_checkpoint)
    assert template_origin(config, ModelSettings(), "{{ messages }}") == "the checkpoint's"
    assert template_origin(config, ModelSettings(chat_template=Path("own.jinja")), "{{ messages }}") == "own.jinja"
    assert template_origin(config, ModelSettings(), "") is None
    internvl = replace(config, architecture="InternVLForConditionalGeneration")
    fallback = FAMILIES["InternVLForConditionalGeneration"].fallback_template
    assert fallback is not None
    assert template_origin(internvl, ModelSettings(), fallback) == "that of the model's family: the checkpoint has none"


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"architectures": ["Qwen2MoeForCausalLM"]}, "the closest name of those that are is Qwen3MoeForCausalLM"),
        ({"architectures": ["T5"]}, "not supported; supported: Qwen2VLForConditionalGeneration"),
        ({"architectures": ["LlamaForCausalLM"], "mlp_bias": True}, "'mlp_bias': expected false, got true"),
    ],
)
def test_names_what_is_not_supported(config: Mapping[str, Any], problem: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    status, result, _ = check(str(tmp_path))
    assert (status, result["can_be_served"], result["engine"]) == (1, False, None)
    assert problem in result["problems"][0]


def test_without_a_network_names_the_model() -> None:
    status, result, _ = check("org/name", HF_HUB_OFFLINE="1")
    assert status == 1
    assert "'org/name' is not a folder and could not be downloaded" in result["problems"][0]


def test_loads_no_torch(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert not loaded("from glimpse.server.cli.main import main; main()", "check", str(tmp_path)) & TORCH


CHECK = ModelCheck(
    model="org/name",
    can_be_served=True,
    problems=[],
    weights_are_here=True,
    architecture="Qwen2VLForConditionalGeneration",
    inputs=["text", "image", "video"],
    template="the checkpoint's",
    engine=ServingCheck(
        problems=[],
        num_parameters=8_291_375_616,
        computing=ComputingReport(
            device="cpu", backend="native", cpu_level="AVX2", dtype="bfloat16", quantization="int8", num_threads=4
        ),
        memory=Memory(
            weights=9 * GIB,
            kv_cache=GIB,
            besides=2 * GIB,
            available=16 * GIB,
            weights_in={"none": 15 * GIB, "int8": 9 * GIB},
        ),
        context=Context(
            window=18720, trained=32768, kv_cache_tokens=18720, sequence_bytes=GIB, needed_bytes=1792 << 20
        ),
        decoding=Decoding(weight_bytes=8 * GIB, kv_bytes=57344, read_rate=20.0 * GIB),
        tensors=TensorCheck(expected=730, missing=[], unexpected=[], unfit=[]),
    ),
)


def test_prints_a_line_for_each_thing_that_is_found_out() -> None:
    assert (
        check_text(CHECK)
        == """\
org/name can be served here.

model      Qwen2VLForConditionalGeneration, 8.29 billion parameters
inputs     text, image, video
template   the checkpoint's
tools      no: the chat template knows none
computing  cpu, native backend (AVX2), bfloat16, int8 weights, 4 threads
memory     12.0 GiB of the 16.0 GiB available: weights 9.0 GiB, KV cache 1.0 GiB, the rest 2.0 GiB
weights    15.0 GiB in bfloat16, 9.0 GiB in int8
context    18720 of the model's 32768 tokens, which the KV cache holds; --kv-cache-bytes 1792MiB holds all
decoding   at most 2.5 tokens/s for one answer: 8.0 GiB of weights are read for each token, at a measured 20.0 GiB/s
tensors    all 730 are there"""
    )


def test_prints_problems_first_and_nothing_that_is_unknown() -> None:
    refused = ModelCheck(model="org/name", can_be_served=False, problems=["one", "two"])
    assert check_text(refused) == "org/name cannot be served here:\n- one\n- two"
    unknown = msgspec.structs.replace(CHECK, weights_are_here=False, tools="hermes", reasoning="qwen3", engine=None)
    unknown = msgspec.structs.replace(unknown, not_applied=["num_beams (4)", "typical_p (0.9)"])
    assert check_text(unknown).splitlines() == [
        "org/name can be served here once its weights are here.",
        "",
        "model        Qwen2VLForConditionalGeneration",
        "inputs       text, image, video",
        "template     the checkpoint's",
        "tools        yes, in the hermes format",
        "reasoning    yes, in the qwen3 format",
        "not applied  num_beams (4), typical_p (0.9) in generation_config.json",
        "tensors      not compared: the weights are not here",
    ]


def test_tells_what_a_sequence_takes_of_a_cache_that_holds_several() -> None:
    context = Context(
        window=4096, trained=4096, kv_cache_tokens=9000, num_states=4, state_bytes=19 << 20, sequence_bytes=GIB,
        sliding_tokens=640, needed_bytes=GIB,
    )  # fmt: skip
    engine = ServingCheck(problems=[], context=context)
    row = check_text(msgspec.structs.replace(CHECK, engine=engine)).splitlines()[-2]
    assert row.split(maxsplit=1)[1] == (
        "4096 tokens; the KV cache holds 9000, 1.0 GiB for a sequence of 4096; 4 states of 19 MiB; "
        "640 tokens in windows of sliding layers"
    )


def test_lists_the_first_tensors_of_many() -> None:
    tensors = TensorCheck(expected=99, missing=[f"t{i}" for i in range(10)], unexpected=["u"], unfit=["tensor 'v': …"])
    engine = ServingCheck(problems=[], tensors=tensors)
    last = check_text(msgspec.structs.replace(CHECK, engine=engine)).splitlines()[-1]
    assert last.split(maxsplit=1)[1] == (
        "missing t0, t1, t2, t3, t4, t5, t6, t7 and 2 more; unexpected u; tensor 'v': …"
    )
