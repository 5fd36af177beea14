"""Parsing of the texts that identify media: URLs, data URLs and base64."""

import base64
import binascii
from contextlib import suppress
from pathlib import PurePosixPath
from unittest import mock
from urllib.parse import quote, unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.sources import source
from glimpse.media.sources.source import (
    DataSource,
    FileSource,
    FrameSources,
    UrlSource,
    parse_url_text,
    parse_video_text,
)

# Its base64 contains both characters in which the two alphabets differ.
PAYLOAD = b"\xfb\xff\xfe image bytes"
STANDARD = base64.b64encode(PAYLOAD).decode()
URL_SAFE = base64.urlsafe_b64encode(PAYLOAD).decode()


@pytest.mark.parametrize(
    "text",
    [
        STANDARD,
        URL_SAFE,
        f"  {STANDARD}\n",
        "\n".join(STANDARD[i : i + 4] for i in range(0, len(STANDARD), 4)),
        f"data:image/png;base64,{STANDARD}",
        f"data:image/png;base64,{URL_SAFE}",
        f"data:;base64,{STANDARD}",
        f"data:image/png; Base64 ,{STANDARD}",
        f"data:text/html;base64,{STANDARD}",
        f"DATA:image/jpeg;name=a.jpg;BASE64,{STANDARD}",
        f"data:image/png;base64,{quote(STANDARD, safe='')}",
        f"data:image/png,{quote(PAYLOAD, safe='')}",
        f"data:,{quote(PAYLOAD)}",
    ],
)
def test_parses_base64_and_data_urls(text: str) -> None:
    assert parse_url_text(text) == DataSource(data=PAYLOAD)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://example.com/cat.png", "http://example.com/cat.png"),
        ("HTTPS://Example.COM/Cat.png", "https://example.com/Cat.png"),
        (" https://example.com/a?sig=a%2Bb%3D ", "https://example.com/a?sig=a%2Bb%3D"),
        ("https://bücher.example/ü", "https://xn--bcher-kva.example/%C3%BC"),
        ("http://[2606:4700::1]:8080/x", "http://[2606:4700::1]:8080/x"),
    ],
)
def test_parses_urls(text: str, url: str) -> None:
    source = parse_url_text(text)
    assert isinstance(source, UrlSource)
    assert str(source.url) == url


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", MediaErrorCode.INVALID_SOURCE),
        ("   ", MediaErrorCode.INVALID_SOURCE),
        ("data:image/png;base64,", MediaErrorCode.INVALID_SOURCE),
        ("data:image/png,", MediaErrorCode.INVALID_SOURCE),
        ("data:image/png;base64", MediaErrorCode.INVALID_SOURCE),
        ("not base64!", MediaErrorCode.INVALID_SOURCE),
        ("héllo", MediaErrorCode.INVALID_SOURCE),
        ("QUJD=", MediaErrorCode.INVALID_SOURCE),
        ("QUJDR", MediaErrorCode.INVALID_SOURCE),
        ("QUI", MediaErrorCode.INVALID_SOURCE),
        ("QU=JD", MediaErrorCode.INVALID_SOURCE),
        ("====", MediaErrorCode.INVALID_SOURCE),
        ("ab-_ab+/", MediaErrorCode.INVALID_SOURCE),
        ("data:image/png;base64,QUJ%", MediaErrorCode.INVALID_SOURCE),
        ("/etc/passwd", MediaErrorCode.INVALID_SOURCE),
        ("//example.com/cat.png", MediaErrorCode.INVALID_SOURCE),
        ("http://", MediaErrorCode.INVALID_SOURCE),
        ("http:///cat.png", MediaErrorCode.INVALID_SOURCE),
        ("http:cat.png", MediaErrorCode.INVALID_SOURCE),
        ("http://[::1/", MediaErrorCode.INVALID_SOURCE),
        ("http://example.com:99999/", MediaErrorCode.INVALID_SOURCE),
        ("http://example.com\\@127.0.0.1/", MediaErrorCode.INVALID_SOURCE),
        ("http:\\\\127.0.0.1\\", MediaErrorCode.INVALID_SOURCE),
        ("http://exa mple.com/", MediaErrorCode.INVALID_SOURCE),
        ("http://127.0\t.0.1/", MediaErrorCode.INVALID_SOURCE),
        ("http://example.com/\r\nHost: x", MediaErrorCode.INVALID_SOURCE),
        ("http://example.com/" + "a" * 9000, MediaErrorCode.INVALID_SOURCE),
        ("file://elsewhere/cat.png", MediaErrorCode.URL_REFUSED),
        ("file://localhost:80/cat.png", MediaErrorCode.URL_REFUSED),
        ("file://me@localhost/cat.png", MediaErrorCode.URL_REFUSED),
        ("file://127.0.0.1/cat.png", MediaErrorCode.URL_REFUSED),
        ("file:cat.png", MediaErrorCode.INVALID_SOURCE),
        ("file:", MediaErrorCode.INVALID_SOURCE),
        ("file:///cat.png?size=2", MediaErrorCode.INVALID_SOURCE),
        ("file:///cat.png#top", MediaErrorCode.INVALID_SOURCE),
        ("file:///cat%00.png", MediaErrorCode.INVALID_SOURCE),
        ("file:///C:\\cat.png", MediaErrorCode.INVALID_SOURCE),
        ("ftp://example.com/cat.png", MediaErrorCode.URL_REFUSED),
        ("gopher://127.0.0.1:6379/_FLUSHALL", MediaErrorCode.URL_REFUSED),
        ("javascript:alert(1)", MediaErrorCode.URL_REFUSED),
        ("C:\\cat.png", MediaErrorCode.INVALID_SOURCE),
    ],
)
def test_refuses_invalid_sources(text: str, code: MediaErrorCode) -> None:
    with pytest.raises(MediaError) as caught:
        parse_url_text(text)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("file:///data/cat.png", "/data/cat.png"),
        ("FILE:/data/cat.png", "/data/cat.png"),
        ("file://localhost/data/my%20cat%3F.png", "/data/my cat?.png"),
        ("file:///data/%C3%A9t%C3%A9.png", "/data/été.png"),
    ],
)
def test_parses_file_urls(text: str, path: str) -> None:
    assert parse_url_text(text) == FileSource(path=PurePosixPath(path))


def test_refuses_other_schemes_by_name() -> None:
    with pytest.raises(MediaError, match="got ftp:"):
        parse_url_text("ftp://example.com/cat.png")


@pytest.mark.parametrize(
    "path",
    [
        "/home/me/cat.jpg",
        "/etc/passwd",
        "C:\\Users\\me\\cat.jpg",
        "c:/cat.jpg",
        "~/cat.jpg",
        "../cat",
        "cat.jpg",
        "my cat.jpg",
    ],
)
def test_a_path_is_told_from_a_damaged_source(path: str) -> None:
    with pytest.raises(MediaError, match="got the path") as caught:
        parse_url_text(path)
    assert path in caught.value.message
    assert "send a data URL" in caught.value.message


@pytest.mark.parametrize("text", ["not base64!", "//example.com/cat.png", "/9j/4AAQ" * 64 + "x", "QUJD=", "héllo"])
def test_other_texts_are_not_called_paths(text: str) -> None:
    with pytest.raises(MediaError) as caught:
        parse_url_text(text)
    assert caught.value.message == "expected an http(s) URL, a data URL or base64"


@pytest.mark.parametrize("size", [98, 99, 100])
def test_max_bytes_is_inclusive(size: int) -> None:
    data = b"x" * size
    assert parse_url_text(base64.b64encode(data).decode(), max_bytes=size) == DataSource(data=data)
    assert parse_url_text("data:," + quote(data), max_bytes=size) == DataSource(data=data)


@pytest.mark.parametrize("size", [101, 102, 103, 104, 1000])
def test_refuses_more_than_max_bytes(size: int) -> None:
    data = b"x" * size
    for text in (base64.b64encode(data).decode(), "data:," + quote(data)):
        with pytest.raises(MediaError) as caught:
            parse_url_text(text, max_bytes=100)
        assert caught.value.code == MediaErrorCode.TOO_LARGE


def test_refuses_too_long_text_before_decoding() -> None:
    with pytest.raises(MediaError) as caught:
        parse_url_text("data:;base64," + "!" * 1000, max_bytes=100)  # not base64, which only decoding would detect
    assert caught.value.code == MediaErrorCode.TOO_LARGE


@given(st.binary(min_size=1))
def test_encodings_round_trip(data: bytes) -> None:
    for text in (base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode()):
        assert parse_url_text(text) == DataSource(data=data)
        assert parse_url_text("data:image/png;base64," + text) == DataSource(data=data)
    assert parse_url_text("data:application/octet-stream," + quote(data)) == DataSource(data=data)


@given(st.text())
def test_any_text_is_a_source_or_a_media_error(text: str) -> None:
    with suppress(MediaError):
        assert isinstance(parse_url_text(text), DataSource | UrlSource)


def test_parses_frames_in_one_data_url() -> None:
    text = "data:video/jpeg;base64," + ",".join(base64.b64encode(data).decode() for data in (b"one", b"two", b"3"))
    for written in (text, text.replace("video/jpeg", "Video/JPEG "), "  " + text):
        assert parse_video_text(written) == FrameSources(
            frames=tuple(DataSource(data=data) for data in (b"one", b"two", b"3"))
        )


@pytest.mark.parametrize("text", ["data:video/mp4;base64,b25l", "b25l", "http://images.example/video.mp4"])
def test_any_other_text_is_a_video_file(text: str) -> None:
    assert parse_video_text(text) == parse_url_text(text)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("data:video/jpeg;base64,", MediaErrorCode.INVALID_SOURCE),
        ("data:video/jpeg;base64,b25l,,b25l", MediaErrorCode.INVALID_SOURCE),
        ("data:video/jpeg;base64,b25l,%%%", MediaErrorCode.INVALID_SOURCE),
        ("data:video/jpeg;base64," + "b25l," * 4096 + "b25l", MediaErrorCode.TOO_LARGE),
        ("data:video/jpeg;base64,b25lb25l,b25lb25l", MediaErrorCode.TOO_LARGE),
        ("data:video/jpeg;base64," + "," * 10_000_000, MediaErrorCode.TOO_LARGE),
        ("ftp://example.com/video.mp4", MediaErrorCode.URL_REFUSED),
    ],
    ids=range(7),
)
def test_refuses_invalid_frame_lists(text: str, code: MediaErrorCode) -> None:
    with pytest.raises(MediaError) as caught:
        parse_video_text(text, max_bytes=10 if "b25lb25l" in text else 1 << 20)
    assert caught.value.code == code


def decoded_at_once(text: str) -> bytes | None:
    """Decodes base64 in single calls; None for what is invalid."""
    try:
        letters = text.encode("ascii").translate(None, b" \t\r\n\f\v")
        if b"-" in letters or b"_" in letters:
            if b"+" in letters or b"/" in letters:
                return None
            letters = letters.replace(b"-", b"+").replace(b"_", b"/")
        if len(letters) % 4:
            return None
        return binascii.a2b_base64(letters, strict_mode=True) or None
    except ValueError:
        return None


PIECES = st.sampled_from(["QUJD", "QUI=", "QQ==", "=", "+", "_", "-/", "A", " ", "\n", "é", "%41", "%3D", "%", "%2"])


def data_of(text: str) -> bytes | None:
    """Returns the data of a URL or of base64; None for what is refused."""
    try:
        parsed = parse_url_text(text)
    except MediaError:
        return None
    return parsed.data if isinstance(parsed, DataSource) else None


@given(st.lists(PIECES, max_size=12).map("".join), st.sampled_from([4, 8, 1 << 20]))
def test_base64_is_decoded_in_slices_as_in_one_call(text: str, num_characters: int) -> None:
    with mock.patch.object(source, "_SLICE_CHARACTERS", num_characters):
        assert data_of(text) == decoded_at_once(text)
        unquoted = unquote_to_bytes(text.strip()).decode("latin-1")
        assert data_of(f"data:;base64,{text}") == decoded_at_once(unquoted)


@given(st.lists(PIECES, max_size=12).map("".join), st.sampled_from([4, 8, 1 << 20]))
def test_percent_encoded_data_are_decoded_in_slices_as_in_one_call(text: str, num_characters: int) -> None:
    with mock.patch.object(source, "_SLICE_CHARACTERS", num_characters):
        assert data_of(f"data:,{text}") == (unquote_to_bytes(text.rstrip()) or None)
