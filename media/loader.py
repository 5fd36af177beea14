"""Loads media for the engine: fetches files, decodes them and caches both. Independent of file formats.

Decoded media are cached under the hashes of their files and their processing parameters.
"""

import asyncio
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import TypeVar, cast

import msgspec
import numpy as np
import PIL.Image

from glimpse.media.cache.media_file import NamedMedia
from glimpse.media.cache.memory_budget import MemoryBudget, MemoryShare
from glimpse.media.cache.request_media import MediaUsage, RequestMedia, timed
from glimpse.media.cache.store import MediaStore
from glimpse.media.decoding.decoders import Decoders
from glimpse.media.decoding.jobs import (
    AudioJob,
    DecodedMedia,
    DocumentJob,
    FramesJob,
    ImageJob,
    Job,
    PageJob,
    VideoJob,
)
from glimpse.media.decoding.video_frames import sample_frame_indices, video_from_images
from glimpse.media.errors import MediaError, MediaErrorCode, MediaOptionError
from glimpse.media.key import decoded_key
from glimpse.media.kind import MediaKind
from glimpse.media.limits import FETCH_TIMEOUTS, MAX_FILE_BYTES
from glimpse.media.processing.audio import Audio
from glimpse.media.processing.audio_samples import audio_from_array
from glimpse.media.processing.document import DocumentPages, PageRange
from glimpse.media.processing.image import Image, ImageProcessing, prepare_image
from glimpse.media.processing.media_processing import MediaProcessing
from glimpse.media.processing.rgb import Colour
from glimpse.media.processing.sizing.placement import ImagePlacement
from glimpse.media.processing.sizing.recipe import Detail
from glimpse.media.processing.sizing.views import Size
from glimpse.media.processing.video import Video, VideoProcessing
from glimpse.media.processing.video_options import VideoOptions, check_options
from glimpse.media.sources.decoded import AudioSamples, DecodedFrames
from glimpse.media.sources.fetcher import Fetcher
from glimpse.media.sources.files import (
    DocumentPage,
    FileLimits,
    FileLoader,
    OpenDocument,
    SourceFiles,
    not_cached,
)
from glimpse.media.sources.local import LocalFiles
from glimpse.media.sources.source import (
    AudioOrCached,
    CachedSource,
    DocumentOrCached,
    FrameSources,
    ImageOrCached,
    Source,
    VideoOrCached,
)
from glimpse.media.sources.uploads import Uploads

MediaT = TypeVar("MediaT", Image, Video, Audio)
ProcessingT = TypeVar("ProcessingT")


class MediaLoader:
    """Loads the media of all requests of one event loop.

    A load may be cancelled at any time. Its fetch stops at once unless another request waits for it too; `Decoders`
    describes what happens to decoding.
    """

    def __init__(
        self,
        *,
        processing: MediaProcessing,
        fetcher: Fetcher,
        decoders: Decoders,
        local: LocalFiles | None = None,
        store: MediaStore | None = None,
        uploads: Uploads | None = None,
        stored: Uploads | None = None,
        memory_budget: MemoryBudget | None = None,
        fetch_timeouts: Mapping[MediaKind, float] = FETCH_TIMEOUTS,
        max_file_bytes: Mapping[MediaKind, int] = MAX_FILE_BYTES,
        max_fetches: int = 32,
    ) -> None:
        """
        Args:
            processing: The checkpoint's. Kinds that it does not process are refused.
            fetcher: Fetches URLs. Closed by `close`.
            decoders: Decode files. Closed by `close`.
            local: Reads files of this host; None refuses them.
            store: Caches media between requests; None disables caching.
            uploads: Stores uploads; None disables them.
            stored: Stores the media of stored responses; None: there are none.
            memory_budget: Limits the memory of media in use; None sets no limit.
            fetch_timeouts: Limits in seconds on fetching one file of each kind, or all frames of a video together.
            max_file_bytes: Limits on one file of each kind, or on all frames of a video together.
            max_fetches: Number of concurrent fetches of one client; further ones wait.
        """
        self._processing = processing
        self._fetcher = fetcher
        self._decoders = decoders
        self._store = store or MediaStore(max_bytes=0)
        self._memory_budget = memory_budget or MemoryBudget()
        self.files = FileLoader(
            fetcher=fetcher,
            local=local,
            store=self._store,
            uploads=uploads or self._no_uploads(),
            stored=stored or self._no_uploads(),
            memory_budget=self._memory_budget,
            limits={
                kind: FileLimits(max_bytes=max_file_bytes[kind], timeout_seconds=fetch_timeouts[kind])
                for kind in MediaKind
            },
            max_fetches=max_fetches,
        )
        """Loads the files of media."""

    @contextmanager
    def batch(
        self, namespace: str = "", *, client: str = "", share: MemoryShare | None = None
    ) -> Generator[RequestMedia]:
        """Opens the media of a client's request. Their memory stays reserved until the block ends.

        It counts in `share` too.
        """
        with self._memory_budget.reservation(share, client=client) as reservation:
            yield RequestMedia(namespace=namespace, client=client, reservation=reservation, usage=MediaUsage())

    async def load_image(
        self,
        source: ImageOrCached | DocumentPage | PIL.Image.Image,
        *,
        batch: RequestMedia | None = None,
        uuid: str | None = None,
        min_pixels: int | None = None,
        max_pixels: int | None = None,
        detail: Detail = Detail.AUTO,
        background: Colour | None = None,
        is_alone: bool = True,
    ) -> Image:
        """Loads an image.

        Args:
            source: Where the image is, a page to draw, or the decoded image.
            batch: The request's media; None for a request of one image.
            uuid: The client's uuid for the image.
            min_pixels: Overrides the checkpoint's bound.
            max_pixels: Overrides the checkpoint's bound.
            detail: Which bounds count.
            background: Overrides the default background color.

        Raises:
            MediaError: The image cannot be used, or the model does not support images.
        """
        processing = self._images.with_options(
            min_pixels=min_pixels,
            max_pixels=max_pixels,
            detail=detail,
            background=background,
            is_alone=is_alone,
        )
        job = ImageJob(processing=processing)
        with self._within(batch) as own:
            match source:
                case PIL.Image.Image():
                    return self._cache(await asyncio.to_thread(prepare_image, source, processing), job, uuid, own)
                case DocumentPage(files=files, number=number, dpi=dpi):
                    page = PageJob(processing=processing, number=number, dpi=dpi)
                    return cast(Image, await self._decode(page, files, own, keeps_files=True))
                case _:
                    return cast(Image, await self._load_file(source, job, MediaKind.IMAGE, uuid, own))

    async def load_video(
        self,
        source: VideoOrCached | DecodedFrames,
        options: VideoOptions,
        *,
        batch: RequestMedia | None = None,
        uuid: str | None = None,
    ) -> Video:
        """Loads a video, given as a file or as frames. The arguments are those of `load_image`.

        Raises:
            MediaError: The video cannot be used, or the model does not support videos.
        """
        with self._within(batch) as own:
            return await self._load_video(source, options, uuid, own)

    async def load_audio(
        self, source: AudioOrCached | AudioSamples, *, batch: RequestMedia | None = None, uuid: str | None = None
    ) -> Audio:
        """Loads audio. The arguments are those of `load_image`.

        Raises:
            MediaError: The audio cannot be used, or the model does not support audio.
        """
        job = AudioJob(processing=_supported(self._processing.audio, MediaKind.AUDIO))
        with self._within(batch) as own:
            if isinstance(source, AudioSamples):
                audio = await asyncio.to_thread(audio_from_array, source.array, source.rate, job.processing)
                return self._cache(audio, job, uuid, own)
            return cast(Audio, await self._load_file(source, job, MediaKind.AUDIO, uuid, own))

    async def open_document(
        self,
        source: DocumentOrCached,
        pages: PageRange,
        *,
        batch: RequestMedia,
        uuid: str | None = None,
        max_texts: int = 0,
    ) -> OpenDocument:
        """Opens a document, whose pages `load_image` draws. Its file stays reserved until `close_document`.

        Args:
            source: Where the document is.
            pages: Pages to read. The document may have fewer.
            batch: The request's media.
            uuid: The client's uuid for the document.
            max_texts: Read the text layers of these pages, if they are no more than this.

        Raises:
            MediaError: The document cannot be used, or has none of the pages.
        """
        files = await self.files.load(source, MediaKind.DOCUMENT, uuid, batch)
        job = DocumentJob(pages=pages, max_texts=max_texts)
        document = cast(DocumentPages, await self._decode(job, files, batch, keeps_files=True))
        numbers = pages.within(document.num_pages)
        if not numbers:
            got = f"got {pages.first}, but the document has {document.num_pages}"
            raise MediaOptionError("first_page", f"expected a page of the document, {got}")
        return OpenDocument(files=replace(files, uuid=None), pages=numbers, texts=document.texts)

    def close_document(self, document: OpenDocument, batch: RequestMedia) -> None:
        """Releases the memory that the document's file takes."""
        batch.reservation.release(document.files.num_bytes)

    def tiles(self, image: Image) -> tuple[int, Size]:
        """Returns the number of tiles of a loaded image, and the size of the largest."""
        return self._images.sizing.tiles(image.pixels.shape, image.grid)

    async def warm(self) -> None:
        """Starts what the first image would have to wait for."""
        await self._decoders.warm()

    async def close(self) -> None:
        """Closes the fetcher and the decoders."""
        await self._fetcher.close()
        await self._decoders.close()

    def _no_uploads(self) -> Uploads:
        return Uploads(max_bytes=0, ttl_seconds=0, memory_budget=self._memory_budget)

    def _within(self, batch: RequestMedia | None) -> AbstractContextManager[RequestMedia]:
        return self.batch() if batch is None else nullcontext(batch)

    async def _load_video(
        self, source: VideoOrCached | DecodedFrames, options: VideoOptions, uuid: str | None, batch: RequestMedia
    ) -> Video:
        match source:
            case DecodedFrames():
                return await self._prepare_video(source, options, uuid, batch)
            case FrameSources(frames=frames):
                job = self._frames_job(len(frames), options)
                files = await self.files.load_frames(frames, job.frame_indices, uuid, batch)
                return cast(Video, await self._decode(job, files, batch))
            case CachedSource():
                named = await self.files.named(source, MediaKind.VIDEO, batch)
                if named.num_frames is not None:
                    job = self._frames_job(named.num_frames, options)
                    files = await self.files.load_cached(named, job.frame_indices, MediaKind.VIDEO, batch)
                    return cast(Video, await self._decode(job, files, batch))
            case _:
                pass
        check_options(options, of_frames=False)
        video_job = VideoJob(processing=self._videos, options=options)
        return cast(Video, await self._load_file(source, video_job, MediaKind.VIDEO, uuid, batch))

    async def _prepare_video(
        self, source: DecodedFrames, options: VideoOptions, uuid: str | None, batch: RequestMedia
    ) -> Video:
        job = self._frames_job(len(source.frames), options)
        images = source.pick(job.frame_indices)
        prepare = partial(video_from_images, images, job.frame_indices, job.processing, options, seconds=source.seconds)
        video = await asyncio.to_thread(prepare)
        return self._cache(video, job, uuid, batch, indices=job.frame_indices, num_frames=len(source.frames))

    async def _load_file(
        self, source: Source | CachedSource, job: Job, kind: MediaKind, uuid: str | None, batch: RequestMedia
    ) -> DecodedMedia:
        return await self._decode(job, await self.files.load(source, kind, uuid, batch), batch)

    async def _decode(
        self, job: Job, files: SourceFiles, batch: RequestMedia, *, keeps_files: bool = False
    ) -> DecodedMedia:
        """Returns decoded media, cached or decoded now. Reserves them, and releases the files unless it keeps them."""
        key = _key(job, files.digests, batch)
        if files.data is None and self._store.get_decoded(batch.namespace, key) is None:
            raise not_cached(files.kind)
        with timed(batch.usage.decode_waits):
            decode = partial(self._decoders.decode, job, files.data or (), client=batch.client)
            result = await self._store.decode(batch.namespace, key, decode, _num_bytes)
        if not isinstance(result.value, DocumentPages):  # its pages count
            batch.count_decoding(is_cache_hit=result.is_cache_hit)
        self.files.cache(files, batch)
        if not keeps_files:
            batch.reservation.release(files.num_bytes)
        batch.reservation.reserve_shared(result.value, _num_bytes(result.value))
        return result.value

    def _cache(
        self,
        media: MediaT,
        job: Job,
        uuid: str | None,
        batch: RequestMedia,
        *,
        indices: Sequence[int] = (0,),
        num_frames: int | None = None,
    ) -> MediaT:
        """Caches media that have no files under their uuid, with a digest of the media in place of file hashes."""
        if uuid is not None:
            batch.reservation.reserve_shared(media, _num_bytes(media))
            digest = _digest(media)
            key = _key(job, [digest] * len(indices), batch)
            self._store.put_decoded(batch.namespace, key, media, _num_bytes(media))
            named = NamedMedia(files=dict.fromkeys(indices, digest), num_frames=num_frames, url_digest=None)
            self._store.put_named(batch.namespace, media.kind, uuid, named, ())
        return media

    @property
    def _images(self) -> ImageProcessing:
        return _supported(self._processing.images, MediaKind.IMAGE)

    @property
    def _videos(self) -> VideoProcessing:
        return _supported(self._processing.videos, MediaKind.VIDEO)

    def _frames_job(self, num_frames: int, options: VideoOptions) -> FramesJob:
        indices = tuple(sample_frame_indices(num_frames, options, self._videos.sampling))
        return FramesJob(processing=self._videos, options=options, frame_indices=indices)


def _supported(processing: ProcessingT | None, kind: MediaKind) -> ProcessingT:
    """Returns the processing of a kind. Raises MediaError (INVALID_PARAMETER) if the model does not support it."""
    if processing is None:
        raise MediaError(MediaErrorCode.INVALID_PARAMETER, f"the model does not support {kind} input")
    return processing


def _key(job: Job, digests: Sequence[bytes], batch: RequestMedia) -> bytes:
    return decoded_key(batch.namespace, str(job.__struct_config__.tag), digests, *msgspec.structs.astuple(job))


def _digest(media: Image | Video | Audio) -> bytes:
    """The content key; also of what equal pixels may have different ones of: sizes before resizing, times of frames."""
    match media:
        case Image(placement=ImagePlacement(source=source)):
            return sha256(media.key + repr(source).encode()).digest()
        case Video(frame_seconds=seconds) if seconds:
            return sha256(media.key + np.array(seconds).tobytes()).digest()
        case _:
            return media.key


def _num_bytes(media: DecodedMedia) -> int:
    match media:
        case Audio():
            return media.features.nbytes
        case DocumentPages():
            return media.num_bytes
        case _:
            return media.pixels.nbytes
