"""What holds for text models with sliding windows, in batches, on native kernels and through `LLM`."""

from pathlib import Path

import pytest
import torch

from glimpse import SamplingParams
from glimpse.engine.worker.native.library import Level
from tests.engine.harness import Harness, make_prompt
from tests.engine.levels import at_outer_levels, needs_kernels
from tests.engine.offline.llm_inputs import load


class Windows:
    """Tests of the checkpoint of a module's fixture `checkpoint`, whose window is 20 tokens."""

    def test_sequences_of_a_batch_have_windows_of_their_own(self, checkpoint: Path) -> None:
        """The prompts are shorter than the window of 20 tokens, longer, and much longer."""
        harness = Harness(checkpoint)
        prompts = [make_prompt(seed, length) for seed, length in ((1, 9), (2, 40), (3, 170))]
        together = [harness.begin(prompt) for prompt in prompts]
        harness.step(*((sequence, len(sequence.prompt.token_ids)) for sequence in together))
        for _ in range(15):
            harness.step(*((sequence, 1) for sequence in together))
        for prompt, sequence in zip(prompts, together, strict=True):
            alone = harness.answer(harness.begin(prompt), 16)
            assert sequence.answer == alone.answer
            assert (torch.stack(sequence.logits) - torch.stack(alone.logits)).abs().max() <= 1e-4

    @needs_kernels
    @at_outer_levels
    @pytest.mark.parametrize("length", [15, 300])
    def test_native_kernels_answer_as_torch_before_and_beyond_the_window(
        self, checkpoint: Path, length: int, level: Level
    ) -> None:
        plain, native = Harness(checkpoint), Harness(checkpoint, torch.float32, level=level, block_size=32)
        prompt = make_prompt(4, length)
        expected, answer = (harness.answer(harness.begin(prompt), 12) for harness in (plain, native))
        assert answer.answer == expected.answer
        assert (torch.stack(answer.logits) - torch.stack(expected.logits)).abs().max() <= 1e-3

    @needs_kernels
    def test_llm_answers_again_from_the_prefix_cache(self, checkpoint: Path) -> None:
        llm = load(checkpoint, block_size=32)
        sampling = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
        first, again = (llm.generate("the an " * 30, sampling)[0] for _ in range(2))
        assert again.outputs[0].token_ids == first.outputs[0].token_ids
        assert again.num_cached_tokens > 0
