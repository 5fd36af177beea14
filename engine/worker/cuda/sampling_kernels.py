"""Triton kernels that draw tokens, launched by `glimpse.engine.worker.cuda.sampling`.

The probability of a token is an integer weight, `2 ** weight_bits` for the most likely token, so sums are exact and do
not depend on the order of addition. Tokens are ordered by their logits, descending, then by their ids. min_p, top_k and
top_p each keep a prefix of this order, so all that remains of them is the sum of the prefix's weights. The drawn token
is where the running sum exceeds the random share of it. Nothing is sorted: that token's logit is searched among the
logits' bits, as integers of the same order.

`survey_rows` reads each row twice, and writes its most likely tokens to a list. `draw_rows` searches the list or, if
the token is not in it, the row.
"""
# pyright: basic, reportPrivateImportUsage=false, reportGeneralTypeIssues=false
# (kernels are written in Triton's language, whose values have no Python types)

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
"""Kernels compute powers of 2, for which a GPU has an instruction."""
LEAST_MIN_P = tl.constexpr(1e-37)
"""Keeps every token that has a weight, as 0 does, and has a finite logarithm."""
LOWEST_ORDER = tl.constexpr(-2139095041)
"""`order_of(-inf)`"""


@triton.jit
def order_of(values):
    """Returns integers of the same order as float32 values, int32; or from such integers the bits of the values."""
    bits = values.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def load_logits(logits, columns, used):
    """Loads float32 logits. NaN and unused ones are -inf."""
    values = tl.load(logits + columns, mask=used, other=float("-inf"))
    return tl.where(values == values, values, float("-inf"))


@triton.jit
def weights_of(logits, best, scale, weight_bits: tl.constexpr):
    """Returns integer weights, int64, of logits whose maximum is `best`; `scale` is log2(e) over the temperature."""
    largest: tl.constexpr = 2.0**weight_bits
    shares = tl.exp2((logits - best) * scale)
    # The first comparison also covers infinite logits, the second one rows without any token.
    shares = tl.where(logits == best, 1.0, shares)
    shares = tl.where(logits == float("-inf"), 0.0, shares)
    return (shares * largest).to(tl.int64)


@triton.jit
def survey_rows(
    logits,  # float32 [rows of logits, vocab_size]
    row_stride,
    rows,  # int64 [rows]: which rows of logits
    temperatures,  # float64 [rows]
    min_ps,  # float64 [rows]
    best_logits,  # float32 [rows], written: the maximum of each row
    sums,  # int64 [rows, 2], written: weight of the tokens that min_p keeps; weight of the listed tokens
    counts,  # int32 [rows, 2], written: number of the tokens to list, also if the list is too short; their lowest order
    listed_logits,  # float32 [rows, list_size], written
    listed_ids,  # int32 [rows, list_size], written
    vocab_size,
    list_size: tl.constexpr,
    listed_bits: tl.constexpr,  # tokens are listed that are at least 2 ** -listed_bits as likely as the best
    weight_bits: tl.constexpr,
    tile: tl.constexpr,
):
    """Sums the weights of a row and lists its most likely tokens, in the order of their ids: [rows] programs."""
    row = tl.program_id(0)
    source = logits + tl.load(rows + row) * row_stride
    scale = (1.0 / tl.load(temperatures + row) * LOG2_E).to(tl.float32)
    gap = -tl.log2(tl.maximum(tl.load(min_ps + row).to(tl.float32), LEAST_MIN_P))
    columns = tl.arange(0, tile)

    maxima = tl.full([tile], float("-inf"), tl.float32)
    for start in range(0, vocab_size, tile):
        maxima = tl.maximum(maxima, load_logits(source, start + columns, start + columns < vocab_size))
    best = tl.max(maxima, axis=0)

    kept = tl.zeros([tile], tl.int64)
    listed = tl.zeros([tile], tl.int64)
    lowest = tl.full([tile], 0x7FFFFFFF, tl.int32)
    count = tl.full([], 0, tl.int32)
    for start in range(0, vocab_size, tile):
        values = load_logits(source, start + columns, start + columns < vocab_size)
        weights = weights_of(values, best, scale, weight_bits)
        distances = tl.where(values == best, 0.0, (best - values) * scale)
        kept += tl.where(distances <= gap, weights, 0)
        likely = (distances <= listed_bits) & (weights > 0)
        listed += tl.where(likely, weights, 0)
        lowest = tl.minimum(lowest, tl.where(likely, order_of(values), 0x7FFFFFFF))
        places = count + tl.cumsum(likely.to(tl.int32), axis=0) - 1
        stored = likely & (places < list_size)
        target = row.to(tl.int64) * list_size + places
        tl.store(listed_logits + target, values, mask=stored)
        tl.store(listed_ids + target, start + columns, mask=stored)
        count += tl.sum(likely.to(tl.int32), axis=0)
    tl.store(best_logits + row, best)
    tl.store(sums + 2 * row, tl.sum(kept, axis=0))
    tl.store(sums + 2 * row + 1, tl.sum(listed, axis=0))
    tl.store(counts + 2 * row, count)
    tl.store(counts + 2 * row + 1, tl.min(lowest, axis=0))


@triton.jit
def sum_above(
    logits,
    size,
    threshold,
    best,
    scale,
    weight_bits: tl.constexpr,
    tile: tl.constexpr,
):
    """Returns the weight of the tokens whose order exceeds `threshold`, int64."""
    total = tl.zeros([tile], tl.int64)
    columns = tl.arange(0, tile)
    for start in range(0, size, tile):
        values = load_logits(logits, start + columns, start + columns < size)
        total += tl.where(order_of(values) > threshold, weights_of(values, best, scale, weight_bits), 0)
    return tl.sum(total, axis=0)


@triton.jit
def search(
    goal,  # int64
    listed_amount,  # int64: the sum of the tokens to list
    row,  # pointer to the row's logits
    vocab_size,
    listed,  # pointer to its listed logits
    count,
    lowest,
    best,
    scale,
    by_count: tl.constexpr,
    list_size: tl.constexpr,
    weight_bits: tl.constexpr,
    tile: tl.constexpr,
    ways: tl.constexpr,
):
    """Finds the token of a row where the running sum exceeds `goal`; the sum over all tokens must exceed it.

    What is summed is the tokens' weights or, with `by_count`, their number. Each pass over the list or the row divides
    the range of the logits' bits by `ways`.

    Returns:
        The order of the token's logit, int32; the sum of the tokens with a greater logit, int64; where the logits were
        read, and how many; whether that is the list.
    """
    inside = goal < listed_amount
    complete = inside & (count <= list_size)
    source = tl.where(complete, listed, row)
    size = tl.where(complete, count, vocab_size)
    # The tokens of order `low` or more sum to more than the goal, those of order `high` or more do not.
    low = tl.where(inside, lowest, LOWEST_ORDER).to(tl.int64)
    high = tl.where(inside, order_of(best).to(tl.int64) + 1, lowest.to(tl.int64))
    above = tl.where(inside, 0, listed_amount).to(tl.int64)  # the sum of those of order `high` or more
    columns = tl.arange(0, tile)
    while high - low > 1:
        step = (high - low + ways - 1) // ways
        thresholds = (low + tl.arange(0, ways) * step).to(tl.int32)
        reached = tl.zeros([tile, ways], tl.int64)
        for start in range(0, size, tile):
            used = start + columns < size
            values = load_logits(source, start + columns, used)
            amounts = used.to(tl.int64) if by_count else weights_of(values, best, scale, weight_bits)
            reached += tl.where(order_of(values)[:, None] >= thresholds[None, :], amounts[:, None], 0)
        sums = tl.sum(reached, axis=0)  # descending
        exceeding = sums > goal
        above = tl.max(tl.where(exceeding, above, sums), axis=0)
        low += (tl.sum(exceeding.to(tl.int64), axis=0) - 1) * step
        high = tl.minimum(high, low + step)
    return low.to(tl.int32), above, source, size, complete


@triton.jit
def place_of(order, nth, logits, size, tile: tl.constexpr):
    """Returns the index of the nth (from 0) logit of this order, int32."""
    columns = tl.arange(0, tile)
    place = tl.full([], 0, tl.int32)
    passed = tl.full([], 0, tl.int64)
    for start in range(0, size, tile):
        equal = order_of(load_logits(logits, start + columns, start + columns < size)) == order
        seen = passed + tl.cumsum(equal.to(tl.int64), axis=0)
        place += tl.sum(tl.where(equal & (seen == nth + 1), start + columns, 0), axis=0)
        passed += tl.sum(equal.to(tl.int64), axis=0)
    return place


@triton.jit
def draw_rows(
    logits,
    row_stride,
    rows,
    temperatures,
    top_ks,  # int64 [rows]
    top_ps,  # float64 [rows]
    uniforms,  # float64 [rows]
    best_logits,
    sums,
    counts,
    listed_logits,
    listed_ids,
    token_ids,  # int64 [rows of logits], written at `rows`
    vocab_size,
    list_size: tl.constexpr,
    weight_bits: tl.constexpr,
    tile: tl.constexpr,
    ways: tl.constexpr,
):
    """Draws a token of each row: [rows] programs. The other parameters are those of `survey_rows`."""
    row = tl.program_id(0)
    target = tl.load(rows + row)
    scale = (1.0 / tl.load(temperatures + row) * LOG2_E).to(tl.float32)
    best = tl.load(best_logits + row)
    mass = tl.load(sums + 2 * row)  # weight of the tokens that are kept
    listed_mass = tl.load(sums + 2 * row + 1)
    count = tl.load(counts + 2 * row)
    lowest = tl.load(counts + 2 * row + 1)
    source = logits + target * row_stride
    listed = listed_logits + row.to(tl.int64) * list_size
    chosen = tl.full([], 0, tl.int32)
    if mass > 0:  # otherwise no logit is finite
        top_k = tl.load(top_ks + row)
        if (top_k > 0) & (top_k < vocab_size):
            order, above, place, size, _ = search(
                top_k - 1, count.to(tl.int64), source, vocab_size, listed, count, lowest, best, scale,
                True, list_size, weight_bits, tile, ways,
            )  # fmt: skip
            tied = weights_of(order_of(order).to(tl.float32, bitcast=True), best, scale, weight_bits)
            heavier = sum_above(place, size, order, best, scale, weight_bits, tile)
            mass = tl.minimum(mass, heavier + (top_k - above) * tied)
        top_p = tl.load(top_ps + row)
        if top_p < 1.0:
            goal = tl.ceil(top_p * mass.to(tl.float64)).to(tl.int64) - 1
            goal = tl.maximum(tl.minimum(goal, mass - 1), 0)
            order, above, place, size, _ = search(
                goal, listed_mass, source, vocab_size, listed, count, lowest, best, scale,
                False, list_size, weight_bits, tile, ways,
            )  # fmt: skip
            tied = weights_of(order_of(order).to(tl.float32, bitcast=True), best, scale, weight_bits)
            mass = tl.minimum(mass, above + ((goal - above) // tied + 1) * tied)
        goal = tl.minimum((tl.load(uniforms + row) * mass.to(tl.float64)).to(tl.int64), mass - 1)
        order, above, place, size, is_list = search(
            goal, listed_mass, source, vocab_size, listed, count, lowest, best, scale,
            False, list_size, weight_bits, tile, ways,
        )  # fmt: skip
        tied = weights_of(order_of(order).to(tl.float32, bitcast=True), best, scale, weight_bits)
        chosen = place_of(order, (goal - above) // tied, place, size, tile)
        if is_list:
            chosen = tl.load(listed_ids + row.to(tl.int64) * list_size + chosen)
    tl.store(token_ids + target, chosen.to(tl.int64))
