"""The client for asyncio."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Self, TypeVar, Unpack, overload

import grpc
import grpc.aio
from google.protobuf.message import Message

from glimpse.client.calls import Attempts, Caller, WaitUntilReady
from glimpse.client.channel import DEFAULT_TARGET, open_channel
from glimpse.client.messages import EmbeddingInput, Prompt, RankedDocument
from glimpse.client.options import (
    BatchOptions,
    CallOptions,
    ChatOptions,
    CompletionOptions,
    DetokenizeOptions,
    EmbedOptions,
    ListBatchesOptions,
    ListUploadsOptions,
    QuoteOptions,
    RerankOptions,
    ScoreOptions,
    TokenizeOptions,
    UploadedOptions,
    UploadOptions,
)
from glimpse.client.requests import (
    TextPrompt,
    batch_request,
    chat_request,
    completion_request,
    count_request,
    detokenize_request,
    embedding_request,
    rerank_request,
    score_request,
    tokenize_request,
    upload_requests,
)
from glimpse.client.responses import Chunk, Completion, Embeddings, Ranking, Scores, TextCompletion
from glimpse.client.sources import ImageFile
from glimpse.client.tls import Tls
from glimpse.v1 import (
    batch_pb2,
    batch_pb2_grpc,
    chat_pb2,
    chat_pb2_grpc,
    completion_pb2_grpc,
    embedding_pb2_grpc,
    media_pb2,
    media_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    rerank_pb2_grpc,
    tokenizer_pb2,
    tokenizer_pb2_grpc,
)

_ResponseT = TypeVar("_ResponseT")
_MessageT = TypeVar("_MessageT", bound=Message)


class AsyncClient:
    """A connection to a server, in a running event loop. Its methods raise GlimpseError."""

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        tls: Tls | None = None,
        api_key: str | None = None,
        timeout: float | None = None,
        max_retries: int = 2,
        wait_until_ready: WaitUntilReady = True,
    ) -> None:
        """Connects when the first call is made.

        Args:
            target: HOST:PORT of the server or of its gateway, or another gRPC target, such as "dns:///NAME:PORT".
            credentials: gRPC's own, where `tls` does not suffice.
            tls: for TLS: `Tls()`, `Tls(ca="ca.pem")`, or with a certificate of the client's. Default: plain text.
            api_key: an API key, or a JWT. Default: none.
            timeout: the deadline in seconds of calls that give none. Default: no deadline.
            max_retries: how often a call is retried while the server is unavailable, 0 to 4. A stream is retried only
                before its first chunk.
            wait_until_ready: whether calls wait, within their deadline, while the server says that its model is still
                loading. A function is called with each such answer, which names the stage.

        Raises:
            ValueError: the target is a URL, `max_retries` is out of range, or `tls` is incomplete.
            OSError: a file of `tls` cannot be read.
        """
        self._channel = open_channel(
            grpc.aio.insecure_channel, grpc.aio.secure_channel, target, credentials, tls, max_retries
        )
        self._caller = Caller(target=target, api_key=api_key, timeout=timeout, wait_until_ready=wait_until_ready)
        self._batches = batch_pb2_grpc.BatchServiceStub(self._channel)
        self._chat = chat_pb2_grpc.ChatServiceStub(self._channel)
        self._completion = completion_pb2_grpc.CompletionServiceStub(self._channel)
        self._embedding = embedding_pb2_grpc.EmbeddingServiceStub(self._channel)
        self._media = media_pb2_grpc.MediaServiceStub(self._channel)
        self._models = model_pb2_grpc.ModelServiceStub(self._channel)
        self._rerank = rerank_pb2_grpc.RerankServiceStub(self._channel)
        self._tokenizer = tokenizer_pb2_grpc.TokenizerServiceStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connection; calls that are still running are cancelled."""
        await self._channel.close()

    @overload
    async def chat(self, prompt: Prompt, *, answer: None = None, **options: Unpack[ChatOptions]) -> Completion: ...

    @overload
    async def chat(self, prompt: Prompt, *, answer: type[_MessageT], **options: Unpack[ChatOptions]) -> _MessageT: ...

    async def chat(
        self, prompt: Prompt, *, answer: type[Message] | None = None, **options: Unpack[ChatOptions]
    ) -> Completion | Message:
        """Returns the answer to a conversation; with `answer`, a class of protobuf messages, as such a message.

        Raises OSError where a media file cannot be read, and AnswerError where the answer is not the message.
        """
        request = await asyncio.to_thread(chat_request, prompt, options, answer=answer)
        completion = Completion(await self._call(self._chat.CreateChatCompletion, request, options))
        return completion if answer is None else completion.answer(answer)

    async def stream(
        self, prompt: Prompt, *, answer: type[Message] | None = None, **options: Unpack[ChatOptions]
    ) -> AsyncGenerator[Chunk]:
        """Yields the answer to a conversation while it is generated; closing the generator cancels the call.

        With `answer`, a class of protobuf messages, the last chunk of a choice has such a message.
        """
        request = await asyncio.to_thread(chat_request, prompt, options, answer=answer, streaming=True)
        attempts = Attempts(self._caller, options)
        while True:
            call = self._chat.StreamChatCompletion(request, **attempts.arguments())
            try:
                async for response in call:
                    yield Chunk(response)
                return
            except grpc.RpcError as error:
                seconds = attempts.delay(error)
            finally:
                call.cancel()
            await asyncio.sleep(seconds)

    async def count_tokens(self, prompt: Prompt, **options: Unpack[QuoteOptions]) -> chat_pb2.CountTokensResponse:
        """Returns the number of tokens of a conversation, media included."""
        request = await asyncio.to_thread(count_request, prompt, options)
        return await self._call(self._chat.CountTokens, request, options)

    async def complete(self, prompt: TextPrompt, **options: Unpack[CompletionOptions]) -> TextCompletion:
        """Returns what continues a text, without a chat template; of a list of texts, what continues each."""
        request = completion_request(prompt, options)
        return TextCompletion(await self._call(self._completion.CreateCompletion, request, options))

    async def tokenize(self, prompt: Prompt, **options: Unpack[TokenizeOptions]) -> tokenizer_pb2.TokenizeResponse:
        """Returns the token ids of a text as it is, or of a conversation in the chat template."""
        request = await asyncio.to_thread(tokenize_request, prompt, options)
        return await self._call(self._tokenizer.Tokenize, request, options)

    async def detokenize(self, tokens: Sequence[int], **options: Unpack[DetokenizeOptions]) -> str:
        """Returns the text of token ids."""
        request = detokenize_request(tokens, options)
        return (await self._call(self._tokenizer.Detokenize, request, options)).prompt

    async def embed(self, inputs: Sequence[EmbeddingInput], **options: Unpack[EmbedOptions]) -> Embeddings:
        """Returns the embedding of each input, at most 2048. Raises OSError where a media file cannot be read."""
        request = await asyncio.to_thread(embedding_request, inputs, options)
        return Embeddings(await self._call(self._embedding.CreateEmbeddings, request, options))

    async def rerank(
        self, query: str, documents: Sequence[RankedDocument], **options: Unpack[RerankOptions]
    ) -> Ranking:
        """Orders documents, at most 2048, by how well they answer a query."""
        request = rerank_request(query, documents, options)
        return Ranking(await self._call(self._rerank.Rerank, request, options))

    async def score(
        self, queries: str | Sequence[str], documents: str | Sequence[RankedDocument], **options: Unpack[ScoreOptions]
    ) -> Scores:
        """Tells how well each document, at most 2048, answers the only query, or the query at its place."""
        request = score_request(queries, documents, options)
        return Scores(await self._call(self._rerank.Score, request, options))

    async def upload(self, source: ImageFile, **options: Unpack[UploadOptions]) -> media_pb2.Media:
        """Uploads a media file once; pass the result as the source of a part, such as Image, with the same salt.

        `source` is a path, bytes or a Pillow image.
        """
        requests = await asyncio.to_thread(upload_requests, source, options)
        return (await self._call(self._media.UploadMedia, requests, options)).media

    async def uploads(self, **options: Unpack[ListUploadsOptions]) -> Sequence[media_pb2.Media]:
        """Returns the uploads of the caller's tenant, the latest first."""
        request = media_pb2.ListMediaRequest(
            cache_salt=options.get("cache_salt"),
            purpose=options.get("purpose"),
            limit=options.get("limit"),
            after=options.get("after"),
            order=options.get("order"),
        )
        return (await self._call(self._media.ListMedia, request, options)).media

    async def download(self, upload: media_pb2.Media | str, **options: Unpack[UploadedOptions]) -> bytes:
        """Returns the file of an upload, or of an id, such as a batch's `output_file_id`."""
        upload_id = upload if isinstance(upload, str) else upload.upload_id
        request = media_pb2.DownloadMediaRequest(upload_id=upload_id, cache_salt=options.get("cache_salt"))
        attempts = Attempts(self._caller, options)
        while True:
            call = self._media.DownloadMedia(request, **attempts.arguments())
            try:
                return b"".join([part.chunk async for part in call])
            except grpc.RpcError as error:
                seconds = attempts.delay(error)
            finally:
                call.cancel()
            await asyncio.sleep(seconds)

    async def delete_upload(self, upload: media_pb2.Media, **options: Unpack[UploadedOptions]) -> None:
        """Deletes an upload."""
        request = media_pb2.DeleteMediaRequest(upload_id=upload.upload_id, cache_salt=options.get("cache_salt"))
        await self._call(self._media.DeleteMedia, request, options)

    async def create_batch(
        self, requests: media_pb2.Media, endpoint: str, **options: Unpack[BatchOptions]
    ) -> batch_pb2.Batch:
        """Begins to answer a file of requests when nothing more urgent is to be done.

        `requests` is an upload whose purpose is "batch"; all its lines have the path `endpoint`.
        """
        request = batch_request(requests, endpoint, options)
        return (await self._call(self._batches.CreateBatch, request, options)).batch

    async def batch(self, batch_id: str, **options: Unpack[CallOptions]) -> batch_pb2.Batch:
        """Returns a batch."""
        request = batch_pb2.GetBatchRequest(batch_id=batch_id)
        return (await self._call(self._batches.GetBatch, request, options)).batch

    async def batches(self, **options: Unpack[ListBatchesOptions]) -> Sequence[batch_pb2.Batch]:
        """Returns the batches of the caller's tenant, the latest first."""
        request = batch_pb2.ListBatchesRequest(limit=options.get("limit"), after=options.get("after"))
        return (await self._call(self._batches.ListBatches, request, options)).batches

    async def cancel_batch(self, batch_id: str, **options: Unpack[CallOptions]) -> batch_pb2.Batch:
        """Cancels a batch; what is answered by then stays in its files."""
        request = batch_pb2.CancelBatchRequest(batch_id=batch_id)
        return (await self._call(self._batches.CancelBatch, request, options)).batch

    async def models(self, **options: Unpack[CallOptions]) -> Sequence[model_pb2.Model]:
        """Returns the models that the server serves, one for each name."""
        return (await self._call(self._models.ListModels, model_pb2.ListModelsRequest(), options)).data

    async def load_adapter(
        self, name: str, path: str, *, in_place: bool = False, **options: Unpack[CallOptions]
    ) -> None:
        """Loads a LoRA adapter of a folder on the server's machine; `in_place` replaces one of this name."""
        request = model_pb2.LoadAdapterRequest(lora_name=name, lora_path=path, load_inplace=in_place)
        await self._call(self._models.LoadAdapter, request, options)

    async def unload_adapter(self, name: str, **options: Unpack[CallOptions]) -> None:
        """Unloads a LoRA adapter. Requests that have it go on."""
        await self._call(self._models.UnloadAdapter, model_pb2.UnloadAdapterRequest(lora_name=name), options)

    async def _call(
        self, method: Callable[..., Awaitable[_ResponseT]], request: object, options: CallOptions
    ) -> _ResponseT:
        """Makes the attempts of a call. Raises GlimpseError."""
        attempts = Attempts(self._caller, options)
        while True:
            try:
                return await method(request, **attempts.arguments())
            except grpc.RpcError as error:
                seconds = attempts.delay(error)
            await asyncio.sleep(seconds)
