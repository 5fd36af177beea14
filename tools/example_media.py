"""Makes the media in examples/ beside image.png.

square.png is a blue square, in video.mp4 it moves to the right; tones.wav has three rising tones.
"""

import wave
from pathlib import Path

import av
import numpy as np
import numpy.typing as npt
from PIL import Image

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
WIDTH, HEIGHT, SIDE = 168, 112, 40
NUM_FRAMES, FPS = 8, 2
RATE = 16_000
PITCHES = (330, 440, 660)
"""In Hertz; each lasts half a second."""


def main() -> None:
    Image.fromarray(square(64)).save(EXAMPLES / "square.png")
    draw_video(EXAMPLES / "video.mp4")
    play_tones(EXAMPLES / "tones.wav")


def square(left: int) -> npt.NDArray[np.uint8]:
    """Returns the image of the square at this distance from the left."""
    pixels = np.full((HEIGHT, WIDTH, 3), 255, np.uint8)
    pixels[(HEIGHT - SIDE) // 2 : (HEIGHT + SIDE) // 2, left : left + SIDE] = 20, 40, 230
    return pixels


def draw_video(path: Path) -> None:
    with av.open(path, "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"crf": "18", "threads": "1"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for index in range(NUM_FRAMES):
            left = 8 + round((WIDTH - SIDE - 16) * index / (NUM_FRAMES - 1))
            container.mux(stream.encode(av.VideoFrame.from_ndarray(square(left), format="rgb24")))
        container.mux(stream.encode())


def play_tones(path: Path) -> None:
    seconds = np.arange(RATE // 2) / RATE
    fade = np.minimum(1, np.minimum(seconds, seconds[::-1]) * 50)  # no clicks
    tones = np.concatenate([np.sin(2 * np.pi * pitch * seconds) * fade for pitch in PITCHES])
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((tones * 8000).astype("<i2").tobytes())


if __name__ == "__main__":
    main()
