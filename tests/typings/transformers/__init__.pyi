"""What tests and benchmarks use of transformers. Binding the real package takes pyright ten seconds."""

from typing import Any

class Qwen2AudioForConditionalGeneration(Any): ...
class TokenizersBackend(Any): ...

AutoConfig: Any
AutoModel: Any
AutoModelForCausalLM: Any
AutoModelForImageTextToText: Any
AutoTokenizer: Any
CLIPVisionConfig: Any
CLIPVisionModel: Any
ContinuousBatchingConfig: Any
GenerationConfig: Any
Idefics3Config: Any
Idefics3ForConditionalGeneration: Any
InternVLConfig: Any
InternVLForConditionalGeneration: Any
InternVLVisionConfig: Any
LlamaConfig: Any
LlamaForCausalLM: Any
LlavaConfig: Any
LlavaForConditionalGeneration: Any
LlavaNextConfig: Any
LlavaNextForConditionalGeneration: Any
LlavaOnevisionConfig: Any
LlavaOnevisionForConditionalGeneration: Any
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
SiglipVisionConfig: Any
SiglipVisionModel: Any
SmolVLMConfig: Any
SmolVLMForConditionalGeneration: Any
WhisperFeatureExtractor: Any
