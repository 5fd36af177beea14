"""Records the token usage of a request in its RPC's context, for the access log and traces."""

from collections.abc import AsyncGenerator

from glimpse.server.generation.generator import CompletionDelta, CompletionGenerator
from glimpse.server.generation.usage import Usage
from glimpse.server.request import GenerationRequest
from glimpse.server.rpc.context import current_rpc


def with_usage_accounting(
    generator: CompletionGenerator, request: GenerationRequest
) -> AsyncGenerator[CompletionDelta, None]:
    """Generates completions within the RPC's deadline and records their usage as it grows."""
    rpc = current_rpc()

    def record(usage: Usage) -> None:
        rpc.prompt_tokens, rpc.completion_tokens = usage.prompt_tokens, usage.completion_tokens

    return generator.generate(request, rpc.request_id, client=rpc.client, deadline=rpc.deadline, on_usage=record)
