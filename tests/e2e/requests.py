"""Requests of a plain HTTP client, and their responses."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.e2e.stack import Stack

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
FILES = "/v1/files"
EMBEDDINGS = "/v1/embeddings"
RERANK = "/v1/rerank"
SCORE = "/v1/score"
RESPONSES = "/v1/responses"
IGNORED_FIELDS = "x-glimpse-ignored-fields"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def body(self) -> Any:
        """The JSON document."""
        return json.loads(self.text)

    @property
    def param(self) -> str:
        """The member at fault; empty where there is none."""
        return self.body["error"]["param"] or ""

    @property
    def content(self) -> str:
        """The text of the first answer."""
        return self.body["choices"][0]["message"]["content"]

    @property
    def events(self) -> list[Any]:
        """The documents of a stream, which is checked to end as it should."""
        *events, end, nothing = self.text.split("\n\n")
        assert (end, nothing) == ("data: [DONE]", "")
        assert all(event.startswith("data: ") for event in events)
        return [json.loads(event.removeprefix("data: ")) for event in events]


def ask(stack: Stack, path: str, **members: Any) -> Answer:
    """Posts a document of these members."""
    return post(stack, path, json.dumps(members).encode())


def post(
    stack: Stack, path: str, body: bytes, content_type: str = "application/json", *, method: str = "POST"
) -> Answer:
    """Sends a body; without `content_type`, it has the one that urllib chooses."""
    headers = {"content-type": content_type} if content_type else {}
    request = urllib.request.Request(stack.url + path, data=body, headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return Answer(status=answer.status, headers=dict(answer.headers), text=answer.read().decode())
    except urllib.error.HTTPError as error:
        return Answer(status=error.code, headers=dict(error.headers), text=error.read().decode())


def chat(stack: Stack, text: str, **members: Any) -> Answer:
    """Asks one question."""
    return ask(stack, CHAT, **({"messages": [{"role": "user", "content": text}]} | members))
