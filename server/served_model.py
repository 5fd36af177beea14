"""The served model, as far as requests are checked against it and answers tell of it."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from glimpse.engine.checkpoint.families.grounding import Form
from glimpse.engine.checkpoint.model_config.sampling_defaults import SamplingDefaults
from glimpse.engine.protocol.messages import Ready
from glimpse.engine.protocol.pooling_params import PoolingParams
from glimpse.media.kind import MediaKind
from glimpse.server.errors import ModelNotFoundError
from glimpse.server.request import ReasoningSupport


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """The model that is served."""

    names: tuple[str, ...]
    """At least one. Responses use the first if the request names no model."""
    adapters: Callable[[], Iterable[str]] = tuple
    """Returns the names of LoRA adapters, which requests give as `model` too, at this moment."""
    vocab_size: int
    embedding_size: int
    """Values of an embedding, or of each token's vector: the most that requests may ask for."""
    pooling: PoolingParams
    """Default of requests for embeddings that do not set it."""
    max_media: Mapping[MediaKind, int]
    """Kinds of media that the model supports, with the most per request."""
    template_variables: frozenset[str] = frozenset()
    """Names of the variables that a chat template reads."""
    supports_tools: bool = False
    """The chat template supports tools, and their calls can be parsed."""
    gives_call_ids: bool = True
    """Tool calls of answers have ids, so that results refer to them. Those of `LLM` are text."""
    reasoning: ReasoningSupport = field(default_factory=ReasoningSupport)
    grounding: tuple[Form, ...] = ()
    """Forms of boxes and points in its answers; empty if it is not known to write any."""
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)
    """Defaults of requests that do not set them."""

    digest: str = ""
    """Fingerprint of the version of Glimpse and of the model's configuration."""

    def fingerprint(self, ready: Ready, name: str) -> str:
        """Returns the `system_fingerprint` of answers that an engine computes with this name as `model`."""
        engine = (ready.device, ready.dtype, ready.backend, ready.cpu_level, ready.quantization)
        adapter = ready.adapters[name].digest.hex() if name in ready.adapters else ""
        text = "\n".join((self.digest, *engine, str(ready.tensor_parallel_size), adapter))
        return f"fp_{hashlib.sha256(text.encode()).hexdigest()[:10]}"

    def check_name(self, name: str) -> str:
        """Returns the model name for the response. Raises ModelNotFoundError."""
        if not name:
            return self.names[0]
        if name not in (served := (*self.names, *self.adapters())):
            raise ModelNotFoundError(name, served)
        return name

    def adapter_of(self, name: str) -> str:
        """Returns the adapter of a request that gives this model name, loaded or not; empty: none."""
        return "" if name in self.names else name
