"""An encoder in an mmproj file: what each value of `clip.projector_type` says of it, and its sizes.

Keys are those of llama.cpp's tools/mtmd/clip-impl.h.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from glimpse.engine.checkpoint.gguf.architectures import Change
from glimpse.engine.checkpoint.gguf.header import Gguf
from glimpse.engine.checkpoint.gguf.keys import Keys
from glimpse.engine.errors import CheckpointError

Files = dict[str, dict[str, Any]]
"""The files that say how images and videos are resized, by name."""


class MmprojEncoder:
    """Sizes of an encoder. What metadata leaves out or has wrong in old files comes from the shapes of tensors."""

    def __init__(self, gguf: Gguf, projector: "Projector") -> None:
        self.keys, self.gguf, self.modality = Keys(gguf), gguf, projector.modality
        self.width = self.keys.size(f"{self.modality}.embedding_length")
        self.depth = self.keys.size(f"{self.modality}.block_count", most=1024)
        last, dim = projector.output
        self.output_width = self.shape(last, 2)[dim]
        self.merge = self.keys.size(projector.merge_key, projector.merge)
        if projector.squares is not None:
            self.keys.require(projector.merge_key, self.merge**2 * self.width, self.shape(projector.squares, 2)[1])
        self.num_heads = self.keys.size(f"{self.modality}.attention.head_count")
        if self.modality == "vision":
            self.keys.require("vision.patch_size", self.patch_size, self.shape("v.patch_embd.weight", 4)[-1])

    @property
    def patch_size(self) -> int:
        """Side of a patch in pixels."""
        return self.keys.size("vision.patch_size")

    @property
    def image_size(self) -> int:
        """Side of an image in pixels."""
        return self.keys.size("vision.image_size")

    @property
    def position_side(self) -> int:
        """Side in pixels of the square that has a learned position for each patch."""
        return math.isqrt(self.shape("v.position_embd.weight", 2)[0]) * self.patch_size

    @property
    def intermediate_size(self) -> int:
        """Width inside the MLPs."""
        return self.shape(f"{self.modality[0]}.blk.0.ffn_{'down' if swaps_mlp(self.gguf) else 'up'}.weight", 2)[0]

    @property
    def norm_eps(self) -> float:
        """What norms add to the mean square."""
        return self.keys.number(f"{self.modality}.attention.layer_norm_epsilon")

    @property
    def statistics(self) -> dict[str, Any]:
        """Fields of `preprocessor_config.json` that say how pixels are normalized."""
        mean, std = (self.keys.numbers(f"vision.image_{name}", 3) for name in ("mean", "std"))
        if min(std) <= 0:
            self.keys.refuse("vision.image_std", "positive numbers", std)
        return {"image_mean": mean, "image_std": std}

    def deepstack(self) -> list[int]:
        """Returns the blocks whose outputs the decoder's first layers add."""
        flags = self.gguf.numbers("clip.vision.is_deepstack_layers")
        return [] if flags is None else np.flatnonzero(flags).tolist()

    def shape(self, name: str, num_dims: int) -> tuple[int, ...]:
        """Returns a tensor's shape. Raises CheckpointError if it is not there or has other dimensions."""
        tensor = self.gguf.tensors.get(name)
        if tensor is None or len(tensor.shape) != num_dims:
            found = "none" if tensor is None else f"shape {[*tensor.shape]}"
            raise CheckpointError(f"mmproj: expected a tensor {name!r} of {num_dims} dimensions, got {found}")
        return tensor.shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Projector:
    """A value of `clip.projector_type` that is served."""

    architectures: Mapping[str, str]
    """Names in `architectures` of `config.json`, by the `general.architecture` of decoders."""
    variant: Callable[[Gguf, Gguf], str | None] = lambda _text, _mmproj: None
    """Returns another such name, if it depends on what else the files of a decoder and its encoder say."""
    names: Mapping[str, str]
    """Names in checkpoints by those in files, without `.weight` or with it. In files those of blocks follow `v.blk.N.`,
    and those of what DeepStack adds `v.deepstack.N.` Those of a second encoder's blocks begin with "a." here."""
    unused: str = ""
    """A tensor that is also a part of the decoder's."""
    changes: Mapping[str, Change | None] = field(default_factory=dict[str, Change | None])
    """See `GgufArchitecture`."""
    output: tuple[str, int] = ("mm.2.weight", 0)
    """A matrix, and the dimension of it that is the decoder's width."""
    squares: str | None = "mm.0.weight"
    """The matrix whose inputs are the features of a square of patches, if there is one."""
    merge_key: str = "vision.spatial_merge_size"
    """Key of how many patches lie along each side of the square that becomes one token."""
    merge: int = 2
    """Default of that key."""
    modality: Literal["vision", "audio"] = "vision"
    """What the encoder reads."""
    encoder_config: Callable[[MmprojEncoder], dict[str, Any]]
    """Returns what `vision_config` or `audio_config` has."""
    config: Callable[[MmprojEncoder], dict[str, Any]] = lambda _encoder: {}
    """Returns further fields of `config.json`."""
    activation: str | None = None
    """Flag that names the function inside MLPs; None: quick GELU."""
    files: Callable[[MmprojEncoder], Files]
    placeholders: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: QWEN_PLACEHOLDERS)
    """Tokens whose ids `config.json` has. Of several, the first that the file has is called as the first of them: one
    that no text has stands for a token that files of the decoder may lack. Behind them "": files need not have it."""
    is_flat: bool = False
    """`config.json` has the decoder's fields beside the encoder, not in a `text_config`."""
    has_mrope: bool = False
    """Positions of the decoder have three axes."""


QWEN_PLACEHOLDERS: Mapping[str, tuple[str, ...]] = {
    "image_token_id": ("<|image_pad|>",),
    "video_token_id": ("<|video_pad|>",),
}


def swaps_mlp(gguf: Gguf) -> bool:
    """Returns whether the names of the products of an encoder's MLPs are exchanged, as in old files (llama.cpp,
    tools/mtmd/clip.cpp)."""
    up, norm = gguf.tensors.get("v.blk.0.ffn_up.weight"), gguf.tensors.get("v.blk.0.ln1.weight")
    return up is not None and norm is not None and up.shape[-1] != norm.shape[0] == up.shape[0]
