"""Audio inputs of `LLM` for the tests."""

import base64

from tests.media.audio import audio_file, noise

SAMPLES = noise(1, 9_000)
"""At 44.1 kHz, rounded to the 16-bit steps of a WAV file."""


WAV = audio_file(SAMPLES, 44_100)


BASE64 = base64.b64encode(WAV).decode()


PLACEHOLDER = "<|audio_bos|><|AUDIO|><|audio_eos|>"
