"""What tests and benchmarks import from transformers, its modules too (`models`, `video_utils`): anything.

Binding the real package takes pyright minutes, and so does a single import from one of its modules.
"""

from typing import Any

class Qwen2AudioForConditionalGeneration(Any): ...
class TokenizersBackend(Any): ...

def __getattr__(name: str) -> Any: ...  # pyright: ignore[reportIncompleteStub]
