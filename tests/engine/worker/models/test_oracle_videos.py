"""Logits and greedy answers about videos match transformers for any division into steps and cached prefixes.

These videos have no more temporal patches than their height or width in tokens: after longer ones, transformers places
text at other positions (see `glimpse.engine.worker.models.qwen_vl.layout_prompt`).
"""

from tests.engine.harness import Harness, Prompt, make_prompt
from tests.engine.worker.models.steps import Steps, agreement
from tests.oracles.qwen_vl import greedy_answer

NUM_TOKENS = 12

ONE_VIDEO = make_prompt(11, 5, (6, 84, 56), 9)
ODD_VIDEO = make_prompt(12, 3, (3, 56, 84), 4)
VIDEO_FIRST = make_prompt(13, (4, 56, 56), 1)
VIDEOS_AND_IMAGES = make_prompt(14, 3, (4, 56, 112), 2, (84, 56), 1, (2, 28, 140), 4, (56, 56), 6)
PROMPTS = {"one": ONE_VIDEO, "odd": ODD_VIDEO, "first": VIDEO_FIRST, "among images": VIDEOS_AND_IMAGES}


assert_agrees = agreement(greedy_answer, "spans", "images")


class TestSteps(Steps):
    agrees = staticmethod(assert_agrees)
    divided, cached = "among images", ("one",)
    num_tokens = 12


def test_answers_depend_on_the_order_of_frames(harness: Harness) -> None:
    backwards = Prompt(
        token_ids=ONE_VIDEO.token_ids,
        spans=make_prompt(15, 5, (6, 84, 56), 9).spans,  # with another key
        images=(ONE_VIDEO.images[0][::-1].copy(),),
    )
    forwards, reverse = (harness.answer(harness.begin(prompt), 1).logits[0] for prompt in (ONE_VIDEO, backwards))
    assert (forwards - reverse).abs().max() > 1e-2
