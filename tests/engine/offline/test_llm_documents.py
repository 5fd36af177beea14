"""Documents in the offline API: pages are images of the conversation, in every form of the file."""

import base64
from typing import Any

import pytest

from glimpse.media.containers.pdf import open_pdf
from glimpse.offline.llm import LLM, InputError, SamplingParams
from tests.engine.offline.llm_inputs import image_pil, text, user
from tests.media import pdfs

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
TWO = pdfs.document([pdfs.rectangle((1, 0, 0), 0, 0, 150, 200), pdfs.rectangle((0, 0, 1), 0, 0, 300, 100)])
URL = f"data:application/pdf;base64,{base64.b64encode(TWO).decode()}"


def document(value: object, **options: Any) -> dict[str, Any]:
    return {"type": "document", "document": value, **options}


@pytest.mark.parametrize(
    "part", [document(TWO), document(URL), document({"url": URL}), document({"url": URL, "last_page": 9})]
)
def test_a_document_is_the_images_of_its_pages(llm: LLM, part: Any) -> None:
    with open_pdf(TWO) as pdf:
        images = [pdf.render(number, dpi=None, max_pixels=64_000_000) for number in (1, 2)]
    (expected,) = llm.chat(user(*map(image_pil, images), text("the")), GREEDY)
    (output,) = llm.chat(user(part, text("the")), GREEDY)
    assert output.prompt_token_ids == expected.prompt_token_ids
    assert output.outputs == expected.outputs


def test_each_conversation_of_a_batch_has_its_own_pages(llm: LLM) -> None:
    pages = [user(document({"url": URL, "first_page": number, "last_page": number}), text("the")) for number in (1, 2)]
    together, alone = llm.chat(pages, GREEDY), [llm.chat(each, GREEDY)[0] for each in pages]
    assert [each.outputs for each in together] == [each.outputs for each in alone]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (document(5), "'messages[0].content[0].document': expected bytes or a URL, got int"),
        (document(b"%PDF-1.7"), "'messages[0].content[0].document': the document is corrupt or truncated"),
        (document({"url": URL, "first_page": 3}), "'messages[0].content[0].document.first_page': expected a page"),
    ],
)
def test_errors_name_the_part(llm: LLM, part: Any, message: str) -> None:
    with pytest.raises(InputError) as refused:
        llm.chat(user(part, text("the")), GREEDY)
    assert message in str(refused.value)
