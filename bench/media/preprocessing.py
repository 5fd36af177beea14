"""Speed of image and video preprocessing, against transformers and qwen-vl-utils in the same run.

    python -m bench.media.preprocessing [--qwen-vl-utils FOLDER] [--rounds 5] [--seconds 2] [--json FILE]

Each contestant runs in a process of its own, on one processor, file after file; contestants alternate, round by round.
CPU time is compared, so that other load matters little. FOLDER is where `pip install --no-deps --target FOLDER
qwen-vl-utils torchvision requests packaging decord` installed that package and a torchvision for our torch; without it
those rows are omitted.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import av
import numpy as np
import PIL.Image

from bench.figures import Spread, ratios, significant, spread, table
from bench.media.contestants import CONTESTANTS, Work, prepared, requests_about

_IMAGES = {"448×448": (448, 448), "1920×1080": (1920, 1080), "4000×3000": (4000, 3000)}
_VIDEO = "10 s of 640×360, a frame a second"
_JSON, _PROTO = "request with an image of 1920×1080, JSON", "request with an image of 1920×1080, proto"
_REFERENCE = "transformers, PIL"
_NEEDS_TORCHVISION = ("transformers, torchvision", "qwen-vl-utils")
_WITH_VIDEOS = ("glimpse", "glimpse, in a thread", "qwen-vl-utils")
_REQUESTS = {"base64 in JSON": _JSON, "bytes in proto": _PROTO}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One contestant on one file, over all rounds."""

    contestant: str
    file: str
    cpu_milliseconds: list[float]
    """CPU time per repetition, round by round."""
    wall_milliseconds: list[float]


def draw(width: int, height: int) -> bytes:
    """Writes a JPEG with large shapes and fine grain, like a photo."""
    random = np.random.default_rng(width)
    forms = PIL.Image.fromarray(random.integers(0, 256, (height // 100 + 2, width // 100 + 2, 3), dtype=np.uint8))
    pixels = np.asarray(forms.resize((width, height), PIL.Image.Resampling.BICUBIC)).astype(np.float32)
    grain = random.normal(0, 5, (height, width, 1)).astype(np.float32)
    file = io.BytesIO()
    PIL.Image.fromarray((pixels + grain).clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=90)
    return file.getvalue()


def film() -> bytes:
    """Writes an H.264 video in which an image moves sideways."""
    wide = PIL.Image.open(io.BytesIO(draw(1240, 360)))
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        stream = output.add_stream("libx264", rate=30, options={"g": "60"})
        stream.width, stream.height, stream.pix_fmt = 640, 360, "yuv420p"
        for index in range(300):
            frame = av.VideoFrame.from_image(wide.crop((2 * index, 0, 2 * index + 640, 360)))
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return file.getvalue()


def make_files(folder: Path) -> None:
    """Writes the input files."""
    for name, (width, height) in _IMAGES.items():
        (folder / name).write_bytes(draw(width, height))
    (folder / _VIDEO).write_bytes(film())
    in_json, in_proto = requests_about((folder / "1920×1080").read_bytes())
    (folder / _JSON).write_bytes(in_json)
    (folder / _PROTO).write_bytes(in_proto)


def files_of(contestant: str) -> list[str]:
    """Returns the files that a contestant processes."""
    if contestant in _REQUESTS:
        return [_REQUESTS[contestant]]
    return [*_IMAGES, *([_VIDEO] if contestant in _WITH_VIDEOS else [])]


def work(contestant: str, folder: Path, seconds: float, packages: Path | None) -> list[Work]:
    """Runs one round of one contestant; empty, with a message, if it cannot run."""
    paths = os.pathsep.join(filter(None, [str(packages or ""), os.environ.get("PYTHONPATH", "")]))
    # Warnings of libraries are not results.
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    files = [str(folder / name) for name in files_of(contestant)]
    command = [sys.executable, "-m", "bench.media.contestants", contestant, str(seconds), *files]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        print(f"{contestant}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return []
    return [Work(**each) for each in json.loads(done.stdout.splitlines()[-1])]


def gather(rounds: Sequence[Mapping[str, Sequence[Work]]]) -> list[Measured]:
    """Groups the rounds by contestant and file, without contestants that failed in a round."""
    measured: list[Measured] = []
    for contestant in (name for name in rounds[0] if all(each[name] for each in rounds)):
        for place, first in enumerate(rounds[0][contestant]):
            works = [each[contestant][place] for each in rounds]
            measured.append(
                Measured(
                    contestant=contestant,
                    file=first.file,
                    cpu_milliseconds=[1000 * each.cpu_seconds / each.times for each in works],
                    wall_milliseconds=[1000 * each.wall_seconds / each.times for each in works],
                )
            )
    return measured


def largest_difference(image: bytes) -> int:
    """Returns the largest difference between our pixels and the reference's, rounded to levels."""
    import transformers  # noqa: PLC0415 - takes seconds, and the contestants have processes of their own

    ours = prepared(image)
    processor = transformers.Qwen2VLImageProcessorPil(do_rescale=False, do_normalize=False)
    theirs = processor(images=[PIL.Image.open(io.BytesIO(image))], return_tensors="np")["pixel_values"]
    _, rows, columns = ours.grid
    patches = theirs.reshape(rows // 2, columns // 2, 2, 2, 3, 2, 14, 14)[:, :, :, :, :, 0]
    pixels = patches.transpose(0, 2, 5, 1, 3, 6, 4).reshape(rows * 14, columns * 14, 3)
    return int(np.abs(np.rint(pixels) - ours.pixels).max())


def text_table(measured: Sequence[Measured]) -> str:
    """Formats the table as Markdown."""
    reference = {each.file: each.cpu_milliseconds for each in measured if each.contestant == _REFERENCE}
    header = ["what", "who", "a second and core", "processor ms", "wall ms", f"times {_REFERENCE}"]
    rows: list[list[str]] = []
    for each in sorted(measured, key=lambda each: files_of_all().index(each.file)):
        cost = spread(each.cpu_milliseconds)
        theirs = reference.get(each.file)
        rows.append([
            each.file,
            each.contestant,
            significant(1000 / cost.median),
            str(cost),
            significant(spread(each.wall_milliseconds).median),
            "" if theirs is None else _times(ratios(theirs, each.cpu_milliseconds)),
        ])  # fmt: skip
    return table(header, rows)


def files_of_all() -> list[str]:
    """Returns all files, in the table's order."""
    return [*_IMAGES, _VIDEO, *_REQUESTS.values()]


def _times(ratio: Spread) -> str:
    return f"{ratio} ×"


def main() -> None:
    """Measures and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--qwen-vl-utils", type=Path, metavar="FOLDER", help="where that package was put")
    parser.add_argument("--rounds", type=int, default=5, help="(default: 5)")
    parser.add_argument("--seconds", type=float, default=2, help="for each file, each round (default: 2)")
    parser.add_argument("--json", type=Path, help="file for the figures")
    arguments = parser.parse_args()
    packages: Path | None = arguments.qwen_vl_utils
    names = [name for name in CONTESTANTS if packages is not None or name not in _NEEDS_TORCHVISION]
    with tempfile.TemporaryDirectory() as folder:
        make_files(Path(folder))
        difference = {name: largest_difference(Path(folder, name).read_bytes()) for name in _IMAGES}
        rounds: list[dict[str, list[Work]]] = []
        for index in range(arguments.rounds):
            print(f"round {index + 1} of {arguments.rounds}", file=sys.stderr)
            rounds.append({name: work(name, Path(folder), arguments.seconds, packages) for name in names})
    measured = gather(rounds)
    print(text_table(measured))
    print("\nlargest difference from the reference's pixels, in levels of 255:", difference)
    if arguments.json:
        document = {"largest_difference": difference, "measured": [asdict(each) for each in measured]}
        arguments.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
