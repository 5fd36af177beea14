"""What tests and benchmarks use of transformers. Binding the real package takes pyright ten seconds."""

from typing import Any

class Qwen2AudioForConditionalGeneration(Any): ...
class TokenizersBackend(Any): ...

AutoConfig: Any
AutoModelForImageTextToText: Any
AutoTokenizer: Any
ContinuousBatchingConfig: Any
GenerationConfig: Any
Qwen2AudioProcessor: Any
Qwen2Config: Any
Qwen2ForCausalLM: Any
Qwen2VLImageProcessorPil: Any
WhisperFeatureExtractor: Any
