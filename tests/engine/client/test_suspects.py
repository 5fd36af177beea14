"""What is refused after the engine died, and what is not."""

import pytest

from glimpse.engine.client.suspects import REFUSAL_SECONDS, Suspects, Work, prompt_digest
from glimpse.engine.errors import EngineErrorCode
from glimpse.engine.protocol.media import MediaSpan
from glimpse.engine.protocol.messages import (
    FinishReason,
    MediaInput,
    RequestStats,
    TokenEvent,
)
from glimpse.media.kind import MediaKind


class Server:
    """Suspects, and a clock that stands still."""

    def __init__(self) -> None:
        self.now = 0.0
        self.suspects = Suspects(clock=lambda: self.now)

    def send(self, name: str, flow: str = "") -> EngineErrorCode | None:
        """Sends a prompt, unless it is refused; returns with what."""
        work = Work(request_ids=[f"{name} {flow}"], digest=name.encode(), flow=flow or name)
        refusal = self.suspects.refusal(work)
        if refusal is not None:
            return refusal.code
        self.suspects.begin(work)
        return None

    def die_with(self, *names: str) -> None:
        """Dies while it has these prompts."""
        for name in names:
            assert self.send(name) is None, name
        self.suspects.died()

    def end(self, name: str, reason: FinishReason = FinishReason.STOP, *, num_computed: int = 0) -> None:
        stats = RequestStats(num_computed_prompt_tokens=num_computed)
        self.suspects.end(TokenEvent(request_id=f"{name} ", finish=reason, stats=stats))


@pytest.fixture
def server() -> Server:
    return Server()


def test_prompt_that_was_alone_at_two_deaths_is_refused_for_a_while(server: Server) -> None:
    server.die_with("deadly")
    server.die_with("deadly", "new")
    assert server.send("deadly") is EngineErrorCode.SUSPECTED
    assert server.send("new") is None
    server.now = REFUSAL_SECONDS
    server.die_with("deadly")
    assert server.send("deadly") is EngineErrorCode.SUSPECTED, "one more death is enough"


def test_innocents_beside_a_deadly_prompt_are_not_refused(server: Server) -> None:
    server.die_with("deadly", "a", "b")
    server.die_with("deadly", "a", "b")
    assert server.send("a") is None
    assert [server.send("b"), server.send("deadly")] == [EngineErrorCode.OVERLOADED] * 2, "one at a time"
    assert server.send("other") is None
    server.end("a")
    assert server.send("deadly") is None
    assert server.send("b") is EngineErrorCode.OVERLOADED
    server.suspects.died()
    assert server.send("deadly") is EngineErrorCode.SUSPECTED
    assert [server.send(name) for name in ("a", "b", "other")] == [None] * 3


def test_prompt_that_ended_between_two_deaths_is_no_suspect(server: Server) -> None:
    server.die_with("popular")
    assert server.send("popular") is None
    server.end("popular")
    server.die_with("popular")
    assert server.send("popular") is None


@pytest.mark.parametrize(("num_computed", "refusal"), [(0, EngineErrorCode.SUSPECTED), (5, None)])
def test_cancelled_prompt_is_acquitted_if_it_was_computed(
    server: Server, num_computed: int, refusal: EngineErrorCode | None
) -> None:
    server.die_with("p")
    assert server.send("p") is None
    server.end("p", FinishReason.CANCELLED, num_computed=num_computed)
    server.die_with("p")
    assert server.send("p") is refusal


def test_deaths_with_another_cause_do_not_count(server: Server) -> None:
    for _ in range(2):
        assert server.send("p") is None
        server.suspects.died(by_itself=False)
    server.die_with("p")
    assert server.send("p") is None


def test_deaths_with_others_in_between_are_not_in_a_row(server: Server) -> None:
    server.die_with("p")
    server.die_with("other")
    server.die_with("p")
    assert server.send("p") is None


def test_prompts_of_one_request_are_suspected_and_refused_together(server: Server) -> None:
    for _ in range(2):
        assert [server.send(name, flow="batch") for name in "ab"] == [None, None]
        server.suspects.died()
    assert [server.send(name, flow="again") for name in "ab"] == [EngineErrorCode.SUSPECTED] * 2


def test_suspicion_that_is_never_resolved_ends(server: Server) -> None:
    server.die_with("a", "b")
    server.die_with("a", "b")
    server.now = REFUSAL_SECONDS
    assert [server.send(name) for name in "ab"] == [None, None]


def test_digest_is_of_the_tokens_and_the_media() -> None:
    def medium(key: bytes) -> MediaInput:
        span = MediaSpan(kind=MediaKind.IMAGE, start=0, num_tokens=1, key=key, grid=(1, 2, 2))
        return MediaInput(span=span, content=memoryview(b""))

    digests = {
        prompt_digest([1, 2], []),
        prompt_digest([2, 1], []),
        prompt_digest([1, 2], [medium(b"red")]),
        prompt_digest([1, 2], [medium(b"blue")]),
    }
    assert len(digests) == 4
    assert prompt_digest([1, 2], [medium(b"red")]) in digests
