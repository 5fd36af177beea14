"""Flags and environment variables become settings, and settings the engine's configuration."""

import sys
from pathlib import Path
from typing import get_args

import pytest
from cyclopts.exceptions import CycloptsError
from pydantic import ValidationError

from glimpse.engine.checkpoint.text.reasoning import REASONING_FORMATS
from glimpse.engine.checkpoint.text.tools import FORMATS
from glimpse.engine.protocol.config import EngineConfig
from glimpse.flag_errors import explain_flags
from glimpse.media.kind import MediaKind
from glimpse.server.cli.app import app
from glimpse.server.settings import (
    EngineSettings,
    ListenSettings,
    MediaSettings,
    ReasoningParser,
    Settings,
    ToolCallParser,
)
from tests.engine.protocol.option_values import OPTIONS, OTHER_VALUES

MIB = 1 << 20


def parsed(*arguments: str) -> Settings:
    _, bound, _ = app.parse_args(["serve", *arguments], exit_on_error=False, print_error=False)
    return bound.kwargs.get("settings", Settings())


def test_defaults_are_the_engine_s() -> None:
    assert EngineSettings().engine_config(Path("/x")) == EngineConfig(model_path="/x")


@pytest.mark.parametrize("name", OPTIONS)
def test_option_reaches_the_engine_by_flag_and_by_environment(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    value = OTHER_VALUES[name]
    flag = name.replace("_", "-")
    by_flag = parsed(f"--no-{flag}" if value is False else f"--{flag}={value}")
    monkeypatch.setenv(f"GLIMPSE_{name.upper()}", str(value))
    for settings in (by_flag, parsed()):
        assert getattr(settings.engine.engine_config(Path("/x")), name) == value


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--max-model-len=0", "'--max-model-len': expected at least 1, got '0'"),
        ("--port=99999", "'--port': expected at most 65535, got '99999'"),
        ("--kv-cache-bytes=much", "'--kv-cache-bytes': expected a size such as 512MiB, got 'much'"),
        ("--media-cache-bytes=much", "'--media-cache-bytes': expected a size such as 512MiB, got 'much'"),
        ("--device=gpu", "'--device': expected 'auto', 'cpu' or 'cuda', got 'gpu'"),
        ("--prefix-caching=3", "'--prefix-caching': expected true or false, got '3'"),
        ("--limit-mm-per-prompt=3", "'--limit-mm-per-prompt': expected image=N, video=N, audio=N"),
        ('--limit-mm-per-prompt={"image": -1}', "'--limit-mm-per-prompt': expected image=N, video=N, audio=N"),
        ('--limit-mm-per-prompt={"image"', "'--limit-mm-per-prompt': expected image=N, video=N, audio=N"),
        ('--mm-processor-kwargs={"fps": 0}', "'--mm-processor-kwargs.fps': expected more than 0, got '0'"),
        ('--mm-processor-kwargs={"max_pixels": "all"}', "expected an integer or 'checkpoint', got 'all'"),
        ('--mm-processor-kwargs={"fps": 1, "num_frames": 2}', "expected either fps or num_frames, got both"),
        ('--mm-processor-kwargs={"size": 1}', 'Unknown field "size"'),
        ("--allowed-media-networks=x", "'--allowed-media-networks': expected a network such as 10.1.0.0/16, got 'x'"),
        ("--allowed-local-media-path=/none", "expected a folder that exists, got '/none'"),
        ("--media-store=http://cache", "'--media-store': this is no Redis URL; expected redis://"),
        ("--max-waiting=10000000000000000000", "'--max-waiting': expected at most 9.22337e+18, got '1000"),
        ("--kv-cache-bytes=10000000000000000000", "'--kv-cache-bytes': expected at most 9.22337e+18, got 1000"),
        ("--limit-mm-per-prompt=image=4294967296", "'--limit-mm-per-prompt': expected at most 4294967295 of a kind"),
        ("--num-threads=2000", "'--num-threads': expected at most 1024, got '2000'"),
        ("--numa-node=2000", "'--numa-node': expected at most 1023, got '2000'"),
        ("--keepalive-time=3000000", "'--keepalive-time': expected at most 2e+06, got '3000000'"),
        ("--drain-timeout=inf", "'--drain-timeout': expected at most 2e+06, got 'inf'"),
        ("--drain-delay=inf", "'--drain-delay': expected at most 2e+06, got 'inf'"),
        ("--max-connection-age=3000000", "'--max-connection-age': expected at most 2e+06, got '3000000'"),
        ("--media-store-prefix=", "'--media-store-prefix': expected "),
        ("--media-store-prefix=mine:", "'--media-store-prefix': expected together with --media-store"),
        ("--kv-cache-bytes=0", "'--kv-cache-bytes': expected at least 1, got 0"),
        ("--served-model-name=", "'--served-model-name': expected a name, got ''"),
        ("--companion=org/llama", "'--companion': expected ID=FOLDER, got 'org/llama'"),
        ("--companion={id}", "'--companion': expected ID=FOLDER, got '{id}'"),
        ("--lora-modules=/adapter", "'--lora-modules': expected NAME=FOLDER, got '/adapter'"),
        ("--model=", "'--model': expected a folder or a GGUF file that exists, or an id of the hub: ORG/NAME, got ''"),
        ("--body-in-flight-bytes=0", "'--body-in-flight-bytes': expected at least 1, got '0'"),
        ("--upload-ttl=inf", "'--upload-ttl': expected at most 3.1536e+09, got 'inf'"),
        ("--response-ttl=inf", "'--response-ttl': expected at most 3.1536e+09, got 'inf'"),
        ("--batch-ttl=inf", "'--batch-ttl': expected at most 3.1536e+09, got 'inf'"),
        ("--kv-cache-byte=1", "Did you mean --kv-cache-bytes?"),
    ],
)
def test_refuses_a_wrong_flag_in_one_sentence(flag: str, message: str) -> None:
    with pytest.raises(CycloptsError) as caught:
        parsed(flag)
    text = explain_flags(caught.value)
    assert message in text
    assert text.count(", got ") <= 1
    assert "\n" not in text


@pytest.mark.parametrize("flag", ["--served-model-name=a", "--companion=a=/x", "--lora-modules=a=/x"])
def test_names_differ(flag: str) -> None:
    with pytest.raises(CycloptsError) as caught:
        parsed(flag, f"{flag}b", flag)
    assert "': expected different names, got 'a' twice" in explain_flags(caught.value)


@pytest.mark.parametrize(
    "flag", ["--allowed-media-domains=a.b", "--allowed-media-networks=::/8", "--allowed-media-ports=81"]
)
def test_what_may_be_fetched_is_refused_where_nothing_is(flag: str) -> None:
    assert parsed(flag)
    with pytest.raises(CycloptsError) as caught:
        parsed("--media-egress=off", flag)
    name = flag.partition("=")[0]
    message = f"'{name}': expected with --media-egress on, got it with off, which fetches nothing"
    assert explain_flags(caught.value) == message


def test_names_the_environment_variable_that_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIMPSE_MAX_SEQUENCES", "0")
    with pytest.raises(CycloptsError) as caught:
        parsed()
    assert explain_flags(caught.value) == "'GLIMPSE_MAX_SEQUENCES': expected at least 1, got '0'"


def test_parses_flags() -> None:
    settings = parsed(
        "--model=org/m", "--kv-cache-bytes=2GiB", "--no-prefix-caching", "--port=7", "--served-model-name=a",
        "--served-model-name=b", "--limit-mm-per-prompt=image=3", "--allowed-media-networks=10.0.0.0/8",
        "--companion=org/a=/a=b", "--lora-modules=tuned=/b=c",
    )  # fmt: skip
    config = settings.engine.engine_config(Path("/m"))
    assert (config.kv_cache_bytes, config.prefix_caching) == (2048 * MIB, False)
    assert settings.engine.served_model_name == ("a", "b")
    assert settings.engine.companions == {"org/a": "/a=b"}
    assert config.lora_modules == {"tuned": "/b=c"}
    assert settings.listen.port == 7
    assert settings.media.max_media == {
        MediaKind.IMAGE: 3,
        MediaKind.VIDEO: 4,
        MediaKind.AUDIO: 4,
        MediaKind.DOCUMENT: 16,
    }
    assert [str(network) for network in settings.media.allowed_media_networks] == ["10.0.0.0/8"]


def test_parses_media_memory_sizes() -> None:
    media = parsed("--media-cache-bytes=0", "--upload-cache-bytes=1GiB", "--upload-ttl=5").media
    assert (media.media_cache_bytes, media.upload_cache_bytes, media.upload_ttl) == (0, 1024 * MIB, 5)
    assert media.media_in_flight_bytes == 2048 * MIB


def test_flags_override_environment_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIMPSE_PORT", "1234")
    monkeypatch.setenv("GLIMPSE_MAX_SEQUENCES", "5")
    settings = parsed("--port=99")
    assert (settings.listen.port, settings.engine.options.max_sequences) == (99, 5)


def test_environment_sets_fetch_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (parsed().media.image_fetch_timeout, parsed().media.video_fetch_timeout) == (5, 30)
    monkeypatch.setenv("GLIMPSE_IMAGE_FETCH_TIMEOUT", "2.5")
    monkeypatch.setenv("GLIMPSE_VIDEO_FETCH_TIMEOUT", "90")
    media = parsed("--video-fetch-timeout=60").media
    assert (media.image_fetch_timeout, media.video_fetch_timeout) == (2.5, 60)


def test_normalizes_domains() -> None:
    media = parsed("--allowed-media-domains=Images.Example.", "--allowed-media-domains=bücher。example").media
    assert media.allowed_media_domains == ("images.example", "xn--bcher-kva.example")


@pytest.mark.parametrize("domain", ["", "http://a.example", "a.example:80", "*.example", "a b.example", "a.example/x"])
def test_refuses_invalid_domains(domain: str) -> None:
    with pytest.raises(ValidationError):
        MediaSettings(allowed_media_domains=(domain,))


def test_parses_media_io_kwargs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parsed().media.media_io_kwargs.image.rgba_background_color == (255, 255, 255)
    text = '{"image": {"rgba_background_color": [1, 2, 3]}}'
    assert parsed(f"--media-io-kwargs={text}").media.media_io_kwargs.image.rgba_background_color == (1, 2, 3)
    monkeypatch.setenv("GLIMPSE_MEDIA_IO_KWARGS", text)
    assert parsed().media.media_io_kwargs.image.rgba_background_color == (1, 2, 3)


@pytest.mark.parametrize(
    "text",
    ['{"video": {"fps": 1, "num_frames": 2}}', '{"video": {"frames": 2}}',
     '{"image": {"mode": "L"}}', '{"image": {"rgba_background_color": [0, 0]}}',
     '{"image": {"rgba_background_color": [0, 0, 256]}}', "white"],
)  # fmt: skip
def test_refuses_invalid_media_io_kwargs(text: str) -> None:
    with pytest.raises((CycloptsError, ValidationError)):
        parsed(f"--media-io-kwargs={text}")


def test_parses_options_of_videos_and_processing() -> None:
    media = parsed(
        '--media-io-kwargs={"video": {"num_frames": 32}}', '--mm-processor-kwargs={"max_pixels": 4000}'
    ).media
    assert (media.media_io_kwargs.video.num_frames, media.mm_processor_kwargs.max_pixels) == (32, 4000)
    own = parsed('--mm-processor-kwargs={"max_pixels": "checkpoint", "fps": 2}').media.mm_processor_kwargs
    assert (own.max_pixels, own.fps, own.num_frames) == ("checkpoint", 2, None)
    with pytest.raises(ValidationError, match="got them in both"):
        MediaSettings(media_io_kwargs={"video": {"fps": 1}}, mm_processor_kwargs={"num_frames": 3})  # pyright: ignore[reportArgumentType] - as JSON has them


@pytest.mark.parametrize("video", ["0", '{"count": 0, "num_frames": 32}'])
def test_parses_media_limits_as_json(video: str) -> None:
    limits = parsed(f'--limit-mm-per-prompt={{"image": 2, "video": {video}}}').media.max_media
    assert limits == {MediaKind.IMAGE: 2, MediaKind.VIDEO: 0, MediaKind.AUDIO: 4, MediaKind.DOCUMENT: 16}


@pytest.mark.parametrize(
    "name",
    ["allowed-local-media-path", "allowed-lora-path", "state-folder", "chat-template", "mmproj", "api-keys", "tenants"],
)
def test_an_empty_path_is_not_the_working_directory(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CycloptsError) as caught:
        parsed(f"--{name}=")
    assert explain_flags(caught.value) == f"'--{name}': expected a path, got ''"
    variable = f"GLIMPSE_{name.upper().replace('-', '_')}"
    monkeypatch.setenv(variable, "")
    with pytest.raises(CycloptsError) as caught:
        parsed()
    assert explain_flags(caught.value) == f"'{variable}': expected a path, got ''"


def test_local_media_path_must_be_a_folder(tmp_path: Path) -> None:
    assert parsed().media.allowed_local_media_path is None
    assert parsed(f"--allowed-local-media-path={tmp_path}").media.allowed_local_media_path == tmp_path
    with pytest.raises((CycloptsError, ValidationError)):
        parsed(f"--allowed-local-media-path={tmp_path / 'none'}")


@pytest.mark.parametrize(
    ("limit", "images", "videos", "audio"),
    [("image=3,video=0", 3, 0, 4), ("video=9", 16, 9, 4), ("video=1, image=2", 2, 1, 4), ("audio=1", 16, 4, 1)],
)
def test_parses_media_limits_by_kind(limit: str, images: int, videos: int, audio: int) -> None:
    limits = MediaSettings(limit_mm_per_prompt=limit).max_media
    kinds = (MediaKind.IMAGE, MediaKind.VIDEO, MediaKind.AUDIO, MediaKind.DOCUMENT)
    assert limits == dict(zip(kinds, (images, videos, audio, 16), strict=True))


@pytest.mark.parametrize(
    "limit", ["smell=1", "image=1,image=2", "image=1,", "", "image", "image=", "image=-1", "image=two", "3"]
)
def test_refuses_invalid_media_limits(limit: str) -> None:
    with pytest.raises(ValidationError):
        MediaSettings(limit_mm_per_prompt=limit)


def test_settings_are_frozen_and_refuse_unknown_fields() -> None:
    with pytest.raises(ValidationError):
        ListenSettings(prot=1)  # pyright: ignore[reportCallIssue] - what is tested
    with pytest.raises(ValidationError):
        ListenSettings().port = 2  # pyright: ignore[reportAttributeAccessIssue] - what is tested


def test_settings_are_handed_on_to_other_processes() -> None:
    assert Settings.model_validate_json(Settings().model_dump_json()) == Settings()


def test_tool_call_parsers_are_the_known_formats() -> None:
    assert set(get_args(ToolCallParser)) == {"auto", *FORMATS}


def test_reasoning_parsers_are_the_known_formats() -> None:
    assert set(get_args(ReasoningParser)) == {"auto", "none", *REASONING_FORMATS}


def test_refused_media_store_is_not_shown_with_its_password(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").touch()
    for flags in (
        ["--media-store=redis://:secret@"],
        ["--media-store=redis://:secret@cache:port"],
        ["--media-store=redis://:secret@cache/0?timeout=1"],
        ["--media-store=redis://:secret@cache", f"--media-store-ca={tmp_path}/ca.pem"],
    ):
        with pytest.raises(CycloptsError) as caught:
            parsed(*flags)
        assert "secret" not in explain_flags(caught.value)


def test_several_front_ends_are_refused_where_a_port_cannot_be_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ListenSettings(front_ends=2).front_ends == 2
    monkeypatch.setattr(sys, "platform", "darwin")
    assert ListenSettings(front_ends=1).front_ends == 1
    with pytest.raises(ValidationError, match="expected 1 on this system, got 2; several front ends need Linux"):
        ListenSettings(front_ends=2)
