"""Models of the Hugging Face hub: downloads, and what the local cache has.

This is the only module that uses huggingface_hub.
"""

import fcntl
import glob
import hashlib
import os
import shutil
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from huggingface_hub import (
    HfApi,
    constants,
    get_safetensors_metadata,
    hf_hub_url,
    scan_cache_dir,
    snapshot_download,
)
from huggingface_hub.errors import (
    CacheNotFound,
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
)
from huggingface_hub.file_download import http_get, repo_folder_name
from huggingface_hub.utils import build_hf_headers, filter_repo_objects

from glimpse.engine.checkpoint.gguf.file_names import choose, encoder_of, parts_of, types_of
from glimpse.engine.errors import CheckpointError
from glimpse.native.memory import gib

_AT_ONCE = 4
"""Files that are downloaded at the same time."""
_HUB_SECONDS = 10.0
"""How long the hub may take to list a model's files. A model that is here is served without it."""
_DUPLICATES = ["consolidated*.safetensors"]
"""Weights that Mistral's checkpoints have a second time, in the layout of the company's own library."""
_NO_FILES = ("/",)
"""A pattern that no name matches: the folder of what is here is found, or why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadedModel:
    """A model in the local cache, whole or in part."""

    name: str
    """Id on the hub."""
    folder: Path | None
    """Folder of its newest files; None if there are none yet."""
    num_bytes: int
    """Bytes that it occupies on the disk, parts of files included."""
    modified: float
    """When a file was last added, in seconds since the epoch."""


def read_hub_headers(model: str) -> dict[str, tuple[str, tuple[int, ...]]] | None:
    """Reads the headers of a hub model's weights, a small part of each file, over the network.

    Returns:
        Each tensor's type, in safetensors' words, and shape, by name; None if they cannot be read.
    """
    if Path(model).expanduser().is_dir():
        return None
    try:
        files = get_safetensors_metadata(model).files_metadata.values()
    except Exception:
        return None
    return {name: (tensor.dtype, tuple(tensor.shape)) for file in files for name, tensor in file.tensors.items()}


def download(model: str, patterns: Sequence[str]) -> Path:
    """Downloads the files of a model with names like these, unless they are in the local cache. Returns its folder.

    Weights whose download was interrupted go on where they were: the library would begin the file again.

    Raises:
        CheckpointError: the model cannot be downloaded.
    """
    try:
        _download_large(_missing_files(model, patterns))
        return Path(snapshot_download(model, allow_patterns=[*patterns], ignore_patterns=_DUPLICATES))
    except GatedRepoError as error:
        raise CheckpointError(f"access to {model!r} is restricted; log in with an account that has access") from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(f"{model!r} is neither a folder nor a model on the hub") from error
    except _DownloadError as error:
        raise CheckpointError(f"{error}; the same command goes on with {model!r}") from error
    except (OSError, ValueError) as error:  # errors of the library, the network or the disk
        raise CheckpointError(
            f"{model!r} is not a folder and could not be downloaded from the hub: {_reason(error)}; "
            "without network access, pass the folder of a checkpoint"
        ) from error


def download_gguf(model: str, kind: str) -> list[Path]:
    """Downloads a model's GGUF file of a type, such as Q4_K_M, and its mmproj file, if there is one. Returns both.

    Raises:
        CheckpointError: there is no such file, or it cannot be downloaded.
    """
    names = _file_names(model)
    name = choose(names, kind)
    if name is None:
        types = ", ".join(types_of(names))
        found = f"it has {types}" if types else "it has no GGUF files"
        raise CheckpointError(f"{model!r} on the hub has no GGUF file of the type {kind!r}; {found}")
    encoder = encoder_of(names, name)
    files = [name, encoder] if encoder is not None else [name]
    folder = download(model, [glob.escape(each) for each in (*parts_of(name), *files[1:])])
    return [folder / each for each in files]


def gguf_types(model: str) -> list[str]:
    """Returns the types of a model's GGUF files, such as Q4_K_M. Raises CheckpointError if it cannot be found."""
    return types_of(_file_names(model))


def _file_names(model: str) -> list[str]:
    """Returns the paths of a model's files on the hub, or of those here where the hub does not answer."""
    try:
        return [file.rfilename for file in HfApi().model_info(model, timeout=_HUB_SECONDS).siblings or []]
    except Exception:  # as in `_missing_files`
        folder = download(model, _NO_FILES)
        return sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())


def _download_large(files: Sequence["_MissingFile"]) -> None:
    """Downloads files, some at a time. Raises _DownloadError, and what the library raises."""
    if not files:
        return
    missing = sum(file.num_bytes - file.num_bytes_here for file in files)
    files[0].blob.parent.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(files[0].blob.parent).free) < missing:
        sizes = f"{gib(missing)} are to be downloaded, and the disk of the cache has {gib(free)}"
        raise _DownloadError(f"{sizes}; HF_HUB_CACHE names another folder")
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        all(threads.map(_MissingFile.download, files))


def downloaded_models() -> list[DownloadedModel]:
    """Returns the models in the local cache, by name."""
    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return []
    return sorted(
        (
            DownloadedModel(
                name=repository.repo_id,
                folder=max(repository.revisions, key=lambda each: each.last_modified).snapshot_path
                if repository.revisions
                else None,
                num_bytes=sum(file.stat().st_size for file in (repository.repo_path / "blobs").glob("*")),
                modified=repository.last_modified,
            )
            for repository in repositories
            if repository.repo_type == "model"
        ),
        key=lambda model: model.name,
    )


def remove(model: str) -> None:
    """Removes a model from the local cache. Raises CheckpointError if it is not there."""
    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        repositories = frozenset()
    found = [each for each in repositories if (each.repo_type, each.repo_id) == ("model", model)]
    if not found:
        raise CheckpointError(f"{model!r} is not in the local cache; `glimpse list` shows what is")
    shutil.rmtree(found[0].repo_path)


class _DownloadError(Exception):
    """The download of a file failed, and can be tried again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _MissingFile:
    """A large file that the cache lacks."""

    url: str
    name: str
    num_bytes: int
    blob: Path
    """Where the library looks for it; the name is the SHA-256 of what is in it."""

    @property
    def part(self) -> Path:
        """What has been downloaded of it."""
        return self.blob.with_suffix(".part")

    @property
    def num_bytes_here(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def download(self) -> Path:
        """Downloads what the file lacks, and returns where it is. Raises _DownloadError and the library's errors."""
        with self.part.open("ab") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)  # where another process downloads it, the file is there afterwards
            if self.blob.exists():
                return self.blob
            begin = stream.seek(0, os.SEEK_END)
            self._append(stream, begin)
            if begin and _digest(self.part) != self.blob.name:
                self.part.unlink()
                raise _DownloadError(f"what was here of {self.name} is damaged, and was removed")
            return self.part.rename(self.blob)

    def _append(self, stream: BinaryIO, begin: int) -> None:
        """Downloads what follows the first `begin` bytes."""
        try:
            http_get(
                self.url,
                stream,
                resume_size=begin,
                headers=build_hf_headers(),
                expected_size=self.num_bytes,
                displayed_filename=self.name,
            )
        except (OSError, ValueError):
            raise
        except Exception as error:  # the HTTP client's own
            raise _DownloadError(f"the connection was lost while {self.name} was downloaded") from error
        finally:
            stream.flush()


def _missing_files(model: str, patterns: Sequence[str]) -> list[_MissingFile]:
    """Returns the large files of a model that the cache lacks; none where the hub does not answer."""
    try:
        files = HfApi().model_info(model, files_metadata=True, timeout=_HUB_SECONDS).siblings or []
    except Exception:  # errors of the library, and of its HTTP client, which have no common class
        return []
    blobs = Path(constants.HF_HUB_CACHE) / repo_folder_name(repo_id=model, repo_type="model") / "blobs"
    return [
        _MissingFile(url=hf_hub_url(model, file.rfilename), name=file.rfilename, num_bytes=size, blob=blobs / digest)
        for file in filter_repo_objects(
            files, allow_patterns=[*patterns], ignore_patterns=_DUPLICATES, key=lambda file: file.rfilename
        )
        if file.lfs is not None
        and not (blobs / (digest := file.lfs.sha256)).exists()
        and (size := file.lfs.size) <= constants.MAX_HTTP_DOWNLOAD_SIZE  # more is the library's own affair
    ]


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _reason(error: BaseException) -> str:
    """Returns why a download failed, without addresses and paths of this machine."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and cause not in causes:
        causes.append(cause)
    for each in causes:
        if isinstance(each, OfflineModeIsEnabled):
            return "HF_HUB_OFFLINE is set, and the local cache does not have the model"
        if isinstance(each, HfHubHTTPError):
            return f"the hub answered with status {each.response.status_code}"
        if isinstance(each, socket.gaierror):
            return "the hub's name does not resolve"
        if isinstance(each, OSError) and each.errno is not None:
            return os.strerror(each.errno)
    if isinstance(error, LocalEntryNotFoundError):
        return "the hub cannot be reached, and the local cache does not have the model"
    return type(causes[-1]).__name__
