"""What checkpoints may have or lack: the output head, and a layer of multi-token prediction.

Embedding models are often published as a decoder alone, without the output head that `config.json` describes.
"""

from collections.abc import Mapping
from dataclasses import replace

from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.errors import CheckpointError
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


def with_mtp(config: ModelConfig, stored: Mapping[str, StoredTensor] | None) -> ModelConfig:
    """Returns the configuration of a model that proposes draft tokens itself. Arguments are those of
    `with_stored_head`.

    Raises:
        CheckpointError: it cannot.
    """
    why_not = None
    named = ("mtp.", f".layers.{config.text.num_layers}.")
    is_stored = stored is None or any(name.startswith(named[0]) or named[1] in name for name in stored)
    if config.text.num_mtp_layers != 1 or not is_stored:
        why_not = "expected a checkpoint with a layer of multi-token prediction, and this one has none"
    if why_not is not None:
        raise CheckpointError(f"'--speculative mtp': {why_not}; write auto or ngram")
    return replace(config, text=replace(config.text, uses_mtp=True))
