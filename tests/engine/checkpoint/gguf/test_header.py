"""Headers of GGUF files: what they say is read, and hostile ones are refused by name, quickly and in little memory."""

import re
import time
import tracemalloc
from pathlib import Path

import pytest

from glimpse.engine.checkpoint.gguf.header import Gguf
from glimpse.engine.errors import CheckpointError
from tests.hostile.gguf_files import ARRAY, STRING, array, entry, gguf, hostile_headers, text, valid

HOSTILE = hostile_headers()
MIB = 1 << 20


def write(folder: Path, data: bytes) -> Path:
    file = folder / "model.gguf"
    file.write_bytes(data)
    return file


def assert_refused(file: Path, message: str) -> None:
    """Fails unless a file is refused with this message within a second, and in 64 MiB."""
    started = time.process_time()
    with pytest.raises(CheckpointError, match=re.escape(message)):
        Gguf(file)
    assert time.process_time() - started < 1
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError):
            Gguf(file)
        assert tracemalloc.get_traced_memory()[1] < 64 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_are_refused(tmp_path: Path, name: str) -> None:
    data, message = HOSTILE[name]
    assert_refused(write(tmp_path, data), message)


def test_there_are_forty_hostile_headers() -> None:
    assert len(HOSTILE) >= 40


def test_the_longest_header_is_read_quickly(tmp_path: Path) -> None:
    """Arrays of as many texts as may be, whose file ends where the limit of headers is exceeded."""
    texts = entry("a", ARRAY, array(STRING, 1 << 21, bytes(8 << 21)))
    file = write(tmp_path, gguf([texts, entry("b", STRING, text(bytes(16 * MIB)))]))
    assert_refused(file, "'b': expected a header of at most 33554432 bytes, got more")


def test_values_are_read(tmp_path: Path) -> None:
    read = Gguf(write(tmp_path, valid()))
    assert [read.get(f"number.{kind}") for kind in (0, 1, 2, 3, 4, 5, 6, 10, 11, 12)] == [7] * 10
    assert (read.get("general.architecture"), read.get("flag"), read.get("none")) == ("llama", True, None)
    assert (read.texts("texts"), read.texts("none"), read.numbers("none")) == (["a", "ü"], None, None)
    numbers = read.numbers("numbers")
    assert numbers is not None
    assert numbers.tolist() == [1, 2, 3]
    assert {name: (each.type.name, each.shape, each.num_bytes) for name, each in read.tensors.items()} == {
        "a": ("F32", (2, 8), 64),
        "b": ("Q4_0", (32,), 18),
    }
    assert read.tensors["b"].offset - read.tensors["a"].offset == 64


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda file: file.get("texts"), "'texts': expected one value, got an array of 2"),
        (lambda file: file.texts("numbers"), "'numbers': expected an array of texts, got numbers"),
        (lambda file: file.numbers("texts"), "'texts': expected an array of numbers, got texts"),
        (lambda file: file.texts("flag"), "'flag': expected an array, got True"),
    ],
)
def test_values_of_other_kinds_are_refused(tmp_path: Path, read: object, message: str) -> None:
    assert callable(read)
    with pytest.raises(CheckpointError, match=message):
        read(Gguf(write(tmp_path, valid())))


def test_a_text_in_an_array_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    file = Gguf(write(tmp_path, gguf([entry("a", ARRAY, array(STRING, 1, text(b"\xff")))])))
    with pytest.raises(CheckpointError, match="'a': expected UTF-8"):
        file.texts("a")


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"'none\.gguf' cannot be read"):
        Gguf(tmp_path / "none.gguf")
