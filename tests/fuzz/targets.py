"""Fuzz targets: functions that parse untrusted bytes. Any exception that a target raises is a bug.

Invalid input raises MediaError, InvalidRequest where it is part of a request, or CheckpointError in a checkpoint.
Targets for tensors are in `tests.fuzz.tensors`.
"""

import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError

from glimpse.engine.checkpoint.gguf.architectures import MMPROJ
from glimpse.engine.checkpoint.gguf.folder import read_files
from glimpse.engine.checkpoint.gguf.header import Gguf
from glimpse.engine.checkpoint.gguf.mmproj import check_pair, read_preprocessors, with_encoder
from glimpse.engine.checkpoint.gguf.names import checkpoint_tensors
from glimpse.engine.checkpoint.gguf.projectors import projector_of
from glimpse.engine.checkpoint.grammar.lark import GrammarError
from glimpse.engine.checkpoint.text.grammar_check import check_text
from glimpse.engine.errors import CheckpointError
from glimpse.media.containers.mp4 import checked_mp4
from glimpse.media.containers.pdf import open_pdf
from glimpse.media.containers.sniff import sniff_audio, sniff_document, sniff_image, sniff_video
from glimpse.media.containers.still import open_image
from glimpse.media.containers.video import open_video
from glimpse.media.decoding.animation_file import is_image_file
from glimpse.media.decoding.audio_file import samples_from_file
from glimpse.media.decoding.video_file import video_from_file
from glimpse.media.errors import MediaError
from glimpse.media.processing.audio import AudioProcessing
from glimpse.media.processing.image import ImageProcessing, image_pixels
from glimpse.media.processing.sizing.smart_frames import SmartFrames
from glimpse.media.processing.sizing.smart_resize import SmartResize
from glimpse.media.processing.video import VideoProcessing
from glimpse.media.processing.video_options import VideoOptions
from glimpse.media.sources.policy import FetchPolicy, check_url
from glimpse.media.sources.source import UrlSource, parse_url_text, parse_video_text
from glimpse.server.errors import InvalidRequest
from glimpse.server.parse.message_types.described_type import DescribedType
from glimpse.server.rpc.form_parser import FormParser
from tests.hostile import gguf_files
from tests.hostile.forms import FORM

MAX_INPUT_BYTES = 1 << 14

_MAX_PIXELS = 1 << 16
"""Limit of decoded pixels: fuzzing is most effective with many small inputs."""
_IMAGES = ImageProcessing(
    sizing=SmartResize(patch_size=14, merge_size=2, temporal_patch_size=2, min_pixels=784, max_pixels=16 * 784)
)
_VIDEOS = VideoProcessing(
    sizing=SmartFrames(
        patch_size=14, merge_size=2, temporal_patch_size=2, min_pixels=784, max_pixels=4 * 784, total_pixels=64 * 784
    )
)
_AUDIOS = AudioProcessing(sampling_rate=16_000, num_mel_bins=80, fft_size=400, hop=160, max_samples=16_000)


class ContractViolationError(Exception):
    """A function returned a value that violates its contract."""


def fuzz_source(data: bytes) -> None:
    """Parses URLs, data URLs and base64, and checks URLs against the fetch policy."""
    text = data.decode(errors="replace")
    with suppress(MediaError):
        source = parse_url_text(text, max_bytes=1 << 12)
        if isinstance(source, UrlSource):
            if source.url.scheme not in ("http", "https") or not source.url.raw_host:
                raise ContractViolationError(source)
            check_url(source.url, FetchPolicy())
    with suppress(MediaError):
        parse_video_text("data:video/jpeg;base64," + text, max_bytes=1 << 12)


def fuzz_sniff(data: bytes) -> None:
    """Detects formats by their first bytes."""
    for sniff in (sniff_image, sniff_video, sniff_audio, sniff_document):
        with suppress(MediaError):
            sniff(data)


def fuzz_image(data: bytes) -> None:
    """Reads headers, pixels and EXIF of images."""
    with suppress(MediaError):
        pixels, _ = image_pixels(open_image(data, max_pixels=_MAX_PIXELS), _IMAGES)
        if pixels.shape[2] != 3 or pixels.size > 3 * 32 * 784:
            raise ContractViolationError(pixels.shape)


def fuzz_mp4(data: bytes) -> None:
    """Checks the index of MP4 files, as is done before demuxing."""
    for kind in (b"soun", b"vide"):
        with suppress(MediaError):
            if len(checked_mp4(data, hidden_kind=kind).getvalue()) != len(data):
                raise ContractViolationError


def fuzz_video(data: bytes) -> None:
    """Reads headers of videos and the times of their frames."""
    with suppress(MediaError), open_video(data, max_pixels=_MAX_PIXELS) as video:
        times = video.frame_times()
        if not times.times or not times.keyframes or list(times.times) != sorted(times.times):
            raise ContractViolationError(times)


def fuzz_prepared_video(data: bytes) -> None:
    """Decodes four frames of videos."""
    with suppress(MediaError):
        video_from_file(data, _VIDEOS, VideoOptions(num_frames=4))


def fuzz_animation(data: bytes) -> None:
    """Decodes four frames of animated images."""
    if is_image_file(data):
        fuzz_prepared_video(data)


def fuzz_audio(data: bytes) -> None:
    """Decodes the first second of audio files."""
    with suppress(MediaError):
        if len(samples_from_file(data, _AUDIOS)) > _AUDIOS.max_samples:
            raise ContractViolationError


def fuzz_form(data: bytes) -> None:
    """Parses forms in two pieces."""
    parser, num_bytes = FormParser(FORM), 0
    with suppress(InvalidRequest):
        for piece in (data[: len(data) // 2], data[len(data) // 2 :]):
            for event in parser.feed(piece):
                num_bytes += len(event if isinstance(event, bytes) else event.name)
        parser.close()
    if num_bytes > len(data):
        raise ContractViolationError(num_bytes)


def fuzz_message_type(data: bytes) -> None:
    """Reads descriptors of message types, and an empty message of each."""
    names = [""]
    with suppress(DecodeError):
        files = FileDescriptorSet.FromString(data).file
        names += [f"{file.package}.{each.name}".lstrip(".") for file in files for each in file.message_type][:3]
    for name in names:
        with suppress(InvalidRequest, GrammarError):
            reader = DescribedType(name=name, files=data).reader("field")
            if unenforced := check_text(reader.grammar).unenforced:
                raise ContractViolationError(unenforced)
            with suppress(ValueError):
                reader.read("{}")


def read_encoder(mmproj: Gguf, file: Path) -> dict[str, Any]:
    """Returns what `config.json` says of a model with this encoder, whose decoder is written into the file."""
    projector = projector_of(mmproj)
    architecture = next(iter(projector.architectures)) if projector else "llama"
    placeholders = projector.placeholders.values() if projector else ()
    file.write_bytes(gguf_files.decoder(architecture, [each[0] for each in placeholders] or ["a"]))
    check_pair(text := Gguf(file), mmproj)
    read_preprocessors(mmproj)
    return with_encoder({"rope_scaling": None, "rope_theta": 1e4, "head_dim": 8}, text, mmproj)


def fuzz_gguf(data: bytes) -> None:
    """Reads headers of GGUF files, and the configuration and the tokenizer in them, or the encoder's."""
    with tempfile.TemporaryDirectory() as folder, suppress(CheckpointError):
        (file := Path(folder, "model.gguf")).write_bytes(data)
        gguf = Gguf(file)
        if any(tensor.offset + tensor.num_bytes > len(data) for tensor in gguf.tensors.values()):
            raise ContractViolationError(gguf.tensors)
        if gguf.get("general.architecture") != MMPROJ:
            read_files(gguf)
            return
        checkpoint_tensors(gguf)
        read_encoder(gguf, Path(folder, "text.gguf"))


def fuzz_document(data: bytes) -> None:
    """Draws the first page of documents and reads its text."""
    with suppress(MediaError), open_pdf(data) as pdf:
        image = pdf.render(1, dpi=None, max_pixels=_MAX_PIXELS)
        text = pdf.text(1, max_characters=1000) or ""
        if image.width * image.height > _MAX_PIXELS or text != text.strip():
            raise ContractViolationError(image.size, text)
        text.encode()


TARGETS: dict[str, Callable[[bytes], None]] = {
    "source": fuzz_source,
    "sniff": fuzz_sniff,
    "image": fuzz_image,
    "mp4": fuzz_mp4,
    "video": fuzz_video,
    "prepared video": fuzz_prepared_video,
    "animation": fuzz_animation,
    "audio": fuzz_audio,
    "form": fuzz_form,
    "message type": fuzz_message_type,
    "document": fuzz_document,
    "gguf": fuzz_gguf,
}
