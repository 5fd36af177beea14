"""The oracle of tests: Phi-3.5-vision, put together of transformers' CLIP and Phi-3 by the published description of
what lies between them. Its code comes with the checkpoints and is not in transformers.

The engine never imports this."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from PIL.Image import Resampling, Transpose
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import CLIPVisionConfig, CLIPVisionModel, Phi3Config, Phi3ForCausalLM, TokenizersBackend

from tests.oracles.answers import Answer

Tiles = tuple[np.ndarray, tuple[int, int]]
"""uint8 [tiles, side, side, 3], and their rows and columns."""

_ENCODER = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
}


class ImageEmbedding(nn.Module):
    """What makes embeddings of an image, with the published names of parameters."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        own = {name: config["img_processor"].get(name, default) for name, default in _ENCODER.items()}
        tower: Any = CLIPVisionModel(CLIPVisionConfig(**own, hidden_act="quick_gelu"))
        self.img_processor = nn.Module()
        self.img_processor.vision_model = getattr(tower, "vision_model", tower)
        width, hidden_size = 4 * own["hidden_size"], config["hidden_size"]
        self.img_projection = nn.Sequential(
            nn.Linear(width, hidden_size), nn.GELU(), nn.Linear(hidden_size, hidden_size)
        )
        self.glb_GN = nn.Parameter(torch.zeros(1, 1, width))
        self.sub_GN = nn.Parameter(torch.zeros(1, 1, 1, width))

    def forward(self, tiles: Tensor, rows: int, columns: int) -> Tensor:
        """float32 [1 + tiles, 3, side, side], the overview first → [tokens, hidden_size]"""
        tower: Any = self.img_processor.vision_model
        features = tower(tiles, output_hidden_states=True).hidden_states[-2][:, 1:]
        side = math.isqrt(features.shape[1])
        maps = features.unflatten(1, (side, side))
        whole = torch.cat([torch.cat(list(maps[1 + row * columns :][:columns]), dim=1) for row in range(rows)])
        tokens = [*self._lines(whole), self.glb_GN[0, 0], *self._lines(maps[0])]
        return self.img_projection(torch.stack(tokens))

    def _lines(self, features: Tensor) -> list[Tensor]:
        """[height, width, features] of patches → a token for each square of 4 patches, and one after each line."""
        found: list[Tensor] = []
        for y in range(0, features.shape[0], 2):
            for x in range(0, features.shape[1], 2):
                square = (features[y, x], features[y, x + 1], features[y + 1, x], features[y + 1, x + 1])
                found.append(torch.cat(square))
            found.append(self.sub_GN[0, 0, 0])
        return found


def make_network(config: Mapping[str, Any]) -> Any:
    """Returns the network of a `config.json`, whose parameters have the published names."""
    fields = {name: value for name, value in config.items() if name not in ("rope_scaling", "architectures")}
    rope = {**config["rope_scaling"], "rope_type": "longrope", "rope_theta": config["rope_theta"]}
    rope["original_max_position_embeddings"] = config["original_max_position_embeddings"]
    del rope["type"], fields["model_type"], fields["rope_theta"]
    network: Any = Phi3ForCausalLM(Phi3Config(**{"pad_token_id": None, **fields}, rope_parameters=rope))
    network.model.vision_embed_tokens = ImageEmbedding(config)
    return network


def config_of(path: Path) -> dict[str, Any]:
    return json.loads((path / "config.json").read_text())


@cache
def load_oracle(path: Path) -> Any:
    network = make_network(config_of(path))
    network.load_state_dict(load_file(path / "model.safetensors"))
    return network.float().eval()


@torch.inference_mode()
def encode(path: Path, tiles: Tiles) -> Tensor:
    """Returns the encoder output of an image, float32 [tokens, hidden_size]."""
    pixels, (rows, columns) = tiles
    return load_oracle(path).model.vision_embed_tokens(with_overview(path, pixels, rows, columns), rows, columns)


def with_overview(path: Path, pixels: np.ndarray, rows: int, columns: int) -> Tensor:
    """uint8 [tiles, side, side, 3] → float32 [1 + tiles, 3, side, side], normalized, the overview first."""
    document = json.loads((path / "preprocessor_config.json").read_text())
    mean, std = (torch.tensor(document[name])[:, None, None] for name in ("image_mean", "image_std"))
    tiles = (torch.tensor(pixels).permute(0, 3, 1, 2) / 255 - mean) / std
    lines = [torch.cat(list(tiles[row * columns :][:columns]), dim=2) for row in range(rows)]
    side = pixels.shape[1]
    overview = nn.functional.interpolate(torch.cat(lines, dim=1)[None], size=(side, side), mode="bicubic")
    return torch.cat([overview, tiles])


def _embedded(path: Path, prompt: Sequence[int], images: Sequence[Tiles]) -> Tensor:
    """Returns the embeddings of a prompt. The last id of the vocabulary is the placeholder of images' tokens."""
    token_ids = torch.tensor(list(prompt))
    embedded = load_oracle(path).get_input_embeddings()(token_ids[None])
    if images:
        places = token_ids == config_of(path)["vocab_size"] - 1
        embedded[0, places] = torch.cat([encode(path, tiles) for tiles in images])
    return embedded


@torch.inference_mode()
def hidden_states(path: Path, prompt: Sequence[int], images: Sequence[Tiles]) -> Tensor:
    """Returns the hidden states of a prompt after the final norm, float32 [tokens, hidden_size]."""
    return load_oracle(path).model(inputs_embeds=_embedded(path, prompt, images)).last_hidden_state[0]


@torch.inference_mode()
def greedy_answer(path: Path, prompt: Sequence[int], images: Sequence[Tiles], num_tokens: int) -> Answer:
    """Continues a prompt as in `hidden_states`."""
    network, embedded = load_oracle(path), _embedded(path, prompt, images)
    answer, logits = list[int](), list[Tensor]()
    for _ in range(num_tokens):
        logits.append(network(inputs_embeds=embedded, use_cache=False).logits[0, -1])
        answer.append(int(logits[-1].argmax()))
        embedded = torch.cat([embedded, network.get_input_embeddings()(torch.tensor([answer[-1:]]))], dim=1)
    return Answer(token_ids=answer, logits=torch.stack(logits).float())


def tiles_of(image: PIL.Image.Image, *, side: int, most: int) -> Tiles:
    """Returns the tiles that the reference processor makes: it transposes tall images, and pads them with white."""
    is_tall = image.width < image.height
    wide = image.transpose(Transpose.TRANSPOSE) if is_tall else image
    width, height = hd_size(wide.width, wide.height, side=side, most=most)
    padded_height = math.ceil(height / side) * side
    padded = PIL.Image.new("RGB", (width, padded_height), (255, 255, 255))
    padded.paste(wide.resize((width, height), Resampling.BILINEAR), (0, (padded_height - height) // 2))
    pixels = np.asarray(padded.transpose(Transpose.TRANSPOSE) if is_tall else padded)
    rows, columns = pixels.shape[0] // side, pixels.shape[1] // side
    tiles = [
        pixels[row * side : (row + 1) * side, column * side : (column + 1) * side]
        for row in range(rows)
        for column in range(columns)
    ]
    return np.stack(tiles), (rows, columns)


def hd_size(width: int, height: int, *, side: int, most: int) -> tuple[int, int]:
    """Returns the size to which a wide image is resized, before the padding."""
    ratio, scale = width / height, 1
    while scale * np.ceil(scale / ratio) <= most:
        scale += 1
    new_width = (scale - 1) * side
    return new_width, int(new_width / ratio)


def num_tokens(tiles: Tiles, side: int) -> int:
    """Returns the tokens of an image, as the published processor counts them, with 14 pixels for a patch."""
    rows, columns = tiles[1]
    square = side // 28
    return (rows * columns + 1) * square**2 + 1 + (rows + 1) * square


def prompt_ids(path: Path, messages: Sequence[dict[str, Any]], images: Sequence[Tiles], *, side: int) -> list[int]:
    """Returns the token ids of a conversation: messages with numbered tags are rendered, and the texts between the tags
    are encoded one by one, each with what starts a text."""
    backend: Any = TokenizersBackend(tokenizer_object=Tokenizer.from_file(str(path / "tokenizer.json")))
    template = json.loads((path / "tokenizer_config.json").read_text())["chat_template"]
    rendered: str = backend.apply_chat_template(
        tagged(messages), chat_template=template, tokenize=False, add_generation_prompt=True
    )
    return tagged_ids(path, rendered, images, side=side)


def tagged_ids(path: Path, text: str, images: Sequence[Tiles], *, side: int) -> list[int]:
    """Returns the token ids of a text with numbered tags."""
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    placeholder = config_of(path)["vocab_size"] - 1
    first, *others = (tokenizer.encode(chunk).ids for chunk in re.split(r"<\|image_\d+\|>", text))
    runs = [[placeholder] * num_tokens(tiles, side) for tiles in images]
    return [*first, *(token for run, ids in zip(runs, others, strict=True) for token in (*run, *ids))]


def tagged(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns messages whose contents are texts, with a tag on a line of its own for each image."""
    number = 0
    found: list[dict[str, Any]] = []
    for message in messages:
        lines: list[str] = []
        for part in message["content"]:
            number += part["type"] == "image"
            lines.append(f"<|image_{number}|>" if part["type"] == "image" else part["text"])
        joint = "\n" if any(part["type"] == "image" for part in message["content"]) else ""
        found.append({"role": message["role"], "content": joint.join(lines)})
    return found
