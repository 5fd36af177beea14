"""Adapters that two ranks load while they serve: answers are those of merged weights, and bad files harm nobody."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
import torch
from safetensors.torch import load_file, save_file

from glimpse.engine.client.engine_client import EngineClient
from glimpse.engine.client.supervisor import EngineState
from glimpse.engine.errors import EngineErrorCode
from glimpse.engine.protocol.config import EngineConfig
from glimpse.engine.protocol.messages import FinishReason, LoadAdapter, TokenEvent, UnloadAdapter
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.worker.loading.load_engine import load_core
from tests.checkpoints.lora import make_adapter, merged
from tests.engine.checking_runner import events_of, tokens_of
from tests.engine.harness import make_prompt, request_of
from tests.waiting import until

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.usefixtures("forks")]
PROMPT = make_prompt(5, 40)


def greedy(num_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Adapters, and one outside of the folder that is allowed."""
    folder = tmp_path_factory.mktemp("lora") / "adapters"
    for seed, name in enumerate(("a", "b", "../outside")):
        make_adapter(folder / name, tiny_checkpoint, seed=seed, strength=4)
    return folder


@pytest.fixture(scope="module")
def config(tiny_checkpoint: Path, folder: Path) -> EngineConfig:
    return EngineConfig(
        model_path=str(tiny_checkpoint),
        device="cpu",
        dtype="float32",
        num_threads=2,
        kv_cache_bytes=4 << 20,
        tensor_parallel_size=2,
        max_lora_rank=8,
        allowed_lora_path=str(folder),
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(config: EngineConfig) -> AsyncIterator[EngineClient]:
    client = EngineClient(config)
    try:
        await client.start()
        yield client
    finally:
        await client.stop()


def answer_of(checkpoint: Path, config: EngineConfig, num_tokens: int) -> list[int]:
    """Returns the tokens of one rank."""
    alone = replace(config, model_path=str(checkpoint), tensor_parallel_size=1)
    core = load_core(alone, on_progress=lambda _stage, _fraction: None).core
    core.submit(request_of("alone", PROMPT, greedy(num_tokens)))
    return tokens_of(events_of(core))


async def ask(client: EngineClient, adapter: str, num_tokens: int = 8) -> list[TokenEvent]:
    request = request_of(client.unique_id("ask"), PROMPT, greedy(num_tokens))
    return [event async for event in client.generate(msgspec.structs.replace(request, adapter=adapter))]


async def load(client: EngineClient, name: str, path: Path | str, *, in_place: bool = False) -> TokenEvent:
    request_id = client.unique_id("load")
    return await client.change_adapters(
        LoadAdapter(request_id=request_id, name=name, path=str(path), in_place=in_place)
    )


async def test_ranks_load_replace_and_unload_adapters_and_load_them_again_after_a_restart(
    client: EngineClient, config: EngineConfig, tiny_checkpoint: Path, folder: Path, tmp_path: Path
) -> None:
    long = 200
    expected = {
        name: answer_of(merged(tmp_path / name, tiny_checkpoint, folder / name), config, long) for name in "ab"
    } | {"": answer_of(tiny_checkpoint, config, 8)}
    assert expected["a"][:8] != expected["b"][:8] != expected[""]
    assert (await load(client, "x", folder / "a")).finish is FinishReason.STOP
    running = asyncio.create_task(ask(client, "x", long))
    assert tokens_of(await ask(client, "")) == expected[""]
    assert (await load(client, "x", folder / "b", in_place=True)).finish is FinishReason.STOP
    assert tokens_of(await ask(client, "x")) == expected["b"][:8]  # no prefix of the other's is found
    assert tokens_of(await running) == expected["a"]
    assert client.ready is not None
    before = client.ready.adapters
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    for state in (EngineState.RESTARTING, EngineState.READY):
        await until(lambda state=state: client.state is state)
    assert client.ready.adapters == before
    assert tokens_of(await ask(client, "x")) == expected["b"][:8]
    unload = UnloadAdapter(request_id="unload", name="x")
    assert (await client.change_adapters(unload)).finish is FinishReason.STOP
    assert client.ready.adapters == {}
    assert [event.error for event in await ask(client, "x")] == [EngineErrorCode.NO_ADAPTER]


def poisoned(path: Path) -> None:
    tensors = load_file(path)
    tensors[min(tensors)][0, 0] = torch.nan
    save_file(tensors, path)


def widened(path: Path) -> None:
    tensors = load_file(path)
    save_file({name: torch.cat([each, each], dim=-1) for name, each in tensors.items()}, path)


def linked(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parents[2] / "outside" / path.name)


HOSTILE: dict[str, tuple[Callable[[Path], object], str]] = {
    "nan": (poisoned, "expected finite numbers"),
    "shape": (widened, "expected matrices of rank 4"),
    "header": (lambda path: path.write_bytes(b"\xff" * 64), "expected a header of at most 8388608 bytes"),
    "offsets": (lambda path: path.write_bytes(path.read_bytes()[:-9]), "adapter_model.safetensors cannot be read"),
    "size": (lambda path: path.write_bytes(bytes(12 << 20)), "expected at most"),
    "config": (
        lambda path: (path.parent / "adapter_config.json").write_bytes(bytes(2 << 20)),
        "adapter_config.json: expected at most 1048576 bytes",
    ),
    "rank": (
        lambda path: (path.parent / "adapter_config.json").write_text('{"r": 100000000, "lora_alpha": 1}'),
        "'--max-lora-rank': expected at least the 100000000",
    ),
    "missing": (Path.unlink, "got one without adapter_model.safetensors"),
    "link": (linked, "expected a folder below --allowed-lora-path"),
}


async def test_adapters_that_cannot_be_loaded_cost_their_requests_alone(
    client: EngineClient, tiny_checkpoint: Path, folder: Path
) -> None:
    paths: dict[str, Path] = {
        "other": folder / "../outside",
        "outside": folder.parent / "outside",
        "zero": Path("\0"),
        "absent": folder / "c",
    }
    messages = {
        "other": "expected a folder below --allowed-lora-path",
        "outside": "expected a folder below --allowed-lora-path",
        "absent": "got one without adapter_config.json",
    }
    for name, (change, message) in HOSTILE.items():
        paths[name] = make_adapter(folder / f"hostile-{name}", tiny_checkpoint)
        change(paths[name] / "adapter_model.safetensors")
        messages[name] = message
    running = asyncio.create_task(ask(client, "", 100))
    events = dict(zip(paths, await asyncio.gather(*(load(client, "x", path) for path in paths.values())), strict=True))
    for name, event in events.items():
        assert (event.error, str(folder.parent) in event.message) == (EngineErrorCode.UNSUPPORTED, False), name
        assert messages.get(name, "") in event.message
    assert len(tokens_of(await running)) == 100
    assert (await load(client, "x", folder / "a")).finish is FinishReason.STOP
    await client.change_adapters(UnloadAdapter(request_id="end", name="x"))
