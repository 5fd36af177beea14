"""Loading documents: pages in order, page ranges, texts, caches, memory, and the number of images."""

import pytest

from glimpse.media.cache.memory_budget import MemoryBudget
from glimpse.media.cache.request_media import MediaUsage
from glimpse.media.containers.pdf import open_pdf
from glimpse.media.decoding.decoders import Decoders
from glimpse.media.errors import MediaErrorCode
from glimpse.media.input_loader import LoadedInput, MediaInputError, load_inputs
from glimpse.media.inputs import ImageInput, MediumInput
from glimpse.media.loader import MediaLoader
from glimpse.media.processing.image import Image, prepare_image
from glimpse.media.sources.source import CachedSource, DataSource, parse_url_text
from tests.media.caching import CachingLoader, caching_loader
from tests.media.images import encode, scene
from tests.media.loaders import FETCHER, MEDIA_PROCESSING, NO_EMBEDDINGS, PROCESSING, document_input
from tests.media.pdfs import document, of_images, rectangle, text
from tests.media.web import Web, respond

COLOURS = [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (0, 1, 1)]
FIVE = document([rectangle(colour, 0, 0, 300, 200) + text(f"page {n}") for n, colour in enumerate(COLOURS, 1)])


async def load(loader: MediaLoader, *inputs: MediumInput) -> tuple[list[LoadedInput], MediaUsage]:
    with loader.batch() as batch:
        (loaded,) = await load_inputs([inputs], loader=loader, embeddings=NO_EMBEDDINGS, batch=batch)
        return loaded, batch.usage


async def parts_of(loader: MediaLoader, medium: MediumInput) -> list[Image | str]:
    ((loaded,), _) = await load(loader, medium)
    return [part for part in loaded.parts if isinstance(part, Image | str)]


def keys(parts: list[Image | str]) -> list[bytes]:
    return [part.key for part in parts if isinstance(part, Image)]


def drawn(data: bytes, number: int, dpi: int | None = None) -> bytes:
    """Returns the key of a page that is drawn and prepared as an image."""
    with open_pdf(data) as pdf:
        return prepare_image(pdf.render(number, dpi=dpi, max_pixels=64_000_000), PROCESSING).key


async def test_pages_are_images_in_order(loader: MediaLoader) -> None:
    parts = await parts_of(loader, document_input(FIVE))
    assert keys(parts) == [drawn(FIVE, number) for number in (1, 2, 3, 4, 5)]
    assert len(set(keys(parts))) == len(parts) == 5


async def test_a_range_is_read_as_far_as_the_document_goes(loader: MediaLoader) -> None:
    assert keys(await parts_of(loader, document_input(FIVE, first=2, last=3))) == [drawn(FIVE, 2), drawn(FIVE, 3)]
    assert keys(await parts_of(loader, document_input(FIVE, first=5, last=99))) == [drawn(FIVE, 5)]


async def test_a_range_beyond_the_document_is_refused(loader: MediaLoader) -> None:
    with pytest.raises(MediaInputError) as refused:
        await load(loader, document_input(FIVE, first=6))
    assert refused.value.field == "document.first_page"
    assert "expected a page of the document, got 6, but the document has 5" in refused.value.error.message


async def test_options_are_those_of_each_image(loader: MediaLoader) -> None:
    (page,) = await parts_of(loader, document_input(FIVE, last=1, max_pixels=16 * 28 * 28, dpi=300))
    assert isinstance(page, Image)
    assert page.pixels.shape[0] * page.pixels.shape[1] <= 16 * 28 * 28


async def test_texts_follow_their_pages(loader: MediaLoader) -> None:
    parts = await parts_of(loader, document_input(FIVE, last=2, with_texts=True))
    assert [part if isinstance(part, str) else "image" for part in parts] == [
        "image",
        "page 1\n\n",
        "image",
        "page 2\n\n",
    ]


async def test_texts_alone_need_no_model_that_sees(loader: MediaLoader) -> None:
    assert await parts_of(loader, document_input(FIVE, last=2, with_texts=True, with_images=False, max_images=0)) == [
        "page 1\n\npage 2"
    ]


async def test_a_scan_has_no_text_to_read(loader: MediaLoader) -> None:
    scan = of_images([scene(60, 40).convert("RGB")])
    with pytest.raises(MediaInputError, match="expected a document with a text layer"):
        await load(loader, document_input(scan, with_texts=True, with_images=False))
    assert len(await parts_of(loader, document_input(scan, with_texts=True))) == 1


async def test_pages_count_as_images_of_the_prompt(loader: MediaLoader) -> None:
    image = ImageInput(source=DataSource(data=encode(scene(60, 40), "PNG")), field="image")
    await load(loader, image, document_input(FIVE, max_images=6))
    for inputs in (
        (image, document_input(FIVE, max_images=5)),
        (document_input(FIVE, max_images=4),),
        (document_input(FIVE, last=3), document_input(FIVE, last=3, max_images=5)),
    ):
        with pytest.raises(MediaInputError) as refused:
            await load(loader, *inputs)
        assert refused.value.error.code == MediaErrorCode.TOO_MANY_IMAGES
        assert "choose pages with first_page and last_page" in refused.value.error.message


async def test_isolated_decoders_give_the_same_pages() -> None:
    loader = MediaLoader(processing=MEDIA_PROCESSING, fetcher=FETCHER, decoders=Decoders())
    try:
        parts = await parts_of(loader, document_input(FIVE, last=2, with_texts=True))
        assert keys(parts) == [drawn(FIVE, 1), drawn(FIVE, 2)]
        assert parts[1::2] == ["page 1\n\n", "page 2\n\n"]
    finally:
        await loader.close()


async def test_a_url_and_an_upload_give_the_same_pages(caching: CachingLoader, web: Web) -> None:
    web.answers["/a.pdf"] = respond(FIVE)
    parts = await parts_of(caching.loader, document_input(source=parse_url_text(web.url("/a.pdf"))))
    assert keys(parts) == [drawn(FIVE, number) for number in (1, 2, 3, 4, 5)]


async def test_pages_are_cached_by_content_and_by_uuid(caching: CachingLoader) -> None:
    await load(caching.loader, document_input(FIVE, last=3, uuid="paper"))
    decoded = caching.decoders.num_decoded
    _, usage = await load(caching.loader, document_input(FIVE, last=3))
    assert (caching.decoders.num_decoded, usage.num_decode_cache_hits) == (decoded, 3)
    by_name = document_input(source=CachedSource(uuid="paper"), first=2, last=4)
    parts = await parts_of(caching.loader, by_name)
    assert keys(parts) == [drawn(FIVE, number) for number in (2, 3, 4)]
    assert caching.decoders.num_decoded == decoded + 2  # the range, and page 4


async def test_an_unknown_uuid_says_what_to_send(caching: CachingLoader) -> None:
    with pytest.raises(MediaInputError, match="the cache has no document under this uuid"):
        await load(caching.loader, document_input(source=CachedSource(uuid="unknown")))


async def test_a_document_may_refer_to_one_of_the_same_request(caching: CachingLoader) -> None:
    loaded, _ = await load(
        caching.loader,
        document_input(source=CachedSource(uuid="x"), first=2, last=2),
        document_input(FIVE, last=1, uuid="x"),
    )
    assert [part.key for each in loaded for part in each.parts if isinstance(part, Image)] == [
        drawn(FIVE, 2),
        drawn(FIVE, 1),
    ]


async def test_memory_holds_pages_and_not_the_file() -> None:
    budget = MemoryBudget()
    async with caching_loader(memory_budget=budget) as caching:
        with caching.loader.batch() as batch:
            ((loaded,),) = await load_inputs(
                [[document_input(FIVE)]], loader=caching.loader, embeddings=NO_EMBEDDINGS, batch=batch
            )
            pixels = sum(part.pixels.nbytes for part in loaded.parts if isinstance(part, Image))
            assert pixels <= budget.num_bytes < pixels + 1000


async def test_each_page_is_a_medium_of_the_usage(caching: CachingLoader) -> None:
    _, usage = await load(caching.loader, document_input(FIVE))
    assert len(usage.origins) == 5
    assert usage.num_media == 5
