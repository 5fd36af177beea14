"""Two servers, each behind its own Envoy, with one media store: over REST and gRPC, and while Redis is away."""

from collections.abc import Callable, Iterator
from typing import Any, Unpack

import grpc
import pytest
from grpc_health.v1 import health_pb2
from openai import APIStatusError, OpenAI

from glimpse.client.options import UploadOptions
from glimpse.client.requests import upload_requests
from glimpse.server.media_settings import MediaSettings
from glimpse.v1 import chat_pb2, chat_pb2_grpc, content_pb2, media_pb2, media_pb2_grpc
from tests.e2e.images import data_url, encoded, tiles
from tests.e2e.stack import Stack, health_stub, start_echo_stack
from tests.media.shared.redis_server import RedisServer
from tests.server.requests import image_part, request, user
from tests.waiting import eventually

PNG, OTHER_PNG = encoded(tiles(seed=71)), encoded(tiles(seed=72))
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class Replica:
    """A server, and clients that reach it through its Envoy."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.openai = OpenAI(base_url=stack.openai_url, api_key="none", max_retries=0)
        self.channel = grpc.insecure_channel(f"127.0.0.1:{stack.http_port}")

    def close(self) -> None:
        self.openai.close()
        self.channel.close()
        self.stack.stop()

    def upload(self, data: bytes, **options: Unpack[UploadOptions]) -> str:
        requests = upload_requests(data, options)
        return media_pb2_grpc.MediaServiceStub(self.channel).UploadMedia(requests).media.upload_id

    def over_rest(self, part: dict[str, Any], **extra: Any) -> str:
        """Asks about an image, and returns the answer's prompt tokens or the error's code."""
        content: Any = [{"type": "image_url", **part}, {"type": "text", "text": "What is this?"}]
        try:
            answer = self.openai.chat.completions.create(
                model="nano", messages=[{"role": "user", "content": content}], max_completion_tokens=4, extra_body=extra
            )
        except APIStatusError as error:
            return f"{error.status_code} {error.code}"
        assert answer.usage is not None
        return "answered"

    def over_grpc(self, part: content_pb2.ContentPart, cache_salt: str = "") -> str:
        """Asks over gRPC; an error's name is its status'."""
        wire = request(user("What is this?", part), max_completion_tokens=4)
        wire.cache_salt = cache_salt
        chat: Any = chat_pb2_grpc.ChatServiceStub(self.channel)
        try:
            answer: chat_pb2.CreateChatCompletionResponse = chat.CreateChatCompletion(wire)
        except grpc.RpcError as error:
            status: Any = error
            return status.code().name
        assert answer.choices
        return "answered"

    def store_health(self) -> int:
        with grpc.insecure_channel(self.stack.target) as channel:
            check = health_pb2.HealthCheckRequest(service="glimpse.media_store")
            return health_stub(channel).Check(check).status


@pytest.fixture(scope="module")
def replicas(running_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Replica]]:
    media = MediaSettings(media_store=running_redis.url)
    started: list[Replica] = []
    try:
        folders = [tmp_path_factory.mktemp(name) for name in ("one", "other")]
        started.extend(Replica(start_echo_stack(folder, media)) for folder in folders)
        yield started
    finally:
        for replica in started:
            replica.close()


def by_uuid(uuid: str) -> content_pb2.ContentPart:
    return content_pb2.ContentPart(image={}, uuid=uuid)


def becomes(ask: Callable[[], str], outcome: str) -> bool:
    """Whether the outcome is reached: uuids are shared in the background."""
    return eventually(lambda: ask() == outcome)


def test_upload_to_one_server_is_used_on_the_other(replicas: list[Replica]) -> None:
    one, other = replicas
    handle = one.upload(PNG, cache_salt="mine")
    part = content_pb2.ContentPart(image={"source": {"upload_id": handle}})
    rest = {"image_url": {"upload_id": handle}}
    for replica in replicas:
        assert replica.over_rest(rest, cache_salt="mine") == replica.over_grpc(part, "mine") == "answered"
    assert other.over_rest(rest) == "400 media_not_cached"
    assert other.over_grpc(part, "yours") == "FAILED_PRECONDITION"
    stubs = [media_pb2_grpc.MediaServiceStub(replica.channel) for replica in replicas]
    found = [stub.GetMedia(media_pb2.GetMediaRequest(upload_id=handle, cache_salt="mine")).media for stub in stubs]
    assert found[0] == found[1]
    stubs[1].DeleteMedia(media_pb2.DeleteMediaRequest(upload_id=handle, cache_salt="mine"))
    assert one.over_rest(rest, cache_salt="mine") == "400 media_not_cached"


def test_uuid_sent_to_one_server_is_known_to_the_other(replicas: list[Replica]) -> None:
    one, other = replicas
    sent = image_part(PNG)
    sent.uuid = "by gRPC"
    assert one.over_grpc(sent, "mine") == "answered"
    assert becomes(lambda: other.over_rest({"image_url": None, "uuid": "by gRPC"}, cache_salt="mine"), "answered")
    url = {"url": data_url(tiles(seed=73))}
    assert other.over_rest({"image_url": url, "uuid": "by REST"}, cache_salt="mine") == "answered"
    assert becomes(lambda: one.over_grpc(by_uuid("by REST"), "mine"), "answered")
    assert one.over_grpc(by_uuid("by REST")) == "FAILED_PRECONDITION"
    assert other.over_rest({"image_url": None, "uuid": "by gRPC"}, cache_salt="yours") == "400 media_not_cached"


def test_servers_go_on_without_redis_and_use_it_again(replicas: list[Replica], running_redis: RedisServer) -> None:
    one, other = replicas
    handle = one.upload(OTHER_PNG)
    part = content_pb2.ContentPart(image={"source": {"upload_id": handle}})
    assert {replica.store_health() for replica in replicas} == {SERVING}
    running_redis.stop()
    for replica in replicas:
        assert eventually(lambda each=replica: each.store_health() == NOT_SERVING)
        assert replica.stack.metric("glimpse_media_store_available") == 0
        assert replica.stack.health() == 200
        assert replica.over_grpc(image_part(PNG)) == "answered"
    assert one.over_grpc(part) == "answered"  # the file is in its memory
    assert other.over_grpc(part) == "UNAVAILABLE"
    assert other.over_rest({"image_url": None, "uuid": "never sent"}) == "503 media_store_unavailable"
    with pytest.raises(grpc.RpcError) as caught:
        other.upload(PNG)
    refused: Any = caught.value
    assert refused.code() == grpc.StatusCode.UNAVAILABLE
    running_redis.start()  # empty: what it had is lost
    assert becomes(lambda: other.over_grpc(part), "answered")
    assert {replica.store_health() for replica in replicas} == {SERVING}
    assert other.stack.metric("glimpse_media_store_available") == 1
    assert other.over_grpc(by_uuid("never sent")) == "FAILED_PRECONDITION"


def test_a_file_of_one_server_is_a_file_of_the_other(replicas: list[Replica]) -> None:
    # As clients do by default, these try again where a machine at its limit lets a command of Redis take over 2 s.
    one, other = (replica.openai.with_options(max_retries=5).files for replica in replicas)
    created = one.create(file=("a.png", PNG), purpose="vision")
    assert other.retrieve(created.id) == created
    assert created in other.list(purpose="vision").data
    assert other.content(created.id).read() == PNG
    assert replicas[1].over_rest({"image_url": {"file_id": created.id}}) == "answered"
    other.delete(created.id)
    assert created.id not in [each.id for each in one.list()]
