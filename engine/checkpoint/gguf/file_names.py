"""Names of GGUF files in a repository, from which the file of a type and its mmproj are chosen as llama.cpp does
(common/download.cpp)."""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from glimpse.engine.checkpoint.gguf.header import split_names

_NO_MODEL = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-")
"""Parts of the names of files that are not a model's."""
_FURTHER = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf")
_TYPE = re.compile(r"[-.](\w+?)(?:-\d{5}-of-\d{5})?\.gguf")


def choose(names: Sequence[str], kind: str) -> str | None:
    """Returns the first file whose name has a type, such as Q4_K_M; of one in several parts, the first."""
    pattern = re.compile(rf"(?<![A-Za-z0-9]){re.escape(kind)}[.-]", re.IGNORECASE)
    return next((name for name in names if _is_model(name) and pattern.search(name)), None)


def types_of(names: Sequence[str]) -> list[str]:
    """Returns the types of files, as their names say them."""
    found = (_TYPE.search(name) for name in names if _is_model(name))
    return list(dict.fromkeys(each[1] for each in found if each))


def encoder_of(names: Sequence[str], model: str) -> str | None:
    """Returns the mmproj file for a model's: in its folder or one above, the nearest, with about as many bits."""
    folders, bits = [str(each) for each in PurePosixPath(model).parents], _bits(model)
    found = [name for name in names if "mmproj" in name and name.endswith(".gguf") and str(_folder(name)) in folders]
    return min(found, key=lambda name: (folders.index(str(_folder(name))), abs(_bits(name) - bits)), default=None)


def parts_of(model: str) -> list[str]:
    """Returns the paths of all files of a model by that of the first."""
    path = PurePosixPath(model)
    return [str(path.with_name(each)) for each in split_names(path.name)]


def _folder(name: str) -> PurePosixPath:
    return PurePosixPath(name).parent


def _is_model(name: str) -> bool:
    last = PurePosixPath(name).name
    return last.endswith(".gguf") and not _FURTHER.search(last) and not any(part in last for part in _NO_MODEL)


def _bits(name: str) -> int:
    """Returns the first number in a type: 4 of Q4_K_M, 16 of BF16; 0 without one."""
    kind = _TYPE.search(name)
    digits = re.search(r"\d+", kind[1]) if kind else None
    return int(digits[0]) if digits else 0
