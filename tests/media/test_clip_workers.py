"""Decoding in other processes: the same clips and errors, and a process lost costs one clip and no more."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from media.clip_file import clip_of_file
from media.clip_options import ClipOptions
from media.clip_workers import WORKER_COMMAND, ClipWorkers
from media.errors import MediaError, MediaErrorCode
from tests.e2e.stack import eventually
from tests.media.clips import greys, numbers, video
from tests.media.test_load import VIDEO_PROCESSING

VIDEO = video(greys(12))
OPTIONS = ClipOptions(num_frames=6, start_seconds=0.2)


def make_workers(*command: str, memory_bytes: int = 3 << 30, timeout_seconds: float = 60.0) -> ClipWorkers:
    return ClipWorkers(
        num_workers=1,
        memory_bytes=memory_bytes,
        timeout_seconds=timeout_seconds,
        command=command or WORKER_COMMAND,
    )


@pytest.fixture
async def workers() -> AsyncIterator[ClipWorkers]:
    workers = make_workers()
    yield workers
    await workers.close()


async def refusal(workers: ClipWorkers, data: bytes = VIDEO, options: ClipOptions = OPTIONS) -> MediaError:
    with pytest.raises(MediaError) as caught:
        await workers.clip_of_file(data, VIDEO_PROCESSING, options)
    return caught.value


async def test_a_clip_is_the_same_as_one_decoded_here(workers: ClipWorkers) -> None:
    expected = clip_of_file(VIDEO, VIDEO_PROCESSING, OPTIONS)
    clip = await workers.clip_of_file(VIDEO, VIDEO_PROCESSING, OPTIONS)
    assert (clip.key, clip.grid_thw, clip.num_tokens) == (expected.key, expected.grid_thw, expected.num_tokens)
    assert (clip.frame_seconds, clip.fps) == (expected.frame_seconds, None)
    assert (clip.pixels == expected.pixels).all()
    rated = await workers.clip_of_file(VIDEO, VIDEO_PROCESSING, ClipOptions())
    assert (rated.fps, numbers(rated.pixels)) == (1, [0, 3, 6, 9])


async def test_errors_are_the_same_and_cost_no_process(workers: ClipWorkers) -> None:
    await workers.clip_of_file(VIDEO, VIDEO_PROCESSING, OPTIONS)
    assert (await refusal(workers, b"hello")).code == MediaErrorCode.UNSUPPORTED_FORMAT
    error = await refusal(workers, VIDEO[:400])
    assert (error.code, error.message) == (MediaErrorCode.INVALID_MEDIA, "the video is damaged or cut short")
    assert (await refusal(workers, options=ClipOptions(start_seconds=9))).code == MediaErrorCode.INVALID_PARAMETER
    assert await workers.clip_of_file(VIDEO, VIDEO_PROCESSING, OPTIONS)


async def test_more_files_than_processes_wait_for_their_turn(workers: ClipWorkers) -> None:
    files = [video(greys(4, width=width)) for width in (32, 64, 96, 128)]
    clips = await asyncio.gather(*(workers.clip_of_file(file, VIDEO_PROCESSING, ClipOptions()) for file in files))
    assert [clip.key for clip in clips] == [clip_of_file(file, VIDEO_PROCESSING, ClipOptions()).key for file in files]


async def test_a_process_that_dies_costs_one_clip(tmp_path: Path) -> None:
    died = tmp_path / "died"
    dies_once = (
        f"import os, pathlib, media.clip_worker as worker; once = pathlib.Path({str(died)!r})\n"
        "def die(*arguments):\n"
        "    once.touch(); os.abort()\n"
        "if not once.exists(): worker.clip_of_file = die\n"
        "import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); worker._limit = lambda **limits: None\n"
        "worker.main()"
    )
    workers = make_workers(sys.executable, "-c", dies_once)
    error = await refusal(workers)
    assert (error.code, died.exists()) == (MediaErrorCode.INVALID_MEDIA, True)
    assert "stopped the decoder" in error.message
    assert await workers.clip_of_file(VIDEO, VIDEO_PROCESSING, OPTIONS)
    await workers.close()


async def test_a_process_that_died_with_nothing_to_do_costs_nothing(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    tells = f"import os; open({str(told)!r}, 'w').write(f'{{os.getpid()}} '); import media.clip_worker as w; w.main()"
    workers = make_workers(sys.executable, "-c", tells)
    await workers.clip_of_file(VIDEO, VIDEO_PROCESSING, OPTIONS)
    os.kill(await asyncio.to_thread(pid_in, told), signal.SIGKILL)
    assert await workers.clip_of_file(VIDEO, VIDEO_PROCESSING, OPTIONS)
    await workers.close()


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("raise SystemExit", id="ends at once"),
        pytest.param("print('nonsense ' * 1000)", id="talks nonsense"),
        pytest.param("import sys; sys.stdout.buffer.write(b'\\x02\\0\\0\\0{}')", id="talks in another form"),
        pytest.param("import sys; sys.stdout.buffer.write(b'\\xff\\xff\\xff\\xff')", id="has a long story"),
        pytest.param(
            'import sys; text = b\'{"type":"decoded","shape":[768,9999,9999,3],"frame_seconds":[],"fps":null}\'\n'
            "sys.stdout.buffer.write(len(text).to_bytes(4, 'little') + text)",
            id="claims a huge clip",
        ),
    ],
)
async def test_a_process_that_has_no_clip_is_not_believed(code: str) -> None:
    workers = make_workers(sys.executable, "-c", code)
    assert (await refusal(workers)).code == MediaErrorCode.INVALID_MEDIA
    await workers.close()


async def test_what_libraries_print_is_no_result() -> None:
    talks = (
        "import os, media.clip_worker as worker; decode = worker.clip_of_file\n"
        "worker.clip_of_file = lambda *job: (os.write(1, b'decoders like to talk'), decode(*job))[1]\n"
        "worker.main()"
    )
    workers = make_workers(sys.executable, "-c", talks)
    assert await workers.clip_of_file(VIDEO, VIDEO_PROCESSING, OPTIONS)
    await workers.close()


async def test_memory_is_bounded() -> None:
    workers = make_workers(memory_bytes=600 << 20)
    assert await workers.clip_of_file(VIDEO, VIDEO_PROCESSING, OPTIONS)
    assert (await refusal(workers, VIDEO + bytes(500 << 20))).code == MediaErrorCode.INVALID_MEDIA
    assert await workers.clip_of_file(VIDEO, VIDEO_PROCESSING, OPTIONS)
    await workers.close()


SLEEPS = "import os, sys, time; open({path!r}, 'w').write(f'{{os.getpid()}} '); time.sleep(600)"


def pid_in(path: Path) -> int:
    """Waits for a process to tell its id."""
    assert eventually(lambda: path.exists() and path.read_text().endswith(" "), timeout_seconds=60)
    return int(path.read_text())


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_a_file_that_takes_too_long_is_given_up() -> None:
    workers = make_workers(sys.executable, "-c", "import time; time.sleep(600)", timeout_seconds=0.2)
    error = await refusal(workers)
    assert (error.code, error.message) == (MediaErrorCode.TOO_LARGE, "the video takes longer than 0.2 s to decode")
    await workers.close()


async def test_who_leaves_takes_the_process_along(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    workers = make_workers(sys.executable, "-c", SLEEPS.format(path=str(told)))
    task = asyncio.create_task(workers.clip_of_file(VIDEO, VIDEO_PROCESSING, OPTIONS))
    pid = await asyncio.to_thread(pid_in, told)
    assert is_alive(pid)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await workers.close()
    assert not is_alive(pid)


async def test_closing_ends_the_processes(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    tells = f"import os; open({str(told)!r}, 'w').write(f'{{os.getpid()}} '); import media.clip_worker as w; w.main()"
    workers = make_workers(sys.executable, "-c", tells)
    await workers.clip_of_file(VIDEO, VIDEO_PROCESSING, OPTIONS)
    pid = await asyncio.to_thread(pid_in, told)
    assert is_alive(pid)
    await workers.close()
    assert not is_alive(pid)
