"""The tokenizer and chat template of a training folder, trained once."""

import shutil
from pathlib import Path

from glimpse.engine.checkpoint.text.template import ChatTemplate
from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from models.training.batching.prompts import Vocabulary, make_vocabulary
from models.training.batching.tokenizer import learn_tokenizer
from models.training.mix import CHAT_TEMPLATE, corpus

MAX_WORDS = 500
"""Words that are one token each."""


def learn_vocabulary(folder: Path, *, most_tokens: int) -> None:
    """Writes a tokenizer of the tasks' words and the chat template into a folder without them."""
    if (folder / "tokenizer.json").exists():
        return
    tokenizer = learn_tokenizer(corpus(0), max_words=MAX_WORDS)
    if tokenizer.get_vocab_size() > most_tokens:
        raise ValueError(f"{tokenizer.get_vocab_size()} tokens, and the table has {most_tokens} rows")
    shutil.copy(CHAT_TEMPLATE, folder / "chat_template.jinja")
    tokenizer.save(str(folder / "tokenizer.json"))


def load_vocabulary(folder: Path) -> Vocabulary:
    """Loads the folder's vocabulary."""
    template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    return make_vocabulary(load_tokenizer(folder), ChatTemplate(template, {}))
