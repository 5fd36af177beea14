"""Late interaction: `LLM.embed` returns transformers' vector for each token, and scores are their MaxSim."""

from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

from glimpse.engine.errors import EngineError
from glimpse.offline.llm import LLM, InputError
from tests.checkpoints.colqwen2 import make_colqwen2_checkpoint
from tests.checkpoints.paligemma import make_colpali_checkpoint
from tests.engine.offline.llm_inputs import image_pil, load, text, user
from tests.media.images import noise_pixels
from tests.oracles import late_interaction as oracle

QUERIES = ["the sea", "is the thing red? " * 4, "an inn"]
PAGES = [
    PIL.Image.fromarray(noise_pixels(*size, seed=seed)) for seed, size in enumerate([(61, 93), (140, 57), (84, 84)])
]


@pytest.fixture(scope="module", params=["qwen2_vl", "qwen2_5_vl", "colpali"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def path(kind: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints") / kind
    return make_colpali_checkpoint(folder) if kind == "colpali" else make_colqwen2_checkpoint(folder, kind)


@pytest.fixture(scope="module")
def llm(path: Path, kind: str) -> LLM:
    if kind == "colpali":
        return load(path, max_batch_tokens=110, max_sequences=10)  # a step has room for two prompts of images
    return load(path, max_batch_tokens=24)  # prompts are computed in chunks


def test_each_token_has_the_vector_of_the_reference(llm: LLM, path: Path) -> None:
    inputs = [*QUERIES, *({"messages": user(image_pil(page))} for page in PAGES)]
    expected = [*oracle.queries(path, QUERIES), *oracle.documents(path, PAGES)]
    together = llm.embed(inputs, progress=False)
    alone = [llm.embed(inputs[index])[0] for index in (1, 3)]
    for output, (token_ids, vectors) in zip([*together, *alone], [*expected, expected[1], expected[3]], strict=True):
        assert output.prompt_token_ids == token_ids
        np.testing.assert_allclose(output.embedding, vectors, atol=1e-4)


def test_scores_are_those_of_the_reference_s_processor(llm: LLM, path: Path) -> None:
    documents = [{"content": [image_pil(page)]} for page in PAGES]
    queries, pages = oracle.queries(path, QUERIES), oracle.documents(path, PAGES)
    for index, (query, (_, vectors)) in enumerate(zip(QUERIES, queries, strict=True)):
        expected = [oracle.score(path, vectors, page) for _, page in pages]
        assert [each.score for each in llm.score(query, documents, progress=False)] == pytest.approx(expected, abs=1e-4)
        (pair,) = llm.score(query, documents[index])
        assert pair.score == pytest.approx(expected[index], abs=1e-4)
        ranked = llm.rerank(query, documents, top_n=1, progress=False)
        assert ranked[0].index == int(np.argmax(expected))


def test_a_document_may_be_a_text(llm: LLM, kind: str) -> None:
    start = "<bos>" if kind == "colpali" else ""
    query, document = llm.embed("the sea")[0], llm.embed(f"{start}a <b> red sea", add_special_tokens=False)[0]
    expected = (query.embedding @ document.embedding.T).max(axis=1).sum()
    assert llm.score("the sea", "a <b> red sea")[0].score == pytest.approx(expected, abs=1e-4)


def test_refuses_by_name_what_the_model_cannot_do(llm: LLM) -> None:
    with pytest.raises(
        InputError, match=r"^'pooling': expected token, as the model is for late interaction, got mean$"
    ):
        llm.embed("a", pooling="mean")
    with pytest.raises(InputError, match=r"^'instruction': expected none"):
        llm.score("a", "b", instruction="c")
    with pytest.raises(InputError, match=r"^'documents\[0\]': expected either text or content, got both$"):
        llm.rerank("a", [{"text": "b", "content": [text("c")]}])
    with pytest.raises(EngineError, match="the model has no output head"):
        llm.generate("a")
