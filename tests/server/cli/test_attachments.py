"""Which words of a line are media, and what is left of it; targets of servers."""

from pathlib import Path

import pytest

from glimpse.client import Audio, Document, Image, Video
from glimpse.server.cli.chat.attachments import find_media, split_arguments
from glimpse.server.cli.chat.connection import parse_target
from glimpse.usage import UsageError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("a.png", "b c.png", "film.mp4", "song.wav", "paper.pdf", "notes.txt", "plain"):
        (tmp_path / name).write_bytes(name.encode())
    return tmp_path


@pytest.mark.parametrize(
    ("line", "text", "names"),
    [
        ("What is in a.png?", "What is in a.png?", ["a.png"]),
        ("{0}/a.png What is this?", "What is this?", ["{0}/a.png"]),
        ("What's this? {0}/a.png", "What's this?", ["{0}/a.png"]),
        (r"{0}/b\ c.png ", "", [r"{0}/b c.png"]),
        ("'{0}/b c.png' \"b c.png\" Compare.", "Compare.", ["{0}/b c.png", "b c.png"]),
        ("file://{0}/b%20c.png what?", "what?", ["{0}/b c.png"]),
        ("Is ~/a.png like {0}/film.mp4 here?", "Is a.png like film.mp4 here?", ["~/a.png", "{0}/film.mp4"]),
        ("See https://host/p.jpg?size=2 now", "See p.jpg?size=2 now", ["https://host/p.jpg?size=2"]),
        ("Read notes.txt, none.png and https://host/page", "Read notes.txt, none.png and https://host/page", []),
        ("Don't say 'a.png' twice", "Don't say a.png twice", ["a.png"]),
        ("two\n  lines  stay", "two\n  lines  stay", []),
        ('A quote " alone', 'A quote " alone', []),
    ],
)
def test_finds_media_in_a_line(line: str, text: str, names: list[str], folder: Path) -> None:
    left, found = find_media(line.replace("{0}", str(folder)))
    assert left == text
    assert [each.name for each in found] == [name.replace("{0}", str(folder)) for name in names]


def test_media_have_the_kind_of_their_extension(folder: Path) -> None:
    _, found = find_media("a.png film.mp4 song.wav paper.pdf")
    expected = [Image(b"a.png"), Video(b"film.mp4"), Audio(b"song.wav"), Document(b"paper.pdf")]
    assert [each.medium for each in found] == expected


@pytest.mark.parametrize(
    ("arguments", "texts", "media"),
    [
        (["What?", "a.png", "plain"], ["What?"], ["a.png", "plain"]),
        (["a.png", "What?"], ["What?"], ["a.png"]),
        (["none.png"], [], ["none.png"]),
        (["https://host/x", "What?"], ["What?"], ["https://host/x"]),
        (["What is a.png", "b c.png"], ["What is a.png"], ["b c.png"]),
        (["plain"], ["plain"], []),
        (["one", "two"], ["one", "two"], []),
    ],
)
def test_tells_files_among_arguments(arguments: list[str], texts: list[str], media: list[str], folder: Path) -> None:
    assert split_arguments(arguments) == (texts, media)


@pytest.mark.parametrize(
    ("target", "parsed"),
    [
        ("host:50051", ("host:50051", False)),
        ("http://host:8080/v1", ("host:8080", False)),
        ("http://host", ("host:80", False)),
        ("https://host/v1/chat", ("host:443", True)),
        ("https://[::1]:8443", ("[::1]:8443", True)),
        ("http://[::1]", ("[::1]:80", False)),
        ("dns:///host:1", ("dns:///host:1", False)),
        ("unix:/run/glimpse", ("unix:/run/glimpse", False)),
    ],
)
def test_targets_may_be_urls(target: str, parsed: tuple[str, bool]) -> None:
    assert parse_target(target) == parsed


@pytest.mark.parametrize("target", ["host", "[::1]", "http://", ""])
def test_refuses_other_targets(target: str) -> None:
    with pytest.raises(UsageError, match="'--target': expected HOST:PORT or a URL"):
        parse_target(target)
