"""Conversations with audio, and the tokens that stand for it."""

from collections.abc import Sequence

from hypothesis import strategies as st

from glimpse.engine.checkpoint.families.token_layout import TokenLayout, one_run
from glimpse.engine.checkpoint.text.conversation import ChatMessage, MediaSlot
from glimpse.media.kind import MediaKind

AUDIO = MediaSlot(kind=MediaKind.AUDIO)
CONTENT = st.lists(st.one_of(st.text("the is\n", max_size=12), st.just(AUDIO)), min_size=1, max_size=5).map(tuple)
CONVERSATIONS = st.lists(
    st.builds(ChatMessage, role=st.sampled_from(["system", "user", "assistant"]), content=CONTENT),
    min_size=1,
    max_size=4,
)


def layouts(messages: Sequence[ChatMessage], num_tokens: int) -> list[TokenLayout]:
    """Returns a run of so many tokens for each medium."""
    slots = [part for message in messages for part in message.content if isinstance(part, MediaSlot)]
    return [one_run(slot.kind, num_tokens) for slot in slots]
