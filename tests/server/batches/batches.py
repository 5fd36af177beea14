"""Batches for tests."""

import json
from typing import Any

from glimpse.server.batches.record import BatchRecord, Kind
from glimpse.server.batches.runner import read_results
from glimpse.server.batches.store import BatchStore

CHAT = "/v1/chat/completions"
NEVER = 1 << 40


def new_batch(number: int = 1, tenant: str = "", **fields: Any) -> BatchRecord:
    values: dict[str, Any] = {
        "batch_id": f"batch_{number}",
        "tenant": tenant,
        "namespace": f"{tenant}." if tenant else "",
        "endpoint": CHAT,
        "input_file_id": "file-a",
        "completion_window": "24h",
        "created_at": 1000.0 + number,
        "expires_at": float(NEVER),
        "output_seconds": 50.0,
    }
    return BatchRecord(**(values | fields))


def requests(num: int, url: str = CHAT) -> bytes:
    return b"".join(line(f"r{index}", url) for index in range(num))


def line(custom_id: str, url: str = CHAT, **more: Any) -> bytes:
    return json.dumps({"custom_id": custom_id, "method": "POST", "url": url, "body": {"n": 1}} | more).encode() + b"\n"


async def answers(store: BatchStore, batch_id: str, kind: Kind) -> list[Any]:
    """The lines of a file of answers."""
    data = b"".join([part async for part in read_results(store, batch_id, kind)])
    return [json.loads(each) for each in data.splitlines()]
