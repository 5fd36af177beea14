"""The files that a checkpoint's folder would have, made of a GGUF file.

So everything that reads a checkpoint reads a folder. It is kept in the user's cache folder under a hash of the file's
place, size and time and of the code that makes it. The weights in it are links to the file and to its mmproj.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from glimpse.engine.checkpoint.families.reading import tokenizer_files
from glimpse.engine.checkpoint.gguf.architectures import architecture_of
from glimpse.engine.checkpoint.gguf.config import read_config, read_generation_config, read_pooling_config
from glimpse.engine.checkpoint.gguf.header import Gguf, split_files
from glimpse.engine.checkpoint.gguf.mmproj import (
    check_pair,
    find_mmproj,
    read_preprocessors,
    renamed_tokens,
    with_encoder,
)
from glimpse.engine.checkpoint.gguf.tokenizer import read_tokenizer_documents
from glimpse.engine.errors import CheckpointError
from glimpse.native.compiler import cache_folder

WEIGHTS = "model.gguf"
ENCODER = "mmproj.gguf"
"""Names of the links."""


def folder_of(file: Path, mmproj: Path | None = None, candidates: Sequence[Path] | None = None) -> Path:
    """Returns the folder that stands for a GGUF file; makes it unless that has been done.

    Args:
        mmproj: the file with its encoder; None: the one among the candidates, if there is one.
        candidates: files that may have its encoder; None: those beside it.

    Raises:
        CheckpointError: a file is invalid or not supported, they are of different models, or the folder cannot be
            written.
    """
    # Links are not followed: the hub's cache has files under other names, and not side by side.
    file, gguf = file.absolute(), Gguf(file)
    mmproj = find_mmproj(file, gguf, candidates) if mmproj is None else mmproj.absolute()
    folder = cache_folder() / "gguf" / f"{file.stem}-{_fingerprint(file, mmproj)}"
    if folder.is_dir():
        return folder
    files = read_files(gguf, mmproj and Gguf(mmproj))
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        try:
            for name, text in files.items():
                (made / name).parent.mkdir(exist_ok=True)
                (made / name).write_text(text, encoding="utf-8")
            (made / WEIGHTS).symlink_to(file)
            if mmproj is not None:
                (made / ENCODER).symlink_to(mmproj)
            made.replace(folder)
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as error:
        if not folder.is_dir():  # another process made it meanwhile
            raise CheckpointError(
                "what a GGUF file says of its model cannot be written to the cache folder:"
                f" {error.strerror}; XDG_CACHE_HOME names another"
            ) from error
    return folder


def read_files(gguf: Gguf, mmproj: Gguf | None = None) -> dict[str, str]:
    """Returns the texts of the files that a checkpoint's folder would have, by name. Raises CheckpointError."""
    config = read_config(gguf)
    if mmproj is not None:
        check_pair(gguf, mmproj)
    elif architecture_of(gguf).architecture is None:
        raise CheckpointError(
            f"a model of {gguf.get('general.architecture')!r} is served with its encoder alone, which is in a file of"
            " its own: put mmproj-*.gguf beside it, or pass --mmproj FILE"
        )
    renamed = {} if mmproj is None else renamed_tokens(gguf, mmproj)
    tokenizer, tokenizer_config = read_tokenizer_documents(gguf, renamed)
    if (num_tokens := len(gguf.texts("tokenizer.ggml.tokens") or ())) > config["vocab_size"]:
        raise CheckpointError(
            f"GGUF metadata: 'tokenizer.ggml.tokens': expected at most {config['vocab_size']}, the rows of"
            f" token_embd.weight, got {num_tokens}"
        )
    documents: dict[str, dict[str, Any]] = {
        "config.json": config,
        "generation_config.json": read_generation_config(gguf),
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": tokenizer_config,
    }
    if (pooling := read_pooling_config(gguf)) is not None:
        documents["1_Pooling/config.json"] = pooling
    if mmproj is not None:
        documents |= {"config.json": with_encoder(config, gguf, mmproj), **read_preprocessors(mmproj)}
    files = {name: json.dumps(document, ensure_ascii=False) for name, document in documents.items()}
    template = gguf.get("tokenizer.chat_template")
    return files if template is None else {**files, "chat_template.jinja": str(template)}


def _fingerprint(file: Path, mmproj: Path | None) -> str:
    digest = hashlib.sha256(f"{file}\0{mmproj}".encode())
    for part in (*split_files(file), *filter(None, [mmproj])):
        status = part.stat() if part.exists() else None
        digest.update(f"\0{status and (status.st_size, status.st_mtime_ns)}".encode())
    for source in (*sorted(Path(__file__).parent.rglob("*.py")), Path(tokenizer_files.__file__)):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
