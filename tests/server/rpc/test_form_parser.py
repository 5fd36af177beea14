"""Forms as pieces of any size: what they have, and that memory is bounded whatever is sent."""

import itertools
import tracemalloc
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimpse.server.errors import InvalidRequest
from glimpse.server.rpc.form_parser import FormFile, FormParser, FormText
from tests.hostile.forms import FORM, HostileForm, file, form, hostile_forms, part, text


def parsed(pieces: Iterable[bytes], content_type: str = FORM) -> tuple[list[FormText | FormFile], bytes]:
    """Returns the members, and all bytes of files."""
    parser, members, data = FormParser(content_type), list[FormText | FormFile](), bytearray()
    for piece in pieces:
        for event in parser.feed(piece):
            if isinstance(event, bytes):
                data += event
            else:
                members.append(event)
    parser.close()
    return members, bytes(data)


@given(
    data=st.binary(max_size=200) | st.sampled_from([b"\r\n--b", b"\r\n--", b"--b--", b"\r\n\r\n--bb\r\n", b"\r" * 20]),
    cuts=st.lists(st.integers(0, 400)),
    ending=st.sampled_from([b"", b"\r\n", b"\r\nan epilogue"]),
)
def test_any_cuts_give_the_same_form(data: bytes, cuts: list[int], ending: bytes) -> None:
    if b"\r\n--b" in b"\r\n" + data + b"\r\n":
        data = data.replace(b"--b", b"--c")
    body = form(text("purpose", "vision"), file(data), text("name", "ä\r\n")).removesuffix(b"\r\n") + ending
    places = sorted({0, len(body), *(min(cut, len(body)) for cut in cuts)})
    pieces = [body[start:end] for start, end in itertools.pairwise(places)]
    members: list[FormText | FormFile] = [
        FormText(name="purpose", text="vision"),
        FormFile(name="file", filename="a.png"),
        FormText(name="name", text="ä\r\n"),
    ]
    assert parsed(pieces) == (members, data)


@pytest.mark.parametrize(
    "content_type",
    [
        'multipart/form-data; boundary="b"',
        "Multipart/Form-Data;charset=utf-8; Boundary=b",
        "multipart/form-data; boundary=b; charset=utf-8",
    ],
)
def test_reads_the_boundary_as_clients_write_it(content_type: str) -> None:
    assert parsed([form(file(b"x"))], content_type) == ([FormFile(name="file", filename="a.png")], b"x")


def test_an_empty_name_of_a_file_is_a_file() -> None:
    body = form(part('form-data; name="file"; filename=""', b"x"))
    assert parsed([body]) == ([FormFile(name="file", filename="")], b"x")


def refusal(hostile: HostileForm, size: int) -> str | None:
    """Returns why a form in pieces of a size is refused; None: what reads its members refuses it, or nobody does."""
    pieces = [hostile.body[start : start + size] for start in range(0, len(hostile.body), size)]
    try:
        parsed(pieces, hostile.content_type)
    except InvalidRequest as error:
        return error.reason
    return None


@pytest.mark.parametrize("name", hostile_forms())
@pytest.mark.parametrize("size", [1 << 20, 1000])
def test_hostile_forms_cost_little_memory(name: str, size: int) -> None:
    hostile = hostile_forms()[name]
    tracemalloc.start()
    reason = refusal(hostile, size)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert reason in (hostile.reason, None)
    assert peak < 3 * len(hostile.body) + (1 << 18)
