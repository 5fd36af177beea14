"""Loads media for the engine: fetches files, decodes them and caches both. Independent of file formats.

Decoded media are cached under the hashes of their files and their processing parameters.
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
from glimpse.media.kind import MediaKind
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

MediaT = TypeVar("MediaT", Image, Video, Audio)


class MediaLoader:
    """Loads the media of all requests of one event loop.

    A load may be cancelled at any time. Its fetch stops at once unless another request waits for it too; `Decoders`
    describes what happens to decoding.
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
        """
        Args:
            processing: The checkpoint's processing of images.
            video_processing: The checkpoint's processing of videos.
            audio_processing: The checkpoint's processing of audio; None refuses audio.
            policy: Rules on URLs.
            decoders: Decode files. Closed by `close`.
            local: Reads files of this host; None refuses them.
            store: Caches media between requests; None disables caching.
            uploads: Stores uploads; None disables them.
            memory_budget: Limits the memory of media in use; None sets no limit.
            image_timeout_seconds: Limit on fetching one image.
            video_timeout_seconds: Limit on fetching one video file, or all frames of a video together.
            audio_timeout_seconds: Limit on fetching one audio file.
            max_image_bytes: Limit on an image file.
            max_audio_bytes: Limit on an audio file.
            max_video_bytes: Limit on a video file, or on all frames of a video together.
            max_fetches: Number of concurrent fetches; further ones wait.
        """
        self._processing = processing
        self._video_processing = video_processing
        self._audio_processing = audio_processing
        self._decoders = decoders
        self._store = store or MediaStore(max_bytes=0)
        self._memory_budget = memory_budget or MemoryBudget()
        self._files = FileLoader(
            policy=policy,
            local=local,
            store=self._store,
            uploads=uploads or Uploads(max_bytes=0, ttl_seconds=0, memory_budget=self._memory_budget),
            memory_budget=self._memory_budget,
            max_fetches=max_fetches,
        )
        self._image_limits = FileLimits(max_bytes=max_image_bytes, timeout_seconds=image_timeout_seconds)
        self._video_limits = FileLimits(max_bytes=max_video_bytes, timeout_seconds=video_timeout_seconds)
        self._audio_limits = FileLimits(max_bytes=max_audio_bytes, timeout_seconds=audio_timeout_seconds)

    @contextmanager
    def batch(self, namespace: str = "") -> Generator[Batch]:
        """Opens a request's media. Their memory stays reserved until the block ends."""
        with self._memory_budget.reservation() as reservation:
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
        """Loads an image.

        Args:
            source: Where the image is, or the decoded image.
            batch: The request's media; None for a request of one image.
            uuid: The client's uuid for the image.
            min_pixels: Overrides the checkpoint's bound.
            max_pixels: Overrides the checkpoint's bound.
            background: Overrides the default background color.

        Raises:
            MediaError: The image cannot be used.
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
        """Loads a video, given as a file or as frames. The arguments are those of `load_image`.

        Raises:
            MediaError: The video cannot be used.
        """
        with self._within(batch) as own:
            return await self._load_video(source, options, uuid, own)

    async def load_audio(
        self, source: AudioOrCached | AudioSamples, *, batch: Batch | None = None, uuid: str | None = None
    ) -> Audio:
        """Loads audio. The arguments are those of `load_image`.

        Raises:
            MediaError: The audio cannot be used, or the model does not accept audio.
        """
        if self._audio_processing is None:
            raise MediaError(MediaErrorCode.INVALID_PARAMETER, "the model does not accept audio")
        with self._within(batch) as own:
            if isinstance(source, AudioSamples):
                return await self._prepare_audio(source, self._audio_processing, uuid, own)
            return await self._load_audio(source, self._audio_processing, uuid, own)

    async def warm(self) -> None:
        """Starts what the first image would have to wait for."""
        await self._decoders.warm()

    async def close(self) -> None:
        """Closes the decoders."""
        await self._decoders.close()

    def _within(self, batch: Batch | None) -> AbstractContextManager[Batch]:
        return self.batch() if batch is None else nullcontext(batch)

    async def _load_image(
        self, source: ImageOrCached, processing: ImageProcessing, uuid: str | None, batch: Batch
    ) -> Image:
        files = await self._load_file(source, MediaKind.IMAGE, uuid, self._image_limits, batch)
        key = _image_key(files.digests, processing, batch)

        async def decode(data: Sequence[bytes]) -> Image:
            return await self._decoders.image(data[0], processing)

        return await self._decode(key, files, decode, MediaKind.IMAGE, batch)

    async def _load_audio(
        self, source: AudioOrCached, processing: AudioProcessing, uuid: str | None, batch: Batch
    ) -> Audio:
        files = await self._load_file(source, MediaKind.AUDIO, uuid, self._audio_limits, batch)
        key = _audio_key(files.digests, processing, batch)

        async def decode(data: Sequence[bytes]) -> Audio:
            return await self._decoders.audio(data[0], processing)

        return await self._decode(key, files, decode, MediaKind.AUDIO, batch)

    async def _prepare_image(
        self, image: PIL.Image.Image, processing: ImageProcessing, uuid: str | None, batch: Batch
    ) -> Image:
        prepared = await asyncio.to_thread(prepare_image, image, processing)
        key = _image_key((prepared.key,), processing, batch)
        named = NamedMedia(files={0: prepared.key}, num_frames=None, url=None)
        self._cache(key, prepared, uuid, named, batch)
        return prepared

    async def _prepare_video(
        self, source: DecodedFrames, options: VideoOptions, uuid: str | None, batch: Batch
    ) -> Video:
        processing, indices = self._video_processing, self._sample(len(source.frames), options)
        video = await asyncio.to_thread(video_from_images, source.pick(indices), indices, processing, options)
        key = _frames_key((video.key,) * len(indices), indices, processing, options, batch)
        named = NamedMedia(files=dict.fromkeys(indices, video.key), num_frames=len(source.frames), url=None)
        self._cache(key, video, uuid, named, batch)
        return video

    async def _prepare_audio(
        self, source: AudioSamples, processing: AudioProcessing, uuid: str | None, batch: Batch
    ) -> Audio:
        audio = await asyncio.to_thread(audio_from_array, source.array, source.rate, processing)
        key = _audio_key((audio.key,), processing, batch)
        named = NamedMedia(files={0: audio.key}, num_frames=None, url=None)
        self._cache(key, audio, uuid, named, batch)
        return audio

    async def _load_file(
        self, source: Source | CachedSource, kind: MediaKind, uuid: str | None, limits: FileLimits, batch: Batch
    ) -> SourceFiles:
        """Loads a single file."""
        if isinstance(source, CachedSource):
            return self._files.load_cached(self._files.named(source, kind, batch), [0], kind, batch)
        return await self._files.load(source, MediaReference(kind=kind, uuid=uuid), limits, batch)

    async def _load_video(
        self, source: VideoOrCached | DecodedFrames, options: VideoOptions, uuid: str | None, batch: Batch
    ) -> Video:
        reference = MediaReference(kind=MediaKind.VIDEO, uuid=uuid)
        match source:
            case DecodedFrames():
                return await self._prepare_video(source, options, uuid, batch)
            case CachedSource():
                return await self._load_cached_video(source, options, batch)
            case FrameSources(frames=frames):
                frame_indices = self._sample(len(frames), options)
                files = await self._files.load_frames(
                    frames, frame_indices, reference, each=self._image_limits, total=self._video_limits, batch=batch
                )
                return await self._decode_frames(files, frame_indices, options, batch)
            case _:
                check_options(options, of_frames=False)
                files = await self._files.load(source, reference, self._video_limits, batch)
                return await self._decode_video_file(files, options, batch)

    async def _load_cached_video(self, source: CachedSource, options: VideoOptions, batch: Batch) -> Video:
        named = self._files.named(source, MediaKind.VIDEO, batch)
        if named.num_frames is None:
            check_options(options, of_frames=False)
            files = self._files.load_cached(named, [0], MediaKind.VIDEO, batch)
            return await self._decode_video_file(files, options, batch)
        frame_indices = self._sample(named.num_frames, options)
        files = self._files.load_cached(named, frame_indices, MediaKind.VIDEO, batch)
        return await self._decode_frames(files, frame_indices, options, batch)

    async def _decode_video_file(self, files: SourceFiles, options: VideoOptions, batch: Batch) -> Video:
        key = decoded_key(batch.namespace, "video", files.digests, self._video_processing, options)

        async def decode(data: Sequence[bytes]) -> Video:
            return await self._decoders.video_from_file(data[0], self._video_processing, options)

        return await self._decode(key, files, decode, MediaKind.VIDEO, batch)

    async def _decode_frames(
        self, files: SourceFiles, frame_indices: Sequence[int], options: VideoOptions, batch: Batch
    ) -> Video:
        key = _frames_key(files.digests, frame_indices, self._video_processing, options, batch)

        async def decode(data: Sequence[bytes]) -> Video:
            return await self._decoders.video_from_image_files(data, frame_indices, self._video_processing, options)

        return await self._decode(key, files, decode, MediaKind.VIDEO, batch)

    async def _decode(
        self,
        key: bytes,
        files: SourceFiles,
        decode: Callable[[Sequence[bytes]], Coroutine[Any, Any, MediaT]],
        kind: MediaKind,
        batch: Batch,
    ) -> MediaT:
        """Returns decoded media, from the cache or from `decode`. Releases the files and reserves the media instead."""
        if files.data is None and self._store.get_decoded(key) is None:
            raise not_cached(kind)
        with batch.decoding():
            result = await self._store.decode(key, partial(decode, files.data or ()), _num_bytes)
        batch.count_decoding(is_cache_hit=result.is_cache_hit)
        self._files.cache(files, batch)
        batch.reservation.release(files.num_bytes)
        batch.reservation.reserve_shared(result.value, _num_bytes(result.value))
        return result.value

    def _cache(
        self, key: bytes, media: Image | Video | Audio, uuid: str | None, named: NamedMedia, batch: Batch
    ) -> None:
        """Caches media that have no files under their uuid; `named` has the media's own key in place of file hashes."""
        if uuid is not None:
            batch.reservation.reserve_shared(media, _num_bytes(media))
            self._store.put_decoded(key, media, _num_bytes(media))
            self._store.put_named(batch.namespace, media.kind, uuid, named, ())

    def _sample(self, num_frames: int, options: VideoOptions) -> list[int]:
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


def _num_bytes(media: Image | Video | Audio) -> int:
    return media.features.nbytes if isinstance(media, Audio) else media.pixels.nbytes
