"""Tensor parallelism with two ranks on the CPU: same answers as one rank, and shared lifetime."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from glimpse.engine.client.engine_client import EngineClient
from glimpse.engine.client.supervisor import EngineState
from glimpse.engine.core.core import Core
from glimpse.engine.core.ngram_proposer import ModelProposer
from glimpse.engine.core.prefill_budget import PrefillBudget
from glimpse.engine.errors import CheckpointError, EngineErrorCode
from glimpse.engine.protocol.config import EngineConfig, KvCacheDType
from glimpse.engine.protocol.messages import Embed, FinishReason, Generate, TokenEvent
from glimpse.engine.protocol.pooling_params import PoolingMode, PoolingParams
from glimpse.engine.protocol.sampling_params import SamplingParams
from glimpse.engine.worker.loading.load_engine import load_core
from glimpse.engine.worker.parallel import ranks
from glimpse.engine.worker.parallel.messages import Join, Load, Loaded, channel_to_rank
from glimpse.engine.worker.parallel.ranks import Ranks
from glimpse.native.process_table import is_alive
from tests.checkpoints.qwen3_5 import make_qwen3_5_checkpoint
from tests.engine.checking_runner import events_of, tokens_of
from tests.engine.harness import Prompt, make_prompt, request_of
from tests.engine.qwen3_vl_prompts import make_qwen3_prompt
from tests.engine.worker.models import test_deepseek_ocr2 as deepseek_ocr2
from tests.engine.worker.models import test_glm4v as glm4v
from tests.engine.worker.models import test_minicpmv4_6 as minicpmv4_6
from tests.engine.worker.models import test_paddleocr_vl as paddleocr_vl
from tests.fork_server import without_forks
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("forks")

TOLERANCE = 2e-5
"""For logprobs: float32 sums in another order."""
ROUNDING = 2e-3
"""Likewise, where such a sum may be rounded to another number of 8 bits."""
DEADLINE_SECONDS = 200.0
LOADED = Loaded(device="cpu", dtype="float32", quantization="none")

PROMPTS = [
    make_prompt(1, 23),
    make_prompt(2, 5, (112, 84), 9),
    make_prompt(3, 3, (28, 28), 1, (56, 196), 1, (140, 28), 4, (84, 112), 6),
    make_prompt(4, 70, (84, 84), 1),
]


def engine_config(path: Path, num_ranks: int, **options: Any) -> EngineConfig:
    return EngineConfig(
        **options,
        model_path=str(path),
        device="cpu",
        dtype="float32",
        num_threads=1,
        block_size=8,
        kv_cache_bytes=4 << 20,
        max_batch_tokens=40,  # prompts are computed in chunks
        max_decode_slowdown=1000.0,
        tensor_parallel_size=num_ranks,
    )


DRAFTED = [make_qwen3_prompt(1, 23), make_qwen3_prompt(2, 150)]
"""Prompts of a checkpoint whose own layer proposes draft tokens."""


def load(path: Path, num_ranks: int, **options: Any) -> Core:
    config = engine_config(path, num_ranks, **options)
    return load_core(config, on_progress=lambda _stage, _fraction: None).core


def request(request_id: str, prompt: Prompt, max_tokens: int = 10) -> Generate:
    sampling = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True, logprobs=3)
    return request_of(request_id, prompt, sampling)


def answer(core: Core, prompts: Sequence[Prompt]) -> list[list[TokenEvent]]:
    """Returns the events of prompts that are computed concurrently."""
    events: dict[str, list[TokenEvent]] = {str(index): [] for index in range(len(prompts))}
    for request_id, prompt in zip(events, prompts, strict=True):
        core.submit(request(request_id, prompt))
    for event in events_of(core):
        assert event.error is None, event.message
        events[event.request_id].append(event)
    return list(events.values())


def embed(core: Core, prompts: Sequence[Prompt], pooling: PoolingParams) -> dict[str, np.ndarray]:
    """Returns the embeddings of prompts that are computed concurrently."""
    for index, prompt in enumerate(prompts):
        generate = request(str(index), prompt)
        core.submit(Embed(request_id=str(index), token_ids=generate.token_ids, media=generate.media, pooling=pooling))
    return {event.request_id: np.frombuffer(event.embedding, dtype="<f4") for event in events_of(core)}


def logprobs(events: Sequence[TokenEvent]) -> list[float]:
    """Returns the logprobs of the tokens and of the top alternatives."""
    places = [place for event in events for place in event.logprobs]
    return [value for place in places for value in (place.logprob, *(logprob for _, logprob in place.top))]


def qwen3_5_moe(path: Path) -> Path:
    return make_qwen3_5_checkpoint(path, experts=True)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def entries(folder: Path) -> list[Path]:
    return [*folder.iterdir()]


@pytest.fixture(scope="module")
def alone(tiny_checkpoint: Path) -> list[list[TokenEvent]]:
    """Returns the answers of a single rank."""
    return answer(load(tiny_checkpoint, 1), PROMPTS)


def test_two_ranks_answer_as_one_until_a_rank_dies(tiny_checkpoint: Path, alone: list[list[TokenEvent]]):
    before = children_of(os.getpid())
    core = load(tiny_checkpoint, 2)
    together = answer(core, PROMPTS)
    assert list(map(tokens_of, together)) == list(map(tokens_of, alone))
    for ours, theirs in zip(together, alone, strict=True):
        assert logprobs(ours) == pytest.approx(logprobs(theirs), abs=TOLERANCE)
    again = answer(core, PROMPTS)
    assert list(map(tokens_of, again)) == list(map(tokens_of, alone))
    assert again[-1][-1].stats.num_cached_tokens > 0
    single = load(tiny_checkpoint, 1)
    for pooling in (*(PoolingParams(mode=mode) for mode in PoolingMode), PoolingParams(token_ids=(5, 6))):
        ours, theirs = embed(core, PROMPTS, pooling), embed(single, PROMPTS, pooling)
        assert len(ours) == len(PROMPTS)
        for request_id, embedding in ours.items():
            np.testing.assert_allclose(embedding, theirs[request_id], atol=TOLERANCE)

    core.submit(request("first", PROMPTS[1]))
    core.step()
    [rank] = set(children_of(os.getpid())) - set(before)
    os.kill(rank, signal.SIGKILL)
    assert [event.error for event in events_of(core)][-1] is EngineErrorCode.INTERNAL
    core.submit(request("second", PROMPTS[1]))
    assert [event.error for event in events_of(core)] == [EngineErrorCode.INTERNAL]


@pytest.mark.parametrize(
    ("make", "prompts", "kv_cache_dtype"),
    [
        pytest.param(qwen3_5_moe, DRAFTED, "auto", id="a delta net, a shared expert and multi-token prediction"),
        pytest.param(minicpmv4_6.CHECKPOINT, minicpmv4_6.PROMPTS.values(), "auto", id="MiniCPM-V 4.6"),
        pytest.param(
            deepseek_ocr2.CHECKPOINT,
            [deepseek_ocr2.PROMPTS["image"]],
            "auto",
            id="DeepSeek-OCR-2, experts without gate",
        ),
        pytest.param(glm4v.CHECKPOINT, glm4v.PROMPTS.values(), "auto", id="GLM-4.1V, one key-value head on both"),
        pytest.param(paddleocr_vl.CHECKPOINT, paddleocr_vl.PROMPTS.values(), "int8", id="PaddleOCR-VL, 8-bit cache"),
    ],
)
def test_two_ranks_divide_the_heads_of_each_family(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    make: Callable[[Path], Path],
    prompts: Collection[Prompt],
    kv_cache_dtype: KvCacheDType,
):
    drafts: list[dict[tuple[int, ...], tuple[int, ...]]] = [{}]
    offer = ModelProposer.offer

    def offer_and_note(self: ModelProposer, token_ids: Sequence[int], proposed: tuple[int, ...]) -> None:
        drafts[-1][tuple(token_ids)] = proposed
        offer(self, token_ids, proposed)

    monkeypatch.setattr(ModelProposer, "offer", offer_and_note)
    # Prompts are divided alike, however long media take: sums in the states of delta nets depend on it.
    monkeypatch.setattr(PrefillBudget, "media_weight", 1.0)
    path = make(tmp_path / "model")
    prompts, tolerance = list(prompts), TOLERANCE if kv_cache_dtype == "auto" else ROUNDING
    is_drafted = prompts == DRAFTED
    options: dict[str, Any] = {"speculative": "mtp", "num_speculative_tokens": 2} if is_drafted else {}
    options["kv_cache_dtype"] = kv_cache_dtype
    alone, ranks = answer(load(path, 1, **options), prompts), load(path, 2, **options)
    drafts.append({})
    for is_again in (False, True):
        together = answer(ranks, prompts)
        assert list(map(tokens_of, together)) == list(map(tokens_of, alone))
        for ours, theirs in zip(together, alone, strict=True):
            assert logprobs(ours) == pytest.approx(logprobs(theirs), abs=tolerance)
        cached = [(len(prompt.token_ids) - 1) // 8 * 8 if is_again else 0 for prompt in prompts]
        assert [events[-1].stats.num_cached_tokens for events in together] == cached
    both = drafts[0].keys() & drafts[1].keys()
    assert {each: drafts[1][each] for each in both} == {each: drafts[0][each] for each in both}
    assert (len(both) > 10) == is_drafted


async def test_death_of_a_rank_ends_requests_as_unavailable_and_restarts_all(
    tiny_checkpoint: Path, alone: list[list[TokenEvent]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    without_forks(monkeypatch)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    client = EngineClient(engine_config(tiny_checkpoint, 2))
    try:
        async with asyncio.timeout(DEADLINE_SECONDS):
            ready = await client.start()
            assert ready.tensor_parallel_size == 2
            assert client.pid is not None
            [rank] = children_of(client.pid)
            first = client.pid
            for pid in (first, rank):
                os.kill(pid, signal.SIGINT)
                os.kill(pid, signal.SIGTERM)
            events = client.generate(request("long", PROMPTS[0], max_tokens=3000))
            await anext(events)
            os.kill(rank, signal.SIGKILL)
            last = [event async for event in events][-1]
            assert (last.finish, last.error) == (FinishReason.ERROR, EngineErrorCode.DIED)
            await until(lambda: client.state is EngineState.READY)
            again = [event async for event in client.generate(request("again", PROMPTS[2]))]
            assert tokens_of(again) == tokens_of(alone[2])
            assert client.pid is not None
            running = [client.pid, *children_of(client.pid)]
            assert len(running) == 2
            os.kill(client.pid, signal.SIGKILL)
            await until(lambda: not any(map(is_alive, running)))
    finally:
        await client.stop()
    assert not any(map(is_alive, [first, *running]))
    assert not entries(tmp_path), "a kill leaves no files"


def test_refuses_a_number_of_ranks_that_cannot_shard_the_model(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ranks, "_start", lambda rank, config: pytest.fail("a rank is started"))
    before = children_of(os.getpid())
    with pytest.raises(
        CheckpointError, match=r"'--tensor-parallel-size': expected a divisor of .* 4 attention heads, got 3"
    ):
        load(tiny_checkpoint, 3)
    with pytest.raises(CheckpointError, match="'--tensor-parallel-size': expected at least 1, got 0"):
        load(tiny_checkpoint, 0)
    assert children_of(os.getpid()) == before


def test_rank_exits_with_rank_0_while_waiting_to_join(tiny_checkpoint: Path, tmp_path: Path):
    ours, theirs = socket.socketpair()
    with theirs:
        fd = theirs.fileno()
        process = subprocess.Popen([sys.executable, "-m", "glimpse.engine.worker.rank", "--fd", str(fd)], pass_fds=[fd])
    pipe = channel_to_rank(ours)
    pipe.send(Load(config=engine_config(tiny_checkpoint, 2), rank=1))
    assert pipe.receive() == LOADED
    pipe.send(Join(rendezvous=str(tmp_path / "rendezvous"), address="127.0.0.1"))
    pipe.shutdown()
    pipe.close()
    assert process.wait(DEADLINE_SECONDS) == 0


def test_reports_why_a_rank_cannot_load_the_checkpoint(tmp_path: Path):
    before = children_of(os.getpid())
    failures: list[str] = []
    ranks = Ranks(engine_config(tmp_path, 2), on_rank_failure=lambda: failures.append("failed"))
    assert len(children_of(os.getpid())) == len(before) + 1
    with pytest.raises(CheckpointError, match=r"the checkpoint has no config\.json"):
        ranks.join(torch.device("cpu"), LOADED)
    del ranks
    assert children_of(os.getpid()) == before
    assert not failures


def test_terminate_waits_for_the_thread_that_handles_the_failure(tmp_path: Path):
    """Otherwise a step could report its own failure before the program reacts to the failed rank."""
    noticed = threading.Event()
    order: list[str] = []

    def on_rank_failure() -> None:
        noticed.set()
        time.sleep(0.2)
        order.append("on_rank_failure has returned")

    before = children_of(os.getpid())
    ranks = Ranks(engine_config(tmp_path, 2), on_rank_failure=on_rank_failure)
    [rank] = set(children_of(os.getpid())) - set(before)
    os.kill(rank, signal.SIGKILL)
    assert noticed.wait(DEADLINE_SECONDS)
    ranks.terminate()
    order.append("terminated")
    assert order == ["on_rank_failure has returned", "terminated"]
