"""Models and files in Anthropic's form, which its client gets at the paths that OpenAI's API has too."""

import time
from collections.abc import Iterator
from datetime import datetime

import pytest
from anthropic import Anthropic, BadRequestError, BaseModel, NotFoundError
from anthropic._base_client import make_request_options  # pyright: ignore[reportPrivateImportUsage] - no public name
from anthropic.pagination import SyncPage
from anthropic.types import DeletedFile, FileMetadata, ModelInfo
from openai import OpenAI

from tests.e2e.images import encoded, tiles
from tests.e2e.stack import Stack

PNG = encoded(tiles(seed=7))


@pytest.fixture(scope="module")
def client(stack: Stack) -> Iterator[Anthropic]:
    with Anthropic(base_url=stack.url, api_key="none", max_retries=0) as client:
        yield client


def check(value: BaseModel) -> None:
    """Fails if a member that Anthropic's type requires is missing, or of another type."""
    type(value).model_validate_json(value.to_json(), strict=True)


def test_models_have_anthropic_s_form_for_its_client_alone(client: Anthropic, stack: Stack) -> None:
    models = list(client.models.list())
    for model in models:
        check(model)
        assert isinstance(model, ModelInfo)
        assert model == client.models.retrieve(model.id)
    first = models[0]
    assert (first.id, first.display_name, first.type, first.lifecycle) == ("nano", "nano", "model", "active")
    assert abs(first.created_at.timestamp() - time.time()) < 3600
    can = first.capabilities
    assert can is not None
    assert (can.image_input.supported, can.pdf_input.supported, can.structured_outputs.supported) == (True, True, True)
    assert (can.thinking.supported, can.thinking.types.disabled.supported, can.effort.supported) == (False, True, False)
    with OpenAI(base_url=stack.openai_url, api_key="none", max_retries=0) as other:
        assert [model.id for model in other.models.list()] == [model.id for model in models]
        assert other.models.retrieve("nano").to_dict()["max_model_len"] == first.max_input_tokens


def test_models_have_pages(client: Anthropic) -> None:
    models = list(client.models.list())
    assert len(models) > 1
    page = client.models.list(limit=1)
    assert (page.data, page.has_more) == (models[:1], True)
    assert list(page) == models
    before = client.models.list(before_id=models[-1].id, limit=1)
    assert before.data == models[-2:-1]
    assert before.has_more == (len(models) > 2)
    assert client.models.list(after_id=models[-1].id).data == []
    assert client.models.list(before_id="nano").data == []


def test_an_unknown_model_is_anthropic_s_error(client: Anthropic) -> None:
    with pytest.raises(NotFoundError, match="'org/other'") as refused:
        client.models.retrieve("org/other")
    assert refused.value.type == "not_found_error"
    assert refused.value.response.json()["error"]["param"] == "model_id"
    assert refused.value.request_id
    with pytest.raises(BadRequestError, match="'limit': expected"):
        client.models.list(limit=0)
    with pytest.raises(BadRequestError, match="'after_id': expected the id of a model of the list"):
        client.models.list(after_id="other")


def test_an_unknown_path_is_anthropic_s_error(client: Anthropic) -> None:
    with pytest.raises(NotFoundError, match="Unknown URL: GET /v1/skills") as refused:
        client.beta.skills.list()
    assert refused.value.type == "not_found_error"
    assert refused.value.request_id


def test_all_pages_of_files_are_read(client: Anthropic) -> None:
    created = [client.files.upload(file=(f"{number}.png", PNG), expires_in_seconds=3600) for number in range(5)]
    for file in created:
        check(file)
        assert isinstance(file, FileMetadata)
    first = created[0]
    assert (first.filename, first.mime_type, first.size_bytes, first.type) == ("0.png", "image/png", len(PNG), "file")
    assert isinstance(first.expires_at, datetime)
    assert 3598 < (first.expires_at - first.created_at).total_seconds() <= 3600
    page = client.files.list(limit=2)
    assert len(page.data) == 2
    assert page.has_next_page()
    listed = [file.id for file in client.files.list(limit=2)]
    assert len(set(listed)) == len(listed)
    assert {file.id for file in created} <= set(listed)
    assert listed == [file.id for file in client.files.list()]
    earlier = client.get_api_list(
        "/v1/files",
        model=FileMetadata,
        page=SyncPage[FileMetadata],
        options=make_request_options(query={"limit": 2}),
    )
    assert listed == [file.id for file in earlier], "as versions that follow `last_id` read them"
    assert client.files.retrieve_metadata(first.id) == first
    assert client.files.download(first.id).read() == PNG
    some = [created[1].id, created[3].id]
    assert {file.id for file in client.files.list(ids=[*some, "file-of-none"])} == set(some)
    for file in created:
        deleted = client.files.delete(file.id)
        assert deleted == DeletedFile(id=file.id, type="file_deleted")


def test_what_no_list_of_files_has_is_refused(client: Anthropic) -> None:
    with pytest.raises(BadRequestError, match="'page': expected the next_page of a list of files"):
        client.files.list(page="file-1")
    with pytest.raises(NotFoundError, match="'page': expected the id of a file of the list"):
        client.files.list(page="page_file-1")
    with pytest.raises(BadRequestError, match="'page': expected only one of page and ids"):
        client.files.list(page="page_file-1", ids=["a"])
    for ask in (client.files.retrieve_metadata, client.files.delete, client.files.download):
        with pytest.raises(NotFoundError, match="'file_id': not found; it may have expired") as refused:
            ask("file-of-none")
        assert refused.value.type == "not_found_error"
    with pytest.raises(BadRequestError, match="'expires_in_seconds': expected"):
        client.files.upload(file=("a.png", PNG), expires_in_seconds=0)
    with pytest.raises(BadRequestError, match="'file': expected at least 1 byte, got none"):
        client.files.upload(file=("a.png", b""))
