"""A batch on servers of which something is killed in random moments: each request must be answered exactly once."""

import json
import os
import random
import signal
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import ByteSize

from glimpse.client import Client, GlimpseError
from glimpse.server.media_settings import MediaSettings
from glimpse.server.settings import BatchSettings, EngineSettings, ListenSettings, Settings
from glimpse.v1 import batch_pb2
from tests.e2e.stack import Served, children, free_ports, start
from tests.engine.client.scripted import scripted_command
from tests.media.shared.redis_server import RedisServer

KILLS = ("server", "engine", "store")
_ENDED = (batch_pb2.BATCH_STATUS_COMPLETED, batch_pb2.BATCH_STATUS_FAILED, batch_pb2.BATCH_STATUS_EXPIRED)


@dataclass(slots=True, kw_only=True)
class Answers:
    """What became of a batch."""

    status: str
    custom_ids: list[str]
    """Names on all lines of both files."""
    num_failed: int
    num_kills: dict[str, int]


def answer_under_kills(
    folder: Path, *, num_requests: int, num_kills: int, num_servers: int = 2, seed: int = 20261127
) -> Answers:
    """Begins a batch and kills a server, an engine or the store, until all are killed so often; waits for its end."""
    chance = random.Random(seed)
    victims = [KILLS[number % len(KILLS)] for number in range(num_kills)]
    chance.shuffle(victims)
    redis = RedisServer(folder, "--appendonly", "yes", "--appendfsync", "always")
    with ExitStack() as stack:
        stack.callback(redis.stop)
        servers = [_start(folder / str(number), redis.url) for number in range(num_servers)]
        stack.callback(lambda: [each.stop(signal.SIGKILL) for each in servers])
        batch_id = _begin(servers[0], num_requests)
        for victim in victims:
            time.sleep(0.2 + chance.random())
            number = chance.randrange(num_servers)
            match victim:
                case "server":
                    os.kill(servers[number].process.pid, signal.SIGKILL)
                    servers[number].process.wait()
                    servers[number] = _start(folder / str(number), redis.url)
                case "engine":
                    engine, *_ = children(servers[number].process.pid, "tests.engine.scripted_engine")
                    os.kill(engine, signal.SIGKILL)
                case _:
                    redis.stop()
                    time.sleep(chance.random())
                    redis.start()
        return _read(servers[0], batch_id, {kind: victims.count(kind) for kind in KILLS})


def _start(folder: Path, store: str) -> Served:
    folder.mkdir(exist_ok=True)
    port, metrics_port = free_ports(2)
    settings = Settings(
        engine=EngineSettings(spare_engine=False),
        media=MediaSettings(media_store=store, media_cache_bytes=ByteSize(0)),
        listen=ListenSettings(port=port, metrics_port=metrics_port, drain_delay=0),
        batches=BatchSettings(batch_at_once=4),
    )
    command = [sys.executable, "-m", "tests.e2e.scripted_glimpse", "none", settings.model_dump_json()]
    make = partial(Served, port=port, metrics_port=metrics_port, log=folder / "glimpse.log")
    return start(make, [*command, *scripted_command("replies", step_ms=10)])


def _begin(server: Served, num_requests: int) -> str:
    with Client(server.target) as client:
        lines = [
            {
                "custom_id": f"r{number}",
                "url": "/v1/chat/completions",
                "body": {"messages": [{"role": "user", "content": f"{number} words to be repeated"}], "max_tokens": 16},
            }
            for number in range(num_requests)
        ]
        upload = client.upload("\n".join(map(json.dumps, lines)).encode(), purpose="batch")
        return client.create_batch(upload, "/v1/chat/completions").batch_id


def _read(server: Served, batch_id: str, num_kills: dict[str, int]) -> Answers:
    deadline = time.monotonic() + 120
    with Client(server.target) as client:
        while True:
            try:
                batch = client.batch(batch_id)
            except GlimpseError:
                if time.monotonic() > deadline:
                    raise
            else:
                if batch.status in _ENDED or time.monotonic() > deadline:
                    break
            time.sleep(0.2)
        files = [name for name in (batch.output_file_id, batch.error_file_id) if name]
        lines = [json.loads(line) for name in files for line in client.download(name).splitlines()]
    return Answers(
        status=batch_pb2.BatchStatus.Name(batch.status),
        custom_ids=[line["custom_id"] for line in lines],
        num_failed=batch.request_counts.failed,
        num_kills=num_kills,
    )
