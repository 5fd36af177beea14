"""Step statistics for load reports."""

from glimpse.engine.protocol.messages import StepStats


def stats(
    *, running: int, waiting: int = 0, blocks: int = 0, generated: int = 0, token_seconds: float = 0.0
) -> StepStats:
    return StepStats(
        num_running=running,
        num_waiting=waiting,
        num_used_blocks=blocks,
        num_prompt_tokens=0,
        num_generated_tokens=generated,
        num_cached_tokens=0,
        num_encoded_media=0,
        num_preemptions=0,
        step_seconds=0.0,
        waiting_token_seconds=token_seconds,
    )
