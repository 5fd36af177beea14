"""Builds the model that a checkpoint's documents and tensors describe, without its weights.

Checkpoints may lack the output head, or have a layer of multi-token prediction that is used on request alone. Embedding
models are often published as a decoder without the output head that `config.json` describes.
"""

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import torch

from glimpse.engine.checkpoint.families.registry import family_of
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.checkpoint.quantization import GgufQuantization
from glimpse.engine.errors import CheckpointError
from glimpse.engine.protocol.config import ChosenBackend
from glimpse.engine.worker.layers.quantized import (
    KeptBlocks,
    QuantizationScheme,
    kept_blocks,
    quantize_linears,
    quantizes_head,
)
from glimpse.engine.worker.loading.resolve import Computing
from glimpse.engine.worker.loading.weight_conversion import exact_scale_dtype, float_matrices
from glimpse.engine.worker.loading.weight_files import StoredTensor
from glimpse.engine.worker.models.model import Model
from glimpse.engine.worker.native.library import multiplies_tiles
from glimpse.engine.worker.parallel.shards import shard_config


def with_stored_head(config: ModelConfig, stored: Mapping[str, StoredTensor] | None) -> ModelConfig:
    """Returns the configuration of the model that a checkpoint's tensors make.

    Args:
        config: as read from `config.json`.
        stored: the checkpoint's tensors, by their names in its files; None if they are not known.

    Returns:
        For an embedding model without the weights of its output head, a model whose head shares the embedding's
        weights, so that it takes no memory, and from which no token is sampled. Else `config`.
    """
    if not config.is_embedding_model or config.text.tie_word_embeddings or stored is None:
        return config
    if any("lm_head." in name for name in stored):
        return config
    return replace(config, text=replace(config.text, tie_word_embeddings=True), has_output_head=False)


def with_mtp(config: ModelConfig, stored: Mapping[str, StoredTensor] | None) -> ModelConfig:
    """Returns the configuration of a model that proposes draft tokens itself. Arguments are those of
    `with_stored_head`.

    Raises:
        CheckpointError: it cannot.
    """
    named = ("mtp.", f".layers.{config.text.num_layers}.")
    is_stored = stored is None or any(name.startswith(named[0]) or named[1] in name for name in stored)
    if config.text.num_mtp_layers != 1 or not is_stored:
        raise CheckpointError(
            "'--speculative mtp': expected a checkpoint with a layer of multi-token prediction, and this one has none;"
            " write auto or ngram"
        )
    return replace(config, text=replace(config.text, uses_mtp=True))


def make_model(path: Path, config: ModelConfig) -> Model:
    """Returns the checkpoint's model without its weights.

    Raises:
        CheckpointError: the preprocessor's configuration is missing or invalid.
    """
    module = import_module(f"glimpse.engine.worker.models.{family_of(config).module}")
    return module.make_model(path, config)


def empty_model(
    path: Path,
    config: ModelConfig,
    dtype: torch.dtype,
    scheme: QuantizationScheme | None,
    *,
    scale_dtype: torch.dtype,
    num_ranks: int,
    backend: ChosenBackend = "torch",
    kept: KeptBlocks = "none",
    stored: Mapping[str, StoredTensor] | None = None,
) -> Model:
    """Returns a rank's shard of the model without values, on the meta device.

    The output head is as it will be on this backend; see `quantizes_head`. `kept`: see `kept_blocks`. Of a quantized
    checkpoint, matrices that `stored`, its tensors by their names in files, has as floats are not quantized.

    Raises:
        CheckpointError: the preprocessor's configuration is missing, the model cannot be sharded over `num_ranks`, or
            the scheme does not support it.
    """
    with torch.device("meta"):
        model = make_model(path, replace(config, text=shard_config(config.text, num_ranks)))
    model = model.to(dtype=dtype)
    if isinstance(scheme, GgufQuantization):
        if kept != "none":
            root = model.quantizable(with_head=True, with_encoder=kept == "all")
            quantize_linears(root, scheme, scale_dtype=scale_dtype, named=model.named_weights())
    elif scheme is not None:
        quantize_linears(
            model.quantizable(),
            scheme,
            scale_dtype=exact_scale_dtype(stored or {}, scale_dtype),
            named=model.named_weights(),
            floats=set() if isinstance(scheme, str) else float_matrices(stored or {}, model, config.text),
        )
    if quantizes_head(scheme, backend):
        model.decoder.quantize_head()
    return model


def model_as_computed(
    path: Path,
    config: ModelConfig,
    computing: Computing,
    scheme: QuantizationScheme | None,
    *,
    num_ranks: int,
    stored: Mapping[str, StoredTensor] | None = None,
) -> Model:
    """Returns an `empty_model` with the tensors that are in memory while this backend computes."""
    # The native kernels read the scales of groups as float32.
    scale_dtype = torch.float32 if computing.backend == "native" else getattr(torch, config.dtype)
    return empty_model(
        path,
        config,
        computing.dtype,
        scheme,
        scale_dtype=scale_dtype,
        num_ranks=num_ranks,
        backend=computing.backend,
        kept=kept_blocks(
            scheme, computing.backend, multiplies_tiles=multiplies_tiles(computing.level, computing.dtype)
        ),
        stored=stored,
    )
