"""The commands to copy that `glimpse up` prints when it serves."""

import shlex
import shutil
import sys
from dataclasses import dataclass
from importlib import resources
from importlib.util import find_spec
from pathlib import Path

from glimpse.client.channel import DEFAULT_TARGET

EXAMPLE_IMAGE = Path(str(resources.files("glimpse") / "example.png")).resolve()

# The examples write an image into JSON by printing the text before it, its base64 text, and the text after it.
_IMAGE_CURL = """\
(printf '{{"stream": true, "max_completion_tokens": 64, "messages": [{{"role": "user", "content": ['
 printf '{{"type": "text", "text": "{question}"}}, {{"type": "image_url", "image_url": {{"url": "data:image/png;base64,'
 base64 < {image} | tr -d '\\n'
 printf '"}}}}]}}]}}') | curl -N -H 'content-type: application/json' -d @- {url}/v1/chat/completions"""

_IMAGE_OPENAI = """\
{python} - {image} <<'END'
import base64, openai, sys
image = base64.b64encode(open(sys.argv[1], "rb").read()).decode()
client = openai.OpenAI(base_url="{url}/v1", api_key="none")
answer = client.chat.completions.create(model="{model}", max_completion_tokens=64, messages=[
    {{"role": "user", "content": [
        {{"type": "text", "text": "{question}"}},
        {{"type": "image_url", "image_url": {{"url": "data:image/png;base64," + image}}}}]}}])
print(answer.choices[0].message.content)
END"""

_IMAGE_GRPCURL = """\
(printf '{{"generation": {{"max_completion_tokens": 64}}, "messages": [{{"role": "ROLE_USER", "content": ['
 printf '{{"text": "{question}"}}, {{"image": {{"source": {{"data": "'
 base64 < {image} | tr -d '\\n'
 printf '"}}}}}}]}}]}}') | grpcurl -plaintext -d @ {target} glimpse.v1.ChatService/StreamChatCompletion"""

_TEXT_CURL = """\
curl -N {url}/v1/chat/completions -H 'content-type: application/json' \\
 -d '{{"stream": true, "max_completion_tokens": 64, "messages": [{{"role": "user", "content": "{question}"}}]}}'"""

_TEXT_OPENAI = """\
{python} - <<'END'
import openai
client = openai.OpenAI(base_url="{url}/v1", api_key="none")
answer = client.chat.completions.create(model="{model}", max_completion_tokens=64, messages=[
    {{"role": "user", "content": "{question}"}}])
print(answer.choices[0].message.content)
END"""

_TEXT_GRPCURL = """\
grpcurl -plaintext -d '{{"generation": {{"max_completion_tokens": 64}},
 "messages": [{{"role": "ROLE_USER", "content": [{{"text": "{question}"}}]}}]}}' \\
 {target} glimpse.v1.ChatService/StreamChatCompletion"""


_EMBED_CLIENT = """\
{python} - <<'END'
from glimpse.client import Client, Tls
with Client("{target}"{arguments}) as client:
    print(client.embed(["{question}"]).vectors[0][:8])
END"""

_EMBED_CURL = """\
curl {url}/v1/embeddings -H 'content-type: application/json' -d '{{"input": "{question}"}}'"""

_EMBED_OPENAI = """\
{python} - <<'END'
import openai
client = openai.OpenAI(base_url="{url}/v1", api_key="none")
print(client.embeddings.create(model="{model}", input="{question}").data[0].embedding[:8])
END"""

_EMBED_GRPCURL = """\
grpcurl -plaintext -d '{{"inputs": [{{"text": "{question}"}}]}}' \\
 {target} glimpse.v1.EmbeddingService/CreateEmbeddings"""


_TITLE = "Command line (without a question: a conversation)"


_EMBED_TITLE = "Python, over gRPC"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Examples:
    """Commands that ask a model, as templates."""

    title: str
    """Title of the first one, which needs nothing but Glimpse."""
    path: str
    """Path of the REST API."""
    question: str
    first: str
    curl: str
    openai: str
    grpcurl: str


_IMAGE = _Examples(
    title=_TITLE,
    path="/v1/chat/completions",
    question="What is in this image?",
    first='{glimpse} chat "{question}" --image {image}{flags}',
    curl=_IMAGE_CURL,
    openai=_IMAGE_OPENAI,
    grpcurl=_IMAGE_GRPCURL,
)
_TEXT = _Examples(
    title=_TITLE,
    path="/v1/chat/completions",
    question="What is the capital of France?",
    first='{glimpse} chat "{question}"{flags}',
    curl=_TEXT_CURL,
    openai=_TEXT_OPENAI,
    grpcurl=_TEXT_GRPCURL,
)
_EMBED = _Examples(
    title=_EMBED_TITLE,
    path="/v1/embeddings",
    question="What is the capital of France?",
    first=_EMBED_CLIENT,
    curl=_EMBED_CURL,
    openai=_EMBED_OPENAI,
    grpcurl=_EMBED_GRPCURL,
)


def usage_text(
    *,
    model: str,
    http_url: str | None,
    target: str,
    reads_images: bool = True,
    only_embeds: bool = False,
    uses_tls: bool = False,
    needs_certificate: bool = False,
    needs_key: bool = False,
) -> str:
    """Returns commands to copy, those whose programs are installed; Glimpse's own always is.

    Args:
        http_url: the gateway's URL, if there is one.
        target: HOST:PORT for gRPC.
        only_embeds: whether the model was published for embeddings, and the examples ask for one.
        uses_tls: only the first command is shown, with a place for the CA, which is not known here.
        needs_certificate: with TLS, clients need a certificate of their own too: the command has places for it.
        needs_key: only the first command is shown, with a place for an API key.
    """
    examples = _EMBED if only_embeds else _IMAGE if reads_images else _TEXT
    flags = "" if target == DEFAULT_TARGET else f" --target {target}"
    places = [("CA.pem", "the CA that signed the certificate")] if uses_tls else []
    places += [("CLIENT.pem", "your certificate"), ("CLIENT.key", "its private key")] if needs_certificate else []
    places += [("KEY", "an API key")] if needs_key else []
    values = {
        "question": examples.question,
        "image": _short(EXAMPLE_IMAGE),
        "python": _short(Path(sys.executable)),
        "glimpse": ("GLIMPSE_API_KEY=KEY " if needs_key else "") + _command(),
        "model": model,
        "url": http_url,
        "target": target,
        "flags": flags
        + " --tls-ca CA.pem" * uses_tls
        + " --tls-certificate CLIENT.pem --tls-key CLIENT.key" * needs_certificate,
        "arguments": _arguments(uses_tls=uses_tls, needs_certificate=needs_certificate, needs_key=needs_key),
    }
    if places:
        meanings = ", ".join(f"{place} is {meaning}" for place, meaning in places)
        return f"{examples.title}; {meanings}, {target}\n\n{examples.first.format(**values)}"
    shown: list[tuple[str, str, str, object]] = [(examples.title, target, examples.first, True)]
    if http_url is not None:
        shown += [
            ("curl", f"{http_url}{examples.path}", examples.curl, shutil.which("curl")),
            ("OpenAI's Python client", f"{http_url}/v1", examples.openai, find_spec("openai")),
        ]
    shown.append(("grpcurl", target, examples.grpcurl, shutil.which("grpcurl")))
    parts = [f"{name}, {address}\n\n{text.format(**values)}" for name, address, text, installed in shown if installed]
    if http_url is not None and not only_embeds:
        parts.append(f"The Responses API, Anthropic's Messages and files: {http_url}/docs")
    return "\n\n".join(parts)


def _arguments(*, uses_tls: bool, needs_certificate: bool, needs_key: bool) -> str:
    """Returns what a program gives to `Client` after the target, with places as in the commands."""
    own = ', certificate="CLIENT.pem", key="CLIENT.key"' * needs_certificate
    return f', tls=Tls(ca="CA.pem"{own})' * uses_tls + ', api_key="KEY"' * needs_key


def _command() -> str:
    """Returns how a shell in this working directory runs `glimpse`."""
    script = Path(sys.executable).with_name("glimpse")
    if shutil.which("glimpse") == str(script):
        return "glimpse"
    return _short(script) if script.exists() else f"{_short(Path(sys.executable))} -m glimpse"


def _short(path: Path) -> str:
    """Returns the path for a shell, relative to the working directory where it is below it."""
    return shlex.quote(str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path))
