"""TokenizerService: converts prompts to token ids and token ids to text."""

from dataclasses import dataclass

from glimpse.engine.checkpoint.text.tokenizer import Tokenizer
from glimpse.server.call.context import CallContext
from glimpse.server.call.offload import run_sized
from glimpse.server.errors import InvalidRequest
from glimpse.server.generation.generator import CompletionGenerator
from glimpse.server.generation.prompts import PromptLoader
from glimpse.server.parse.chat import check_bounds
from glimpse.server.parse.completion import continued
from glimpse.server.parse.generation import check_token_ids
from glimpse.server.parse.prompt import parse_prompt
from glimpse.server.parse.tools import parse_tools
from glimpse.server.request import PromptSource, TextPrompt
from glimpse.server.served_model import ServedModel
from glimpse.server.services.file_parts import set_kinds
from glimpse.v1 import chat_pb2, tokenizer_pb2

_TOKEN_BYTES = 8
"""About what a token takes in a response."""
_CHAT_FIELDS = ("tools", "add_generation_prompt", "continue_final_message", "chat_template_kwargs", "media_io_options",
                "media_processor_options")  # fmt: skip
"""Fields that apply to conversations only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerHandlers:
    """Methods of TokenizerService. `glimpse.server.rpc.errors` maps the exceptions they raise to statuses."""

    model: ServedModel
    generator: CompletionGenerator
    loader: PromptLoader
    tokenizer: Tokenizer

    async def tokenize(
        self, request: tokenizer_pb2.TokenizeRequest, call: CallContext
    ) -> tokenizer_pb2.TokenizeResponse:
        self.model.check_name(request.model)
        await set_kinds(request.messages, call, self.loader, cache_salt=request.cache_salt)
        source = await call.parse(self._parse, request, call)
        max_model_len = self.generator.check_ready().max_model_len
        cache_salt = call.tenant.namespace(request.cache_salt)
        async with self.loader.load(source, call, cache_salt=cache_salt) as prompt:
            tokens = prompt.token_ids
        with_texts = request.return_token_strs
        return await run_sized(
            call.client, _TOKEN_BYTES * len(tokens), self._render, tokens, max_model_len, with_texts=with_texts
        )

    async def detokenize(
        self, request: tokenizer_pb2.DetokenizeRequest, call: CallContext
    ) -> tokenizer_pb2.DetokenizeResponse:
        self.model.check_name(request.model)
        return await call.parse(self._detokenize, request)

    def _detokenize(self, request: tokenizer_pb2.DetokenizeRequest) -> tokenizer_pb2.DetokenizeResponse:
        check_bounds(request)
        check_token_ids(request.tokens, self.model.vocab_size, "tokens")
        return tokenizer_pb2.DetokenizeResponse(prompt=self.tokenizer.decode(request.tokens, skip_special=False))

    def _render(self, tokens: list[int], max_model_len: int, *, with_texts: bool) -> tokenizer_pb2.TokenizeResponse:
        return tokenizer_pb2.TokenizeResponse(
            count=len(tokens),
            max_model_len=max_model_len,
            tokens=tokens,
            token_strs=map(self.tokenizer.token_text, tokens) if with_texts else (),
        )

    def _parse(self, request: tokenizer_pb2.TokenizeRequest, call: CallContext) -> PromptSource:
        check_bounds(request)
        if request.HasField("prompt"):
            return _parse_text(request)
        if not request.messages:
            raise InvalidRequest(
                "prompt", "'prompt': expected either 'prompt' or 'messages', got neither", "missing_value"
            )
        if request.add_special_tokens:
            message = "expected false or none, since the chat template writes the special tokens of a conversation"
            raise InvalidRequest("add_special_tokens", message)
        tools = parse_tools(chat_pb2.CountTokensRequest(tools=request.tools))
        return parse_prompt(request, self.model, call, tools=tools.definitions)


def _parse_text(request: tokenizer_pb2.TokenizeRequest) -> TextPrompt:
    present = {field.name for field, _ in request.ListFields()}
    for name in ("messages", *_CHAT_FIELDS):
        if name in present:
            raise InvalidRequest(name, "cannot be combined with 'prompt'", "conflicting_values")
    return continued(request.prompt, "prompt", request)
