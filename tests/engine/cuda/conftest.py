"""Kernels run as they are where there is a GPU, and elsewhere in Triton's interpreter."""

from importlib.util import find_spec

import torch

if find_spec("triton") is not None and not torch.cuda.is_available():
    from tests.engine.cuda.interpreter import repair

    repair()
