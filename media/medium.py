"""A loaded medium of any kind."""

from typing import TypeAlias

from glimpse.media.embeddings.embeddings import Embedding
from glimpse.media.processing.audio import Audio
from glimpse.media.processing.image import Image
from glimpse.media.processing.video import Video

Medium: TypeAlias = Image | Video | Audio | Embedding
"""Media that are ready for the engine, or embeddings in their place."""
