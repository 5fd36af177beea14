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
    to: Literal["int4", "int8", "q4_k_m"] = "int4",
    group_size: Literal[32, 64, 128] = 32,
    text: Path | None = None,
) -> NoReturn:
    """Writes a checkpoint in 4 bits (AWQ's format) or 8 (GPTQ's), or a GGUF file, and tells what that costs.

    Each layer is rounded so that its outputs for a text change little. A part of the text is held out: its perplexity
    before and after is printed. One layer at a time is in memory. The encoder stays as it is; embeddings and output
    head do so unless a GGUF file is written.

    Parameters
    ----------
    model
        Folder of a checkpoint in float, or its id on the Hugging Face Hub. For q4_k_m a GGUF file in F32, F16, BF16 or
        Q8_0.
    out
        The new folder, which is there once it is complete.
    to
        Bits of a weight; q4_k_m is llama.cpp's mixture of types, in a GGUF file of this folder, with its mmproj.
    group_size
        Inputs that share a scale: fewer are more accurate and take more memory. Not with q4_k_m.
    text
        A file of text such as the model will read. Default: Python's own help.
    """
    block_interrupts()  # until the program handles them
    arguments = [model, str(out), f"--to={to}", f"--group-size={group_size}"]
    if text is not None:
        arguments.append(f"--text={text}")
    os.execv(sys.executable, [sys.executable, "-m", "glimpse.engine.worker.quantize", *arguments])  # noqa: S606 - no shell is wanted
