"""The synchronous client."""

from collections.abc import Generator, Sequence
from functools import partial
from typing import Self, Unpack

import grpc

from glimpse.client.channel import DEFAULT_TARGET, open_channel
from glimpse.client.errors import translate_errors
from glimpse.client.messages import EmbeddingInput, ImageFile, Prompt
from glimpse.client.options import (
    CallOptions,
    ChatOptions,
    CountOptions,
    EmbedOptions,
    RerankOptions,
    ScoreOptions,
    UploadOptions,
)
from glimpse.client.requests import (
    call_arguments,
    chat_request,
    count_request,
    embedding_request,
    rerank_request,
    score_request,
    upload_requests,
)
from glimpse.client.responses import Chunk, Completion, Embeddings, Ranking, Scores
from glimpse.client.tls import Tls
from glimpse.v1 import (
    chat_pb2,
    chat_pb2_grpc,
    embedding_pb2_grpc,
    media_pb2,
    media_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    rerank_pb2_grpc,
)


class Client:
    """A connection to a server. Its methods may be called from several threads; they raise GlimpseError."""

    def __init__(
        self,
        target: str = DEFAULT_TARGET,
        *,
        credentials: grpc.ChannelCredentials | None = None,
        tls: Tls | None = None,
        api_key: str | None = None,
        timeout: float | None = None,
        max_retries: int = 2,
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

        Raises:
            ValueError: the target is a URL, `max_retries` is out of range, or `tls` is incomplete.
            OSError: a file of `tls` cannot be read.
        """
        self._channel = open_channel(grpc.insecure_channel, grpc.secure_channel, target, credentials, tls, max_retries)
        self._arguments = partial(call_arguments, default_timeout=timeout, api_key=api_key)
        self._chat = chat_pb2_grpc.ChatServiceStub(self._channel)
        self._embedding = embedding_pb2_grpc.EmbeddingServiceStub(self._channel)
        self._media = media_pb2_grpc.MediaServiceStub(self._channel)
        self._models = model_pb2_grpc.ModelServiceStub(self._channel)
        self._rerank = rerank_pb2_grpc.RerankServiceStub(self._channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connection; calls that are still running are cancelled."""
        self._channel.close()

    def chat(self, prompt: Prompt, **options: Unpack[ChatOptions]) -> Completion:
        """Returns the answer to a conversation. Raises OSError where a media file cannot be read."""
        request = chat_request(prompt, options)
        with translate_errors():
            return Completion(self._chat.CreateChatCompletion(request, **self._arguments(options)))

    def stream(self, prompt: Prompt, **options: Unpack[ChatOptions]) -> Generator[Chunk]:
        """Yields the answer to a conversation while it is generated; closing the generator cancels the call."""
        request = chat_request(prompt, options, streaming=True)
        with translate_errors():
            call = self._chat.StreamChatCompletion(request, **self._arguments(options))
            try:
                for response in call:
                    yield Chunk(response)
            finally:
                call.cancel()

    def count_tokens(self, prompt: Prompt, **options: Unpack[CountOptions]) -> chat_pb2.CountTokensResponse:
        """Returns the number of tokens of a conversation, media included."""
        request = count_request(prompt, options)
        with translate_errors():
            return self._chat.CountTokens(request, **self._arguments(options))

    def embed(self, inputs: Sequence[EmbeddingInput], **options: Unpack[EmbedOptions]) -> Embeddings:
        """Returns the embedding of each input, at most 2048. Raises OSError where a media file cannot be read."""
        request = embedding_request(inputs, options)
        with translate_errors():
            return Embeddings(self._embedding.CreateEmbeddings(request, **self._arguments(options)))

    def rerank(self, query: str, documents: Sequence[str], **options: Unpack[RerankOptions]) -> Ranking:
        """Orders documents, at most 2048, by how well they answer a query."""
        request = rerank_request(query, documents, options)
        with translate_errors():
            return Ranking(self._rerank.Rerank(request, **self._arguments(options)))

    def score(
        self, queries: str | Sequence[str], documents: str | Sequence[str], **options: Unpack[ScoreOptions]
    ) -> Scores:
        """Tells how well each document, at most 2048, answers the only query, or the query at its place."""
        request = score_request(queries, documents, options)
        with translate_errors():
            return Scores(self._rerank.Score(request, **self._arguments(options)))

    def upload(self, source: ImageFile, **options: Unpack[UploadOptions]) -> media_pb2.Media:
        """Uploads a media file once; pass the result as the source of an Image, Video or Audio, with the same salt.

        `source` is a path, bytes or a Pillow image.
        """
        requests = upload_requests(source, options)
        with translate_errors():
            return self._media.UploadMedia(requests, **self._arguments(options)).media

    def models(self, **options: Unpack[CallOptions]) -> Sequence[model_pb2.Model]:
        """Returns the models that the server serves, one for each name."""
        with translate_errors():
            request = model_pb2.ListModelsRequest()
            return self._models.ListModels(request, **self._arguments(options)).data
