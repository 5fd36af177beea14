"""The oracle of tests: MiniCPM-V, put together of the parts that transformers and torch have. Test vectors of vLLM
confirm it (`tests/oracles/minicpmv_vectors.py`). The engine never imports this."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import (
    MiniCPMV4_6ImageProcessorPil,
    SiglipVisionConfig,
    SiglipVisionModel,
    TokenizersBackend,
    vision_utils,
)

from tests.checkpoints.minicpmv import (
    HIDDEN_SIZE,
    NUM_HEADS,
    NUM_QUERIES,
    SCALE,
    VISION,
    decoder_of,
    make_decoder,
    normalized,
)
from tests.oracles.answers import Answer, generate

get_vision_nearest_position_ids = vision_utils.get_vision_nearest_position_ids

Slices = Sequence[np.ndarray]
"""The overview of an image, then its slices, uint8 [height, width, 3] each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frames:
    pixels: Slices
    """Resized frames."""
    packs: Sequence[Sequence[int]]
    """Temporal ids of the frames that are encoded together; -1 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parts:
    decoder: Any
    vision: Any
    attention: nn.MultiheadAttention
    tensors: dict[str, Tensor]


class _PatchMultiples(MiniCPMV4_6ImageProcessorPil):
    """The processor of MiniCPM-V 4.6 with sizes in whole patches, as of 2.6, not in squares of merged ones.

    In 2.6, the first of equally good arrangements is the one of fewer columns, which is also that of more rows.
    """

    def find_best_resize(self, image_size: Any, scale_resolution: int, patch_size: int, *_: Any, **options: Any) -> Any:
        merge = 2  # of the mode "4x"
        assert patch_size % merge == 0
        return super().find_best_resize(
            image_size, scale_resolution, patch_size // merge, "4x", allow_upscale=options.get("allow_upscale", False)
        )


class Network(nn.Module):
    """The network of a `config.json`, whose parameters have the published names."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, vision = config["hidden_size"], SiglipVisionConfig(**config["vision_config"], vision_use_head=False)
        self.llm = decoder_of(config)
        model: Any = SiglipVisionModel(vision)
        self.vpm = model.vision_model if hasattr(model, "vision_model") else model
        self.resampler = nn.Module()
        self.resampler.query = nn.Parameter(torch.empty(config["query_num"], width))
        self.resampler.proj = nn.Parameter(torch.empty(width, width))
        self.resampler.kv_proj = nn.Linear(vision.hidden_size, width, bias=False)
        self.resampler.attn = nn.MultiheadAttention(width, width // 128)
        for name in ("ln_q", "ln_kv", "ln_post"):
            self.resampler.add_module(name, nn.LayerNorm(width))


@cache
def load_oracle(path: Path) -> _Parts:
    tensors = load_file(path / "model.safetensors")
    decoder = make_decoder(str(read_document(path / "config.json")["version"]))
    vision: Any = SiglipVisionModel(SiglipVisionConfig(**VISION, vision_use_head=False))
    attention = nn.MultiheadAttention(HIDDEN_SIZE, NUM_HEADS, batch_first=True)
    prefix = "vision_model." if any(name.startswith("vision_model.") for name in vision.state_dict()) else ""
    decoder.load_state_dict(_own(tensors, "llm."))
    vision.load_state_dict({prefix + name: tensor for name, tensor in _own(tensors, "vpm.").items()})
    attention.load_state_dict(_own(tensors, "resampler.attn."))
    tower = vision.vision_model if prefix else vision
    return _Parts(decoder=decoder.eval(), vision=tower.eval(), attention=attention.eval(), tensors=tensors)


def read_document(file: Path) -> Any:
    """Returns what a JSON file holds."""
    return json.loads(file.read_text())


def _own(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


@torch.inference_mode()
def encode(path: Path, medium: Slices | Frames) -> Tensor:
    """Returns the encoder output of an image, float32 [slices · queries, hidden_size], or of a video."""
    parts = load_oracle(path)
    if not isinstance(medium, Frames):
        return torch.cat([_resample(parts, [_keys_and_values(parts, each, -1)]) for each in medium])
    frames = iter(medium.pixels)
    return torch.cat(
        [_resample(parts, [_keys_and_values(parts, next(frames), time) for time in pack]) for pack in medium.packs]
    )


def _keys_and_values(parts: _Parts, pixels: np.ndarray, time: int) -> tuple[Tensor, Tensor]:
    size = pixels.shape[0] // 14, pixels.shape[1] // 14
    embeddings = parts.vision.embeddings
    hidden = embeddings.patch_embedding(normalized(pixels)[None]).flatten(2).transpose(1, 2)
    positions = get_vision_nearest_position_ids(torch.tensor([size]), VISION["image_size"] // 14)
    hidden = hidden + embeddings.position_embedding(positions)
    hidden = parts.vision.encoder(inputs_embeds=hidden).last_hidden_state
    features = parts.vision.post_layernorm(hidden)
    values = _norm(parts, "ln_kv", features @ parts.tensors["resampler.kv_proj.weight"].T)
    keys = values + torch.from_numpy(_waves(*size)).float()
    if time >= 0:
        angles = time / 10_000 ** (np.arange(HIDDEN_SIZE // 2) / (HIDDEN_SIZE // 2))
        keys = keys + torch.from_numpy(np.concatenate([np.sin(angles), np.cos(angles)])).float()
    return keys, values


def _resample(parts: _Parts, frames: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    keys, values = (torch.cat(each, dim=1) for each in zip(*frames, strict=True))
    attended, _ = parts.attention(_norm(parts, "ln_q", parts.tensors["resampler.query"])[None], keys, values)
    return (_norm(parts, "ln_post", attended) @ parts.tensors["resampler.proj"])[0]


def _norm(parts: _Parts, name: str, x: Tensor) -> Tensor:
    weight, bias = (parts.tensors[f"resampler.{name}.{part}"] for part in ("weight", "bias"))
    return nn.functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-6)


def _waves(rows: int, columns: int) -> np.ndarray:
    """Returns sines and cosines of the column, then of the row: [rows · columns, hidden_size]."""
    quarter = HIDDEN_SIZE // 4
    found = np.zeros((rows, columns, 4, quarter))
    for row in range(rows):
        for column in range(columns):
            for index in range(quarter):
                x, y = (n / 10_000 ** (index / quarter) for n in (column, row))
                found[row, column, :, index] = np.sin(x), np.cos(x), np.sin(y), np.cos(y)
    return found.reshape(rows * columns, -1)


@torch.inference_mode()
def greedy_answer(path: Path, prompt: Sequence[int], media: Sequence[Slices | Frames], num_tokens: int) -> Answer:
    """Continues a prompt whose `<unk>` tokens are placeholders of the media."""
    decoder, tokens = load_oracle(path).decoder, list(prompt)
    embedded = decoder.get_input_embeddings()(torch.tensor([tokens]))
    if media:
        places = torch.tensor(tokens) == _unk(path)
        embedded[0, places] = torch.cat([encode(path, each) for each in media])
    return generate(decoder, tokens, num_tokens, inputs_embeds=embedded)


def slices_of(image: PIL.Image.Image, *, scale: int = SCALE, most: int = 9) -> Slices:
    """Returns the overview and the slices that the reference processor makes."""
    processor = _PatchMultiples(scale_resolution=scale, max_slice_nums=most, do_rescale=False, do_normalize=False)
    made = processor([image])
    pixels = np.asarray(made["pixel_values"])[0]  # [3, 14, patches · 14]
    found, start = [], 0
    for rows, columns in np.asarray(made["target_sizes"]).tolist():
        end = start + rows * columns * 14
        patches = pixels[:, :, start:end].reshape(3, 14, rows, columns, 14)
        found.append(patches.transpose(2, 1, 3, 4, 0).reshape(rows * 14, columns * 14, 3).astype(np.uint8))
        start = end
    return found


def grid_of(image: PIL.Image.Image, *, scale: int = SCALE, most: int = 9) -> tuple[int, int]:
    """Returns the rows and columns of slices that the reference processor makes; (0, 0) for none."""
    grid = MiniCPMV4_6ImageProcessorPil().get_sliced_grid((image.height, image.width), most, scale)
    return (0, 0) if grid is None else (grid[0], grid[1])


def prompt_ids(path: Path, messages: Sequence[dict[str, Any]], images: Sequence[PIL.Image.Image]) -> list[int]:
    """Returns the token ids of a conversation, as the published `chat` and processor make them."""
    text = _rendered(path, [{**message, "content": _joined(message["content"])} for message in messages])
    numbered = iter(enumerate(images))
    text = re.sub(r"\(<image>\./</image>\)", lambda _: _placeholder(*next(numbered)), text)
    return Tokenizer.from_file(str(path / "tokenizer.json")).encode(text).ids


def video_prompt_ids(path: Path, messages: Sequence[dict[str, Any]], videos: Sequence[Sequence[int]]) -> list[int]:
    """Returns the token ids of a conversation with videos, given the sizes of each one's packs. The published `chat`
    takes frames as images, and its processor leaves out those of a pack but the first one."""
    sizes = iter(videos)
    frames: list[bool] = []  # whether one is the first of its pack

    def with_frames(part: dict[str, Any]) -> list[dict[str, Any]]:
        if part["type"] != "video":
            return [part]
        mine = [index == 0 for size in next(sizes) for index in range(size)]
        frames.extend(mine)
        return [{"type": "image"}] * len(mine)

    expanded = [
        {**message, "content": _joined([each for part in message["content"] for each in with_frames(part)])}
        for message in messages
    ]
    first, *rest = _rendered(path, expanded).split("(<image>./</image>)")
    text = ""
    for chunk, is_first in zip([first, *rest[:-1]], frames, strict=True):
        text += chunk + f"<image>{'<unk>' * NUM_QUERIES}</image>" if is_first else chunk.strip()
    return Tokenizer.from_file(str(path / "tokenizer.json")).encode(text + rest[-1]).ids


def _joined(content: str | Sequence[dict[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "\n".join("(<image>./</image>)" if part["type"] == "image" else part["text"] for part in content)


def _placeholder(index: int, image: PIL.Image.Image) -> str:
    rows, columns = grid_of(image)
    run = "<unk>" * NUM_QUERIES
    lines = [f"<slice>{run}</slice>" * columns] * rows
    return f"<image_id>{index}</image_id><image>{run}</image>" + "\n".join(lines)


def _rendered(path: Path, messages: Sequence[dict[str, Any]]) -> str:
    tokenizer: Any = TokenizersBackend(tokenizer_object=Tokenizer.from_file(str(path / "tokenizer.json")))
    return tokenizer.apply_chat_template(
        list(messages),
        chat_template=read_document(path / "tokenizer_config.json")["chat_template"],
        tokenize=False,
        add_generation_prompt=True,
    )


def _unk(path: Path) -> int:
    token_id = Tokenizer.from_file(str(path / "tokenizer.json")).token_to_id("<unk>")
    assert token_id is not None
    return token_id
