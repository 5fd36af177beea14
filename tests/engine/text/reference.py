"""What transformers makes of the same conversations: the reference for templates and prompts."""

from collections.abc import Sequence
from typing import Any

from tokenizers import Tokenizer
from transformers import TokenizersBackend

from engine.text.conversation import ChatMessage, MediaSlot


def reference_tokenizer(tokenizer: Tokenizer, **special_tokens: str) -> TokenizersBackend:
    return TokenizersBackend(tokenizer_object=tokenizer, **special_tokens)


def reference_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Conversations as transformers' users write them: every content a list of parts."""
    return [
        {
            "role": message.role,
            "content": [
                {"type": part.kind.value} if isinstance(part, MediaSlot) else {"type": "text", "text": part}
                for part in message.content
            ],
        }
        | ({"name": message.name} if message.name else {})
        for message in messages
    ]
