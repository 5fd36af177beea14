"""`glimpse chat`: asks a running server and prints the answer as it is generated."""

import mimetypes
import sys
from collections.abc import Iterable
from typing import Annotated

import grpc
from cyclopts import Parameter

from glimpse.client import Audio, ChatOptions, Chunk, Client, GlimpseError, Image, Tls, Video
from glimpse.client.messages import Part

_Files = Annotated[tuple[str, ...], Parameter(negative="")]


def chat(
    question: Annotated[str, Parameter(allow_leading_hyphen=True)],
    /,
    *files: str,
    image: _Files = (),
    video: _Files = (),
    audio: _Files = (),
    port: int = 50051,
    target: str | None = None,
    tls: Annotated[bool, Parameter(negative="")] = False,
    tls_ca: str | None = None,
    tls_certificate: str | None = None,
    tls_key: str | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
) -> None:
    """Asks a running server. If the model reasons before it answers, standard error shows that.

    Parameters
    ----------
    question
        The question; - reads it from standard input.
    files
        Images, videos and audio files, told apart by their extensions. Paths or URLs.
    image
        An image: a path or a URL. May be repeated.
    video
        A video: a path or a URL. May be repeated.
    audio
        An audio file: a path or a URL. May be repeated.
    port
        The gRPC port of a server on this machine.
    target
        HOST:PORT of another server, or of its gateway.
    tls
        Connect with TLS, to a server whose certificate a public CA signed.
    tls_ca
        Connect with TLS; PEM file of the CA that signed the server's certificate.
    tls_certificate
        PEM file of your certificate, for servers that require one.
    tls_key
        PEM file of your certificate's private key.
    max_tokens
        The largest number of tokens in the answer. Default: the server's.
    temperature
        0 always chooses the most likely token. Default: 1.
    """
    if question.startswith("--"):
        sys.exit(f"glimpse: unknown option {question}. `glimpse chat --help` lists the options.")
    parts: list[Part] = [*map(Image, image), *map(Video, video), *map(Audio, audio)]
    parts += [_kind(file)(file) for file in files]
    parts.append(sys.stdin.read() if question == "-" else question)
    options = ChatOptions()
    if max_tokens is not None:
        options["max_completion_tokens"] = max_tokens
    if temperature is not None:
        options["temperature"] = temperature
    uses_tls = tls or tls_ca or tls_certificate or tls_key
    security = Tls(ca=tls_ca, certificate=tls_certificate, key=tls_key) if uses_tls else None
    _ask(target or f"127.0.0.1:{port}", security, parts, options)


def _ask(target: str, tls: Tls | None, parts: list[Part], options: ChatOptions) -> None:
    """Streams the answer to standard output; ends the process with a message where that fails."""
    try:
        with Client(target, tls=tls, max_retries=0) as client:
            _print_answer(client.stream(parts, **options))
    except BrokenPipeError:
        raise  # `glimpse.server.cli.app` handles it
    except OSError as error:
        hint = " The question comes before the files." if " " in str(error.filename) else ""
        sys.exit(f"glimpse: cannot read {error.filename}: {error.strerror}.{hint}")
    except ValueError as error:
        sys.exit(f"glimpse: {error}")
    except GlimpseError as error:
        sys.exit(f"glimpse: {_explain(error, target)}")
    print()


def _print_answer(chunks: Iterable[Chunk]) -> None:
    """Prints the text to standard output and what the model reasons before it to standard error."""
    is_reasoning = False
    for chunk in chunks:
        if chunk.reasoning:
            is_reasoning = True
            print(chunk.reasoning, end="", flush=True, file=sys.stderr)
        if chunk.text and is_reasoning:
            is_reasoning = False
            print("\n", flush=True, file=sys.stderr)
        print(chunk.text, end="", flush=True)


def _kind(file: str) -> type[Image | Video | Audio]:
    """Looks at the extension; a file without a known one is taken for an image."""
    media_type = mimetypes.guess_type(file)[0] or ""
    return {"video": Video, "audio": Audio}.get(media_type.split("/")[0], Image)


def _explain(error: GlimpseError, target: str) -> str:
    if error.status is grpc.StatusCode.UNAVAILABLE:
        return f"no answer from {target}: {error.message}\nIs the server running? `glimpse up` starts one."
    return str(error)
