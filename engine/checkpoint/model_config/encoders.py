"""Configurations of encoders, a class for each kind. A model has at most one of them."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

MERGED_SIDE = 4
"""Patches along each side of a token of MiniCPM-V 4.6."""
SAM_REDUCTION = 4
"""Patches along each side of a position of SAM's output in DeepSeek-OCR-2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowConfig:
    """Window attention of a vision encoder: most of its blocks attend within square windows of a frame."""

    side: int
    """Side of a window in tokens. Windows at the right and bottom edges may be smaller."""
    full_attention_blocks: frozenset[int]
    """Indices of the blocks that attend to the whole frame."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VisionConfig:
    """Vision encoder of Qwen2-VL or Qwen2.5-VL, and what Qwen3-VL's has as well."""

    depth: int
    embed_dim: int
    """Width inside the encoder."""
    hidden_size: int
    """Width of its outputs, which is the decoder's."""
    num_heads: int
    intermediate_size: int
    """Width inside the MLPs."""
    in_channels: int
    patch_size: int
    """Side of a patch in pixels."""
    patch_bias: bool = False
    """The projection of patches has a bias (Qwen3-VL)."""
    spatial_merge_size: int
    """Patches along each side of a square that is merged into one token."""
    temporal_patch_size: int
    """Frames in a patch. An image is repeated to fill it."""
    gated: bool = False
    """True: RMSNorm and gated MLPs, as in Qwen2.5-VL. False: LayerNorm and MLPs of two products."""
    activation: Literal["quick_gelu", "gelu_tanh"] = "quick_gelu"
    """Function between the products of MLPs that are not gated."""
    block_bias: bool = True
    """The products of attention and of gated MLPs have biases."""
    norm_eps: float = 1e-6
    """What the blocks' norms add to the mean square."""
    head_norms: bool = False
    """Each head of queries and keys has an RMSNorm before its rotation (GLM-OCR)."""
    windows: WindowConfig | None = None
    """None: all blocks attend to the whole frame."""
    tokens_per_second: int | None = None
    """Positions on the time axis for each second of video; None: one for each temporal patch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SquareVitConfig:
    """A vision transformer for square images of one size, whatever its layers are."""

    width: int
    intermediate_size: int
    """Width inside the MLPs."""
    num_layers: int
    """Layers that its output needs. Checkpoints may have more."""
    num_heads: int
    image_size: int
    """Side of an image in pixels."""
    patch_size: int
    """Side of a patch in pixels. What is left of an image after whole patches is not read."""
    norm_eps: float
    class_token: bool
    """The first position is not a patch but a learned token (CLIP)."""
    patch_bias: bool
    """The projection of patches has a bias (SigLIP)."""
    pre_norm: bool
    """The embeddings are normalized before the first layer (CLIP)."""
    post_norm: bool
    """The output is normalized after the last layer."""

    @property
    def side(self) -> int:
        """Patches along each side of an image."""
        return self.image_size // self.patch_size

    @property
    def num_positions(self) -> int:
        """Patches of an image, and the class token."""
        return self.side**2 + self.class_token


@dataclass(frozen=True, slots=True, kw_only=True)
class VitConfig(SquareVitConfig):
    """A vision transformer as in CLIP and SigLIP: a part of many families' encoders."""

    activation: Literal["quick_gelu", "gelu_tanh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Qwen3VisionConfig(VisionConfig):
    """Vision encoder of Qwen3-VL."""

    position_side: int
    """Side of the square grid of learned positions."""
    deepstack_blocks: tuple[int, ...]
    """Blocks after which the hidden states are merged for the decoder's first layers, ascending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GlmVisionConfig(VisionConfig):
    """Vision encoder of GLM-4.1V and GLM-OCR."""

    merger_size: int
    """Width inside the merger's MLP."""
    position_side: int | None = None
    """Side of the square grid of learned positions. None: neither they nor a norm before them (GLM-OCR)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddleVisionConfig(VisionConfig):
    """Vision encoder of PaddleOCR-VL."""

    position_side: int
    """See `Qwen3VisionConfig`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PixtralVisionConfig(VisionConfig):
    """Vision encoder of Pixtral, as in Mistral 3 and LightOnOCR, and the projection to the decoder's width."""

    rope_theta: float
    merged_norm_eps: float | None
    """What the norm before patches are merged adds to the mean square. None: each patch is a token (Pixtral)."""
    projector_bias: bool
    row_breaks: bool
    """The tokens of an image are rows, each of which ends with a token that says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TiledVisionConfig:
    """Vision encoder of Idefics3 and SmolVLM, which encodes each tile of an image by itself."""

    vit: VitConfig
    shuffle: int
    """Patches along each side of a square that becomes one token."""
    max_batch_tiles: int = 16
    """Most tiles encoded at once, which bounds the memory of hidden states."""

    @property
    def num_tile_tokens(self) -> int:
        return (self.vit.side // self.shuffle) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class InternVisionConfig(SquareVitConfig):
    """Vision encoder of InternVL: InternViT, which encodes each tile of an image by itself."""

    rms_norm: bool
    """True: RMSNorm, as in InternViT-6B. False: LayerNorm, as in InternViT-300M."""
    qkv_bias: bool
    """The projections of queries, keys and values have a bias."""
    query_key_norms: bool
    """Queries and keys are normalized, all heads together (InternViT-6B)."""
    shuffle: int
    """Patches along each side of a square that becomes one token."""
    max_batch_tiles: int = 16
    """Most tiles encoded at once, which bounds the memory of hidden states."""

    @property
    def num_tile_tokens(self) -> int:
        return (self.side // self.shuffle) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class FlexVisionConfig:
    """Vision encoder of LFM2-VL: SigLIP2 for images of any size (arXiv 2502.14786), and a projection of squares."""

    vit: VitConfig
    """The encoder, whose `image_size` only says how many positions are learned."""
    shuffle: int
    """Patches along each side of a square that becomes one token."""
    projector_size: int
    """Width inside the projection."""
    projector_norm: bool
    """Squares are normalized before the projection."""
    projector_bias: bool
    max_batch_tiles: int = 4
    """Most tiles encoded at once, which bounds the memory of hidden states."""

    def num_tokens(self, rows: int, columns: int) -> int:
        """Returns the tokens of so many rows and columns of patches."""
        return (rows // self.shuffle) * (columns // self.shuffle)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedVisionConfig:
    """Vision encoder of MiniCPM-V 4.6, which merges patches twice: each square of 2² among its layers, and each square
    of what that leaves after them."""

    vit: VitConfig
    """The encoder, whose `image_size` only says how many positions are learned."""
    num_layers_before: int
    """Layers before the first merger."""
    max_batch_slices: int = 9
    """Most slices encoded at once, which bounds the memory of hidden states."""

    @staticmethod
    def num_tokens(rows: int, columns: int) -> int:
        """Returns the tokens of so many rows and columns of patches."""
        return rows * columns // MERGED_SIDE**2


@dataclass(frozen=True, slots=True, kw_only=True)
class ResampledVisionConfig:
    """Vision encoder of MiniCPM-V, which encodes the slices of an image, each to equally many tokens."""

    vit: VitConfig
    """The encoder, whose `image_size` only says how many positions are learned."""
    num_queries: int
    """Placeholder tokens of a slice."""
    num_heads: int
    """Heads of the resampler's attention."""
    max_batch_slices: int = 9
    """Most slices encoded at once, which bounds the memory of hidden states."""
    max_packed_frames: int = 1
    """Most frames of a video that become the tokens of one slice; with more than one, the encoder reads their times."""

    def num_packs(self, grid: tuple[int, ...]) -> int:
        """Returns how many times a video of this grid, that of `ScaledFrames`, has the tokens of a slice."""
        num_frames, _, _, *times = grid
        return -(-num_frames // times[0]) if times else num_frames


@dataclass(frozen=True, slots=True, kw_only=True)
class HdVisionConfig:
    """Vision encoder of Phi-3-vision: the tiles of an image and an overview, in lines that end with a separator."""

    vit: VitConfig
    max_batch_tiles: int = 16
    """Most tiles encoded at once, which bounds the memory of hidden states."""

    @property
    def side(self) -> int:
        """Tokens along each side of a tile: each is a square of 2 by 2 patches."""
        return self.vit.side // 2

    def num_tokens(self, rows: int, columns: int) -> int:
        """Returns the tokens of an image with this grid of tiles: its lines, a separator, and those of the overview."""
        lines, line = rows * self.side, columns * self.side + 1
        return lines * line + 1 + self.side * (self.side + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamConfig:
    """The encoder of Segment Anything (arXiv 2304.02643), and convolutions that make a position of 4² patches."""

    width: int
    intermediate_size: int
    """Width inside the MLPs."""
    num_layers: int
    num_heads: int
    position_side: int
    """Side of the square grid of learned positions."""
    patch_size: int
    """Side of a patch in pixels."""
    window: int
    """Side in patches of the windows within which most layers attend."""
    full_attention_layers: frozenset[int]
    """Indices of the layers that attend to all patches."""
    channels: tuple[int, int, int]
    """Channels after the neck, and after each of the two convolutions that halve height and width."""
    qkv_bias: bool
    norm_eps: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PageVisionConfig:
    """Vision encoder of DeepSeek-OCR-2: SAM's, and a transformer that makes as many tokens of its positions in the
    order in which they are read. It encodes the tiles of an image and an overview."""

    sam: SamConfig
    width: int
    """Width of the transformer, which is that of SAM's output."""
    intermediate_size: int
    """Width inside the transformer's MLPs."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    norm_eps: float
    rope_theta: float
    tile_side: ClassVar[int] = 12
    """The square root of a tile's tokens."""
    overview_side: ClassVar[int] = 16
    """The square root of an overview's tokens."""
    max_batch_tiles: int = 2
    """Most tiles encoded at once, which bounds the memory of hidden states."""

    def num_tokens(self, num_tiles: int) -> int:
        """Returns the tokens of an image: those of its tiles and of the overview, and one more."""
        return num_tiles * self.tile_side**2 + self.overview_side**2 + 1

    def pixels(self, side: int) -> int:
        """Returns the side in pixels of a square with side² tokens."""
        return side * SAM_REDUCTION * self.sam.patch_size


@dataclass(frozen=True, slots=True, kw_only=True)
class AudioConfig:
    """Whisper's encoder, as in Qwen2-Audio."""

    num_mel_bins: int
    width: int
    intermediate_size: int
    """Width inside the MLPs."""
    num_layers: int
    num_heads: int
    max_positions: int
    """Most positions of an input: a position is two mel frames. In Qwen2-Audio a token is two positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UltravoxConfig:
    """Audio encoder of Ultravox: Whisper's, on chunks of audio, and a projection of stacked positions."""

    audio: AudioConfig
    stack_factor: int
    """Positions of the encoder that become one token."""
    projector_size: int
    """Width inside the projection, gates included."""
    norm_mid: bool
    """The projection's second norm precedes its last product, as since v0.5, instead of following it."""

    @property
    def chunk_frames(self) -> int:
        """Most mel frames that are encoded at once; longer audio is cut."""
        return 2 * self.audio.max_positions

    def num_tokens(self, num_frames: int) -> int:
        """Returns the tokens of an audio input. Each chunk has tokens of its own, the last ones of which are padded."""
        num_chunks, rest = divmod(num_frames, self.chunk_frames)
        stacked = 2 * self.stack_factor
        return num_chunks * -(-self.chunk_frames // stacked) + -(-rest // stacked)


@dataclass(frozen=True, slots=True, kw_only=True)
class LlavaConfig:
    """Vision encoder of LLaVA-1.5: a vision transformer and a projection of two layers."""

    vit: VitConfig
    drops_first: bool
    """The features of the first position, the class token, are left out."""
    projector_bias: bool

    @property
    def num_tokens(self) -> int:
        return self.vit.num_positions - self.drops_first


@dataclass(frozen=True, slots=True, kw_only=True)
class LlavaOneVisionConfig:
    """Vision encoder of LLaVA-OneVision and LLaVA-NeXT: LLaVA's, on the tiles of an image or the frames of a video."""

    tower: LlavaConfig
    resolutions: tuple[tuple[int, int], ...]
    """(height, width) in pixels of the images that are cut into tiles."""
    max_tiles: int
    """The features of an image with more tiles are reduced to about as many as this many tiles have."""

    @property
    def video_side(self) -> int:
        """Tokens along each side of a video's frame."""
        return -(-self.tower.vit.side // 2)

    def reduced(self, rows: int, columns: int) -> tuple[int, int]:
        """Returns the rows and columns of an image's features, from those of its patches without padding."""
        ratio = math.sqrt(rows * columns / (self.max_tiles * self.tower.vit.side**2))
        return (int(rows // ratio), int(columns // ratio)) if ratio > 1.1 else (rows, columns)

    def num_image_tokens(self, grid: tuple[int, ...]) -> int:
        """Returns the tokens of an image: those of the overview, and one more than its columns for each row.

        Args:
            grid: rows of tiles, tiles in a row, and rows and columns of patches without padding. All are 0 for an image
                that is its overview alone, which one token follows.
        """
        tiles, _, rows, columns = grid
        if not tiles:
            return self.tower.num_tokens + 1
        rows, columns = self.reduced(rows, columns)
        return self.tower.num_tokens + rows * (columns + 1)

    def num_video_tokens(self, num_frames: int) -> int:
        """Returns the tokens of a video: those of its frames, and one after the last."""
        return num_frames * self.video_side**2 + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma3VisionConfig:
    """Vision encoder of Gemma 3: a vision transformer whose features are averaged over squares and projected."""

    vit: VitConfig
    side: int
    """Tokens along each side of an image."""
    start_token_id: int
    """Token before those of an image."""
    end_token_id: int
    """Token after those of an image."""

    @property
    def num_tokens(self) -> int:
        """Placeholder tokens of an image."""
        return self.side**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4AudioConfig:
    """Audio encoder of Gemma 4: a Conformer (arXiv 2005.08100) over positions of four mel frames each."""

    num_mel_bins: int
    width: int
    output_width: int
    num_layers: int
    num_heads: int
    channels: tuple[int, int]
    """Channels of the two convolutions that make positions of frames."""
    kernel_size: int
    """Positions that the convolution in a layer reads."""
    window: int
    """Positions that each attends to: itself and those before it."""
    logit_cap: float
    residual_factor: float
    """What the outputs of MLPs are multiplied by."""
    norm_eps: float
    clipped: bool
    """See `Gemma4VisionConfig`."""
    start_token_id: int
    """Token before an audio input's tokens."""
    end_token_id: int

    @staticmethod
    def num_tokens(num_frames: int) -> int:
        """Returns how many tokens an audio input of so many mel frames has."""
        return -(-num_frames // 4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4VisionConfig:
    """Vision encoder of Gemma 4: patches of images of any size, of which each square becomes one token."""

    width: int
    intermediate_size: int
    """Width inside the MLPs."""
    num_layers: int
    num_heads: int
    head_dim: int
    patch_size: int
    """Side of a patch in pixels."""
    pool_size: int
    """Patches along each side of a square that becomes one token."""
    num_positions: int
    """Learned positions of rows, and as many of columns."""
    norm_eps: float
    rope_theta: float
    """Base of the rotary wavelengths of rows and of columns."""
    clipped: bool
    """The inputs and outputs of products are clipped to bounds in the checkpoint."""
    standardizes: bool
    """The outputs are standardized by statistics in the checkpoint."""
    start_token_id: int
    """Token before an image's tokens."""
    end_token_id: int
    audio: Gemma4AudioConfig | None = None
    """The encoder of audio beside it, if the model hears."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaveConfig:
    """Audio of Gemma 4 12B, whose samples are the values of tokens."""

    width: int
    """Samples of a token."""
    norm_eps: float
    start_token_id: int
    """Token before an audio input's tokens."""
    end_token_id: int

    @staticmethod
    def num_tokens(num_frames: int) -> int:
        """Returns how many tokens an audio input has, of so many groups of samples."""
        return num_frames


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelsConfig:
    """Images of Gemma 4 12B, which has no encoder: each square of pixels becomes one token."""

    width: int
    """Values of a token before the last projection."""
    patch_size: int
    """Side in pixels of a patch, as for `Gemma4VisionConfig`."""
    pool_size: int
    """Patches along each side of a square that becomes one token."""
    num_positions: int
    """Learned positions of rows, and as many of columns."""
    norm_eps: float
    start_token_id: int
    """Token before an image's tokens."""
    end_token_id: int
    audio: WaveConfig | None = None
    """Audio beside the images, if the model hears."""


EncoderConfig: TypeAlias = (
    VitConfig
    | VisionConfig
    | TiledVisionConfig
    | LlavaConfig
    | LlavaOneVisionConfig
    | InternVisionConfig
    | Gemma3VisionConfig
    | Gemma4VisionConfig
    | PixelsConfig
    | ResampledVisionConfig
    | MergedVisionConfig
    | FlexVisionConfig
    | HdVisionConfig
    | PageVisionConfig
    | AudioConfig
    | UltravoxConfig
)
