"""What reduced precision costs on trained weights: perplexity, answers that stay the same, JSON, tool calls, and
accepted drafts.

    python -m bench.engine.quality MODEL.gguf
    python -m bench.engine.quality FOLDER --quantizations int8 int4

Perplexity is that of this project's own documents, in windows that are scored apart. Answers are greedy; one is kept as
far as its tokens are those of float32. A GGUF file is computed as it is stored, and its weights, unpacked by
transformers, in each of our own precisions: those start from weights that have been rounded before. A tool call counts
if the server's parser reads it and it has the tool's required arguments. Where the model's template ignores tools, a
system message shows them as Hermes does.
"""

import argparse
import gc
import json
import math
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.figures import table
from glimpse import LLM, SamplingParams
from glimpse.engine.checkpoint.families.registry import family_of, load_model_config
from glimpse.engine.checkpoint.text.conversation import ToolDefinition, ToolMode
from glimpse.engine.checkpoint.text.template import load_chat_templates
from glimpse.engine.checkpoint.text.tokenizer import load_tokenizer
from glimpse.engine.checkpoint.text.tools import ToolCallArguments, ToolCallStarted, new_tool_parser, tool_grammar
from glimpse.engine.checkpoint.text.tools.formats import HERMES
from glimpse.engine.protocol.config import DType, EngineConfig, KvCacheDType, Quantization
from glimpse.engine.protocol.messages import Generate
from glimpse.engine.protocol.sampling_params import Grammar
from glimpse.engine.protocol.sampling_params import SamplingParams as EngineSampling
from glimpse.engine.worker.loading.load_engine import load_core

_DOCS = sorted((Path(__file__).resolve().parents[2] / "docs").glob("*.md"))
_KV_CACHE_BYTES = 256 << 20

QUESTIONS = (
    "What is the capital of France?",
    "Why is the sky blue? Answer in two sentences.",
    "Name three animals that live in the sea.",
    "How do I boil an egg?",
    "What is 12 times 11?",
    "Write a short poem about autumn.",
    "Explain what a computer does to a child of six.",
    "Translate to French: Where is the station?",
    "What is the difference between a cat and a dog?",
    "List the months of the year.",
    "Who wrote Romeo and Juliet?",
    "Give me a recipe for pancakes.",
    "What happens when water freezes?",
    "Describe a sunset at the beach.",
    "How many legs does a spider have?",
    "Write a polite e-mail that cancels a meeting.",
)
OBJECTS = ("a cat", "a city", "a book", "a car", "a tree", "a song", "a person", "a computer")
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 40}, "size": {"type": "integer", "minimum": 0}},
    "required": ["name", "size"],
    "additionalProperties": False,
}


def _tool(name: str, description: str, **kinds: str) -> dict[str, Any]:
    properties = {argument: {"type": kind} for argument, kind in kinds.items()}
    schema = {"type": "object", "properties": properties, "required": [*kinds], "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = (
    _tool("get_weather", "Returns the weather of a city.", city="string"),
    _tool("set_alarm", "Sets an alarm at an hour of the day.", hour="integer"),
    _tool("send_message", "Sends a text to a person.", person="string", text="string"),
    _tool("convert_money", "Converts an amount of money.", amount="number", currency="string"),
)
REQUESTS = (
    ("What is the weather in Paris?", "get_weather"),
    ("Is it raining in Oslo?", "get_weather"),
    ("Wake me up at 7.", "set_alarm"),
    ("Set an alarm for 22 o'clock.", "set_alarm"),
    ("Tell Anna that I am late.", "send_message"),
    ("Send Bob a message: dinner is ready.", "send_message"),
    ("How much are 20 dollars in yen?", "convert_money"),
    ("Convert 5.5 euros to pounds.", "convert_money"),
)
"""What is asked for, and the tool that does it."""
_SHOWN = "\n".join(
    (
        "You call functions. They are within <tools></tools>:\n<tools>",
        *map(json.dumps, TOOLS),
        '</tools>\nAnswer with <tool_call>\n{"name": <name>, "arguments": <arguments>}\n</tool_call>.',
    )
)
CODE = """\
def area(shape):
    if shape.kind == "circle":
        return 3.14159 * shape.radius * shape.radius
    if shape.kind == "square":
        return shape.side * shape.side
    return shape.width * shape.height
"""
DRAFTED = {
    "prose": "Tell a story about a lighthouse.",
    "code": "Write a Python class for a bank account with deposit, withdraw and balance.",
    "an edit": f"Repeat this function, but rename shape to figure:\n\n{CODE}",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """Weights, and how they are computed."""

    name: str
    model: Path
    dtype: DType = "bfloat16"
    quantization: Quantization = "none"
    kv_cache_dtype: KvCacheDType = "auto"

    def load(self) -> LLM:
        return LLM(
            self.model,
            dtype=self.dtype,
            quantization=self.quantization,
            kv_cache_dtype=self.kv_cache_dtype,
            kv_cache_bytes=_KV_CACHE_BYTES,
            device="cpu",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """What one variant does."""

    perplexity: float
    answers: Sequence[Sequence[int]]
    """Token ids of each answer."""
    num_json: int
    """Answers that are JSON without a schema."""
    num_valid: int
    """Answers that are JSON with one."""
    calls: Sequence[str]
    """The tool that each answer to `REQUESTS` calls; empty: none."""
    bound_calls: Sequence[str]
    """Likewise, where a grammar enforces a call."""


def windows(model: Path, *, num_windows: int, num_tokens: int) -> list[list[int]]:
    """Returns the documents' tokens, in consecutive windows."""
    token_ids = load_tokenizer(model).encode("".join(path.read_text() for path in _DOCS))
    starts = range(0, min(len(token_ids) - num_tokens, num_windows * num_tokens), num_tokens)
    return [list(token_ids[start : start + num_tokens]) for start in starts]


def perplexity(llm: LLM, texts: Sequence[Sequence[int]]) -> float:
    """Returns e to the mean negative log-probability of all tokens but the first of each text."""
    outputs = llm.generate(
        [{"prompt_token_ids": list(text)} for text in texts],
        SamplingParams(max_tokens=1, prompt_logprobs=0),
        progress=False,
    )
    scored = [token.logprob for output in outputs for token in (output.prompt_logprobs or [])[1:]]
    return math.exp(-statistics.fmean(scored))


def measure(variant: Variant, texts: Sequence[Sequence[int]], tools: Mapping[str, Any]) -> Quality:
    """Loads a variant and measures it. `tools`: as for `_calls`."""
    llm = variant.load()
    answers = llm.chat(
        [_asked(question) for question in QUESTIONS], SamplingParams(temperature=0, max_tokens=64), progress=False
    )
    described = [
        _asked(f"Describe {each} as a JSON object with the keys name and size. Reply with JSON only.")
        for each in OBJECTS
    ]
    free, bound = (
        llm.chat(
            described, SamplingParams(temperature=0, max_tokens=128, structured_outputs=constraint), progress=False
        )
        for constraint in (None, {"json": SCHEMA})
    )
    return Quality(
        perplexity=perplexity(llm, texts),
        answers=[answer.outputs[0].token_ids for answer in answers],
        num_json=sum(_is_json(output.outputs[0].text) for output in free),
        num_valid=sum(_is_json(output.outputs[0].text) for output in bound),
        calls=_calls(llm, tools, None),
        bound_calls=_calls(llm, tools, tool_grammar(HERMES, _DEFINITIONS, ToolMode.REQUIRED, parallel=False)),
    )


_DEFINITIONS = [
    ToolDefinition(
        name=tool["function"]["name"],
        description=tool["function"]["description"],
        parameters=json.dumps(tool["function"]["parameters"]),
        strict=False,
    )
    for tool in TOOLS
]


def shown_tools(model: Path) -> Mapping[str, Any]:
    """Returns the argument of `LLM.chat` that shows tools, if the model's template does."""
    templates = load_chat_templates(model, family_of(load_model_config(model)))
    return {"tools": TOOLS} if templates.with_tools.supports_tools else {}


def _calls(llm: LLM, tools: Mapping[str, Any], grammar: Grammar | None) -> list[str]:
    """Returns the name of the tool that each answer calls; empty: none.

    Args:
        tools: how `LLM.chat` shows tools; empty: a system message does.
        grammar: what answers are.
    """
    system = [] if tools else [{"role": "system", "content": _SHOWN}]
    outputs = llm.chat(
        [[*system, *_asked(request)] for request, _ in REQUESTS],
        SamplingParams(temperature=0, max_tokens=96, grammar=grammar, skip_special_tokens=False),
        progress=False,
        **tools,
    )
    return [_called(output.outputs[0].text) for output in outputs]


def _called(answer: str) -> str:
    parser = new_tool_parser(HERMES, tools=_DEFINITIONS)
    events = [*parser.feed(answer), *parser.finish()]
    name = next((event.name for event in events if isinstance(event, ToolCallStarted)), "")
    written = "".join(event.text for event in events if isinstance(event, ToolCallArguments) and event.index == 0)
    required = [tool["function"]["parameters"]["required"] for tool in TOOLS if tool["function"]["name"] == name]
    try:
        return name if required and {*required[0]} <= json.loads(written).keys() else ""
    except (ValueError, AttributeError):
        return ""


def _called_rightly(calls: Sequence[str]) -> str:
    right = sum(call == tool for call, (_, tool) in zip(calls, REQUESTS, strict=True))
    return f"{sum(map(bool, calls))} of {len(calls)}, {right} right"


def _asked(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def _is_json(text: str) -> bool:
    """Whether a text, without the fence of a block of code, is a JSON object."""
    text = text.strip().removeprefix("```json").removeprefix("```").removesuffix("```")
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


def kept(answer: Sequence[int], exact: Sequence[int]) -> int:
    """Returns the number of tokens before the first that differs."""
    pairs = enumerate(zip(answer, exact, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(answer), len(exact)))


def row(variant: Variant, found: Quality, exact: Quality) -> list[str]:
    """Formats a variant beside float32."""
    lengths = [kept(one, other) for one, other in zip(found.answers, exact.answers, strict=True)]
    whole = sum(list(one) == list(other) for one, other in zip(found.answers, exact.answers, strict=True))
    return [
        variant.name,
        f"{found.perplexity:.3f}",
        f"{found.perplexity / exact.perplexity - 1:+.2%}",
        f"{whole} of {len(QUESTIONS)}",
        f"{sum(lengths) / sum(len(answer) for answer in exact.answers):.0%}",
        f"{found.num_json} of {len(OBJECTS)}",
        f"{found.num_valid} of {len(OBJECTS)}",
        _called_rightly(found.calls),
        _called_rightly(found.bound_calls),
    ]


def drafts(model: Path) -> Iterator[list[str]]:
    """Yields, for each kind of text, the answer's tokens, the drafted ones and the share of those that was accepted."""
    config = EngineConfig(
        model_path=str(model), device="cpu", speculative="ngram", kv_cache_bytes=_KV_CACHE_BYTES, max_sequences=1
    )
    core = load_core(config, on_progress=lambda _stage, _fraction: None).core
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    for kind, question in DRAFTED.items():
        prompt = tokenizer.apply_chat_template(_asked(question), add_generation_prompt=True, return_dict=False)
        sampling = EngineSampling(temperature=0, max_tokens=256)
        core.submit(Generate(request_id=kind, token_ids=list(prompt), media=[], sampling=sampling))
        steps = []
        while core.has_work:
            steps.append(core.step().stats)
        generated = sum(step.num_generated_tokens for step in steps)
        drafted = sum(step.num_draft_tokens for step in steps)
        accepted = sum(step.num_accepted_tokens for step in steps)
        yield [kind, str(generated), str(drafted), f"{accepted / drafted:.0%}" if drafted else "none"]


def unpacked(file: Path, folder: Path) -> Path:
    """Writes a GGUF file's weights as transformers unpacks them, in float32. It needs the package accelerate."""
    source = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    model: Any = AutoModelForCausalLM.from_pretrained(**source, dtype="float32")
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items() if name != "lm_head.weight"}
    if not model.config.tie_word_embeddings:
        weights["lm_head.weight"] = model.lm_head.weight
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    (folder / "config.json").write_text(json.dumps(config | {"architectures": [type(model).__name__]}, default=str))
    AutoTokenizer.from_pretrained(**source).save_pretrained(folder)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file, or the folder of a checkpoint without media")
    parser.add_argument(
        "--quantizations", nargs="*", choices=("int8", "w8a8", "int4"), default=("int8", "w8a8", "int4")
    )
    parser.add_argument("--windows", type=int, default=24, help="windows of text to score")
    parser.add_argument("--tokens", type=int, default=512, help="tokens in each")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        is_file = arguments.model.is_file()
        plain = unpacked(arguments.model, Path(folder)) if is_file else arguments.model
        load_model_config(plain)  # says what is wrong before minutes are spent
        tools = shown_tools(plain)
        texts = windows(plain, num_windows=arguments.windows, num_tokens=arguments.tokens)
        variants = [
            Variant(name="float32", model=plain, dtype="float32"),
            Variant(name="bfloat16", model=plain),
            Variant(name="bfloat16, keys and values int8", model=plain, kv_cache_dtype="int8"),
            *(Variant(name=each, model=plain, quantization=each) for each in arguments.quantizations),
            *(
                [Variant(name=f"{arguments.model.suffixes[-2].strip('.')} as stored", model=arguments.model)]
                if is_file
                else []
            ),
        ]
        rows: list[list[str]] = []
        exact: Quality | None = None
        for variant in variants:
            found = measure(variant, texts, tools)
            exact = exact or found
            rows.append(row(variant, found, exact))
            gc.collect()
        print(f"{sum(map(len, texts)):,} tokens of text, {len(QUESTIONS)} answers of at most 64 tokens\n")
        header = ("weights", "perplexity", "beside float32", "answers kept", "tokens kept", "JSON", "with a schema")
        header += ("tool calls", "enforced")
        print(table(header, rows))
        print()
        print(table(("draft tokens in", "answer", "drafted", "accepted"), list(drafts(plain))))


if __name__ == "__main__":
    main()
