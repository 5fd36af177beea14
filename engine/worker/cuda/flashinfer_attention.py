"""Attention by FlashInfer, an optional dependency.

**Unmeasured**: it has not run on a GPU yet. The wrapper is called as documented, and only the computation of its
arguments is tested.

FlashInfer computes steps that contain prompts. Decode steps use the Triton kernels, because a CUDA graph replays them
with other lengths, while FlashInfer would have to plan on the host before each replay.
"""

from itertools import accumulate
from typing import Any

import torch

# An untyped extra, which is not a development dependency.
from flashinfer import BatchPrefillWithPagedKVCacheWrapper  # pyright: ignore
from torch import Tensor

from glimpse.engine.worker.cuda.attention import paged_attention
from glimpse.engine.worker.cuda.pages import make_pages
from glimpse.engine.worker.tensors.batch import Batch
from glimpse.engine.worker.tensors.kv_cache import KVCache, LayerCache
from glimpse.engine.worker.tensors.paged_plan import PagedPlan, plan_attention

WORKSPACE_BYTES = 128 << 20
"""The size that FlashInfer's documentation recommends."""


class FlashInferAttention:
    """Plans one step at a time: a plan is valid until the next one is made."""

    def __init__(self, *, num_heads: int, device: torch.device) -> None:
        """`num_heads` is the number of query heads of a layer on this device."""
        self._num_heads = num_heads
        workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._wrapper: Any = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD")

    def plan(self, batch: Batch, cache: KVCache) -> PagedPlan | None:
        """Returns a plan for the Triton kernels, or None if the wrapper holds the plan."""
        block_tables = batch.block_tables
        if max(batch.query_lengths) == 1:
            return plan_attention(
                query_lengths=batch.query_lengths, key_lengths=batch.key_lengths, block_tables=block_tables
            )
        pages = make_pages(batch.key_lengths, block_size=cache.block_size, table_width=block_tables.shape[1])
        places = torch.from_numpy(pages.places).to(block_tables.device, non_blocking=True)
        # Arguments that the host reads are in host memory, so that it does not wait for the device.
        self._wrapper.plan(
            qo_indptr=torch.tensor([0, *accumulate(batch.query_lengths)], dtype=torch.int32),
            paged_kv_indptr=torch.from_numpy(pages.starts),
            paged_kv_indices=block_tables.flatten()[places].to(torch.int32),
            paged_kv_last_page_len=torch.from_numpy(pages.last_lengths),
            num_qo_heads=self._num_heads,
            num_kv_heads=cache.keys.shape[3],
            head_dim_qk=cache.keys.shape[4],
            page_size=cache.block_size,
            causal=True,
            q_data_type=cache.keys.dtype,
            kv_data_type=cache.keys.dtype,
        )
        return None

    def attend(self, query: Tensor, cache: LayerCache, plan: PagedPlan | None) -> Tensor:
        if plan is not None:
            return paged_attention(query, cache, plan)
        return self._wrapper.run(query, (cache.keys, cache.values))
