"""Limits on media by default: of a server unless its options say otherwise, and of `LLM`."""

from glimpse.media.kind import MediaKind

FETCH_TIMEOUTS = {
    MediaKind.IMAGE: 5.0,
    MediaKind.VIDEO: 30.0,
    MediaKind.AUDIO: 10.0,
    MediaKind.DOCUMENT: 10.0,
}
"""Seconds for fetching a file, or all frames of a video together."""
MAX_FILE_BYTES = {
    MediaKind.IMAGE: 50 << 20,
    MediaKind.VIDEO: 100 << 20,
    MediaKind.AUDIO: 50 << 20,
    MediaKind.DOCUMENT: 50 << 20,
}
"""Size of a file, or of all frames of a video together."""
MAX_DECODED_PIXELS = 64_000_000
"""Pixels of an image before it is resized."""
MAX_VIDEO_SECONDS = 3600.0
"""The longest part of a video file that is read."""
