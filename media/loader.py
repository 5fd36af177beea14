"""Sources → media that are ready for the engine. Knows limits of time and bytes, not formats.

A medium is known by the hashes of its files and by how they are processed: one that is kept is not decoded again.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeVar

import PIL.Image

from glimpse.media.cache.memory_budget import MemoryBudget
from glimpse.media.cache.request_media import Batch, MediaUsage
from glimpse.media.cache.store import MediaStore, NamedMedia
from glimpse.media.decoding.decoders import Decoders
from glimpse.media.decoding.video_frames import sample_frame_indices, video_from_images
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.key import decoded_key
from glimpse.media.processing.audio import Audio, AudioProcessing, audio_from_array
from glimpse.media.processing.image import Image, ImageProcessing, prepare_image
from glimpse.media.processing.rgb import Colour
from glimpse.media.processing.video import Video, VideoProcessing
from glimpse.media.processing.video_options import VideoOptions, check_options
from glimpse.media.sources.decoded import AudioSamples, DecodedFrames
from glimpse.media.sources.files import FileLimits, FileLoader, MediaReference, SourceFiles, not_cached
from glimpse.media.sources.local import LocalFiles
from glimpse.media.sources.policy import FetchPolicy
from glimpse.media.sources.source import (
    DEFAULT_MAX_BYTES,
    DEFAULT_MAX_VIDEO_BYTES,
    AudioOrCached,
    CachedSource,
    FrameSources,
    ImageOrCached,
    Source,
    VideoOrCached,
)
from glimpse.media.sources.uploads import Uploads

MediumT = TypeVar("MediumT", Image, Video, Audio)

_IMAGE = "picture"
_VIDEO = "clip"
_AUDIO = "sound"


class MediaLoader:
    """Loads the media of all requests, of one event loop.

    A task that awaits a load may be cancelled at any time: a fetch that nobody else waits for stops at once, and
    decoding as `Decoders` says.
    """

    def __init__(
        self,
        *,
        processing: ImageProcessing,
        video_processing: VideoProcessing,
        audio_processing: AudioProcessing | None = None,
        policy: FetchPolicy,
        decoders: Decoders,
        local: LocalFiles | None = None,
        store: MediaStore | None = None,
        uploads: Uploads | None = None,
        memory_budget: MemoryBudget | None = None,
        image_timeout_seconds: float = 5.0,
        video_timeout_seconds: float = 30.0,
        audio_timeout_seconds: float = 10.0,
        max_image_bytes: int = DEFAULT_MAX_BYTES,
        max_audio_bytes: int = DEFAULT_MAX_BYTES,
        max_video_bytes: int = DEFAULT_MAX_VIDEO_BYTES,
        max_fetches: int = 32,
    ) -> None:
        """Sets the limits.

        Args:
            processing: How the checkpoint wants its pictures.
            video_processing: How it wants its clips.
            audio_processing: How it wants its sounds; without it they are refused.
            policy: From where media may be fetched.
            decoders: What makes media of files; closed with the loader.
            local: The files of this host that clients may name; without it there are none.
            store: Keeps media between requests; without one nothing is kept.
            uploads: Where uploads are; without it there are none.
            memory_budget: Bounds what requests hold in memory; without it nothing does.
            image_timeout_seconds: For fetching one picture.
            video_timeout_seconds: For fetching one clip, all of its frames together where they are pictures.
            audio_timeout_seconds: For fetching one sound.
            max_image_bytes: The largest file of a picture.
            max_audio_bytes: The largest file of a sound.
            max_video_bytes: The largest file of a clip, and the most that the pictures of one may have together.
            max_fetches: Fetches at the same time; further ones wait.
        """
        self._processing = processing
        self._video_processing = video_processing
        self._audio_processing = audio_processing
        self._decoders = decoders
        self._store = store or MediaStore(max_bytes=0)
        self._in_flight = memory_budget or MemoryBudget()
        self._files = FileLoader(
            policy=policy,
            local=local,
            store=self._store,
            uploads=uploads or Uploads(max_bytes=0, ttl_seconds=0, memory_budget=self._in_flight),
            memory_budget=self._in_flight,
            max_fetches=max_fetches,
        )
        self._image_limits = FileLimits(max_bytes=max_image_bytes, timeout_seconds=image_timeout_seconds)
        self._video_limits = FileLimits(max_bytes=max_video_bytes, timeout_seconds=video_timeout_seconds)
        self._audio_limits = FileLimits(max_bytes=max_audio_bytes, timeout_seconds=audio_timeout_seconds)

    @contextmanager
    def batch(self, namespace: str = "") -> Generator[Batch]:
        """The media of one request, which hold their memory until the block ends; `namespace` is whose they are."""
        with self._in_flight.reservation() as reservation:
            yield Batch(namespace=namespace, reservation=reservation, usage=MediaUsage())

    async def load_image(
        self,
        source: ImageOrCached | PIL.Image.Image,
        *,
        batch: Batch | None = None,
        uuid: str | None = None,
        min_pixels: int | None = None,
        max_pixels: int | None = None,
        background: Colour | None = None,
    ) -> Image:
        """Loads a picture.

        Args:
            source: where it is, or the decoded image.
            batch: its request's; None: it is a request by itself.
            uuid: the client's name for it.
            min_pixels: in the place of the checkpoint's bound.
            max_pixels: in the place of the checkpoint's bound.
            background: in the place of the loader's.

        Raises:
            MediaError: whatever is wrong with it.
        """
        processing = self._processing.with_options(min_pixels=min_pixels, max_pixels=max_pixels, background=background)
        with self._within(batch) as own:
            if isinstance(source, PIL.Image.Image):
                return await self._prepare_image(source, processing, uuid, own)
            return await self._load_image(source, processing, uuid, own)

    async def load_video(
        self,
        source: VideoOrCached | DecodedFrames,
        options: VideoOptions,
        *,
        batch: Batch | None = None,
        uuid: str | None = None,
    ) -> Video:
        """Loads a clip, a file or frames; the arguments are as in `load_image`.

        Raises:
            MediaError: whatever is wrong with it.
        """
        with self._within(batch) as own:
            return await self._load_video(source, options, uuid, own)

    async def load_audio(
        self, source: AudioOrCached | AudioSamples, *, batch: Batch | None = None, uuid: str | None = None
    ) -> Audio:
        """Loads a sound; the arguments are as in `load_image`.

        Raises:
            MediaError: whatever is wrong with it, or the model takes none.
        """
        if self._audio_processing is None:
            raise MediaError(MediaErrorCode.INVALID_PARAMETER, "the model takes no audio")
        with self._within(batch) as own:
            if isinstance(source, AudioSamples):
                return await self._prepare_audio(source, self._audio_processing, uuid, own)
            return await self._load_audio(source, self._audio_processing, uuid, own)

    async def warm(self) -> None:
        """Readies what the first picture would have to wait for."""
        await self._decoders.warm()

    async def close(self) -> None:
        """Closes the decoders."""
        await self._decoders.close()

    def _within(self, batch: Batch | None) -> AbstractContextManager[Batch]:
        return self.batch() if batch is None else nullcontext(batch)

    async def _load_image(
        self, source: ImageOrCached, processing: ImageProcessing, uuid: str | None, batch: Batch
    ) -> Image:
        files = await self._one(source, _IMAGE, uuid, self._image_limits, batch)
        key = _image_key(files.digests, processing, batch)

        async def decode(data: Sequence[bytes]) -> Image:
            return await self._decoders.image(data[0], processing)

        return await self._decoded(key, files, decode, _IMAGE, batch)

    async def _load_audio(
        self, source: AudioOrCached, processing: AudioProcessing, uuid: str | None, batch: Batch
    ) -> Audio:
        files = await self._one(source, _AUDIO, uuid, self._audio_limits, batch)
        key = _audio_key(files.digests, processing, batch)

        async def decode(data: Sequence[bytes]) -> Audio:
            return await self._decoders.audio(data[0], processing)

        return await self._decoded(key, files, decode, _AUDIO, batch)

    async def _prepare_image(
        self, image: PIL.Image.Image, processing: ImageProcessing, uuid: str | None, batch: Batch
    ) -> Image:
        prepared = await asyncio.to_thread(prepare_image, image, processing)
        key = _image_key((prepared.key,), processing, batch)
        self._cache(key, prepared, _IMAGE, uuid, NamedMedia(files={0: prepared.key}, num_frames=None, url=None), batch)
        return prepared

    async def _prepare_video(
        self, source: DecodedFrames, options: VideoOptions, uuid: str | None, batch: Batch
    ) -> Video:
        processing, indices = self._video_processing, self._frame_indices(len(source.frames), options)
        video = await asyncio.to_thread(video_from_images, source.pick(indices), indices, processing, options)
        key = _frames_key((video.key,) * len(indices), indices, processing, options, batch)
        named = NamedMedia(files=dict.fromkeys(indices, video.key), num_frames=len(source.frames), url=None)
        self._cache(key, video, _VIDEO, uuid, named, batch)
        return video

    async def _prepare_audio(
        self, source: AudioSamples, processing: AudioProcessing, uuid: str | None, batch: Batch
    ) -> Audio:
        audio = await asyncio.to_thread(audio_from_array, source.array, source.rate, processing)
        key = _audio_key((audio.key,), processing, batch)
        self._cache(key, audio, _AUDIO, uuid, NamedMedia(files={0: audio.key}, num_frames=None, url=None), batch)
        return audio

    async def _one(
        self, source: Source | CachedSource, kind: str, uuid: str | None, limits: FileLimits, batch: Batch
    ) -> SourceFiles:
        """The file of a medium that is one."""
        if isinstance(source, CachedSource):
            return self._files.kept(self._files.named(source, kind, batch), [0], kind, batch)
        return await self._files.one(source, MediaReference(kind=kind, uuid=uuid), limits, batch)

    async def _load_video(
        self, source: VideoOrCached | DecodedFrames, options: VideoOptions, uuid: str | None, batch: Batch
    ) -> Video:
        label = MediaReference(kind=_VIDEO, uuid=uuid)
        match source:
            case DecodedFrames():
                return await self._prepare_video(source, options, uuid, batch)
            case CachedSource():
                return await self._named_video(source, options, batch)
            case FrameSources(frames=frames):
                frame_indices = self._frame_indices(len(frames), options)
                files = await self._files.frames(
                    frames, frame_indices, label, each=self._image_limits, together=self._video_limits, batch=batch
                )
                return await self._video_of_frames(files, frame_indices, options, batch)
            case _:
                check_options(options, of_frames=False)
                files = await self._files.one(source, label, self._video_limits, batch)
                return await self._video_of_file(files, options, batch)

    async def _named_video(self, source: CachedSource, options: VideoOptions, batch: Batch) -> Video:
        named = self._files.named(source, _VIDEO, batch)
        if named.num_frames is None:
            check_options(options, of_frames=False)
            return await self._video_of_file(self._files.kept(named, [0], _VIDEO, batch), options, batch)
        frame_indices = self._frame_indices(named.num_frames, options)
        return await self._video_of_frames(
            self._files.kept(named, frame_indices, _VIDEO, batch), frame_indices, options, batch
        )

    async def _video_of_file(self, files: SourceFiles, options: VideoOptions, batch: Batch) -> Video:
        key = decoded_key(batch.namespace, "video", files.digests, self._video_processing, options)

        async def decode(data: Sequence[bytes]) -> Video:
            return await self._decoders.video_from_file(data[0], self._video_processing, options)

        return await self._decoded(key, files, decode, _VIDEO, batch)

    async def _video_of_frames(
        self, files: SourceFiles, frame_indices: Sequence[int], options: VideoOptions, batch: Batch
    ) -> Video:
        key = _frames_key(files.digests, frame_indices, self._video_processing, options, batch)

        async def decode(data: Sequence[bytes]) -> Video:
            return await self._decoders.video_from_image_files(data, frame_indices, self._video_processing, options)

        return await self._decoded(key, files, decode, _VIDEO, batch)

    async def _decoded(
        self,
        key: bytes,
        files: SourceFiles,
        decode: Callable[[Sequence[bytes]], Coroutine[Any, Any, MediumT]],
        kind: str,
        batch: Batch,
    ) -> MediumT:
        """What `decode` makes of the files, or has made of them before; held by the request instead of its files."""
        if files.data is None and self._store.cached_medium(key) is None:
            raise not_cached(kind)
        with batch.decoding():
            got = await self._store.decoded(key, partial(decode, files.data or ()), _num_bytes)
        batch.count_decoding(is_cache_hit=got.is_cache_hit)
        self._files.name(files, batch)
        batch.reservation.give(files.num_bytes)
        batch.reservation.take_shared(got.value, _num_bytes(got.value))
        return got.value

    def _cache(
        self, key: bytes, medium: Image | Video | Audio, kind: str, uuid: str | None, named: NamedMedia, batch: Batch
    ) -> None:
        """Caches a medium without files under its uuid, with its own key in place of its files' digests."""
        if uuid is not None:
            batch.reservation.take_shared(medium, _num_bytes(medium))
            self._store.cache_medium(key, medium, _num_bytes(medium))
            self._store.name(batch.namespace, kind, uuid, named, ())

    def _frame_indices(self, num_frames: int, options: VideoOptions) -> list[int]:
        return sample_frame_indices(num_frames, options, depth=self._video_processing.temporal_patch_size)


def _image_key(files: Sequence[bytes], processing: ImageProcessing, batch: Batch) -> bytes:
    return decoded_key(batch.namespace, "image", files, processing)


def _frames_key(
    files: Sequence[bytes],
    frame_indices: Sequence[int],
    processing: VideoProcessing,
    options: VideoOptions,
    batch: Batch,
) -> bytes:
    return decoded_key(batch.namespace, "frames", files, processing, options, tuple(frame_indices))


def _audio_key(files: Sequence[bytes], processing: AudioProcessing, batch: Batch) -> bytes:
    return decoded_key(batch.namespace, "audio", files, processing)


def _num_bytes(medium: Image | Video | Audio) -> int:
    return medium.features.nbytes if isinstance(medium, Audio) else medium.pixels.nbytes
