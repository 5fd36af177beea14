"""Decoding in worker processes: same media and errors as in-process, and a crash fails one request only."""

import asyncio
import math
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import PIL.Image
import pytest

from glimpse.media.containers.still import open_image
from glimpse.media.decoding.audio_file import audio_from_file
from glimpse.media.decoding.jobs import AudioJob, FramesJob, ImageJob, VideoJob
from glimpse.media.decoding.video_file import video_from_file
from glimpse.media.decoding.video_frames import video_from_image_files
from glimpse.media.decoding.worker_client import IMAGE_LIMITS, VIDEO_LIMITS, IsolatedDecoders
from glimpse.media.decoding.worker_pool import WORKER_COMMAND
from glimpse.media.errors import MediaError, MediaErrorCode
from glimpse.media.processing.audio import Audio
from glimpse.media.processing.image import Image, prepare_image
from glimpse.media.processing.video import Video
from glimpse.media.processing.video_options import VideoOptions
from glimpse.media.workers.process import start_worker
from tests.media.audio import PROCESSING as AUDIO_PROCESSING
from tests.media.audio import audio_file, noise
from tests.media.images import encode, scene, tall_jpeg
from tests.media.loaders import PROCESSING, VIDEO_PROCESSING
from tests.media.resizing import RESIZERS
from tests.media.videos import greys, numbers, video
from tests.waiting import eventually

VIDEO = video(greys(12))
OPTIONS = VideoOptions(num_frames=6, start_seconds=0.2)
PNG = encode(scene(300, 200), "PNG")
PNGS = [encode(PIL.Image.fromarray(frame), "PNG") for frame in greys(6)]
WAV = audio_file(noise(1, 8_000), 16_000)
OOM_SCORE = Path("/proc/self/oom_score_adj")
MAX_PIXELS = 1_000_000
"""Pixels of an image."""
NEVER_ENDS = "import time; time.sleep(600)"
SPINS = """
from glimpse.media.decoding import worker
def spin(*job):
    while True: pass
worker.decode = spin; worker.main()
"""
WRITES_PID = "import os; open({path!r}, 'w').write(f'{{os.getpid()}} ')\n"


def make_decoders(*code: str, **limits: Any) -> IsolatedDecoders:
    """Returns decoders with one worker of each kind, which runs `code` instead of the worker program if given."""
    command = (sys.executable, "-c", *code) if code else WORKER_COMMAND
    return IsolatedDecoders(
        num_images=1,
        num_videos=1,
        max_decoded_pixels=MAX_PIXELS,
        image_limits=replace(IMAGE_LIMITS, **limits),
        video_limits=replace(VIDEO_LIMITS, **limits),
        command=command,
    )


@pytest.fixture
async def decoders() -> AsyncIterator[IsolatedDecoders]:
    decoders = make_decoders()
    yield decoders
    await decoders.close()


async def image(decoders: IsolatedDecoders, data: bytes = PNG) -> Image:
    decoded = await decoders.decode(ImageJob(processing=PROCESSING), [data])
    assert isinstance(decoded, Image)
    return decoded


async def loaded_video(decoders: IsolatedDecoders, data: bytes = VIDEO, options: VideoOptions = OPTIONS) -> Video:
    decoded = await decoders.decode(VideoJob(processing=VIDEO_PROCESSING, options=options), [data])
    assert isinstance(decoded, Video)
    return decoded


async def image_refusal(decoders: IsolatedDecoders, data: bytes = PNG) -> MediaError:
    with pytest.raises(MediaError) as caught:
        await image(decoders, data)
    return caught.value


async def video_refusal(decoders: IsolatedDecoders, data: bytes = VIDEO, options: VideoOptions = OPTIONS) -> MediaError:
    with pytest.raises(MediaError) as caught:
        await loaded_video(decoders, data, options)
    return caught.value


async def test_image_equals_in_process_decoding(decoders: IsolatedDecoders) -> None:
    expected = prepare_image(open_image(PNG, max_pixels=MAX_PIXELS), PROCESSING)
    result = await image(decoders)
    assert (result.key, result.grid) == (expected.key, expected.grid)
    assert (result.pixels == expected.pixels).all()


@pytest.mark.parametrize(("width", "height"), [(12_000, 9_008), (16_320, 12_240)])
async def test_a_jpeg_of_a_phone_is_decoded_in_the_memory_of_a_quarter_of_its_pixels(
    width: int, height: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """108 and 200 million pixels: whole, they would take four bytes each."""
    strip = PIL.Image.fromarray(np.repeat([[[200, 30, 30], [30, 180, 60], [20, 40, 200]]], 4, 0).astype(np.uint8))
    whole = tall_jpeg(strip.resize((width, 16), PIL.Image.Resampling.NEAREST), height // 16)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")  # each thread has address space of its own
    limits = replace(IMAGE_LIMITS, memory_bytes=(400 << 20) + width * height)
    decoders = IsolatedDecoders(num_images=1, num_videos=1, max_decoded_pixels=64_000_000, image_limits=limits)
    result = await image(decoders, whole)
    await decoders.close()
    expected = prepare_image(strip.resize((width // 16, height // 16), PIL.Image.Resampling.NEAREST), PROCESSING)
    assert result.grid == expected.grid
    # Where colours meet, pixels differ.
    assert np.abs(result.pixels.astype(int) - expected.pixels).mean() < 2


async def test_video_equals_in_process_decoding(decoders: IsolatedDecoders) -> None:
    expected = video_from_file(VIDEO, VIDEO_PROCESSING, OPTIONS)
    result = await loaded_video(decoders)
    assert (result.key, result.grid) == (expected.key, expected.grid)
    assert (result.frame_seconds, result.fps) == (expected.frame_seconds, None)
    assert result.duration_seconds == expected.duration_seconds == pytest.approx(1.2)
    assert (result.pixels == expected.pixels).all()
    rated = await loaded_video(decoders, options=VideoOptions())
    assert (rated.fps, numbers(rated.pixels)) == (1, [0, 3, 6, 9])


async def test_frames_equal_in_process_decoding(decoders: IsolatedDecoders) -> None:
    options, frame_indices = VideoOptions(fps=5), (0, 2, 3, 4, 5, 9)
    expected = video_from_image_files(PNGS, frame_indices, VIDEO_PROCESSING, options, max_decoded_pixels=MAX_PIXELS)
    job = FramesJob(processing=VIDEO_PROCESSING, options=options, frame_indices=frame_indices)
    result = await decoders.decode(job, PNGS)
    assert isinstance(result, Video)
    assert (result.key, result.frame_seconds) == (expected.key, (0.0, 0.4, 0.6, 0.8, 1.0, 1.8))


async def test_audio_equals_in_process_decoding(decoders: IsolatedDecoders) -> None:
    expected = audio_from_file(WAV, AUDIO_PROCESSING)
    result = await decoders.decode(AudioJob(processing=AUDIO_PROCESSING), [WAV])
    assert isinstance(result, Audio)
    assert (result.key, result.grid) == (expected.key, expected.grid)
    assert (result.features == expected.features).all()


async def test_media_errors_are_passed_on_and_keep_the_worker(decoders: IsolatedDecoders) -> None:
    await loaded_video(decoders)
    assert (await video_refusal(decoders, b"hello")).code == MediaErrorCode.UNSUPPORTED_FORMAT
    error = await video_refusal(decoders, VIDEO[:400])
    assert (error.code, error.message) == (MediaErrorCode.INVALID_MEDIA, "the video is corrupt or truncated")
    assert (
        await video_refusal(decoders, options=VideoOptions(start_seconds=9))
    ).code == MediaErrorCode.INVALID_PARAMETER
    error = await image_refusal(decoders, encode(scene(1001, 1000), "PNG"))
    assert (error.code, "1001×1000" in error.message) == (MediaErrorCode.TOO_LARGE, True)
    assert (await image_refusal(decoders, PNG[:400])).code == MediaErrorCode.INVALID_MEDIA
    frames = [PNGS[0], PNG]
    with pytest.raises(MediaError, match="for frame 1"):
        await decoders.decode(
            FramesJob(processing=VIDEO_PROCESSING, options=VideoOptions(), frame_indices=(0, 1)), frames
        )
    assert await loaded_video(decoders)


async def test_a_large_image_waits_for_memory_and_a_small_one_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glimpse.media.decoding.worker_client._UNASKED_BYTES", 4 * 300 * 200)
    monkeypatch.setattr("glimpse.media.cache.fair_share.available_memory", lambda: 4 << 20)
    job, large = ImageJob(processing=PROCESSING), encode(scene(800, 600), "PNG")
    decoders: Any = make_decoders()
    async with decoders._memory.place("another", 3 << 20):
        waiting = asyncio.create_task(decoders.decode(job, [large], client="a"))
        for client in ("a", "b"):
            assert isinstance(await decoders.decode(job, [PNG], client=client), Image)
        assert not waiting.done()
    assert isinstance(await waiting, Image)
    await decoders.close()


@pytest.mark.parametrize("kind", ["file", "frames"])
async def test_a_large_video_waits_for_memory_and_a_small_one_does_not(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glimpse.media.decoding.worker_client._UNASKED_BYTES", 3 << 20)
    monkeypatch.setattr("glimpse.media.cache.fair_share.available_memory", lambda: 4 << 20)
    job: VideoJob | FramesJob = VideoJob(processing=VIDEO_PROCESSING, options=VideoOptions())
    small, large = ([video(greys(4, width=width, height=width))] for width in (64, 480))
    if kind == "frames":
        job = FramesJob(processing=VIDEO_PROCESSING, options=VideoOptions(), frame_indices=(0, 1))
        small, large = ([encode(scene(width, width), "PNG")] * 2 for width in (64, 960))
    decoders: Any = make_decoders()
    async with decoders._memory.place("another", 3 << 20):
        waiting = asyncio.create_task(decoders.decode(job, large, client="a"))
        for client in ("a", "b"):
            assert isinstance(await decoders.decode(job, small, client=client), Video)
        assert not waiting.done()
    assert isinstance(await waiting, Video)
    await decoders.close()


async def test_jobs_queue_for_a_free_worker(decoders: IsolatedDecoders) -> None:
    files = [encode(scene(width, 60), "PNG") for width in (60, 90, 120, 150)]
    source_images = await asyncio.gather(*(image(decoders, file) for file in files))
    assert [each.key for each in source_images] == [
        prepare_image(open_image(file, max_pixels=MAX_PIXELS), PROCESSING).key for file in files
    ]


async def test_files_of_one_client_that_take_long_delay_no_other_client() -> None:
    spins_for_some = (
        "import time; from glimpse.media.decoding import worker\n"
        "decode = worker.decode\n"
        "worker.decode = lambda job, files, most: time.sleep(600) if files == [b'slow'] else decode(job, files, most)\n"
        "worker.main()"
    )
    decoders, job = make_decoders(spins_for_some), ImageJob(processing=PROCESSING)
    slow = [asyncio.create_task(decoders.decode(job, [b"slow"], client="greedy")) for _ in range(9)]
    await asyncio.sleep(0)
    assert await decoders.decode(job, [PNG], client="another")
    for task in slow:
        task.cancel()
    await asyncio.gather(*slow, return_exceptions=True)
    await decoders.close()


async def test_images_do_not_wait_for_videos() -> None:
    videos_never_end = (
        "import time; from glimpse.media.decoding import worker\n"
        "worker.video_from_file = lambda *job, **options: time.sleep(600)\nworker.main()"
    )
    decoders = make_decoders(videos_never_end)
    waiting = asyncio.create_task(loaded_video(decoders))
    await asyncio.sleep(0)
    assert await image(decoders)
    assert not waiting.done()
    waiting.cancel()
    await decoders.close()


async def test_crashed_worker_fails_one_request(tmp_path: Path) -> None:
    died = tmp_path / "died"
    dies_once = (
        f"import os, pathlib, glimpse.media.decoding.worker as worker; once = pathlib.Path({str(died)!r})\n"
        "def die(*arguments):\n"
        "    once.touch(); os.abort()\n"
        "if not once.exists(): worker.decode = die\n"
        "worker.main()"
    )
    decoders = make_decoders(dies_once)
    error = await image_refusal(decoders)
    assert (error.code, died.exists()) == (MediaErrorCode.INVALID_MEDIA, True)
    assert error.message == "the image cannot be decoded: it crashed the decoder"
    assert await image(decoders)
    await decoders.close()


@pytest.mark.skipif(not OOM_SCORE.exists(), reason="needs Linux")
async def test_worker_is_what_linux_kills_first(tmp_path: Path) -> None:
    score = tmp_path / "score"
    notes_its_score = (
        "import pathlib; from glimpse.media.decoding import worker\n"
        f"decode, score = worker.decode, pathlib.Path({str(OOM_SCORE)!r})\n"
        "def note(*job):\n"
        f"    pathlib.Path({str(score)!r}).write_text(score.read_text()); return decode(*job)\n"
        "worker.decode = note; worker.main()"
    )
    decoders = make_decoders(notes_its_score)
    assert await image(decoders)
    assert score.read_text() == "1000\n"
    await decoders.close()


def test_ctrl_c_reaches_no_worker_even_while_it_imports() -> None:
    """A terminal sends the signal to the process group of the front end."""
    with start_worker((sys.executable, "-c", "import os; print(os.getpgrp())")) as worker:
        output, _ = worker.communicate(timeout=60)
    assert int(output) == worker.pid != os.getpgrp()


@pytest.mark.parametrize("kills", [1, 2])
async def test_worker_killed_from_outside_costs_a_retry(tmp_path: Path, kills: int) -> None:
    """The kernel kills when memory is short. The file is not at fault."""
    starts = tmp_path / "starts"
    is_killed_first = (
        f"import os, signal, glimpse.media.decoding.worker as worker\n"
        f"with open({str(starts)!r}, 'a+') as file:\n"
        "    file.write('x'); file.seek(0); number = len(file.read())\n"
        f"if number <= {kills}: worker.decode = lambda *job: os.kill(os.getpid(), signal.SIGKILL)\n"
        "worker.main()"
    )
    decoders = make_decoders(is_killed_first)
    if kills == 1:
        assert await image(decoders)
    else:
        error = await image_refusal(decoders)
        assert error.code is MediaErrorCode.WORKER_KILLED
        assert error.message == "the image was not decoded: the server's decoder was killed; retry the request"
        assert await image(decoders)
    assert len(starts.read_text()) == kills + 1
    await decoders.close()


async def test_worker_killed_while_idle_is_replaced(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    decoders = make_decoders(
        WRITES_PID.format(path=str(pid_file)) + "import glimpse.media.decoding.worker as w; w.main()"
    )
    await decoders.warm()
    os.kill(await asyncio.to_thread(pid_in, pid_file), signal.SIGKILL)
    assert await image(decoders)
    await decoders.close()


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("raise SystemExit", id="exits at once"),
        pytest.param("print('nonsense ' * 1000)", id="not a reply"),
        pytest.param("import sys; sys.stdout.buffer.write(b'\\x02\\0\\0\\0{}')", id="invalid reply"),
        pytest.param("import sys; sys.stdout.buffer.write(b'\\xff\\xff\\xff\\xff')", id="too long reply"),
    ],
)
async def test_invalid_worker_output_is_refused(code: str) -> None:
    decoders = make_decoders(code)
    assert (await video_refusal(decoders)).code == MediaErrorCode.INVALID_MEDIA
    assert (await image_refusal(decoders)).code == MediaErrorCode.INVALID_MEDIA
    await decoders.close()


UPRIGHT = {"width": 112, "height": 56, "orientation": 1}
"""Becomes 56×112 pixels."""


@pytest.mark.parametrize(
    ("shape", "source"),
    [
        *((shape, UPRIGHT) for shape in ([], [56], [56, 112], [56, 112, 4], [56, 111, 3], [112, 56, 3])),
        *((shape, UPRIGHT) for shape in ([-56, -112, 3], [0, 112, 3], [1, 56, 112, 3], [560000, 112, 3])),
        *(([56, 112, 3], UPRIGHT | {"width": width}) for width in (0, -112, 1 << 60, 56 * 300, 224)),
        ([56, 112, 3], UPRIGHT | {"orientation": 6}),
        ([56, 112, 3], None),
    ],
)
async def test_impossible_images_are_refused(shape: list[int], source: dict[str, int] | None) -> None:
    decoders = make_decoders(replying({"type": "decoded", "shape": shape, "source": source}))
    assert (await image_refusal(decoders)).code == MediaErrorCode.INVALID_MEDIA
    await decoders.close()


async def test_a_possible_image_is_taken_from_any_worker() -> None:
    """The worker whose impossible images are refused speaks the protocol."""
    decoders = make_decoders(replying({"type": "decoded", "shape": [56, 112, 3], "source": UPRIGHT}))
    assert (await image(decoders)).pixels.shape == (56, 112, 3)
    await decoders.close()


@pytest.mark.parametrize(
    ("shape", "frame_seconds"),
    [([768, 9999, 9999, 3], []), ([4, 28, 28], []), ([4, 28, 28, 1], []), ([-4, -28, 28, 3], []),
     ([4, 28, 28, 3], [0, 1]), ([4, 28, 28, 3], [0, 1, 2, math.nan])],
)  # fmt: skip
async def test_impossible_video_results_are_refused(shape: list[int], frame_seconds: list[Any]) -> None:
    decoders = make_decoders(replying({"type": "decoded", "shape": shape, "frame_seconds": frame_seconds, "fps": None}))
    assert (await video_refusal(decoders)).code == MediaErrorCode.INVALID_MEDIA
    await decoders.close()


@pytest.mark.parametrize("shape", [[480001], [1, 2], [], [-1]])
async def test_impossible_audio_shapes_are_refused(shape: list[int]) -> None:
    decoders = make_decoders(replying({"type": "decoded", "shape": shape}))
    with pytest.raises(MediaError, match="crashed the decoder"):
        await decoders.decode(AudioJob(processing=AUDIO_PROCESSING), [WAV])
    await decoders.close()


def replying(header: dict[str, Any]) -> str:
    """Returns the code of a worker that replies with this header and 1 MiB of zeros."""
    return (
        f"import sys; text = {msgspec.msgpack.encode(header)!r}\n"
        "sys.stdout.buffer.write(len(text).to_bytes(4, 'little') + text + bytes(1 << 20))"
    )


@pytest.mark.skipif(not RESIZERS, reason="native resampling cannot be compiled")
async def test_worker_uses_the_compiled_library(tmp_path: Path) -> None:
    library_file = tmp_path / "library"
    code = (
        "import os; os.environ['PATH'] = ''\n"  # no compiler
        "from glimpse.media.native.library import native_resizer; import glimpse.media.decoding.worker as worker\n"
        f"open({str(library_file)!r}, 'w').write(str(native_resizer().path)); worker.main()"
    )
    decoders = make_decoders(code)
    assert await image(decoders)
    assert library_file.read_text() == str(RESIZERS[0].path)
    await decoders.close()


async def test_output_of_libraries_is_not_a_result() -> None:
    talks = (
        "import os, glimpse.media.decoding.worker as worker; decode = worker.decode\n"
        "worker.decode = lambda *job: (os.write(1, b'decoders like to talk'), decode(*job))[1]\n"
        "worker.main()"
    )
    decoders = make_decoders(talks)
    assert await loaded_video(decoders)
    await decoders.close()


async def test_limits_memory() -> None:
    decoders = make_decoders(memory_bytes=700 << 20)
    assert await loaded_video(decoders)
    assert (await video_refusal(decoders, VIDEO + bytes(600 << 20))).code == MediaErrorCode.INVALID_MEDIA
    assert await loaded_video(decoders)
    await decoders.close()


async def test_limits_cpu_time_of_each_job() -> None:
    decoders = make_decoders(SPINS, cpu_seconds=1)
    error = await image_refusal(decoders)
    assert (error.code, error.message) == (
        MediaErrorCode.TOO_LARGE,
        "expected decoding of the image to take at most 1 s; send a smaller file",
    )
    await decoders.close()


async def test_cpu_time_of_earlier_jobs_does_not_count() -> None:
    """The limit applies to the CPU time since the start of the job."""
    works = (
        "import resource, glimpse.media.decoding.worker as worker\n"
        "worker.main, main = lambda: None, worker.main\n"
        "class Used: ru_utime, ru_stime = 1e6, 1e6\n"
        "resource.getrusage = lambda who: Used\n"
        "main()"
    )
    decoders = make_decoders(works, cpu_seconds=1)
    assert await image(decoders)
    await decoders.close()


def pid_in(path: Path) -> int:
    """Waits until a process has written its id to the file."""
    assert eventually(lambda: path.exists() and path.read_text().endswith(" "))
    return int(path.read_text())


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def test_job_times_out() -> None:
    decoders = make_decoders(NEVER_ENDS, timeout_seconds=0.2)
    error = await video_refusal(decoders)
    assert (error.code, error.message) == (
        MediaErrorCode.TOO_LARGE,
        "expected decoding of the video to take at most 0.2 s; send a smaller file",
    )
    await decoders.close()


async def test_cancelling_a_running_job_kills_its_worker(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    decoders = make_decoders(WRITES_PID.format(path=str(pid_file)) + NEVER_ENDS)
    task = asyncio.create_task(loaded_video(decoders))
    pid = await asyncio.to_thread(pid_in, pid_file)
    assert is_alive(pid)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await decoders.close()
    assert not is_alive(pid)


async def test_cancelling_a_short_image_job_keeps_its_worker(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    decoders = make_decoders(
        WRITES_PID.format(path=str(pid_file)) + "import glimpse.media.decoding.worker as w; w.main()"
    )
    await decoders.warm()
    pid = await asyncio.to_thread(pid_in, pid_file)
    assert await image(decoders)
    task = asyncio.create_task(image(decoders))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await image(decoders)
    assert pid_in(pid_file) == pid
    await decoders.close()


async def test_close_ends_the_workers(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    decoders = make_decoders(
        WRITES_PID.format(path=str(pid_file)) + "import glimpse.media.decoding.worker as w; w.main()"
    )
    await image(decoders)
    pid = await asyncio.to_thread(pid_in, pid_file)
    assert is_alive(pid)
    await decoders.close()
    assert not is_alive(pid)
