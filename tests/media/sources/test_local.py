"""Local files: only those below one folder can be read."""

import os
import socket
import threading
from pathlib import Path, PurePosixPath

import pytest

from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.processing.image import prepare_image
from glimpse.media.sources.local import LocalFiles
from glimpse.media.sources.source import parse_url_text
from tests.media.images import encode, scene
from tests.media.loaders import PROCESSING, make_loader

REFUSED = MediaErrorCode.URL_REFUSED
FAILED = MediaErrorCode.FETCH_FAILED


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with files and links; its parent contains a secret file."""
    (tmp_path / "secret.png").write_bytes(b"secret")
    folder = tmp_path / "media"
    (folder / "cats").mkdir(parents=True)
    (folder / "cats" / "tom cat.png").write_bytes(b"tom")
    (folder / "latest").symlink_to("cats")
    (folder / "tom.png").symlink_to(folder / "cats" / "tom cat.png")
    (folder / "out.png").symlink_to(tmp_path / "secret.png")
    (folder / "up").symlink_to("..")
    (folder / "root").symlink_to("/")
    (folder / "loop").symlink_to("loop")
    (folder / "dangling").symlink_to("nowhere")
    os.mkfifo(folder / "pipe")
    return folder


def read(folder: Path, path: str, max_bytes: int = 100) -> bytes:
    return LocalFiles(folder).read(PurePosixPath(path.format(folder=folder)), max_bytes=max_bytes)


@pytest.mark.parametrize(
    "path", ["cats/tom cat.png", "latest/tom cat.png", "tom.png", "./cats//tom cat.png", "up/media/tom.png"]
)
def test_follows_links_inside_the_folder(folder: Path, path: str) -> None:
    assert read(folder, f"{{folder}}/{path}") == b"tom"


def test_folder_may_be_a_link(folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    for name in (link, folder):
        assert LocalFiles(link).read(PurePosixPath(name / "tom.png"), max_bytes=3) == b"tom"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/etc/passwd", REFUSED),
        ("/", REFUSED),
        ("//etc/passwd", REFUSED),
        ("{folder}/../secret.png", REFUSED),
        ("{folder}/cats/../../secret.png", REFUSED),
        ("{folder}/cats/../tom.png", REFUSED),
        ("{folder}-of-others/a.png", REFUSED),
        ("{folder}/out.png", REFUSED),
        ("{folder}/up/secret.png", REFUSED),
        ("{folder}/root/etc/passwd", REFUSED),
        ("{folder}/none.png", FAILED),
        ("{folder}/tom.png/more", FAILED),
        ("{folder}/loop", FAILED),
        ("{folder}/dangling", FAILED),
        ("{folder}/pipe", FAILED),
        ("{folder}/cats", FAILED),
        ("{folder}", FAILED),
        ("{folder}/a\0b", FAILED),
        ("{folder}/" + "a" * 5000, FAILED),
    ],
)
def test_refuses_paths_that_leave_the_folder_or_are_not_files(folder: Path, path: str, code: MediaErrorCode) -> None:
    num_open = _num_open()
    with pytest.raises(MediaError) as caught:
        read(folder, path)
    assert caught.value.code == code
    assert str(folder) not in caught.value.message
    assert "secret" not in caught.value.message
    assert _num_open() == num_open


def _num_open() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_refuses_sockets(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)  # socket paths must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        with pytest.raises(MediaError):
            read(folder, "{folder}/socket")


def test_errors_do_not_reveal_which_files_exist_outside(folder: Path) -> None:
    def message(path: str) -> str:
        with pytest.raises(MediaError) as caught:
            read(folder, path)
        return caught.value.message

    outside = ["/etc/passwd", "/no/such/file", "{folder}/root/etc/passwd", "{folder}/root/no/such/file"]
    assert len({message(path) for path in outside}) == 1


def test_limits_file_size(folder: Path) -> None:
    assert read(folder, "{folder}/tom.png", max_bytes=3) == b"tom"
    with pytest.raises(MediaError) as caught:
        read(folder, "{folder}/tom.png", max_bytes=2)
    assert caught.value.code == MediaErrorCode.TOO_LARGE


def test_link_created_while_reading_is_not_followed(folder: Path) -> None:
    """Replaces a folder by a link to its parent repeatedly while a file is read."""
    (folder / "cats" / "secret.png").write_bytes(b"harmless")
    stopped = threading.Event()

    def exchange() -> None:
        while not stopped.is_set():
            (folder / "cats").rename(folder / "away")
            (folder / "cats").symlink_to("..")
            (folder / "cats").unlink()
            (folder / "away").rename(folder / "cats")

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        outcomes = {_outcome(folder) for _ in range(300)}
    finally:
        stopped.set()
        thread.join()
    assert b"secret" not in outcomes


def _outcome(folder: Path) -> bytes | MediaErrorCode:
    try:
        return read(folder, "{folder}/cats/secret.png")
    except MediaError as error:
        return error.code


async def test_loader_reads_only_allowed_files(folder: Path, tmp_path: Path) -> None:
    source_image = scene(56, 56)
    (folder / "my cat#1.png").write_bytes(encode(source_image, "PNG"))
    source = parse_url_text(f"file://{folder}/my%20cat%231.png")
    loader = make_loader(local=LocalFiles(folder))
    assert (await loader.load_image(source)).key == prepare_image(source_image, PROCESSING).key
    with pytest.raises(MediaError, match="below the folder that the server allows"):
        await loader.load_image(parse_url_text(f"file://{tmp_path}/secret.png"))
    await loader.close()
    closed = make_loader()
    with pytest.raises(MediaError, match="does not read file: URLs"):
        await closed.load_image(source)
    await closed.close()


def test_refuses_a_root_that_is_not_a_folder(tmp_path: Path) -> None:
    for name in ("none", "file"):
        (tmp_path / "file").touch()
        with pytest.raises(ValueError, match="expected a folder"):
            LocalFiles(tmp_path / name)
