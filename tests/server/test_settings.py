"""Flags and environment variables → settings → what the engine is told."""

from pathlib import Path
from typing import get_args

import pytest
from pydantic import ValidationError

from engine.config import EngineConfig
from engine.plan import MediaKind
from engine.text.tools import FORMATS
from server.cli import app
from server.settings import EngineSettings, ListenSettings, MediaSettings, Settings, ToolCallParser

MIB = 1 << 20


def parsed(*arguments: str) -> Settings:
    _, bound, _ = app.parse_args(["serve", *arguments], exit_on_error=False)
    return bound.kwargs.get("settings", Settings())


def test_nothing_said_is_the_engine_s_own_default() -> None:
    assert EngineSettings().engine_config(Path("/x")) == EngineConfig(model_path="/x")


def test_flags_are_parsed_once_and_become_values() -> None:
    settings = parsed(
        "--model=m", "--kv-cache-size=2GiB", "--no-prefix-caching", "--port=7", "--served-model-name=a",
        "--served-model-name=b", "--limit-mm-per-prompt=image=3", "--allowed-media-networks=10.0.0.0/8",
    )  # fmt: skip
    config = settings.engine.engine_config(Path("/m"))
    assert (config.kv_cache_bytes, config.prefix_caching) == (2048 * MIB, False)
    assert settings.engine.served_model_name == ("a", "b")
    assert settings.listen.port == 7
    assert settings.media.max_media == {MediaKind.IMAGE: 3, MediaKind.VIDEO: 4}
    assert [str(network) for network in settings.media.allowed_media_networks] == ["10.0.0.0/8"]


def test_the_environment_speaks_where_no_flag_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIMPSE_PORT", "1234")
    monkeypatch.setenv("GLIMPSE_MAX_SEQUENCES", "5")
    settings = parsed("--port=99")
    assert (settings.listen.port, settings.engine.max_sequences) == (99, 5)


@pytest.mark.parametrize(
    ("limit", "images", "videos"), [("image=3,video=0", 3, 0), ("video=9", 16, 9), ("video=1, image=2", 2, 1)]
)
def test_limits_are_said_for_each_kind(limit: str, images: int, videos: int) -> None:
    limits = MediaSettings(limit_mm_per_prompt=limit).max_media
    assert limits == {MediaKind.IMAGE: images, MediaKind.VIDEO: videos}


@pytest.mark.parametrize(
    "limit", ["audio=1", "image=1,image=2", "image=1,", "", "image", "image=", "image=-1", "image=two", "3"]
)
def test_a_limit_that_is_none_is_refused(limit: str) -> None:
    with pytest.raises(ValidationError):
        MediaSettings(limit_mm_per_prompt=limit)


def test_settings_cannot_be_changed_or_misspelt() -> None:
    with pytest.raises(ValidationError):
        ListenSettings(prot=1)  # pyright: ignore[reportCallIssue] - what is tested
    with pytest.raises(ValidationError):
        ListenSettings().port = 2  # pyright: ignore[reportAttributeAccessIssue] - what is tested


def test_the_tool_formats_that_can_be_named_are_those_that_there_are() -> None:
    assert set(get_args(ToolCallParser)) == {"auto", *FORMATS}
