"""Qwen3.5 with a mixture of experts, one of them shared: logits and greedy answers match transformers."""

from functools import partial

from tests.checkpoints.qwen3_5 import make_qwen3_5_checkpoint
from tests.engine.worker.models import test_qwen3_5
from tests.engine.worker.models.steps import Steps

CHECKPOINT = partial(make_qwen3_5_checkpoint, experts=True)
PROMPTS = test_qwen3_5.PROMPTS


class TestSteps(Steps):
    agrees = staticmethod(test_qwen3_5.assert_agrees)
    divided, cached = "all", ("images",)
    blocks = (1,)
