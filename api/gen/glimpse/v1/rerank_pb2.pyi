from glimpse.json.v1 import annotations_pb2 as _annotations_pb2
from glimpse.v1 import content_pb2 as _content_pb2
from glimpse.v1 import generation_pb2 as _generation_pb2
from google.api import annotations_pb2 as _annotations_pb2_1
from google.api import field_behavior_pb2 as _field_behavior_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RerankRequest(_message.Message):
    __slots__ = ("model", "query", "documents", "top_n", "return_documents", "instruction", "cache_salt", "priority", "user", "use_activation")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    TOP_N_FIELD_NUMBER: _ClassVar[int]
    RETURN_DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    USE_ACTIVATION_FIELD_NUMBER: _ClassVar[int]
    model: str
    query: str
    documents: _containers.RepeatedCompositeFieldContainer[RerankDocument]
    top_n: int
    return_documents: bool
    instruction: str
    cache_salt: str
    priority: int
    user: str
    use_activation: bool
    def __init__(self, model: _Optional[str] = ..., query: _Optional[str] = ..., documents: _Optional[_Iterable[_Union[RerankDocument, _Mapping]]] = ..., top_n: _Optional[int] = ..., return_documents: _Optional[bool] = ..., instruction: _Optional[str] = ..., cache_salt: _Optional[str] = ..., priority: _Optional[int] = ..., user: _Optional[str] = ..., use_activation: _Optional[bool] = ...) -> None: ...

class RerankDocument(_message.Message):
    __slots__ = ("text", "content")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    text: str
    content: _containers.RepeatedCompositeFieldContainer[_content_pb2.ContentPart]
    def __init__(self, text: _Optional[str] = ..., content: _Optional[_Iterable[_Union[_content_pb2.ContentPart, _Mapping]]] = ...) -> None: ...

class RerankResponse(_message.Message):
    __slots__ = ("id", "model", "results", "usage")
    ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    id: str
    model: str
    results: _containers.RepeatedCompositeFieldContainer[RerankResult]
    usage: _generation_pb2.Usage
    def __init__(self, id: _Optional[str] = ..., model: _Optional[str] = ..., results: _Optional[_Iterable[_Union[RerankResult, _Mapping]]] = ..., usage: _Optional[_Union[_generation_pb2.Usage, _Mapping]] = ...) -> None: ...

class RerankResult(_message.Message):
    __slots__ = ("index", "document", "relevance_score")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    RELEVANCE_SCORE_FIELD_NUMBER: _ClassVar[int]
    index: int
    document: RerankDocument
    relevance_score: float
    def __init__(self, index: _Optional[int] = ..., document: _Optional[_Union[RerankDocument, _Mapping]] = ..., relevance_score: _Optional[float] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("model", "queries", "documents", "instruction", "cache_salt", "priority", "user", "use_activation")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    QUERIES_FIELD_NUMBER: _ClassVar[int]
    DOCUMENTS_FIELD_NUMBER: _ClassVar[int]
    INSTRUCTION_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    USE_ACTIVATION_FIELD_NUMBER: _ClassVar[int]
    model: str
    queries: _containers.RepeatedScalarFieldContainer[str]
    documents: _containers.RepeatedCompositeFieldContainer[RerankDocument]
    instruction: str
    cache_salt: str
    priority: int
    user: str
    use_activation: bool
    def __init__(self, model: _Optional[str] = ..., queries: _Optional[_Iterable[str]] = ..., documents: _Optional[_Iterable[_Union[RerankDocument, _Mapping]]] = ..., instruction: _Optional[str] = ..., cache_salt: _Optional[str] = ..., priority: _Optional[int] = ..., user: _Optional[str] = ..., use_activation: _Optional[bool] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("id", "created", "model", "data", "usage")
    ID_FIELD_NUMBER: _ClassVar[int]
    CREATED_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    USAGE_FIELD_NUMBER: _ClassVar[int]
    id: str
    created: int
    model: str
    data: _containers.RepeatedCompositeFieldContainer[Score]
    usage: _generation_pb2.Usage
    def __init__(self, id: _Optional[str] = ..., created: _Optional[int] = ..., model: _Optional[str] = ..., data: _Optional[_Iterable[_Union[Score, _Mapping]]] = ..., usage: _Optional[_Union[_generation_pb2.Usage, _Mapping]] = ...) -> None: ...

class Score(_message.Message):
    __slots__ = ("index", "score")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    index: int
    score: float
    def __init__(self, index: _Optional[int] = ..., score: _Optional[float] = ...) -> None: ...
