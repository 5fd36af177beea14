"""Requests about videos."""

from typing import Any

import PIL.Image

from glimpse.v1 import chat_pb2, content_pb2
from tests.media.images import encode
from tests.media.videos import greys, video
from tests.server.requests import request, user, video_part

SMALL = {"min_pixels": 784, "max_pixels": 56 * 56}


VIDEO = video(greys(20))
"""Two seconds, 64×48 pixels."""


PNGS = [encode(PIL.Image.fromarray(frame), "PNG") for frame in greys(4)]


def about_a_video(data: bytes = VIDEO, **options: Any) -> chat_pb2.CreateChatCompletionRequest:
    return request(user("What happens?", video_part(data, **SMALL, **options)))


def about_frames(files: list[bytes], **options: Any) -> chat_pb2.CreateChatCompletionRequest:
    frames = content_pb2.FrameList(frames=[content_pb2.MediaSource(data=file) for file in files])
    part = content_pb2.ContentPart(video=content_pb2.VideoPart(frames=frames, **SMALL, **options))
    return request(user("What happens?", part))
