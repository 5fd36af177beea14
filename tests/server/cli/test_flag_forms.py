"""Flags as vLLM's users write them: several values of one flag, vLLM's names, and flags that ask for nothing."""

import logging
from pathlib import Path

import pytest
from cyclopts.exceptions import CycloptsError

from glimpse.server.cli import app as command_line
from glimpse.server.cli import serve as serving
from glimpse.server.cli.flag_forms import adopt_variables, read_forms
from glimpse.server.settings import Settings
from glimpse.usage import UsageError


def served(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Settings:
    found: list[Settings] = []

    def run(settings: Settings, *_: object) -> None:
        found.append(settings)

    monkeypatch.setattr(serving, "_run", run)
    command_line.app(
        command_line.read_arguments(arguments), exit_on_error=False, print_error=False, result_action="return_value"
    )
    return found[0]


@pytest.mark.parametrize("command", ["serve", "up"])
def test_the_model_needs_no_flag(monkeypatch: pytest.MonkeyPatch, command: str, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    for flags in (("ORG/NAME", "--port", "8000"), ("--port=8000", "ORG/NAME"), ("--port", "8000", "--model=ORG/NAME")):
        settings = served(monkeypatch, command, *flags)
        assert (settings.engine.model, settings.listen.port) == ("ORG/NAME", 8000)
    assert served(monkeypatch, command, "here").engine.model == "here"
    with pytest.raises(UsageError, match=r"'MODEL': expected a folder .* ORG/NAME, got 'gpt2'"):
        served(monkeypatch, command, "gpt2")
    with pytest.raises(UsageError, match="'MODEL': expected once, got 'ORG/OTHER' and --model ORG/NAME"):
        served(monkeypatch, command, "ORG/OTHER", "--model", "ORG/NAME")
    monkeypatch.setenv("GLIMPSE_MODEL", "ORG/OTHER")
    assert served(monkeypatch, command).engine.model == "ORG/OTHER"
    assert served(monkeypatch, command, "ORG/NAME").engine.model == "ORG/NAME"
    with pytest.raises(CycloptsError):
        served(monkeypatch, command, "--model=gpt2")


@pytest.mark.parametrize(
    "flags",
    [
        ("--allowed-media-domains", "a.com", "b.com"),
        ("--allowed-media-domains", "a.com", "--allowed-media-domains=b.com"),
        ("--allowed_media_domains=a.com", "--allowed-media-domains", "b.com"),
        ("--allowed-media-domains", '["a.com", "b.com"]'),
        ('--allowed-media-domains=["a.com", "b.com"]', "ORG/NAME"),
    ],
)
def test_a_flag_may_have_several_values(monkeypatch: pytest.MonkeyPatch, flags: tuple[str, ...]) -> None:
    settings = served(
        monkeypatch, "serve", *flags, "--allowed-media-ports", "80", "8081", "--served-model-name", "x", "y"
    )
    assert settings.media.allowed_media_domains == ("a.com", "b.com")
    assert settings.media.allowed_media_ports == (80, 8081)
    assert settings.engine.served_model_name == ("x", "y")


def test_understands_vllm_s_names(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = (
        "--max-num-seqs",
        "5",
        "--max_num_batched_tokens=2k",
        "--enforce-eager",
        "--no-enable-prefix-caching",
        "-tp",
        "2",
    )
    options = served(monkeypatch, "serve", "ORG/NAME", *flags, "--max-model-len", "8K").engine.options
    assert (options.max_sequences, options.max_batch_tokens, options.max_model_len) == (5, 2000, 8192)
    assert (options.cuda_graphs, options.prefix_caching, options.tensor_parallel_size) == (False, False, 2)
    config = '{"method": "qwen3_5_mtp", "num_speculative_tokens": 2}'
    options = served(monkeypatch, "serve", "ORG/NAME", "--speculative-config", config).engine.options
    assert (options.speculative, options.num_speculative_tokens) == ("mtp", 2)
    assert served(monkeypatch, "serve", "--no-enforce-eager", "--max-model-len=25.6k").engine.options.cuda_graphs


def test_says_once_what_changes_nothing(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glimpse.engine.protocol.other_names._told", set[str]())
    flags = ("--trust-remote-code", "ORG/NAME", "--swap-space=4", "--tokenizer-mode", "auto", "--runner", "generate")
    with caplog.at_level(logging.WARNING):
        assert read_forms(flags) == read_forms(flags) == ["ORG/NAME"]
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "--trust-remote-code changes nothing",
        "--swap-space 4 changes nothing",
        "--runner generate changes nothing",
    ]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--runner", "draft"), "'--runner': every model generates, and embeds, got 'draft'"),
        (("--pipeline-parallel-size=2",), "'--pipeline-parallel-size': write tensor_parallel_size, got 2"),
        (("--api-key", "x"), "'--api-key': write --api-keys FILE, whose lines `glimpse key` makes, got 'x'"),
        (("--speculative-config", '{"method": "eagle"}'), "'--speculative-config': expected a method of ngram, mtp, "),
        (("--image-input-type", "image_features"), "'--image-input-type': write enable_mm_embeds"),
    ],
)
def test_refuses_what_does_not_exist_here(flags: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        read_forms(flags)
    assert str(caught.value).startswith(message)


def test_vllm_s_variables_set_time_outs() -> None:
    environment = {"VLLM_IMAGE_FETCH_TIMEOUT": "7", "VLLM_AUDIO_FETCH_TIMEOUT": "8", "GLIMPSE_AUDIO_FETCH_TIMEOUT": "9"}
    adopt_variables(environment)
    assert environment["GLIMPSE_IMAGE_FETCH_TIMEOUT"] == "7"
    assert environment["GLIMPSE_AUDIO_FETCH_TIMEOUT"] == "9"
    assert "GLIMPSE_VIDEO_FETCH_TIMEOUT" not in environment
    assert len(environment) == 4
