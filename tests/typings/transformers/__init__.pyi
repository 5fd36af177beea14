"""What tests and benchmarks use of transformers. Binding the real package takes pyright ten seconds."""

from typing import Any

class Qwen2AudioForConditionalGeneration(Any): ...
class TokenizersBackend(Any): ...

AutoConfig: Any
AutoModelForCausalLM: Any
AutoModelForImageTextToText: Any
AutoTokenizer: Any
ContinuousBatchingConfig: Any
GenerationConfig: Any
LlamaConfig: Any
LlamaForCausalLM: Any
MistralConfig: Any
MistralForCausalLM: Any
Phi3Config: Any
Phi3ForCausalLM: Any
Qwen2AudioProcessor: Any
Qwen2Config: Any
Qwen2ForCausalLM: Any
Qwen2VLImageProcessorPil: Any
Qwen3Config: Any
Qwen3ForCausalLM: Any
WhisperFeatureExtractor: Any
