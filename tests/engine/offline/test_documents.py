"""The blocks of vLLM's pages that use `LLM`, in their own words, on random checkpoints of the families that they name.

Only the model's folder, the options of this machine and the media are other than there.
"""

import base64
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import PIL.Image
import pytest
import torch

from glimpse import LLM, SamplingParams
from glimpse.offline.llm import InputError
from tests.checkpoints.llava import make_llava_checkpoint
from tests.checkpoints.minicpmv import make_minicpmv_checkpoint
from tests.checkpoints.phi3v import make_phi3v_checkpoint
from tests.checkpoints.qwen2_vl import make_checkpoint
from tests.engine.offline.llm_inputs import PLACEHOLDER
from tests.media.images import scene
from tests.media.videos import greys

HIDDEN_SIZE = 64
IMAGE, OTHER_IMAGE = scene(60, 40, 1), scene(40, 60, 2)
Load = Callable[..., LLM]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path) -> Load:
    """Returns `LLM` for the published names of models, of which each is loaded once for the same arguments."""
    folders: dict[str, Path] = {"Qwen/Qwen2-VL-2B-Instruct": tiny_checkpoint}
    makers: Mapping[str, Callable[[Path], Path]] = {
        "Qwen/Qwen2.5-VL-3B-Instruct": lambda path: make_checkpoint(path, family="qwen2_5_vl"),
        "llava-hf/llava-1.5-7b-hf": make_llava_checkpoint,
        "microsoft/Phi-3.5-vision-instruct": make_phi3v_checkpoint,
        "openbmb/MiniCPM-V-2_6": make_minicpmv_checkpoint,
    }
    defaults = tmp_path_factory.mktemp("defaults")  # of blocks that do not say how long the answer is
    (defaults / "generation_config.json").write_text(json.dumps({"max_new_tokens": 4, "temperature": 0}))
    machine: Mapping[str, Any] = {
        "device": "cpu", "dtype": "float32", "kv_cache_bytes": "8MiB", "num_threads": 1, "generation_config": defaults,
    }  # fmt: skip
    loaded: dict[str, LLM] = {}

    def get(model: str, **arguments: Any) -> LLM:
        if model not in folders:
            folders[model] = makers[model](tmp_path_factory.mktemp("documents"))
        key = repr((model, arguments))
        if key not in loaded:
            loaded[key] = LLM(model=str(folders[model]), **arguments, **machine)
        return loaded[key]

    return get


def encode_image(image: PIL.Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "JPEG")
    return base64.b64encode(file.getvalue()).decode()


def texts(outputs: Any) -> list[str]:
    found = [o.outputs[0].text for o in outputs]
    assert all(found)
    return found


def llava(load: Load) -> LLM:
    return load(model="llava-hf/llava-1.5-7b-hf", enable_mm_embeds=True)


def test_one_image_and_a_batch(load: Load) -> None:
    llm = llava(load)
    prompt = "USER: <image>\nWhat is the content of this image?\nASSISTANT:"
    (alone,) = texts(llm.generate({"prompt": prompt, "multi_modal_data": {"image": IMAGE}}))
    outputs = llm.generate(
        [
            {"prompt": prompt, "multi_modal_data": {"image": IMAGE}},
            {
                "prompt": "USER: <image>\nWhat's the color of this image?\nASSISTANT:",
                "multi_modal_data": {"image": OTHER_IMAGE},
            },
        ]
    )
    assert texts(outputs)[0] == alone


def test_several_images_of_phi_3_5_vision(load: Load) -> None:
    llm = load(
        model="microsoft/Phi-3.5-vision-instruct",
        trust_remote_code=True,
        max_model_len=4096,
        limit_mm_per_prompt={"image": 2},
    )
    prompt = "<|user|>\n<|image_1|>\n<|image_2|>\nWhat is the content of each image?<|end|>\n<|assistant|>\n"
    outputs = llm.generate({"prompt": prompt, "multi_modal_data": {"image": [IMAGE, OTHER_IMAGE]}})
    assert texts(outputs)


def test_a_conversation_of_images_in_every_form(load: Load) -> None:
    llm = llava(load)
    image_url = f"data:image/jpeg;base64,{encode_image(IMAGE)}"
    (output,) = llm.generate({"prompt": "USER: <image>\nASSISTANT:", "multi_modal_data": {"image": IMAGE}})
    image_token = max(set(output.prompt_token_ids), key=output.prompt_token_ids.count)
    feature_size = output.prompt_token_ids.count(image_token)
    image_embeds = torch.zeros(1, feature_size, HIDDEN_SIZE)
    conversation = [
        {"role": "system", "content": "You are a helpful assistant"},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello! How can I assist you today?"},
        {
            "role": "user",
            "content": [
                {"type": "image_url", "image_url": {"url": image_url}},
                {"type": "image_pil", "image_pil": IMAGE},
                {"type": "image_embeds", "image_embeds": image_embeds},
                {"type": "text", "text": "What's in these images?"},
            ],
        },
    ]
    (output,) = llm.chat(conversation)
    assert output.prompt_token_ids.count(image_token) == 3 * feature_size
    prompt = "USER: <image>\nWhat is the content of this image?\nASSISTANT:"
    outputs = llm.generate({"prompt": prompt, "multi_modal_data": {"image": image_embeds}})
    assert outputs[0].prompt_token_ids.count(image_token) == feature_size


def test_frames_of_a_video_as_images(load: Load) -> None:
    llm = load("Qwen/Qwen2-VL-2B-Instruct", limit_mm_per_prompt={"image": 4}, enable_mm_embeds=True)
    video_frames = [PIL.Image.fromarray(frame) for frame in greys(4, width=56, height=56)]
    message: dict[str, Any] = {
        "role": "user",
        "content": [{"type": "text", "text": "Describe this set of frames."}],
    }
    for i in range(len(video_frames)):
        base64_image = encode_image(video_frames[i])
        new_image = {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{base64_image}"}}
        message["content"].append(new_image)
    texts(llm.chat([message]))


def test_images_by_their_uuids(load: Load) -> None:
    """The page's prompt has no placeholder of Qwen2.5-VL: the refusal says what to write."""
    llm = load(model="Qwen/Qwen2.5-VL-3B-Instruct")
    data = {"multi_modal_data": {"image": [IMAGE, OTHER_IMAGE]}, "multi_modal_uuids": {"image": ["sku-1234-a", None]}}
    with pytest.raises(InputError, match=r"<\|vision_start\|><\|image_pad\|><\|vision_end\|>"):
        llm.generate({"prompt": "USER: <image><image>\nDescribe the differences.\nASSISTANT:", **data})
    prompt = f"USER: {PLACEHOLDER}{PLACEHOLDER}\nDescribe the differences.\nASSISTANT:"
    first = texts(llm.generate({"prompt": prompt, **data}))
    skipped = {**data, "multi_modal_data": {"image": [None, OTHER_IMAGE]}}
    assert texts(llm.generate({"prompt": prompt, **skipped})) == first


@pytest.mark.parametrize("colour", [[0, 0, 0], [0, 0, 255]])
def test_a_background_of_transparent_images(load: Load, colour: list[int]) -> None:
    llm = load(model="llava-hf/llava-1.5-7b-hf", media_io_kwargs={"image": {"rgba_background_color": colour}})
    clear, solid = PIL.Image.new("RGBA", (40, 40)), PIL.Image.new("RGB", (40, 40), (colour[0], colour[1], colour[2]))
    prompts = [
        {"prompt": "USER: <image>\nASSISTANT:", "multi_modal_data": {"image": image}} for image in (clear, solid)
    ]
    first, second = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=2, logprobs=1))
    assert first.outputs == second.outputs


def test_a_video_as_process_vision_info_makes_it(load: Load) -> None:
    model_path = "Qwen/Qwen2.5-VL-3B-Instruct"
    llm = load(
        model=model_path,
        gpu_memory_utilization=0.8,
        enforce_eager=True,
        limit_mm_per_prompt={"video": 1},
    )
    sampling_params = SamplingParams(
        max_tokens=8,
    )
    frames = torch.from_numpy(greys(4, width=56, height=56).transpose(0, 3, 1, 2).copy()).float()
    prompt = f"<|im_start|>user\n{PLACEHOLDER.replace('image', 'video')}describe this video.<|im_end|>\n"
    mm_data = {"video": [frames]}
    llm_inputs = {"prompt": f"{prompt}<|im_start|>assistant\n", "multi_modal_data": mm_data}
    assert texts(llm.generate([llm_inputs], sampling_params=sampling_params))


def test_embeddings_with_what_the_family_needs(load: Load) -> None:
    llm = load("Qwen/Qwen2-VL-2B-Instruct", limit_mm_per_prompt={"image": 4}, enable_mm_embeds=True)
    mm_data: dict[str, Any] = {
        "image": {
            "image_embeds": torch.zeros(1, 6, HIDDEN_SIZE),
            "image_grid_thw": torch.tensor([[1, 4, 6]]),
        }
    }
    texts(llm.generate({"prompt": f"USER: {PLACEHOLDER}\nASSISTANT:", "multi_modal_data": mm_data}))
    llm = load("openbmb/MiniCPM-V-2_6", trust_remote_code=True, limit_mm_per_prompt={"image": 4}, enable_mm_embeds=True)
    prompt = "USER: (<image>./</image>)\nWhat?\nASSISTANT:"
    (output,) = llm.generate({"prompt": prompt, "multi_modal_data": {"image": scene(8, 8, 3)}})
    unknown = max(set(output.prompt_token_ids), key=output.prompt_token_ids.count)
    images = [scene(8, 8, 3)]
    mm_data = {
        "image": {
            "image_embeds": torch.zeros(1, output.prompt_token_ids.count(unknown), 256),
            "image_sizes": [image.size for image in images],
        }
    }
    (embedded,) = llm.generate({"prompt": prompt, "multi_modal_data": mm_data})
    assert embedded.prompt_token_ids == output.prompt_token_ids


def test_the_first_page_on_vision_language_models(load: Load) -> None:
    llm = load(
        model="llava-hf/llava-1.5-7b-hf",
        image_input_type="pixel_values",
        image_token_id=32000,
        image_input_shape="1,3,336,336",
        image_feature_size=576,
    )
    with pytest.raises(InputError, match="'image_input_type': write enable_mm_embeds"):
        load(model="llava-hf/llava-1.5-7b-hf", image_input_type="image_features")
    prompt = "<image>" * 576 + "\nUSER: What is the content of this image?\nASSISTANT:"
    with pytest.raises(InputError, match="got 576 for 1; write <image> once for each"):
        llm.generate({"prompt": prompt, "multi_modal_data": {"image": IMAGE}})
    prompt = "<image>\nUSER: What is the content of this image?\nASSISTANT:"
    texts(llm.generate({"prompt": prompt, "multi_modal_data": {"image": IMAGE}}))
