"""`glimpse quantize`: its flags. The program that quantizes loads torch, and takes this process's place."""

import os
import sys
from pathlib import Path
from typing import Literal, NoReturn

from glimpse.interrupts import block_interrupts


def quantize(
    model: str,
    out: Path,
    /,
    *,
    to: Literal["int4", "int8"] = "int4",
    group_size: Literal[32, 64, 128] = 32,
    text: Path | None = None,
) -> NoReturn:
    """Writes a checkpoint whose decoder has weights in 4 bits (AWQ's format) or 8 (GPTQ's), and tells what that costs.

    Embeddings, output head and encoder stay as they are. Each layer is rounded so that its outputs for a text change
    little. A part of the text is held out: its perplexity before and after is printed. One layer at a time is in
    memory.

    Parameters
    ----------
    model
        Folder of a checkpoint in float, or its id on the Hugging Face Hub.
    out
        The new folder, which is there once it is complete.
    to
        Bits of a weight.
    group_size
        Inputs that share a scale: fewer are more accurate and take more memory.
    text
        A file of text such as the model will read. Default: Python's own help.
    """
    block_interrupts()  # until the program handles them
    arguments = [model, str(out), f"--to={to}", f"--group-size={group_size}"]
    if text is not None:
        arguments.append(f"--text={text}")
    os.execv(sys.executable, [sys.executable, "-m", "glimpse.engine.worker.quantize", *arguments])  # noqa: S606 - no shell is wanted
