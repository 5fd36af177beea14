"""Writes what published checkpoints need and can do: `python -m models.published.sizes`, by `make generate`.

Facts come from the table of published checkpoints; inputs from the families; sizes from models without values.
"""

import gc
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

import msgspec
import torch

from glimpse.engine.checkpoint.families.registry import family_of, load_model_config
from glimpse.engine.checkpoint.model_config.decoder import ExpertsConfig
from glimpse.engine.checkpoint.model_config.model import ModelConfig
from glimpse.engine.protocol.config import EngineOptions
from glimpse.engine.worker.loading.build_model import empty_model
from glimpse.engine.worker.loading.check_serving import read_bytes
from glimpse.engine.worker.loading.quantization_choice import memory_needs
from glimpse.engine.worker.tensors.kv_cache import CacheShape
from glimpse.server.cli.local.recommend import PublishedModel
from models.published.table import PublishedCheckpoint, load_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Numbers of parameters, and of bytes by quantization scheme."""

    parameters: int
    needed: Mapping[str, int]
    """What serving takes, on a CPU with default options."""
    read: Mapping[str, int]
    """Weights that a step reads for one sequence."""


def published_model(published: PublishedCheckpoint) -> PublishedModel:
    """Returns a checkpoint with what follows from its configuration."""
    with tempfile.TemporaryDirectory() as name:
        folder = published.write(Path(name))
        model = load_model_config(folder)
        experts = model.text.experts
        sizes = extrapolated(folder, model, experts) if experts else measured(folder, model)
        return PublishedModel(
            name=published.name,
            family=published.family,
            use=published.use,
            inputs=["text", *model.placeholder_ids],
            tools=published.tools or family_of(model).tool_template is not None,
            reasoning=published.reasoning,
            licence=published.licence,
            architecture=model.architecture,
            parameters=sizes.parameters,
            context=model.text.max_position_embeddings,
            kv_bytes=CacheShape.of(model.text).block_bytes(1, torch.bfloat16),
            needed=dict(sizes.needed),
            read=dict(sizes.read),
            generates=model.has_output_head,
        )


def measured(folder: Path, model: ModelConfig) -> Sizes:
    """Returns the sizes of a model that is built without values."""
    build = cache(
        partial(empty_model, folder, model, torch.bfloat16, scale_dtype=torch.float32, num_ranks=1, backend="native")
    )
    needs = memory_needs(EngineOptions(), model, build, device=torch.device("cpu"), dtype=torch.bfloat16)
    return Sizes(
        parameters=sum(tensor.numel() for tensor in build(None).parameters()),
        needed={scheme or "none": size + needs.besides for scheme, size in needs.weights.items()},
        read={scheme or "none": read_bytes(build(scheme)) for scheme in needs.weights},
    )


def extrapolated(folder: Path, model: ModelConfig, experts: ExpertsConfig) -> Sizes:
    """Returns the sizes of a mixture of experts, which grow evenly with these: to build thousands takes a minute."""
    fewer, more = (
        measured(folder, replace(model, text=replace(model.text, experts=replace(experts, num_experts=number))))
        for number in (1, 2)
    )
    steps = experts.num_experts - 1

    def reached(start: int, next_: int) -> int:
        return start + steps * (next_ - start)

    return Sizes(
        parameters=reached(fewer.parameters, more.parameters),
        needed={scheme: reached(size, more.needed[scheme]) for scheme, size in fewer.needed.items()},
        read={scheme: reached(size, more.read[scheme]) for scheme, size in fewer.read.items()},
    )


def main() -> None:
    """Writes a line for each checkpoint to standard output."""
    gc.disable()  # models are thousands of objects without cycles: looking for garbage takes as long as the rest
    lines = (msgspec.json.encode(published_model(published)) for published in load_table())
    sys.stdout.buffer.write(b"[\n" + b",\n".join(lines) + b"\n]\n")


if __name__ == "__main__":
    main()
