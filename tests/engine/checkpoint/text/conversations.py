"""Conversations with images in all places, which each family's prompts are compared on."""

from glimpse.engine.checkpoint.text.conversation import ChatMessage, MediaSlot
from glimpse.media.kind import MediaKind

IMAGE, VIDEO = MediaSlot(kind=MediaKind.IMAGE), MediaSlot(kind=MediaKind.VIDEO)


def user(*content: str | MediaSlot) -> ChatMessage:
    return ChatMessage(role="user", content=content)


def assistant(*content: str | MediaSlot) -> ChatMessage:
    return ChatMessage(role="assistant", content=content)


def system(*content: str | MediaSlot) -> ChatMessage:
    return ChatMessage(role="system", content=content)


IMAGE_CONVERSATIONS = {
    "text": [user("What is the time?")],
    "empty": [user("")],
    "system": [system("Be brief. "), user("Hi")],
    "turns": [user("Hi"), assistant("Hello!"), user("Bye")],
    "image first": [user(IMAGE, "What is this?")],
    "image last": [user("What is this?", IMAGE)],
    "image between": [user("This ", IMAGE, " or that?")],
    "images": [user(IMAGE, IMAGE, "Do they differ?")],
    "image alone": [user(IMAGE)],
    "images in turns": [user(IMAGE, "And?"), assistant("A cat."), user(IMAGE, "And now?")],
    "image of a system": [system(IMAGE), user("é 😀\n\n")],
}
