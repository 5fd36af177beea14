"""LoRA adapters in the offline API: answers, choices, scores and embeddings of merged weights, prefixes apart."""

import os
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import pytest

from glimpse.engine.core.core import Core
from glimpse.engine.errors import CheckpointError
from glimpse.engine.worker.loading.adapters.adapter_store import EngineAdapters
from glimpse.offline.llm import LLM, InputError, SamplingParams
from tests.checkpoints.lora import make_adapter, merged
from tests.engine.offline.llm_inputs import IMAGE, image_pil, load, text, user

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPT = "the man in the moon and the moon in the man " * 4


@pytest.fixture(scope="module")
def folders(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {name: make_adapter(folder / name, tiny_checkpoint, seed=seed) for seed, name in enumerate("ab")}


@pytest.fixture(scope="module")
def llm(tiny_checkpoint: Path, folders: dict[str, Path]) -> LLM:
    return load(tiny_checkpoint, lora_modules=folders)


@pytest.fixture(scope="module")
def merged_llm(tiny_checkpoint: Path, folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return load(merged(tmp_path_factory.mktemp("merged") / "a", tiny_checkpoint, folders["a"]))


def test_answers_and_scores_are_those_of_merged_weights(llm: LLM, merged_llm: LLM) -> None:
    sampling = SamplingParams(temperature=1, seed=5, n=3, max_tokens=12, ignore_eos=True, prompt_logprobs=2)
    prompts = [PROMPT, "a dog", PROMPT * 2]
    own, expected = llm.generate(prompts, sampling, adapter="a"), merged_llm.generate(prompts, sampling)
    for output, reference in zip(own, expected, strict=True):
        texts = [[each.text for each in outputs.outputs] for outputs in (output, reference)]
        assert texts[0] == texts[1]
        assert output.prompt_logprobs is not None
        assert reference.prompt_logprobs is not None
        scores, others = output.prompt_logprobs[1:], reference.prompt_logprobs[1:]
        assert [each.logprob for each in scores] == pytest.approx([each.logprob for each in others], abs=1e-4)


def test_embeddings_are_those_of_merged_weights(llm: LLM, merged_llm: LLM) -> None:
    (own,), (expected,) = llm.embed(PROMPT, adapter="a"), merged_llm.embed(PROMPT)
    (base,) = llm.embed(PROMPT)
    np.testing.assert_allclose(own.embedding, expected.embedding, atol=1e-4)
    assert not np.allclose(own.embedding, base.embedding, atol=1e-2)


def test_cached_prefixes_of_adapters_and_of_the_base_are_apart(llm: LLM) -> None:
    prompt = "apart " + PROMPT
    first = {name: llm.generate(prompt, GREEDY, adapter=name)[0] for name in (None, "a", "b")}
    assert [output.num_cached_tokens for output in first.values()] == [0, 0, 0]
    assert len({output.outputs[0].text for output in first.values()}) == 3
    for name, output in first.items():
        (again,) = llm.generate(prompt, GREEDY, adapter=name)
        assert again.num_cached_tokens
        assert again.outputs[0].text == output.outputs[0].text


def test_adapters_of_the_encoder_have_media_of_their_own(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """All requests have the same image, which the base encodes first."""
    folder = make_adapter(tmp_path / "a", tiny_checkpoint, targets=r"visual\.blocks\.\d\.mlp\.fc\d", strength=4)
    llm, changed = load(tiny_checkpoint, lora_modules={"a": folder}), merged(tmp_path / "m", tiny_checkpoint, folder)
    llms = {None: load(tiny_checkpoint), "a": load(changed)}
    conversation = user(image_pil(IMAGE), text("the"))
    expected = {name: alone.chat(conversation, GREEDY)[0].outputs[0].text for name, alone in llms.items()}
    assert expected[None] != expected["a"]
    for name in (None, "a", None):
        assert llm.chat(conversation, GREEDY, adapter=name)[0].outputs[0].text == expected[name]


def test_adapters_are_loaded_replaced_and_unloaded_between_calls(
    llm: LLM, merged_llm: LLM, folders: dict[str, Path], tmp_path: Path
) -> None:
    def answer(model: LLM, adapter: str | None = None) -> str:
        return model.generate(PROMPT, GREEDY, adapter=adapter)[0].outputs[0].text

    llm.load_adapter("c", os.path.relpath(folders["a"]))
    assert answer(llm, "c") == answer(merged_llm) != answer(llm)
    with pytest.raises(InputError, match="'name': expected a name without an adapter, got 'c'; in_place replaces that"):
        llm.load_adapter("c", folders["b"])
    with pytest.raises(InputError, match=r"'folder': adapter 'c': expected a folder with adapter_config.json"):
        llm.load_adapter("c", tmp_path, in_place=True)
    assert answer(llm, "c") == answer(merged_llm)
    llm.load_adapter("c", folders["b"], in_place=True)
    assert answer(llm, "c") == answer(llm, "b") != answer(merged_llm)
    llm.unload_adapter("c")
    for call in (lambda: llm.unload_adapter("c"), lambda: answer(llm, "c")):
        with pytest.raises(InputError, match="expected 'a', 'b', got 'c'"):
            call()


def test_an_interrupted_load_leaves_nothing_behind(
    llm: LLM, folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, step = Future[bytes](), Core.step

    def interrupted(core: Core) -> None:
        step(core)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(EngineAdapters, "stage", lambda *_: reading)
        patch.setattr(Core, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            llm.load_adapter("c", folders["a"])
    reading.set_result(b"that of a")
    expected = llm.generate(PROMPT, GREEDY, adapter="b")[0].outputs[0].text
    llm.load_adapter("c", folders["b"])
    assert llm.generate(PROMPT, GREEDY, adapter="c")[0].outputs[0].text == expected
    llm.unload_adapter("c")


def test_unknown_adapters_are_refused(llm: LLM, tiny_checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'adapter': expected 'a', 'b', got 'c'"):
        llm.generate(PROMPT, adapter="c")
    with pytest.raises(CheckpointError, match=r"adapter 'c': expected a folder with adapter_config.json"):
        load(tiny_checkpoint, lora_modules={"c": tmp_path})
    for load_nameless in (lambda: llm.load_adapter("", tmp_path), lambda: load(tiny_checkpoint, lora_modules={"": ""})):
        with pytest.raises(InputError, match="expected an adapter with a name, got ''"):
            load_nameless()
