"""Embedding models are often published as a decoder alone, without the output head that `config.json` describes."""

from collections.abc import Mapping
from dataclasses import replace

from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.worker.loading.weight_files import StoredTensor


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
