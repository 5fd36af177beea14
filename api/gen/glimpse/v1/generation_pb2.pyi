from glimpse.json.v1 import annotations_pb2 as _annotations_pb2
from glimpse.v1 import model_pb2 as _model_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_TOOL_CALLS: _ClassVar[FinishReason]

class MediaCacheTier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEDIA_CACHE_TIER_UNSPECIFIED: _ClassVar[MediaCacheTier]
    MEDIA_CACHE_TIER_NONE: _ClassVar[MediaCacheTier]
    MEDIA_CACHE_TIER_FILE: _ClassVar[MediaCacheTier]
    MEDIA_CACHE_TIER_DECODED: _ClassVar[MediaCacheTier]
    MEDIA_CACHE_TIER_ENCODER: _ClassVar[MediaCacheTier]
    MEDIA_CACHE_TIER_PREFIX: _ClassVar[MediaCacheTier]
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_TOOL_CALLS: FinishReason
MEDIA_CACHE_TIER_UNSPECIFIED: MediaCacheTier
MEDIA_CACHE_TIER_NONE: MediaCacheTier
MEDIA_CACHE_TIER_FILE: MediaCacheTier
MEDIA_CACHE_TIER_DECODED: MediaCacheTier
MEDIA_CACHE_TIER_ENCODER: MediaCacheTier
MEDIA_CACHE_TIER_PREFIX: MediaCacheTier

class GenerationOptions(_message.Message):
    __slots__ = ("max_completion_tokens", "temperature", "top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty", "logit_bias", "seed", "stop", "stop_token_ids", "min_tokens", "ignore_eos", "logprobs", "top_logprobs", "n", "skip_special_tokens", "include_stop_str_in_output", "return_token_ids", "bad_words", "allowed_token_ids", "prompt_logprobs", "return_timings")
    class LogitBiasEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: float
        def __init__(self, key: _Optional[int] = ..., value: _Optional[float] = ...) -> None: ...
    MAX_COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIAS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    N_FIELD_NUMBER: _ClassVar[int]
    SKIP_SPECIAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STOP_STR_IN_OUTPUT_FIELD_NUMBER: _ClassVar[int]
    RETURN_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    BAD_WORDS_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    RETURN_TIMINGS_FIELD_NUMBER: _ClassVar[int]
    max_completion_tokens: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    logit_bias: _containers.ScalarMap[int, float]
    seed: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    min_tokens: int
    ignore_eos: bool
    logprobs: bool
    top_logprobs: int
    n: int
    skip_special_tokens: bool
    include_stop_str_in_output: bool
    return_token_ids: bool
    bad_words: _containers.RepeatedScalarFieldContainer[str]
    allowed_token_ids: _containers.RepeatedScalarFieldContainer[int]
    prompt_logprobs: int
    return_timings: bool
    def __init__(self, max_completion_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logit_bias: _Optional[_Mapping[int, float]] = ..., seed: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., min_tokens: _Optional[int] = ..., ignore_eos: _Optional[bool] = ..., logprobs: _Optional[bool] = ..., top_logprobs: _Optional[int] = ..., n: _Optional[int] = ..., skip_special_tokens: _Optional[bool] = ..., include_stop_str_in_output: _Optional[bool] = ..., return_token_ids: _Optional[bool] = ..., bad_words: _Optional[_Iterable[str]] = ..., allowed_token_ids: _Optional[_Iterable[int]] = ..., prompt_logprobs: _Optional[int] = ..., return_timings: _Optional[bool] = ...) -> None: ...

class StructuredOutputs(_message.Message):
    __slots__ = ("json", "json_object", "regex", "choice", "grammar")
    JSON_FIELD_NUMBER: _ClassVar[int]
    JSON_OBJECT_FIELD_NUMBER: _ClassVar[int]
    REGEX_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    json: str
    json_object: bool
    regex: str
    choice: StringList
    grammar: str
    def __init__(self, json: _Optional[str] = ..., json_object: _Optional[bool] = ..., regex: _Optional[str] = ..., choice: _Optional[_Union[StringList, _Mapping]] = ..., grammar: _Optional[str] = ...) -> None: ...

class StringList(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, values: _Optional[_Iterable[str]] = ...) -> None: ...

class Logprobs(_message.Message):
    __slots__ = ("content",)
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    content: _containers.RepeatedCompositeFieldContainer[TokenLogprob]
    def __init__(self, content: _Optional[_Iterable[_Union[TokenLogprob, _Mapping]]] = ...) -> None: ...

class TokenLogprob(_message.Message):
    __slots__ = ("token", "logprob", "bytes", "top_logprobs")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    token: str
    logprob: float
    bytes: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedCompositeFieldContainer[TopLogprob]
    def __init__(self, token: _Optional[str] = ..., logprob: _Optional[float] = ..., bytes: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[_Union[TopLogprob, _Mapping]]] = ...) -> None: ...

class TopLogprob(_message.Message):
    __slots__ = ("token", "logprob", "bytes")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    token: str
    logprob: float
    bytes: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token: _Optional[str] = ..., logprob: _Optional[float] = ..., bytes: _Optional[_Iterable[int]] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("tokens",)
    class TokensEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: int
        value: PromptTokenLogprob
        def __init__(self, key: _Optional[int] = ..., value: _Optional[_Union[PromptTokenLogprob, _Mapping]] = ...) -> None: ...
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.MessageMap[int, PromptTokenLogprob]
    def __init__(self, tokens: _Optional[_Mapping[int, PromptTokenLogprob]] = ...) -> None: ...

class PromptTokenLogprob(_message.Message):
    __slots__ = ("logprob", "rank", "decoded_token")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    DECODED_TOKEN_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    rank: int
    decoded_token: str
    def __init__(self, logprob: _Optional[float] = ..., rank: _Optional[int] = ..., decoded_token: _Optional[str] = ...) -> None: ...

class Usage(_message.Message):
    __slots__ = ("prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "media_usage", "completion_tokens_details", "timings")
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_DETAILS_FIELD_NUMBER: _ClassVar[int]
    MEDIA_USAGE_FIELD_NUMBER: _ClassVar[int]
    COMPLETION_TOKENS_DETAILS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    media_usage: MediaUsage
    completion_tokens_details: CompletionTokensDetails
    timings: Timings
    def __init__(self, prompt_tokens: _Optional[int] = ..., completion_tokens: _Optional[int] = ..., total_tokens: _Optional[int] = ..., prompt_tokens_details: _Optional[_Union[PromptTokensDetails, _Mapping]] = ..., media_usage: _Optional[_Union[MediaUsage, _Mapping]] = ..., completion_tokens_details: _Optional[_Union[CompletionTokensDetails, _Mapping]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("first_token_milliseconds", "first_token_stages", "decode_milliseconds")
    FIRST_TOKEN_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_STAGES_FIELD_NUMBER: _ClassVar[int]
    DECODE_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    first_token_milliseconds: float
    first_token_stages: FirstTokenStages
    decode_milliseconds: float
    def __init__(self, first_token_milliseconds: _Optional[float] = ..., first_token_stages: _Optional[_Union[FirstTokenStages, _Mapping]] = ..., decode_milliseconds: _Optional[float] = ...) -> None: ...

class FirstTokenStages(_message.Message):
    __slots__ = ("preparation_milliseconds", "queue_milliseconds", "encode_milliseconds", "prefill_milliseconds", "fetch_milliseconds", "decode_media_milliseconds")
    PREPARATION_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    ENCODE_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    FETCH_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    DECODE_MEDIA_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    preparation_milliseconds: float
    queue_milliseconds: float
    encode_milliseconds: float
    prefill_milliseconds: float
    fetch_milliseconds: float
    decode_media_milliseconds: float
    def __init__(self, preparation_milliseconds: _Optional[float] = ..., queue_milliseconds: _Optional[float] = ..., encode_milliseconds: _Optional[float] = ..., prefill_milliseconds: _Optional[float] = ..., fetch_milliseconds: _Optional[float] = ..., decode_media_milliseconds: _Optional[float] = ...) -> None: ...

class CompletionTokensDetails(_message.Message):
    __slots__ = ("reasoning_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens")
    REASONING_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_PREDICTION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REJECTED_PREDICTION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    def __init__(self, reasoning_tokens: _Optional[int] = ..., accepted_prediction_tokens: _Optional[int] = ..., rejected_prediction_tokens: _Optional[int] = ...) -> None: ...

class MediaUsage(_message.Message):
    __slots__ = ("fetched_files", "fetch_cache_hits", "decoded_media", "decode_cache_hits", "fetch_milliseconds", "decode_milliseconds", "encoded_media", "encoder_cache_hits", "media")
    FETCHED_FILES_FIELD_NUMBER: _ClassVar[int]
    FETCH_CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    DECODED_MEDIA_FIELD_NUMBER: _ClassVar[int]
    DECODE_CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    FETCH_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    DECODE_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    ENCODED_MEDIA_FIELD_NUMBER: _ClassVar[int]
    ENCODER_CACHE_HITS_FIELD_NUMBER: _ClassVar[int]
    MEDIA_FIELD_NUMBER: _ClassVar[int]
    fetched_files: int
    fetch_cache_hits: int
    decoded_media: int
    decode_cache_hits: int
    fetch_milliseconds: float
    decode_milliseconds: float
    encoded_media: int
    encoder_cache_hits: int
    media: _containers.RepeatedCompositeFieldContainer[MediumUsage]
    def __init__(self, fetched_files: _Optional[int] = ..., fetch_cache_hits: _Optional[int] = ..., decoded_media: _Optional[int] = ..., decode_cache_hits: _Optional[int] = ..., fetch_milliseconds: _Optional[float] = ..., decode_milliseconds: _Optional[float] = ..., encoded_media: _Optional[int] = ..., encoder_cache_hits: _Optional[int] = ..., media: _Optional[_Iterable[_Union[MediumUsage, _Mapping]]] = ...) -> None: ...

class MediumUsage(_message.Message):
    __slots__ = ("modality", "tokens", "cache_tier", "width", "height", "num_tiles", "num_frames", "duration_seconds")
    MODALITY_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CACHE_TIER_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    NUM_TILES_FIELD_NUMBER: _ClassVar[int]
    NUM_FRAMES_FIELD_NUMBER: _ClassVar[int]
    DURATION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    modality: _model_pb2.Modality
    tokens: int
    cache_tier: MediaCacheTier
    width: int
    height: int
    num_tiles: int
    num_frames: int
    duration_seconds: float
    def __init__(self, modality: _Optional[_Union[_model_pb2.Modality, str]] = ..., tokens: _Optional[int] = ..., cache_tier: _Optional[_Union[MediaCacheTier, str]] = ..., width: _Optional[int] = ..., height: _Optional[int] = ..., num_tiles: _Optional[int] = ..., num_frames: _Optional[int] = ..., duration_seconds: _Optional[float] = ...) -> None: ...

class PromptTokensDetails(_message.Message):
    __slots__ = ("cached_tokens", "image_tokens", "video_tokens", "audio_tokens")
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    VIDEO_TOKENS_FIELD_NUMBER: _ClassVar[int]
    AUDIO_TOKENS_FIELD_NUMBER: _ClassVar[int]
    cached_tokens: int
    image_tokens: int
    video_tokens: int
    audio_tokens: int
    def __init__(self, cached_tokens: _Optional[int] = ..., image_tokens: _Optional[int] = ..., video_tokens: _Optional[int] = ..., audio_tokens: _Optional[int] = ...) -> None: ...

class SeenImage(_message.Message):
    __slots__ = ("width", "height", "orientation", "seen", "seen_width", "seen_height", "num_tiles", "first_token", "tokens")
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    ORIENTATION_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    SEEN_WIDTH_FIELD_NUMBER: _ClassVar[int]
    SEEN_HEIGHT_FIELD_NUMBER: _ClassVar[int]
    NUM_TILES_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    width: int
    height: int
    orientation: int
    seen: BoundingBox
    seen_width: int
    seen_height: int
    num_tiles: int
    first_token: int
    tokens: int
    def __init__(self, width: _Optional[int] = ..., height: _Optional[int] = ..., orientation: _Optional[int] = ..., seen: _Optional[_Union[BoundingBox, _Mapping]] = ..., seen_width: _Optional[int] = ..., seen_height: _Optional[int] = ..., num_tiles: _Optional[int] = ..., first_token: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class Grounding(_message.Message):
    __slots__ = ("label", "image_index", "box", "point")
    LABEL_FIELD_NUMBER: _ClassVar[int]
    IMAGE_INDEX_FIELD_NUMBER: _ClassVar[int]
    BOX_FIELD_NUMBER: _ClassVar[int]
    POINT_FIELD_NUMBER: _ClassVar[int]
    label: str
    image_index: int
    box: BoundingBox
    point: Point
    def __init__(self, label: _Optional[str] = ..., image_index: _Optional[int] = ..., box: _Optional[_Union[BoundingBox, _Mapping]] = ..., point: _Optional[_Union[Point, _Mapping]] = ...) -> None: ...

class BoundingBox(_message.Message):
    __slots__ = ("left", "top", "right", "bottom")
    LEFT_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    RIGHT_FIELD_NUMBER: _ClassVar[int]
    BOTTOM_FIELD_NUMBER: _ClassVar[int]
    left: float
    top: float
    right: float
    bottom: float
    def __init__(self, left: _Optional[float] = ..., top: _Optional[float] = ..., right: _Optional[float] = ..., bottom: _Optional[float] = ...) -> None: ...

class Point(_message.Message):
    __slots__ = ("x", "y")
    X_FIELD_NUMBER: _ClassVar[int]
    Y_FIELD_NUMBER: _ClassVar[int]
    x: float
    y: float
    def __init__(self, x: _Optional[float] = ..., y: _Optional[float] = ...) -> None: ...
