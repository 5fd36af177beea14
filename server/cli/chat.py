"""`glimpse chat`: a question to a running server over typed gRPC; the answer is written as it comes."""

import sys
from pathlib import Path
from typing import Annotated

import grpc
from cyclopts import Parameter

from glimpse.v1 import chat_pb2, chat_pb2_grpc, content_pb2, generation_pb2

_MAX_MESSAGE_BYTES = 65 << 20


class AskError(Exception):
    """The question could not be asked or was not answered; the message is for the person who asked."""


def chat(
    question: str,
    *,
    image: Annotated[tuple[Path, ...], Parameter(negative="")] = (),
    video: Annotated[tuple[Path, ...], Parameter(negative="")] = (),
    target: str = "127.0.0.1:50051",
    max_tokens: int | None = None,
    temperature: float | None = None,
) -> None:
    """Asks a running server.

    Parameters
    ----------
    question
        What to ask.
    image
        An image file; may be given several times.
    video
        A video file; may be given several times.
    target
        The server's gRPC address, or the gateway's.
    max_tokens
        The longest answer. Default: the server's.
    temperature
        0 takes the likeliest token each time. Default: 1.
    """
    try:
        ask(question, images=image, videos=video, target=target, max_tokens=max_tokens, temperature=temperature)
    except AskError as error:
        sys.exit(f"glimpse: {error}")


def ask(
    question: str,
    *,
    images: tuple[Path, ...],
    videos: tuple[Path, ...],
    target: str,
    max_tokens: int | None,
    temperature: float | None,
) -> None:
    """Streams the answer to standard output. Raises AskError."""
    content = [content_pb2.ContentPart(image={"source": _source(path)}) for path in images]
    content += [content_pb2.ContentPart(video={"source": _source(path)}) for path in videos]
    content.append(content_pb2.ContentPart(text=question))
    request = _request(content, max_tokens=max_tokens, temperature=temperature)
    options = [("grpc.max_send_message_length", _MAX_MESSAGE_BYTES)]
    with grpc.insecure_channel(target, options=options) as channel:
        try:
            for response in chat_pb2_grpc.ChatServiceStub(channel).StreamChatCompletion(request):
                for choice in response.choices:
                    print(choice.delta.content, end="", flush=True)
        except grpc.RpcError as error:
            raise AskError(_explain(error, target)) from error
    print(file=sys.stdout)


def _request(
    content: list[content_pb2.ContentPart], *, max_tokens: int | None, temperature: float | None
) -> chat_pb2.CreateChatCompletionRequest:
    return chat_pb2.CreateChatCompletionRequest(
        messages=[content_pb2.Message(role=content_pb2.ROLE_USER, content=content)],
        generation=generation_pb2.GenerationOptions(max_completion_tokens=max_tokens, temperature=temperature),
    )


def _source(path: Path) -> content_pb2.MediaSource:
    try:
        return content_pb2.MediaSource(data=path.read_bytes())
    except OSError as error:
        raise AskError(f"cannot read {path}: {error.strerror}") from error


def _explain(error: grpc.RpcError, target: str) -> str:
    if error.code() == grpc.StatusCode.UNAVAILABLE:
        return f"no answer from {target}: {error.details()}\nIs the server running? `glimpse up` starts one."
    return f"{error.code().name}: {error.details()}"
