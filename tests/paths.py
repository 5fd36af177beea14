"""Where things lie in the repository."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The repository's root."""
TRAINING_TEMPLATE = ROOT / "models" / "training" / "chat_template.jinja"
"""The embedded model's chat template."""
