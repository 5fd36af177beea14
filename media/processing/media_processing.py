"""How a checkpoint processes media of each kind."""

from dataclasses import dataclass, replace

from glimpse.media.processing.audio import AudioProcessing
from glimpse.media.processing.image import ImageProcessing
from glimpse.media.processing.rgb import Colour
from glimpse.media.processing.video import VideoProcessing


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaProcessing:
    """The parameters of each kind; None if the model does not support it."""

    images: ImageProcessing | None = None
    videos: VideoProcessing | None = None
    audio: AudioProcessing | None = None

    def with_image_defaults(self, *, background: Colour, fast_jpeg: bool = False) -> "MediaProcessing":
        """Returns a copy with an operator's defaults for images; see `ImageProcessing`."""
        if self.images is None:
            return self
        return replace(self, images=replace(self.images, background=background, fast_jpeg=fast_jpeg))
