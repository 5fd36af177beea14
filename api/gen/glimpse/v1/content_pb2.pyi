from glimpse.json.v1 import annotations_pb2 as _annotations_pb2
from google.api import field_behavior_pb2 as _field_behavior_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_SYSTEM: _ClassVar[Role]
    ROLE_DEVELOPER: _ClassVar[Role]
    ROLE_USER: _ClassVar[Role]
    ROLE_ASSISTANT: _ClassVar[Role]
    ROLE_TOOL: _ClassVar[Role]

class ImageDetail(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    IMAGE_DETAIL_UNSPECIFIED: _ClassVar[ImageDetail]
    IMAGE_DETAIL_AUTO: _ClassVar[ImageDetail]
    IMAGE_DETAIL_LOW: _ClassVar[ImageDetail]
    IMAGE_DETAIL_HIGH: _ClassVar[ImageDetail]
    IMAGE_DETAIL_ORIGINAL: _ClassVar[ImageDetail]

class PageContent(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PAGE_CONTENT_UNSPECIFIED: _ClassVar[PageContent]
    PAGE_CONTENT_AUTO: _ClassVar[PageContent]
    PAGE_CONTENT_IMAGE: _ClassVar[PageContent]
    PAGE_CONTENT_TEXT: _ClassVar[PageContent]
    PAGE_CONTENT_IMAGE_AND_TEXT: _ClassVar[PageContent]

class TensorType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TENSOR_TYPE_UNSPECIFIED: _ClassVar[TensorType]
    TENSOR_TYPE_FLOAT32: _ClassVar[TensorType]
    TENSOR_TYPE_FLOAT16: _ClassVar[TensorType]
    TENSOR_TYPE_BFLOAT16: _ClassVar[TensorType]
    TENSOR_TYPE_INT64: _ClassVar[TensorType]
ROLE_UNSPECIFIED: Role
ROLE_SYSTEM: Role
ROLE_DEVELOPER: Role
ROLE_USER: Role
ROLE_ASSISTANT: Role
ROLE_TOOL: Role
IMAGE_DETAIL_UNSPECIFIED: ImageDetail
IMAGE_DETAIL_AUTO: ImageDetail
IMAGE_DETAIL_LOW: ImageDetail
IMAGE_DETAIL_HIGH: ImageDetail
IMAGE_DETAIL_ORIGINAL: ImageDetail
PAGE_CONTENT_UNSPECIFIED: PageContent
PAGE_CONTENT_AUTO: PageContent
PAGE_CONTENT_IMAGE: PageContent
PAGE_CONTENT_TEXT: PageContent
PAGE_CONTENT_IMAGE_AND_TEXT: PageContent
TENSOR_TYPE_UNSPECIFIED: TensorType
TENSOR_TYPE_FLOAT32: TensorType
TENSOR_TYPE_FLOAT16: TensorType
TENSOR_TYPE_BFLOAT16: TensorType
TENSOR_TYPE_INT64: TensorType

class Message(_message.Message):
    __slots__ = ("role", "content", "name", "tool_calls", "tool_call_id", "reasoning")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    REASONING_FIELD_NUMBER: _ClassVar[int]
    role: Role
    content: _containers.RepeatedCompositeFieldContainer[ContentPart]
    name: str
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    tool_call_id: str
    reasoning: str
    def __init__(self, role: _Optional[_Union[Role, str]] = ..., content: _Optional[_Iterable[_Union[ContentPart, _Mapping]]] = ..., name: _Optional[str] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ..., tool_call_id: _Optional[str] = ..., reasoning: _Optional[str] = ...) -> None: ...

class ContentPart(_message.Message):
    __slots__ = ("text", "image", "video", "audio", "image_embeddings", "video_embeddings", "audio_embeddings", "document", "file", "uuid")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    VIDEO_FIELD_NUMBER: _ClassVar[int]
    AUDIO_FIELD_NUMBER: _ClassVar[int]
    IMAGE_EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    VIDEO_EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    AUDIO_EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    DOCUMENT_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    text: str
    image: ImagePart
    video: VideoPart
    audio: AudioPart
    image_embeddings: ImageEmbeddings
    video_embeddings: VideoEmbeddings
    audio_embeddings: AudioEmbeddings
    document: DocumentPart
    file: FilePart
    uuid: str
    def __init__(self, text: _Optional[str] = ..., image: _Optional[_Union[ImagePart, _Mapping]] = ..., video: _Optional[_Union[VideoPart, _Mapping]] = ..., audio: _Optional[_Union[AudioPart, _Mapping]] = ..., image_embeddings: _Optional[_Union[ImageEmbeddings, _Mapping]] = ..., video_embeddings: _Optional[_Union[VideoEmbeddings, _Mapping]] = ..., audio_embeddings: _Optional[_Union[AudioEmbeddings, _Mapping]] = ..., document: _Optional[_Union[DocumentPart, _Mapping]] = ..., file: _Optional[_Union[FilePart, _Mapping]] = ..., uuid: _Optional[str] = ...) -> None: ...

class MediaSource(_message.Message):
    __slots__ = ("url", "data", "upload_id")
    URL_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_ID_FIELD_NUMBER: _ClassVar[int]
    url: str
    data: bytes
    upload_id: str
    def __init__(self, url: _Optional[str] = ..., data: _Optional[bytes] = ..., upload_id: _Optional[str] = ...) -> None: ...

class ImagePart(_message.Message):
    __slots__ = ("source", "min_pixels", "max_pixels", "detail")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    MIN_PIXELS_FIELD_NUMBER: _ClassVar[int]
    MAX_PIXELS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    source: MediaSource
    min_pixels: int
    max_pixels: int
    detail: ImageDetail
    def __init__(self, source: _Optional[_Union[MediaSource, _Mapping]] = ..., min_pixels: _Optional[int] = ..., max_pixels: _Optional[int] = ..., detail: _Optional[_Union[ImageDetail, str]] = ...) -> None: ...

class FrameList(_message.Message):
    __slots__ = ("frames",)
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    frames: _containers.RepeatedCompositeFieldContainer[MediaSource]
    def __init__(self, frames: _Optional[_Iterable[_Union[MediaSource, _Mapping]]] = ...) -> None: ...

class VideoPart(_message.Message):
    __slots__ = ("source", "frames", "fps", "num_frames", "max_frames", "min_pixels", "max_pixels", "total_pixels", "start_seconds", "end_seconds")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    FPS_FIELD_NUMBER: _ClassVar[int]
    NUM_FRAMES_FIELD_NUMBER: _ClassVar[int]
    MAX_FRAMES_FIELD_NUMBER: _ClassVar[int]
    MIN_PIXELS_FIELD_NUMBER: _ClassVar[int]
    MAX_PIXELS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_PIXELS_FIELD_NUMBER: _ClassVar[int]
    START_SECONDS_FIELD_NUMBER: _ClassVar[int]
    END_SECONDS_FIELD_NUMBER: _ClassVar[int]
    source: MediaSource
    frames: FrameList
    fps: float
    num_frames: int
    max_frames: int
    min_pixels: int
    max_pixels: int
    total_pixels: int
    start_seconds: float
    end_seconds: float
    def __init__(self, source: _Optional[_Union[MediaSource, _Mapping]] = ..., frames: _Optional[_Union[FrameList, _Mapping]] = ..., fps: _Optional[float] = ..., num_frames: _Optional[int] = ..., max_frames: _Optional[int] = ..., min_pixels: _Optional[int] = ..., max_pixels: _Optional[int] = ..., total_pixels: _Optional[int] = ..., start_seconds: _Optional[float] = ..., end_seconds: _Optional[float] = ...) -> None: ...

class MediaIoOptions(_message.Message):
    __slots__ = ("image", "video")
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    VIDEO_FIELD_NUMBER: _ClassVar[int]
    image: ImageIoOptions
    video: VideoIoOptions
    def __init__(self, image: _Optional[_Union[ImageIoOptions, _Mapping]] = ..., video: _Optional[_Union[VideoIoOptions, _Mapping]] = ...) -> None: ...

class ImageIoOptions(_message.Message):
    __slots__ = ("rgba_background_color",)
    RGBA_BACKGROUND_COLOR_FIELD_NUMBER: _ClassVar[int]
    rgba_background_color: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, rgba_background_color: _Optional[_Iterable[int]] = ...) -> None: ...

class VideoIoOptions(_message.Message):
    __slots__ = ("fps", "num_frames")
    FPS_FIELD_NUMBER: _ClassVar[int]
    NUM_FRAMES_FIELD_NUMBER: _ClassVar[int]
    fps: float
    num_frames: int
    def __init__(self, fps: _Optional[float] = ..., num_frames: _Optional[int] = ...) -> None: ...

class MediaProcessorOptions(_message.Message):
    __slots__ = ("min_pixels", "max_pixels", "fps", "num_frames")
    MIN_PIXELS_FIELD_NUMBER: _ClassVar[int]
    MAX_PIXELS_FIELD_NUMBER: _ClassVar[int]
    FPS_FIELD_NUMBER: _ClassVar[int]
    NUM_FRAMES_FIELD_NUMBER: _ClassVar[int]
    min_pixels: int
    max_pixels: int
    fps: float
    num_frames: int
    def __init__(self, min_pixels: _Optional[int] = ..., max_pixels: _Optional[int] = ..., fps: _Optional[float] = ..., num_frames: _Optional[int] = ...) -> None: ...

class SampledVideo(_message.Message):
    __slots__ = ("num_frames", "width", "height", "fps", "frame_seconds")
    NUM_FRAMES_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    FPS_FIELD_NUMBER: _ClassVar[int]
    FRAME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    num_frames: int
    width: int
    height: int
    fps: float
    frame_seconds: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, num_frames: _Optional[int] = ..., width: _Optional[int] = ..., height: _Optional[int] = ..., fps: _Optional[float] = ..., frame_seconds: _Optional[_Iterable[float]] = ...) -> None: ...

class AudioPart(_message.Message):
    __slots__ = ("source", "format")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    source: MediaSource
    format: str
    def __init__(self, source: _Optional[_Union[MediaSource, _Mapping]] = ..., format: _Optional[str] = ...) -> None: ...

class FilePart(_message.Message):
    __slots__ = ("source", "filename")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    FILENAME_FIELD_NUMBER: _ClassVar[int]
    source: MediaSource
    filename: str
    def __init__(self, source: _Optional[_Union[MediaSource, _Mapping]] = ..., filename: _Optional[str] = ...) -> None: ...

class DocumentPart(_message.Message):
    __slots__ = ("source", "first_page", "last_page", "page_content", "dpi", "min_pixels", "max_pixels", "detail")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_PAGE_FIELD_NUMBER: _ClassVar[int]
    LAST_PAGE_FIELD_NUMBER: _ClassVar[int]
    PAGE_CONTENT_FIELD_NUMBER: _ClassVar[int]
    DPI_FIELD_NUMBER: _ClassVar[int]
    MIN_PIXELS_FIELD_NUMBER: _ClassVar[int]
    MAX_PIXELS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    source: MediaSource
    first_page: int
    last_page: int
    page_content: PageContent
    dpi: int
    min_pixels: int
    max_pixels: int
    detail: ImageDetail
    def __init__(self, source: _Optional[_Union[MediaSource, _Mapping]] = ..., first_page: _Optional[int] = ..., last_page: _Optional[int] = ..., page_content: _Optional[_Union[PageContent, str]] = ..., dpi: _Optional[int] = ..., min_pixels: _Optional[int] = ..., max_pixels: _Optional[int] = ..., detail: _Optional[_Union[ImageDetail, str]] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("type", "shape", "data")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    type: TensorType
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, type: _Optional[_Union[TensorType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class TensorSource(_message.Message):
    __slots__ = ("serialized", "tensor")
    SERIALIZED_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    serialized: bytes
    tensor: Tensor
    def __init__(self, serialized: _Optional[bytes] = ..., tensor: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class ImageEmbeddings(_message.Message):
    __slots__ = ("embeddings", "grid_thw", "size")
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    GRID_THW_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    embeddings: TensorSource
    grid_thw: TensorSource
    size: TensorSource
    def __init__(self, embeddings: _Optional[_Union[TensorSource, _Mapping]] = ..., grid_thw: _Optional[_Union[TensorSource, _Mapping]] = ..., size: _Optional[_Union[TensorSource, _Mapping]] = ...) -> None: ...

class VideoEmbeddings(_message.Message):
    __slots__ = ("embeddings", "grid_thw")
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    GRID_THW_FIELD_NUMBER: _ClassVar[int]
    embeddings: TensorSource
    grid_thw: TensorSource
    def __init__(self, embeddings: _Optional[_Union[TensorSource, _Mapping]] = ..., grid_thw: _Optional[_Union[TensorSource, _Mapping]] = ...) -> None: ...

class AudioEmbeddings(_message.Message):
    __slots__ = ("embeddings",)
    EMBEDDINGS_FIELD_NUMBER: _ClassVar[int]
    embeddings: TensorSource
    def __init__(self, embeddings: _Optional[_Union[TensorSource, _Mapping]] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("id", "function")
    ID_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    id: str
    function: FunctionCall
    def __init__(self, id: _Optional[str] = ..., function: _Optional[_Union[FunctionCall, _Mapping]] = ...) -> None: ...

class FunctionCall(_message.Message):
    __slots__ = ("name", "arguments")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    name: str
    arguments: str
    def __init__(self, name: _Optional[str] = ..., arguments: _Optional[str] = ...) -> None: ...
