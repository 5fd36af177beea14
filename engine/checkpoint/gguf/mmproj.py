"""Which mmproj file has the encoder of a GGUF file's model, and both as one `config.json`."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glimpse.engine.checkpoint.gguf.architectures import MMPROJ, architecture_of
from glimpse.engine.checkpoint.gguf.encoder import Files, MmprojEncoder, Projector
from glimpse.engine.checkpoint.gguf.header import Gguf
from glimpse.engine.checkpoint.gguf.keys import Keys
from glimpse.engine.checkpoint.gguf.names import encoder_types
from glimpse.engine.checkpoint.gguf.projectors import PROJECTOR, PROJECTORS, projector_name, projector_of
from glimpse.engine.errors import CheckpointError

_log = logging.getLogger(__name__)

_OUTER = ("dtype", "quantization_config")
"""Fields of `config.json` that are not in its `text_config`."""
_IMAGE_MARKS = ("<image>", "<start_of_image>")
"""What templates of models with an encoder render for an image; their architectures may have none."""


def find_mmproj(file: Path, gguf: Gguf, candidates: Sequence[Path] | None = None) -> Path | None:
    """Returns the mmproj file that belongs to a model's file; None without one, which is logged.

    Args:
        candidates: files that may be it; None: those in the folder of the model's file.

    Raises:
        CheckpointError: there are several.
    """
    found: list[Path] = []
    for path in sorted(file.parent.glob("*mmproj*.gguf")) if candidates is None else candidates:
        try:
            check_pair(gguf, Gguf(path))
            found.append(path)
        except CheckpointError as error:
            _log.warning("%s is not used: %s", path.name, error)
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise CheckpointError(f"several files beside {file.name!r} have its encoder: {names}; name one: --mmproj FILE")
    template = str(gguf.get("tokenizer.chat_template"))
    shows_images = any(mark in template for mark in _IMAGE_MARKS)
    if not found and (architecture_of(gguf).has_encoder or shows_images):
        _log.warning(
            "%s is served for text alone: its encoder is in a file of its own; put mmproj-*.gguf beside it,"
            " or pass --mmproj FILE",
            file.name,
        )
    return found[0] if found else None


def check_pair(text: Gguf, mmproj: Gguf) -> None:
    """Raises CheckpointError unless an mmproj file has the encoder of a model's file."""
    architecture, kind = text.get("general.architecture"), mmproj.get("general.architecture")
    if kind != MMPROJ:
        raise CheckpointError(f"mmproj: 'general.architecture': expected {MMPROJ!r}, got {kind!r:.80}")
    name = projector_name(mmproj)
    served = [each for each, projector in PROJECTORS.items() if architecture in projector.architectures]
    if name not in served:
        expected = " or ".join(served) or "no mmproj"
        raise CheckpointError(f"mmproj: '{PROJECTOR}': expected {expected} for {architecture!r}, got {name!r:.80}")
    encoder, keys = MmprojEncoder(mmproj, _projector(mmproj)), Keys(text)
    if (width := keys.size("embedding_length")) != encoder.output_width:
        raise CheckpointError(
            f"mmproj: expected outputs of the decoder's width, {width}, got {encoder.output_width}; it is of another"
            " model"
        )
    if (layers := keys.get("n_deepstack_layers") or 0) != len(encoder.deepstack()):
        raise CheckpointError(
            f"mmproj: 'clip.vision.is_deepstack_layers': expected {layers} layers, as many as the decoder has, got"
            f" {len(encoder.deepstack())}"
        )


def with_encoder(config: Mapping[str, Any], text: Gguf, mmproj: Gguf) -> dict[str, Any]:
    """Returns what `config.json` says of a decoder and its encoder, which `check_pair` has compared.

    Args:
        config: what it says of the decoder.

    Raises:
        CheckpointError: a value is missing or not supported.
    """
    mmproj.check_types()
    projector = _projector(mmproj)
    encoder, keys = MmprojEncoder(mmproj, projector), Keys(text)
    for flag in ("use_gelu", "use_silu"):
        encoder.keys.require(flag, bool(encoder.keys.get(flag)), flag == projector.activation)
    decoder = {name: value for name, value in config.items() if name not in (*_OUTER, "architectures")}
    quantization: dict[str, Any] = {"quant_method": "gguf", "types": {}} | config.get("quantization_config", {})
    types = quantization["types"] | encoder_types(mmproj)
    architecture = projector.architectures[str(text.get("general.architecture"))]
    decoder |= _mrope(config, keys) if projector.has_mrope else {}
    return {
        **(decoder if projector.is_flat else {"text_config": decoder}),
        "architectures": [projector.variant(text, mmproj) or architecture],
        **{name: config[name] for name in ("dtype", "tie_word_embeddings") if name in config},
        **({"quantization_config": quantization | {"types": types}} if types else {}),
        f"{projector.modality}_config": projector.encoder_config(encoder),
        **projector.config(encoder),
        **{name: token_id for name, (token_id, _) in _placeholders(text, projector).items()},
    }


def read_preprocessors(mmproj: Gguf) -> Files:
    """Returns the files that say how images and videos are resized, by name. Raises CheckpointError."""
    projector = _projector(mmproj)
    return projector.files(MmprojEncoder(mmproj, projector))


def _mrope(config: Mapping[str, Any], keys: Keys) -> dict[str, Any]:
    """Returns the fields of rotary positions with three axes, unless the decoder has them in any case."""
    if "rope_parameters" in config:
        return {}
    keys.require("rope.scaling.type", config["rope_scaling"] and config["rope_scaling"]["rope_type"], None)
    sections = [int(size) for size in keys.numbers("rope.dimension_sections", 3)]
    num_pairs = keys.size("rope.dimension_count", config["head_dim"]) // 2
    if sum(sections) != num_pairs or min(sections) < 0:
        keys.refuse("rope.dimension_sections", f"numbers that add up to {num_pairs}", sections)
    rope = {"rope_type": "default", "rope_theta": config["rope_theta"], "mrope_section": sections}
    return {"rope_parameters": rope}


def renamed_tokens(text: Gguf, mmproj: Gguf) -> dict[int, str]:
    """Returns what tokens are called that stand for those that the decoder's file lacks, by their ids."""
    return dict(_placeholders(text, _projector(mmproj)).values())


def _projector(mmproj: Gguf) -> Projector:
    projector = projector_of(mmproj)
    assert projector is not None
    return projector


def _placeholders(text: Gguf, projector: Projector) -> dict[str, tuple[int, str]]:
    """Returns the id and the text of each placeholder."""
    ids = {token: index for index, token in enumerate(text.texts("tokenizer.ggml.tokens") or [])}
    for tokens in projector.placeholders.values():
        if tokens[-1] and not any(token in ids for token in tokens):
            raise CheckpointError(f"GGUF metadata: 'tokenizer.ggml.tokens': expected {tokens[0]!r} among them")
    return {
        name: (found, tokens[0])
        for name, tokens in projector.placeholders.items()
        if (found := next((ids[token] for token in tokens if token in ids), None)) is not None
    }
