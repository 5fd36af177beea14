"""Builds from the settings what decides who may call."""

from pathlib import Path

from glimpse.server.identity.access import Access
from glimpse.server.identity.api_keys import parse_keys
from glimpse.server.identity.watched_file import WatchedFile
from glimpse.server.settings import AccessSettings


def build_access(settings: AccessSettings) -> Access:
    """Builds it. Raises IdentityConfigError: a file cannot be used."""
    return Access(keys=None if settings.api_keys is None else WatchedFile(_path(settings.api_keys), parse_keys))


def _path(path: Path) -> Path:
    return path.expanduser().absolute()
