"""Fails where a retired word comes back, in names or in prose, and where a docstring, or what it says of an
argument, begins with a pronoun.

One concept has one name, the one that readers of vLLM, transformers, gRPC and Envoy expect. Words are compared without
case and with their inflections, so "guessing" is "guess". A name
counts word by word, so `ClipOptions` and `max_clips` contain "clip".
"""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

WORDS = {
    "clip": "video",
    "sound": "audio",
    "picture": "image",
    "wish": "media override",
    "wishes": "media overrides",
    "wished": "overridden",
    "guess": "draft token",
    "guesses": "draft tokens",
    "guessed": "drafted",
    "guesser": "n-gram proposer",
    "promised": "placeholder token",
    "parted": "sharded",
    "enforcement": "constraints",
    "completer": "generator",
    "outlet": "response writer",
    "spared": "cache hit",
    "flight": "single-flight",
    "door": "entry point",
    "seam": "process boundary",
    "twin": "reference implementation",
    "luck": "rng",
    "happening": "video task",
    "rig": "harness",
    "vain": "discarded",
}
"""Retired word → what to write; its inflections are retired too."""

NAMES = {
    "asks_effort": "supports_reasoning_effort",
    "as a rule": "usually",
    "begun anew": "restarted",
    "by whom": "who",
    "by_window": "windows",
    "forget_name": "evict",
    "give_up": "terminate",
    "give_way": "use_batch_policy",
    "given_media": "media inputs",
    "hang_up": "on_rank_failure",
    "in the place of": "instead of",
    "in vain": "discarded",
    "inner_width": "intermediate_size",
    "insist": "use_normal_policy",
    "knows_tools": "supports_tools",
    "last_said": "last_sampled",
    "names_tier": "echoes_service_tier",
    "num_taken": "number of sampled frames",
    "offline door": "offline API",
    "part_plan": "shard_plan",
    "published_name": "checkpoint name",
    "stand_back": "lower_thread_priority",
    "stored_tensors": "named weights",
    "taken_frames": "sampled frame indices",
    "time_step": "mrope_time_interval",
}
"""Retired names and phrases."""

CLASSES = {
    "Answer(Head|Clock|Request)": "CompletionHead, CompletionTimer, GenerationRequest",
    "Asked": "SamplingRows",
    "Carry": "Execute",
    "ChosenStep|SilentStep|Pending": "InFlightStep",
    "Draft": "StepBuilder",
    "Enforcement|Held": "OutputConstraints",
    "Flights?": "SingleFlight",
    "Form": "QuantizationScheme, ResponseFormat",
    "Got": "CacheResult",
    "Hold": "MemoryReservation",
    "Label|Named|Names": "MediaReference, NamedMedia, DnsResolver",
    "LoadedPart": "LoadedShard",
    "Pace": "PrefillBudget",
    "Piece": "Delta",
    "Place": "FieldPath",
    "Promises?": "PendingTokens",
    "RunGroup": "SegmentGroup",
    "Stretch": "TrainingRun",
    "Wordings": "Templates",
}
"""Retired names of classes, as regular expressions."""

SKIPPED = (
    "third_party/",
    "api/gen/",
    "models/nano/",
    "models/training/tasks/",
    "bench/serving/words.py",
    "tests/models/test_training_data_check.py",
    "tools/check_words.py",
)
"""Training tasks, judged answers and prompts of benchmarks use the words that people use."""
SUFFIXES = {".py", ".md", ".proto", ".toml", ".yaml", ".lua", ".cpp", ".h", ".mjs", ".ts", ".jinja", ""}
ALLOWED = re.compile(
    r"\bCLIP\w*|\bclip_vision_model\b|openai/clip|(models[./]|modeling_|processing_pil_)clip\b"
    r"|['\"]clip['\"]|\bclip[.-](vision|audio|projector|has_|use_|minicpmv|impl|cpp)"
    r"|\.clip\(|in[-_ ]flight|IN_FLIGHT|InFlight|single[-_ ]?flight|SingleFlight|preflight|guess_type"
    r"|['\"]Picture['\" ]|\b(Path)?Completer\b|\bcompleter=|time_step_rank"
)
"""CLIP is a model, also in names of GGUF files; `clip` and `guess_type` are NumPy's and mimetypes', `Completer` is
prompt_toolkit's; "in flight" and "single-flight" are standard; a quoted 'Picture' is what Qwen's chat templates call an
image; `time_step_rank` is a key of GGUF files."""

_PRONOUN = re.compile(
    r'^[ ]*(?:r?"""|\w+(?: \([^)]*\))?: )'
    r"(As|That|Those|This|These|It|Its|They|Their|Our|We|The ones?|The same|Of|Both)\b",
    re.MULTILINE,
)
_WORD = re.compile(r"[A-Za-z]+")
_SUBWORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_INFLECTED = {
    word.removesuffix("e" if ending[0] in "ei" else "") + ending: better
    for word, better in WORDS.items()
    for ending in ("s", "es", "ed", "ing")
    if not word.endswith(("ed", "ing"))
} | WORDS
_PLURAL = re.compile(r"s(?![a-z])", re.IGNORECASE)
_STEMS = {_PLURAL.sub("", name): better for name, better in NAMES.items()}
_PATTERNS = [re.sub(r"(?=_)|$", "s?", name) for name in _STEMS]
_NAME = re.compile("(?<![a-z])(" + "|".join(_PATTERNS) + ")(?![a-z])", re.IGNORECASE)
_CLASS = {re.compile(rf"\bclass _?({name})\b"): better for name, better in CLASSES.items()}


# Patterns that begin with the same letters everywhere are found ten times as fast as those above.
_NAMES_IN_LOWER_CASE = [re.compile(pattern) for pattern in _PATTERNS]
_ANY_CLASS = re.compile(rf"class _?({'|'.join(CLASSES)})\b")


def may_have_any(text: str) -> bool:
    """Whether the lines of a file must be looked at one by one."""
    lower = text.lower()
    return (
        not _INFLECTED.keys().isdisjoint(
            part.lower() for word in set(_WORD.findall(text)) for part in _SUBWORD.findall(word)
        )
        or any(name.search(lower) for name in _NAMES_IN_LOWER_CASE)
        or bool(_ANY_CLASS.search(text) or _PRONOUN.search(text))
    )


def retired_words(line: str) -> Iterator[tuple[str, str]]:
    """Each retired word of a line, and what to write instead."""
    line = ALLOWED.sub("", line)
    for match in _SUBWORD.finditer(line):
        word = match.group().lower()
        if word in _INFLECTED:
            yield word, _INFLECTED[word]
    for match in _NAME.finditer(line):
        yield match.group(), _STEMS[_PLURAL.sub("", match.group().lower())]
    for pattern, better in _CLASS.items():
        if match := pattern.search(line):
            yield match.group(), better


def pronouns(name: str, line: str) -> Iterator[tuple[str, str]]:
    """The pronoun with which a docstring, or its text on an argument, begins, and what to write."""
    if name.endswith(".py") and (match := _PRONOUN.match(line)):
        yield match.group(1), "a noun or verb, in a docstring and for an argument"


def main() -> None:
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    texts = {
        name: f"{name}\n{(ROOT / name).read_text(encoding='utf-8')}"
        for name in names
        if not name.startswith(SKIPPED) and Path(name).suffix in SUFFIXES and not (ROOT / name).is_symlink()
    }
    found = [
        f"{name}:{number}: '{word}' is retired: write '{better}'"
        for name, text in texts.items()
        if may_have_any(text)
        for number, line in enumerate(text.splitlines())
        for word, better in (*retired_words(line), *pronouns(name, line))
    ]
    print("\n".join(found), file=sys.stderr)
    if found:
        sys.exit(f"{len(found)} retired words.")


if __name__ == "__main__":
    main()
