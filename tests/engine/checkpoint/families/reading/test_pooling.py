"""How a checkpoint pools hidden states: from the files of sentence-transformers, or by default."""

import json
from pathlib import Path
from typing import Any

import pytest

from glimpse.engine.checkpoint.families.reading.pooling import read_pooling
from glimpse.engine.checkpoint.families.registry import load_model_config
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.pooling_params import PoolingMode, PoolingParams
from tests.checkpoints.text import make_embedding_checkpoint


def write(path: Path, document: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document))


def modules(*kinds: str) -> list[dict[str, Any]]:
    return [{"path": f"{index}_{kind}", "type": f"a.b.{kind}"} for index, kind in enumerate(kinds)]


def test_pools_the_last_token_and_normalizes_by_default(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) == PoolingParams(mode=PoolingMode.LAST_TOKEN, normalize=True)


def test_modules_say_whether_embeddings_are_normalized(tmp_path: Path) -> None:
    write(tmp_path / "modules.json", modules("Transformer", "Pooling"))
    assert not read_pooling(tmp_path).normalize
    write(tmp_path / "modules.json", modules("Transformer", "Pooling", "Normalize"))
    assert read_pooling(tmp_path).normalize


@pytest.mark.parametrize("has_modules", [True, False])
def test_reads_the_mode_from_the_pooling_module(tmp_path: Path, *, has_modules: bool) -> None:
    if has_modules:
        write(tmp_path / "modules.json", modules("Transformer", "Pooling"))
    flags = {"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False, "include_prompt": True}
    write(tmp_path / "1_Pooling" / "config.json", flags)
    assert read_pooling(tmp_path).mode is PoolingMode.MEAN


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"pooling_mode_cls_token": True}, "^1_Pooling/config.json: .*; got pooling_mode_cls_token$"),
        ({"pooling_mode_lasttoken": False}, "^1_Pooling/config.json: .*; got none$"),
        (
            {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": True},
            "; got pooling_mode_lasttoken and pooling_mode_mean_tokens$",
        ),
    ],
)
def test_refuses_other_modes_by_name(tmp_path: Path, document: object, message: str) -> None:
    write(tmp_path / "1_Pooling" / "config.json", document)
    with pytest.raises(CheckpointError, match=message):
        read_pooling(tmp_path)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (modules("Transformer", "Pooling", "Dense"), "^modules.json: expected modules of .*; got Dense$"),
        ({"type": "a"}, "^modules.json: expected a list of objects"),
        (["Pooling"], "^modules.json: expected a list of objects"),
    ],
)
def test_refuses_other_modules_by_name(tmp_path: Path, document: object, message: str) -> None:
    write(tmp_path / "modules.json", document)
    with pytest.raises(CheckpointError, match=message):
        read_pooling(tmp_path)


def test_refuses_attention_that_is_not_causal(tmp_path: Path) -> None:
    path = make_embedding_checkpoint(tmp_path)
    config = json.loads((path / "config.json").read_text())
    write(path / "config.json", config | {"is_causal": False})
    with pytest.raises(CheckpointError, match=r"^config\.json: 'is_causal': expected true, got false"):
        load_model_config(path)


@pytest.mark.parametrize(
    ("document", "expected"), [({}, 512), ({"max_seq_length": None}, 512), ({"max_seq_length": 9}, 9)]
)
def test_texts_have_as_many_tokens_as_sentence_transformers_reads(
    tmp_path: Path, document: dict[str, Any], expected: int
) -> None:
    path = make_embedding_checkpoint(tmp_path)
    write(path / "sentence_bert_config.json", {"do_lower_case": False} | document)
    write(path / "config_sentence_transformers.json", {"prompts": {"query": "Query: "}, "default_prompt_name": None})
    assert load_model_config(path).text.max_position_embeddings == expected


@pytest.mark.parametrize(
    ("file", "field", "value"),
    [
        ("sentence_bert_config.json", "do_lower_case", True),
        ("config_sentence_transformers.json", "default_prompt_name", "query"),
    ],
)
def test_refuses_to_change_texts(tmp_path: Path, file: str, field: str, value: object) -> None:
    path = make_embedding_checkpoint(tmp_path)
    write(path / file, {field: value})
    with pytest.raises(CheckpointError, match=f"^{file}: '{field}': expected (False|None), got {value!r}"):
        load_model_config(path)
