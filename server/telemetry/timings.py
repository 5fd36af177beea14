"""How long a request takes, by stage."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstTokenTime:
    """The time from a request's arrival to its first token, measured or expected. Stages do not overlap."""

    preparation_seconds: float
    """Until the engine is to get the prompt, without waits for media."""
    fetch_seconds: float = 0.0
    """While files of media are waited for."""
    decode_media_seconds: float = 0.0
    """While decoded media are waited for, and no files."""
    queue_seconds: float
    """From the prompt's submission until the engine computes it."""
    encode_seconds: float
    """In the encoder."""
    prefill_seconds: float
    """Without the encoder's time, until the token is sent."""

    @property
    def seconds(self) -> float:
        return (
            self.preparation_seconds
            + self.fetch_seconds
            + self.decode_media_seconds
            + self.queue_seconds
            + self.encode_seconds
            + self.prefill_seconds
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """How long a request took up to now."""

    first_token: FirstTokenTime
    """The time to the first token of the completion that began first."""
    decode_seconds: float
    """From then to the last token of all completions."""
