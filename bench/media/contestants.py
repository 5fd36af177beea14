"""The contestants of `bench.media.preprocessing`, each in a process of its own.

    python -m bench.media.contestants CONTESTANT SECONDS FILE …

Repeats one contestant's work on each file for SECONDS and writes a JSON list of `Work`. Each starts from a file's
bytes; its docstring says what it produces.
"""

import asyncio
import base64
import importlib
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import PIL.Image
import torch

from bench.serving.processes import cpu_seconds
from glimpse.engine.checkpoint.model_config.encoders import VisionConfig
from glimpse.engine.protocol.pooling_params import PoolingParams
from glimpse.engine.worker.layers.pixels import PixelStatistics, normalize
from glimpse.engine.worker.models.encoders.qwen2_vl_vision import cut_patches
from glimpse.media.containers.still import open_image
from glimpse.media.decoding.jobs import ImageJob, VideoJob
from glimpse.media.decoding.video_file import video_from_file
from glimpse.media.decoding.worker_client import IsolatedDecoders
from glimpse.media.kind import MediaKind
from glimpse.media.processing import video
from glimpse.media.processing.image import Image, ImageProcessing, prepare_image
from glimpse.media.processing.sizing.smart_resize import DEFAULT_MAX_PIXELS, DEFAULT_MIN_PIXELS, SmartResize
from glimpse.media.processing.video_options import VideoOptions
from glimpse.native.process_table import family
from glimpse.server.dialects.openai import OPENAI
from glimpse.server.parse.content import parse_conversation
from glimpse.server.served_model import ServedModel
from glimpse.v1 import chat_pb2, content_pb2

IMAGES = ImageProcessing(sizing=SmartResize())
VIDEOS = video.VideoProcessing()
MAX_DECODED_PIXELS = 64_000_000

_BOUNDS = {"min_pixels": DEFAULT_MIN_PIXELS, "max_pixels": DEFAULT_MAX_PIXELS}
_ONE_A_SECOND = VideoOptions(fps=1)
_CPU = torch.device("cpu")
_STATISTICS = PixelStatistics(mean=(0.48145466, 0.4578275, 0.40821073), std=(0.26862954, 0.26130258, 0.27577711))
_VISION = VisionConfig(
    depth=1,
    embed_dim=1,
    hidden_size=1,
    num_heads=1,
    intermediate_size=1,
    in_channels=3,
    patch_size=14,
    spatial_merge_size=2,
    temporal_patch_size=2,
)

Act = Callable[[bytes], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """The work done on one file."""

    file: str
    """Name of the file."""
    times: int
    wall_seconds: float
    cpu_seconds: float
    """CPU time of this process and its children."""


def prepared(data: bytes) -> Image:
    """Produces an image ready for the engine, with its key."""
    return prepare_image(open_image(data, max_pixels=MAX_DECODED_PIXELS), IMAGES)


def _isolated(processing: ImageProcessing = IMAGES) -> Act:
    """Produces an image or a video ready for the engine, decoded in a worker process as servers do."""
    decoders = IsolatedDecoders(num_images=1, num_videos=1, max_decoded_pixels=MAX_DECODED_PIXELS)
    runner = asyncio.Runner()

    def act(data: bytes) -> object:
        if _is_video(data):
            return runner.run(decoders.decode(VideoJob(processing=VIDEOS, options=_ONE_A_SECOND), [data]))
        return runner.run(decoders.decode(ImageJob(processing=processing), [data]))

    return act


def _in_thread() -> Act:
    """Decodes in this process, as `LLM` does."""
    return lambda data: video_from_file(data, VIDEOS, _ONE_A_SECOND) if _is_video(data) else prepared(data)


def _normalized() -> Act:
    """Produces normalized patches, as the engine does."""

    def act(data: bytes) -> object:
        image = prepared(data)
        frames, rows, columns = image.grid
        return normalize(cut_patches(image.pixels.data, (frames, rows, columns), _VISION, _CPU), _STATISTICS)

    return act


def _transformers(name: str) -> Act:
    """Produces normalized patches."""
    processor = getattr(importlib.import_module("transformers"), name)(**_BOUNDS)
    return lambda data: processor(images=[PIL.Image.open(io.BytesIO(data)).convert("RGB")], return_tensors="pt")


def _qwen_vl_utils() -> Act:
    """Produces a resized image, or a video's resized frames, before normalization."""
    utils = importlib.import_module("qwen_vl_utils.vision_process")
    path = Path(tempfile.mkdtemp(), "video.mp4")  # it reads videos from files only

    def act(data: bytes) -> object:
        if _is_video(data):
            path.write_bytes(data)
            return utils.fetch_video({"video": str(path), "fps": 1.0})
        return utils.fetch_image({"image": PIL.Image.open(io.BytesIO(data)), **_BOUNDS})

    return act


def _request_in_json() -> Act:
    """Extracts the image's bytes from a chat request in OpenAI's JSON."""
    return lambda document: _parsed(OPENAI.codec.decode(document, chat_pb2.CreateChatCompletionRequest).message)


def _request_in_proto() -> Act:
    """Extracts the image's bytes from a typed chat request."""
    return lambda message: _parsed(chat_pb2.CreateChatCompletionRequest.FromString(message))


CONTESTANTS: Mapping[str, Callable[[], Act]] = {
    "glimpse": _isolated,
    "glimpse --fast-jpeg": partial(_isolated, replace(IMAGES, fast_jpeg=True)),
    "glimpse, in a thread": _in_thread,
    "glimpse, in a thread, normalized": _normalized,
    "transformers, PIL": partial(_transformers, "Qwen2VLImageProcessorPil"),
    "transformers, torchvision": partial(_transformers, "Qwen2VLImageProcessor"),
    "qwen-vl-utils": _qwen_vl_utils,
    "base64 in JSON": _request_in_json,
    "bytes in proto": _request_in_proto,
}


def requests_about(image: bytes) -> tuple[bytes, bytes]:
    """Returns a chat request about an image, in JSON and in proto."""
    url = "data:image/jpeg;base64," + base64.b64encode(image).decode()
    parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is this?"}]
    part = content_pb2.ImagePart(source=content_pb2.MediaSource(data=image))
    content = [content_pb2.ContentPart(image=part), content_pb2.ContentPart(text="What is this?")]
    message = content_pb2.Message(role=content_pb2.ROLE_USER, content=content)
    request = chat_pb2.CreateChatCompletionRequest(messages=[message])
    return json.dumps({"messages": [{"role": "user", "content": parts}]}).encode(), request.SerializeToString()


_MODEL = ServedModel(
    names=("",), vocab_size=1, embedding_size=1, pooling=PoolingParams(), max_media=dict.fromkeys(MediaKind, 16)
)


def _parsed(request: Any) -> object:
    return parse_conversation(request.messages, _MODEL)


def _is_video(data: bytes) -> bool:
    return data[4:8] == b"ftyp"


def _measure(act: Act, path: Path, seconds: float) -> Work:
    data = path.read_bytes()
    act(data)  # what is done only once is not measured
    cpu_before, start, times = cpu_seconds(family(os.getpid())), time.perf_counter(), 0
    while times == 0 or time.perf_counter() - start < seconds:
        act(data)
        times += 1
    wall = time.perf_counter() - start
    cpu = cpu_seconds(family(os.getpid())) - cpu_before
    return Work(file=path.name, times=times, wall_seconds=wall, cpu_seconds=cpu)


def main() -> None:
    """Runs one contestant."""
    contestant, seconds, *files = sys.argv[1:]
    torch.set_num_threads(1)
    act = CONTESTANTS[contestant]()
    print(json.dumps([asdict(_measure(act, Path(file), float(seconds))) for file in files]))


if __name__ == "__main__":
    main()
