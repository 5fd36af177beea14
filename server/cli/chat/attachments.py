"""Media files that a question carries: those that flags and commands name, and those whose paths are in a line."""

import mimetypes
import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from glimpse.client import Audio, Document, Image, Video

Medium: TypeAlias = Image | Video | Audio | Document
Kind: TypeAlias = type[Image] | type[Video] | type[Audio] | type[Document]

_KINDS: dict[str, Kind] = {"image": Image, "video": Video, "audio": Audio}
_URLS = ("http://", "https://", "data:")
_WORD = re.compile(r"""'[^'\n]+'|"[^"\n]+"|(?:\\.|[^\s\\])+""")
"""A word as terminals paste a file that is dropped on them: in quotes, or with a backslash before its spaces."""
_AFTER = ".,;:!?)"
"""What may follow a path in a sentence."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A medium of a question."""

    name: str
    """Path or URL, as it was written."""
    medium: Medium
    """Medium to send; of a file the bytes, since it may change or go before the conversation ends."""


def attach(kind: Kind, name: str) -> Attachment:
    """Returns the medium that a path or URL names. Raises OSError if the file cannot be read."""
    if name.startswith(_URLS):
        return Attachment(name, kind(name))
    return Attachment(name, kind(Path(name).expanduser().read_bytes()))


def kind_of(name: str) -> Kind | None:
    """Returns the kind of media that the extension of a path or URL tells; None if it tells none."""
    path = urlsplit(name).path if name.startswith(_URLS) else name
    media_type = mimetypes.guess_type(path)[0] or ""
    return Document if media_type == "application/pdf" else _KINDS.get(media_type.partition("/")[0])


def names_medium(argument: str) -> bool:
    """Whether an argument is a medium rather than text: a URL, or a path with an extension of media."""
    if any(space in argument for space in string.whitespace):
        return kind_of(argument) is not None and Path(argument).is_file()
    return argument.startswith(_URLS) or kind_of(argument) is not None


def split_arguments(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Returns the texts among arguments, and the media."""
    texts: list[str] = []
    media: list[str] = []
    for argument in arguments:
        # A file without a known extension may follow the question.
        is_medium = names_medium(argument) or (bool(texts) and Path(argument).expanduser().is_file())
        (media if is_medium else texts).append(argument)
    return texts, media


def find_media(line: str) -> tuple[str, list[Attachment]]:
    """Returns a line without the media in it, and these media: files that exist, and URLs with an extension of media.

    A name in the middle of a sentence stays there, without its folder. Raises OSError if a file cannot be read.
    """
    found = list(_media_words(line))
    begin = 0
    pieces: list[str] = []
    for match, name in found:
        pieces += [line[begin : match.start()], f"\0{Path(name).name}\0"]
        begin = match.start() + len(match.group().rstrip(_AFTER) if _is_bare(match.group()) else match.group())
    text = "".join([*pieces, line[begin:]])
    text = re.sub(r"^(\s*\0[^\0]*\0)+\s*|\s*(\0[^\0]*\0\s*)+$", "", text).replace("\0", "")
    return text.strip(), [attach(kind_of(name) or Image, name) for _, name in found]


def _media_words(line: str) -> Iterator[tuple[re.Match[str], str]]:
    for match in _WORD.finditer(line):
        name = _unquoted(match.group())
        if kind_of(name) is not None and (name.startswith(_URLS) or Path(name).expanduser().is_file()):
            yield match, name


def _unquoted(word: str) -> str:
    """Returns the path or URL that a word means."""
    if not _is_bare(word):
        return word[1:-1]
    word = word.rstrip(_AFTER)
    if word.startswith("file://"):
        return unquote(urlsplit(word).path)
    return word if word.startswith(_URLS) else re.sub(r"\\(.)", r"\1", word)


def _is_bare(word: str) -> bool:
    return word[0] not in "'\"" or word[-1] != word[0] or len(word) < 3
