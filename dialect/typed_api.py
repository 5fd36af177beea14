"""The files of the typed API that have services."""

from google.protobuf.descriptor import FileDescriptor

from glimpse.v1 import (
    batch_pb2,
    chat_pb2,
    completion_pb2,
    embedding_pb2,
    load_pb2,
    media_pb2,
    model_pb2,
    rerank_pb2,
    tenant_pb2,
    tokenizer_pb2,
)

TYPED_FILES: tuple[FileDescriptor, ...] = (
    batch_pb2.DESCRIPTOR,
    chat_pb2.DESCRIPTOR,
    completion_pb2.DESCRIPTOR,
    embedding_pb2.DESCRIPTOR,
    load_pb2.DESCRIPTOR,
    media_pb2.DESCRIPTOR,
    model_pb2.DESCRIPTOR,
    rerank_pb2.DESCRIPTOR,
    tenant_pb2.DESCRIPTOR,
    tokenizer_pb2.DESCRIPTOR,
)
