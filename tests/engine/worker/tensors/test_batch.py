"""Packing: tables of small steps worked out by hand."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from glimpse.engine.core.plan import PENDING_TOKEN_ID, SequenceChunk
from glimpse.engine.protocol.media import MediaSpan
from glimpse.engine.worker.tensors.batch import MediaRows, SequenceLayout
from glimpse.engine.worker.tensors.batch_builder import make_batch
from glimpse.media.kind import MediaKind

CPU = torch.device("cpu")
SPAN = MediaSpan(kind=MediaKind.IMAGE, start=2, num_tokens=4, key=b"k", grid=(1, 4, 4))
LAYOUT = SequenceLayout(
    prompt_positions=np.array([[0, 1, 2, 2, 2, 2, 4], [0, 1, 2, 2, 3, 3, 4], [0, 1, 2, 3, 2, 3, 4]]),
    delta=-2,
    spans=(SPAN,),
)
TEXT = SequenceLayout(prompt_positions=np.tile(np.arange(3), (3, 1)), delta=0, spans=())


def chunk(sequence_id: int, start: int, token_ids: tuple[int, ...], blocks: tuple[int, ...], samples: bool):
    return SequenceChunk(sequence_id=sequence_id, start=start, token_ids=token_ids, block_table=blocks, samples=samples)


def test_packs_chunks_in_order():
    chunks = [
        chunk(7, 3, (10, 11, 12), (5, 2), samples=False),
        chunk(8, 9, (20,), (9, 4, 1), samples=True),
        chunk(9, 0, (30, 31, 32), (3,), samples=True),
    ]
    batch = make_batch(chunks, {7: LAYOUT, 8: LAYOUT, 9: TEXT}, block_size=4, device=CPU)
    assert batch.token_ids.tolist() == [10, 11, 12, 20, 30, 31, 32]
    assert batch.positions.tolist() == [
        [2, 2, 2, 7, 0, 1, 2],
        [2, 3, 3, 7, 0, 1, 2],
        [3, 2, 3, 7, 0, 1, 2],
    ]
    assert batch.slots.tolist() == [23, 8, 9, 5, 12, 13, 14]
    assert batch.block_tables.tolist() == [[5, 2, 0], [9, 4, 1], [3, 0, 0]]
    assert (batch.query_lengths, batch.key_lengths) == ((3, 1, 3), (6, 10, 3))
    assert batch.media == (MediaRows(key=b"k", offset=1, row=0, num_tokens=3),)
    assert batch.sampled_rows.tolist() == [3, 6]


def test_chunk_may_span_prompt_and_answer():
    recomputed = chunk(7, 5, (1, 2, 3, 4), (0, 1, 2), samples=True)
    batch = make_batch([recomputed], {7: LAYOUT}, block_size=4, device=CPU)
    assert batch.positions.tolist() == [[2, 4, 5, 6], [3, 4, 5, 6], [3, 4, 5, 6]]
    assert batch.media == (MediaRows(key=b"k", offset=3, row=0, num_tokens=1),)


def test_chunk_outside_a_medium_has_no_media_rows():
    chunks = [chunk(7, 0, (1, 2), (0,), samples=False), chunk(8, 6, (3,), (1, 2), samples=True)]
    assert make_batch(chunks, {7: LAYOUT, 8: LAYOUT}, block_size=4, device=CPU).media == ()


@st.composite
def layouts_of_runs(draw: st.DrawFn) -> tuple[MediaSpan, list[int]]:
    """Draws a span of runs and literal tokens, and the row that each of its tokens takes; -1 for literal ones."""
    rows: list[int] = []
    runs: list[tuple[int, int]] = []
    num_rows = 0
    for literal, length in draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=4)):
        runs.append((len(rows) + literal, length))
        rows += [-1] * literal + list(range(num_rows, num_rows + length))
        num_rows += length
    rows += [-1] * draw(st.integers(0, 2))
    span = MediaSpan(
        kind=MediaKind.VIDEO, start=draw(st.integers(0, 3)), num_tokens=len(rows), runs=tuple(runs), key=b"k", grid=()
    )
    return span, rows


@given(layouts_of_runs(), st.data())
def test_runs_take_the_rows_in_order_for_any_chunks(drawn: tuple[MediaSpan, list[int]], data: st.DataObject):
    """Literal tokens take none."""
    span, rows = drawn
    num_tokens = span.end + 2
    layout = SequenceLayout(prompt_positions=np.tile(np.arange(num_tokens), (3, 1)), delta=0, spans=(span,))
    cuts = sorted(data.draw(st.sets(st.integers(1, num_tokens - 1))))
    found = [-1] * num_tokens
    for start, end in zip([0, *cuts], [*cuts, num_tokens], strict=True):
        piece = chunk(7, start, (1,) * (end - start), tuple(range(num_tokens)), samples=False)
        for media in make_batch([piece], {7: layout}, block_size=4, device=CPU).media:
            for index in range(media.num_tokens):
                found[start + media.row + index] = media.offset + index
    assert found == [-1] * span.start + rows + [-1] * 2
    assert span.num_rows == max(rows) + 1


def test_batch_without_sampling_has_no_sampled_rows():
    batch = make_batch([chunk(7, 0, (1, 2), (0,), samples=False)], {7: LAYOUT}, block_size=4, device=CPU)
    assert batch.sampled_rows.tolist() == []


@given(st.lists(st.tuples(st.integers(0, 11), st.sampled_from([5, PENDING_TOKEN_ID]), st.booleans()), min_size=1))
def test_chunks_of_one_token_are_packed_like_longer_ones(rows: list[tuple[int, int, bool]]):
    """A longer chunk at the end makes all of them take the general way."""
    singles = [
        chunk(row, start, (token_id,), tuple(range(row, row + start // 4 + 1)), samples)
        for row, (start, token_id, samples) in enumerate(rows)
    ]
    longer = chunk(len(rows), 0, (1, 2), (0,), samples=False)
    layouts = {row: (LAYOUT, TEXT)[row % 2] for row in range(len(rows) + 1)}
    last_rows = {row: 7 * row for row in layouts}
    alone = make_batch(singles, layouts, block_size=4, device=CPU, last_sampled_rows=last_rows)
    packed = make_batch([*singles, longer], layouts, block_size=4, device=CPU, last_sampled_rows=last_rows)
    num_rows = len(rows)
    assert alone.token_ids.tolist() == packed.token_ids[:num_rows].tolist()
    assert alone.positions.tolist() == packed.positions[:, :num_rows].tolist()
    assert alone.positions.is_contiguous()
    assert alone.slots.tolist() == packed.slots[:num_rows].tolist()
    assert alone.block_tables.tolist() == packed.block_tables[:num_rows].tolist()
    assert alone.sampled_rows.tolist() == packed.sampled_rows.tolist()
    assert alone.key_lengths == packed.key_lengths[:num_rows]
    assert [*alone.key_lengths] == alone.key_lengths_on_device.tolist()
    assert alone.media[:] == packed.media[: len(alone.media)]
    pending = [row for row, (_, token_id, _) in enumerate(rows) if token_id == PENDING_TOKEN_ID]
    for batch in (alone, packed):
        found = batch.pending_tokens
        assert ([] if found is None else found.rows.tolist()) == pending
        assert ([] if found is None else found.sources.tolist()) == [7 * row for row in pending]
