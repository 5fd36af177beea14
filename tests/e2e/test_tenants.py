"""Tenants as clients see them: `glimpse up --api-keys`, through Envoy and past it."""

import contextlib
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import openai
import pytest

from glimpse.identity.api_keys import KeyOwner, key_line
from glimpse.v1 import model_pb2, model_pb2_grpc
from tests.e2e.images import data_url, tiles
from tests.e2e.stack import Stack, start_stack
from tests.waiting import eventually

LIMITS = "[tenant.brief]\ntokens_per_minute = 10\n[tenant.capped]\nmin_priority = 0\n"
ASKED: Any = {"model": "nano", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("tenants")
    keys, limits = folder / "keys", folder / "tenants.toml"
    keys.write_text("\n".join(key_line(f"{name}-key", KeyOwner(tenant=name)) for name in ("acme", "brief", "capped")))
    limits.write_text(LIMITS)
    running = start_stack(folder, f"--api-keys={keys}", f"--tenants={limits}", "--access-log")
    yield running
    running.stop()


def ask(stack: Stack, key: str, **members: Any) -> Any:
    with openai.OpenAI(base_url=stack.openai_url, api_key=key, max_retries=0) as client:
        return client.chat.completions.create(**ASKED, extra_body=members)


def test_openai_s_library_sends_the_key(stack: Stack) -> None:
    assert ask(stack, "acme-key").choices[0].message.content is not None
    with pytest.raises(openai.AuthenticationError) as caught:
        ask(stack, "wrong-key")
    assert caught.value.code == "invalid_credential"
    assert stack.health() == 200


def test_port_of_the_server_checks_too(stack: Stack) -> None:
    with grpc.insecure_channel(stack.target) as channel:
        models = model_pb2_grpc.ModelServiceStub(channel)
        assert models.ListModels(model_pb2.ListModelsRequest(), metadata=(("x-api-key", "acme-key"),)).data
        with pytest.raises(grpc.RpcError) as caught:
            models.ListModels(model_pb2.ListModelsRequest(), metadata=(("x-glimpse-tenant", "acme"),))
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED  # pyright: ignore[reportAttributeAccessIssue]


def test_used_up_quota_says_when_to_retry(stack: Stack) -> None:
    used = ask(stack, "brief-key").usage
    with pytest.raises(openai.RateLimitError) as caught:
        ask(stack, "brief-key")
    assert caught.value.code == "rate_limit_exceeded"
    seconds = int(caught.value.response.headers["retry-after"])
    assert 1 <= seconds <= 6 * (used.total_tokens - 10 + 1) + 1


def test_access_log_of_the_gateway_is_on_standard_output(stack: Stack) -> None:
    tokens = ask(stack, "acme-key", cache_salt="logged").usage
    line = f"prompt_tokens={tokens.prompt_tokens} completion_tokens={tokens.completion_tokens} "
    assert eventually(lambda: "POST /v1/chat/completions 200 " in stack.log.read_text())
    assert line in stack.log.read_text()


def test_log_of_the_server_says_why_each_request_failed(stack: Stack) -> None:
    ask(stack, "acme-key")
    told = dict[str, str | None]()
    for key, members in (("wrong-key", {}), ("capped-key", {"priority": -1}), ("acme-key", {"model": "unknown"})):
        with pytest.raises(openai.APIStatusError) as caught:
            ask(stack, key, **members)
        told[caught.value.request_id or ""] = caught.value.code
    assert set(told.values()) == {"invalid_credential", "tenant_limit", "model_not_found"}

    def logged() -> dict[str, str | None]:
        lines = [json.loads(line) for line in stack.log.read_text().splitlines() if line.startswith('{"method"')]
        return {line["request_id"]: line["reason"] for line in lines}

    assert eventually(lambda: told.keys() <= logged().keys())
    assert {name: logged()[name] for name in told} == told
    assert None in logged().values(), "that of requests that were answered"


def test_what_another_tenant_has_sent_costs_what_nobody_s_costs(stack: Stack) -> None:
    """Otherwise the time of an answer would tell what others have sent."""

    def work(key: str, seed: int) -> list[float]:
        """What the server does for a question about an image."""
        names = ("media_decode_seconds_count", "encoded_media_total", "encoder_cache_hits_total", "cached_tokens_total")
        before = [stack.metric(f"glimpse_{name}") for name in names]
        image = {"type": "image_url", "image_url": {"url": data_url(tiles(seed=seed))}}
        usage = ask(stack, key, messages=[{"role": "user", "content": [image, {"type": "text", "text": "And?"}]}]).usage
        assert eventually(lambda: not stack.metric("glimpse_requests_running"))
        done = [stack.metric(f"glimpse_{name}") - was for name, was in zip(names, before, strict=True)]
        return [*done, usage.prompt_tokens_details.cached_tokens]

    work("capped-key", 81)  # what both have in common, such as the beginning of a prompt
    new, again, others = work("acme-key", 82), work("acme-key", 82), work("capped-key", 82)
    assert others == new != again


def test_limit_is_named_as_the_client_wrote_it(stack: Stack) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(stack, "capped-key", priority=-1)
    assert (caught.value.code, caught.value.param) == ("tenant_limit", "priority")


def test_body_of_a_stranger_is_not_awaited(stack: Stack) -> None:
    announced = {"content-type": "application/json", "content-length": str(32 << 20), "expect": "100-continue"}
    request = urllib.request.Request(f"{stack.openai_url}/chat/completions", b"{", announced)
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=30)
    with caught.value:
        assert caught.value.code == 401


@pytest.mark.parametrize(("key", "status"), [("wrong-key", 401), ("brief-key", 429)])
def test_a_client_that_sends_all_before_it_reads_hears_why(stack: Stack, key: str, status: int) -> None:
    """The client's system drops an answer whose connection closes before the end of the body."""
    if status == 429:
        with contextlib.suppress(openai.RateLimitError):
            ask(stack, key)
    body = json.dumps(ASKED | {"user": "x" * (8 << 20)}).encode()
    for _ in range(5):
        headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
        with contextlib.closing(
            http.client.HTTPConnection(urlsplit(stack.openai_url).netloc, timeout=60)
        ) as connection:
            connection.request("POST", "/v1/chat/completions", body, headers)
            assert connection.getresponse().status == status


def test_a_missing_file_of_keys_is_an_error_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception, match="expected a readable file"):
        start_stack(tmp_path, f"--api-keys={tmp_path / 'none'}")
