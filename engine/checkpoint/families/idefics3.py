"""Idefics3 (arXiv 2408.12637), and SmolVLM and SmolVLM2 (arXiv 2504.05299), which have its architecture."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from glimpse.engine.checkpoint.families.idefics3_media import read_images, read_images_and_videos
from glimpse.engine.checkpoint.families.reading.rows import whole
from glimpse.engine.checkpoint.families.reading.vit import vit_config
from glimpse.engine.checkpoint.families.spec import FamilyConfig, FamilySpec, LargestMedium
from glimpse.engine.checkpoint.families.text import nested_decoder, nested_eos_token_ids
from glimpse.engine.checkpoint.families.token_layout import LayoutContext, Piece, TokenLayout, around_runs
from glimpse.engine.checkpoint.model_config.encoders import TiledVisionConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.errors import CheckpointError
from glimpse.media.kind import MediaKind
from glimpse.media.processing.video import Video

if TYPE_CHECKING:
    from glimpse.media.medium import Medium

_IMAGE, _VIDEO = "<image>", "<video>"
_EDGE, _OVERVIEW = "<fake_token_around_image>", "<global-img>"
_DEFAULT_FPS = 24
"""For frames without times, as in the reference."""
_MAX_SECONDS = 100 * 3600 - 1
"""Requests may set any frame rate, and files any time; a later one would have many digits."""

_TEMPLATE = """\
<|im_start|>\
{% for message in messages %}\
{{ message.role | capitalize }}{{ ':' if message.content[0].type == 'image' else ': ' }}\
{% for part in message.content %}\
{% if part.type == 'text' %}{{ part.text }}{% elif part.type in ('image', 'video') %}<{{ part.type }}>{% endif %}\
{% endfor %}<end_of_utterance>
{% endfor %}\
{% if add_generation_prompt %}Assistant:{% endif %}"""
"""The format of SmolVLM2. Published templates show no videos."""


def _read_config(config: Mapping[str, Any], *, videos: bool) -> FamilyConfig:
    config = _with_decoder(config)
    # Older documents name the encoder like the whole model.
    vit = vit_config({**config.get("vision_config", {}), "model_type": "idefics3_vision"})
    shuffle = config.get("scale_factor", 2)
    if vit.side % shuffle:
        raise CheckpointError(
            f"config.json: 'scale_factor': expected a divisor of {vit.side} patches on each side, got {shuffle}"
        )
    image_id = config["image_token_id"]
    return FamilyConfig(
        text=nested_decoder(config),
        encoder=TiledVisionConfig(vit=vit, shuffle=shuffle),
        placeholder_ids={"image": image_id, "video": image_id} if videos else {"image": image_id},
        placeholder_texts={"video": _VIDEO} if videos else {},
        eos_token_ids=nested_eos_token_ids(config),
    )


def _with_decoder(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the document with its decoder as transformers reads it: Llama's, unless it says another, whose output
    head is tied only if the whole document says so."""
    return {**config, "text_config": {"model_type": "llama", **config["text_config"], "tie_word_embeddings": False}}


def _layout(medium: "Medium", context: LayoutContext) -> TokenLayout:
    """Returns the tokens of an image or video, from the text that the reference writes in its place
    (transformers, models/smolvlm/processing_smolvlm.py)."""
    if isinstance(medium, Video):
        intro, *frames = _video_texts(medium)
        return TokenLayout(kind=medium.kind, pieces=_pieces("".join(frames), context), leading=intro, trailing="\n\n")
    rows, columns = medium.grid[:2]
    return TokenLayout(kind=medium.kind, pieces=_pieces(_image_text(rows, columns), context))


def _embedding_grid(config: ModelConfig, _kind: MediaKind, num_rows: int) -> tuple[int, ...] | None:
    """Returns the grid of an overview alone; the size of an image arranges tiles, whose text says their places."""
    return (0, 0) if whole(num_rows, config.encoder_as(TiledVisionConfig).num_tile_tokens, "tile") == 1 else None


def _image_text(rows: int, columns: int) -> str:
    """Returns the text of an image: its tiles row by row, then its overview."""
    overview = f"{_EDGE}{_OVERVIEW}{_IMAGE}{_EDGE}"
    if not rows:
        return overview
    lines = (
        "".join(f"{_EDGE}<row_{row}_col_{column}>{_IMAGE}" for column in range(1, columns + 1)) + "\n"
        for row in range(1, rows + 1)
    )
    return f"{''.join(lines)}\n{overview}"


def _video_texts(video: Video) -> list[str]:
    """Returns the text before the first frame, and the text of each frame with that before the next one."""
    num_frames = len(video.pixels)
    seconds = [int(time) for time in video.times(_DEFAULT_FPS, _MAX_SECONDS)]
    whole = seconds[-1] if video.duration_seconds is None else video.duration_seconds
    duration = timedelta(seconds=int(min(whole, _MAX_SECONDS)))
    intro = (
        f"You are provided the following series of {in_words(num_frames)} frames from a {duration} [H:MM:SS] video.\n"
    )
    stamps = [f"\nFrame from {each // 60:02d}:{each % 60:02d}:" for each in seconds]
    return [intro + stamps[0], *(_image_text(0, 0) + stamp for stamp in (*stamps[1:], ""))]


def _pieces(text: str, context: LayoutContext) -> tuple[Piece, ...]:
    """Returns the pieces of a text in which each `<image>` stands for the placeholder tokens of a tile."""
    num_tokens = context.model.encoder_as(TiledVisionConfig).num_tile_tokens
    return around_runs(map(context.encode, text.split(_IMAGE)), num_tokens)


def _largest_medium(config: ModelConfig, num_tokens: int) -> LargestMedium:
    """Returns an image of about `num_tokens` tokens."""
    encoder = config.encoder_as(TiledVisionConfig)
    num_tiles = max(1, num_tokens // encoder.num_tile_tokens)
    return LargestMedium.of_tiles(encoder.vit, num_tiles, grid=(1, num_tiles), max_batch_tiles=encoder.max_batch_tiles)


IDEFICS3 = FamilySpec(
    read_config=partial(_read_config, videos=False),
    module="idefics3",
    fallback_template=_TEMPLATE,
    slots_in_lines=False,
    read_media=read_images,
    layout=_layout,
    largest_medium=_largest_medium,
    embedding_grid=_embedding_grid,
    embedding_kinds=frozenset({MediaKind.IMAGE}),  # those of videos have no times
)
SMOLVLM = replace(
    IDEFICS3,
    read_config=partial(_read_config, videos=True),
    video_template=_TEMPLATE,
    read_media=read_images_and_videos,
)


_WORDS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
    " eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety"
)
_SMALL, _TENS = _WORDS.split()[:20], _WORDS.split()[20:]


def in_words(number: int) -> str:
    """Returns a number from 0 to 999, such as "three hundred and sixty-five", as the library num2words spells it."""
    if number < 20:
        return _SMALL[number]
    if number < 100:
        tens, ones = divmod(number, 10)
        return _TENS[tens - 2] + (f"-{_SMALL[ones]}" if ones else "")
    hundreds, rest = divmod(number, 100)
    return f"{_SMALL[hundreds]} hundred" + (f" and {in_words(rest)}" if rest else "")
