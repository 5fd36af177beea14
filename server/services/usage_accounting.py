"""Records the token usage of a request in its RPC's context, for the access log and traces."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from glimpse.server.generation.generator import CompletionDelta, CompletionGenerator
from glimpse.server.request import GenerationRequest
from glimpse.server.rpc.context import current_rpc


async def with_usage_accounting(
    generator: CompletionGenerator, request: GenerationRequest
) -> AsyncGenerator[CompletionDelta, None]:
    """Generates completions within the RPC's deadline and records their usage as it grows."""
    rpc = current_rpc()
    generated = generator.generate(request, rpc.request_id, client=rpc.client, deadline=rpc.deadline)
    async with aclosing(generated) as deltas:
        async for delta in deltas:
            rpc.prompt_tokens, rpc.completion_tokens = delta.usage.prompt_tokens, delta.usage.completion_tokens
            yield delta
