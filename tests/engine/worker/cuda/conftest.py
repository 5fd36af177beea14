"""Runs kernels in Triton's interpreter if there is no GPU."""

from importlib.util import find_spec

import torch

if find_spec("triton") is not None and not torch.cuda.is_available():
    from tests.engine.worker.cuda.interpreter import repair

    repair()
