"""The benchmarks' arithmetic."""

import math
from dataclasses import replace

import pytest
import torch

from bench.engine.divergence import divergence
from bench.engine.steps import summary, text_table
from bench.figures import percentile, ratios, significant, spread, table
from bench.serving.clients import Answer
from bench.serving.comparison import CASES, Run, comparison
from bench.serving.interference import judge
from bench.serving.report import by_label, latencies
from glimpse.engine.benchmark.costs import (
    decode_bytes,
    decode_flops,
    head_values,
    linear_values,
    prefill_flops,
    stored_bytes,
    vision_flops,
)
from glimpse.engine.benchmark.limits import StepLimits
from glimpse.engine.benchmark.step_costs import LeastWork, Variant, measured
from glimpse.engine.checkpoint.model_config.decoder import TextConfig
from glimpse.engine.checkpoint.model_config.encoders import VisionConfig


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, 0.0),
        ([7.0], 0.95, 7.0),
        ([3.0, 1.0, 2.0], 0.5, 2.0),
        ([1.0, 2.0], 0.5, 1.5),
        ([0.0, 10.0, 20.0, 30.0, 40.0], 0.95, 38.0),
        ([5.0, 1.0], 0.0, 1.0),
        ([5.0, 1.0], 1.0, 5.0),
    ],
)
def test_percentiles_lie_between_their_neighbours(values: list[float], share: float, expected: float) -> None:
    assert percentile(values, share) == pytest.approx(expected)


def test_a_ratio_is_taken_round_by_round() -> None:
    ratio = ratios([2.0, 9.0, 4.0], [1.0, 3.0, 4.0])
    assert (ratio.median, ratio.least, ratio.most) == (2.0, 1.0, 3.0)


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (0.12345, "0.123"), (12.345, "12.3"), (12345.6, "12,346")])
def test_numbers_have_three_digits_that_say_something(value: float, text: str) -> None:
    assert significant(value) == text


def test_a_spread_reads_as_its_median_and_range() -> None:
    assert str(spread([3.0, 1.0, 2.0])) == "2 [1..3]"


def test_a_table_is_markdown() -> None:
    assert table(["a", "b"], [["long", "1"]]) == "| a    | b |\n|------|---|\n| long | 1 |"


def test_latencies_come_from_the_times_of_tokens() -> None:
    found = latencies([answer(10.0, [10.5, 10.6, 10.8], output_tokens=5)])
    assert found.ttft_p50_ms == pytest.approx(500)
    assert found.itl_p50_ms == pytest.approx(150)
    assert found.tpot_p50_ms == pytest.approx(75)  # 5 tokens came in 3 pieces


def test_labels_are_counted_apart() -> None:
    cold, warm = answer(0.0, [2.0]), answer(0.0, [1.0])
    found = by_label([("cold", cold), ("warm", warm), ("cold", cold)])
    assert {label: each.answers for label, each in found.items()} == {"cold": 2, "warm": 1}


def test_gaps_are_disturbed_only_if_they_overlap_the_long_prompt() -> None:
    stream = answer(0.0, [1.0, 1.1, 1.2, 1.3, 1.8, 2.4, 2.5])
    long_answer = answer(1.35, [2.3])
    found = judge([stream], long_answer)
    assert found.quiet_itl_p50_ms == pytest.approx(100)
    assert found.itl_max_ms == pytest.approx(600)
    assert found.itl_p50_ms == pytest.approx(550)
    assert found.covered


def test_stream_that_ends_too_early_is_not_covered() -> None:
    assert not judge([answer(0.0, [1.0, 1.1])], answer(1.2, [2.0])).covered


def test_step_reads_the_weights_once_and_the_kv_of_each_sequence() -> None:
    weight_bytes = stored_bytes(MID, quantization="none")
    assert weight_bytes == pytest.approx(0.775e9, rel=0.01)
    head_bytes = 2 * head_values(MID)
    assert stored_bytes(MID, quantization="int8") - head_bytes == (weight_bytes - head_bytes) / 2
    assert stored_bytes(MID, quantization="int8", int8_head=True) == weight_bytes / 2
    one, four = (decode_bytes(MID, weight_bytes, batch=batch, context=512) for batch in (1, 4))
    assert one - weight_bytes == 512 * 24 * 2 * 2 * 64 * 2
    assert four - weight_bytes == 4 * (one - weight_bytes)


@pytest.mark.parametrize(
    ("quantization", "scale_bytes", "bits"),
    [
        ("int4", 2, 4 + 24 / 128),
        ("int4", 4, 4 + 40 / 128),
        ("awq int4", 2, 4 + 24 / 128),
        ("gptq int8", 4, 8 + 40 / 128),
    ],
)
def test_groups_are_read_with_their_scales_and_zeros(quantization: str, scale_bytes: int, bits: float) -> None:
    weight_bytes = stored_bytes(MID, quantization=quantization, scale_bytes=scale_bytes)
    assert weight_bytes == pytest.approx(linear_values(MID) * bits / 8 + 2 * head_values(MID))


def test_a_prefill_multiplies_weights_with_every_token_as_far_as_that_is_stored() -> None:
    layer = linear_values(MID) / MID.num_layers
    keys_and_values = 2 * MID.hidden_size * MID.num_kv_heads * MID.head_dim
    one, two, three = (prefill_flops(MID, num_tokens) for num_tokens in (1, 2, 3))
    attention = (MID.num_layers - 1) * MID.num_heads * MID.head_dim * 2  # grows with the square
    assert two - one - 3 * attention == pytest.approx(2 * (linear_values(MID) - layer + keys_and_values))
    assert three - two - 5 * attention == pytest.approx(two - one - 3 * attention)
    assert one == pytest.approx(2 * (linear_values(MID) + head_values(MID)) + attention)
    sharing = prefill_flops(replace(MID, num_sharing_layers=MID.num_layers // 2), 1000)
    assert sharing < 0.53 * prefill_flops(MID, 1000)


def test_a_decode_step_multiplies_every_weight_with_every_sequence() -> None:
    one, four = (decode_flops(MID, batch=batch, context=512) for batch in (1, 4))
    assert four == 4 * one
    assert one > 2 * (linear_values(MID) + head_values(MID))


def test_a_step_takes_at_least_the_longer_of_reading_and_computing() -> None:
    limits = StepLimits(read_bytes_per_second=1e9, flops_per_second=1e12, units="FMA")
    reading, computing = LeastWork(num_bytes=2e9, flops=1e12), LeastWork(num_bytes=1e9, flops=3e12)
    assert (reading.seconds(limits), computing.seconds(limits)) == (2, 3)
    assert (reading.is_read_bound(limits), computing.is_read_bound(limits)) == (True, False)


def test_a_summary_has_a_column_per_engine() -> None:
    limits = StepLimits(read_bytes_per_second=1e9, flops_per_second=1e12, units="FMA")
    step = measured("decode", [0.003, 0.004, 0.009], LeastWork(num_bytes=1e6, flops=2e9))
    prefill = measured("prefill", [0.004], LeastWork(num_bytes=1e6, flops=3e9))
    fast = Variant(level="avx512", weights="int8", limits=limits, steps=[step, prefill])
    slow = Variant(level="avx2", weights="bfloat16", limits=limits, steps=[step])
    assert text_table(fast).splitlines() == [
        "avx512, int8 weights: limits 1.0 GB/s read, 1.00 TFLOP/s (FMA)",
        "",
        "| step    | median ms | least ms | rate         | of the limit |",
        "|---------|-----------|----------|--------------|--------------|",
        "| decode  | 4.00      | 3.00     | 0.5 TFLOP/s  | 50 %         |",
        "| prefill | 4.00      | 4.00     | 0.75 TFLOP/s | 75 %         |",
    ]
    assert summary([fast, slow]).splitlines() == [
        "| step, ms | avx512, int8 | avx2, bfloat16 |",
        "|----------|--------------|----------------|",
        "| decode   | 4 (50 %)     | 4 (50 %)       |",
        "| prefill  | 4 (75 %)     | –              |",
    ]


def test_the_vision_towers_attention_grows_with_the_square_of_its_patches() -> None:
    vision = VisionConfig(
        depth=12,
        embed_dim=640,
        hidden_size=896,
        num_heads=8,
        intermediate_size=4 * 640,
        in_channels=3,
        patch_size=14,
        spatial_merge_size=2,
        temporal_patch_size=2,
    )
    growth = vision_flops(vision, 2048) - 2 * vision_flops(vision, 1024)
    assert growth == 12 * 4 * 640 * (2048**2 - 2 * 1024**2)


def test_a_comparison_shows_medians_and_ratios_of_the_same_round() -> None:
    case = next(iter(CASES))
    runs = [
        Run(round=number, target=target, case=case, report={"workload": "text", "output_tokens_per_second": rate})
        for target, rates in {"glimpse": [30.0, 40.0], "peer": [10.0, 20.0, 5.0]}.items()
        for number, rate in enumerate(rates)
    ]
    shown = comparison(runs, ["glimpse", "peer"])
    assert f"### {case}" in shown
    assert "| output tokens/s ↑ | 35 [30..40] | 10 [5..20] | 2.5 [2..3]     |" in shown


def answer(asked_at: float, times: list[float], *, output_tokens: int | None = None) -> Answer:
    return Answer(
        asked_at=asked_at,
        token_times=tuple(times),
        text="",
        prompt_tokens=0,
        output_tokens=output_tokens or len(times),
        cached_tokens=0,
    )


MID = TextConfig(
    vocab_size=32768,
    hidden_size=896,
    intermediate_size=4864,
    layer_kinds=("full",) * 24,
    num_heads=14,
    num_kv_heads=2,
    head_dim=64,
    rms_norm_eps=1e-6,
    rope_theta=1e6,
    mrope_section=(8, 12, 12),
    max_position_embeddings=32768,
    tie_word_embeddings=True,
)


def test_divergence_of_equal_and_of_shifted_logits_is_none():
    exact = torch.tensor([[1.0, 2.0, 4.0], [0.0, -1.0, -3.0]])
    same = divergence(exact, exact)
    assert (same.rms, same.kl_nats, same.same_first) == (0.0, 0.0, 1.0)
    assert divergence(exact, exact + 5).kl_nats == pytest.approx(0.0, abs=1e-6)


def test_divergence_is_kullback_and_leiblers():
    exact, other = torch.tensor([[0.0, 0.0]]), torch.tensor([[math.log(3.0), 0.0]])  # halves against 3/4 and 1/4
    exact = torch.cat([exact, torch.tensor([[1.0, 0.0]])])
    other = torch.cat([other, torch.tensor([[0.0, 1.0]])])
    found = divergence(exact, other)
    expected = 0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    e = math.e / (1 + math.e)
    assert found.kl_nats == pytest.approx((expected + (e - (1 - e))) / 2, rel=1e-5)
    assert found.same_first == 0.5
