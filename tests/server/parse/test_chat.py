"""Which requests are refused, under which field and for which reason; and what the others mean."""

import json
from dataclasses import replace
from typing import Any, get_args

import pytest
from google.protobuf.descriptor import FieldDescriptor
from openai.types.shared import ReasoningEffort
from pydantic import ValidationError

from glimpse.dialect.options import enum_names
from glimpse.dialect.rules import Dialect
from glimpse.engine.checkpoint.model_config.sampling_defaults import SamplingDefaults
from glimpse.engine.checkpoint.text.conversation import ChatMessage, MediaSlot, ToolMode
from glimpse.engine.checkpoint.text.template import ChatTemplate, ChatTemplates
from glimpse.engine.protocol.sampling_params import Grammar, GrammarKind, SamplingParams
from glimpse.media.inputs import ImageInput, VideoInput
from glimpse.media.kind import MediaKind
from glimpse.media.processing.sizing.recipe import Detail
from glimpse.media.processing.video_options import VideoOptions
from glimpse.media.sources.source import CachedSource, DataSource, FrameSources, UploadSource, parse_url_text
from glimpse.server.call.context import CallContext
from glimpse.server.errors import InvalidRequest
from glimpse.server.parse.chat import parse_chat
from glimpse.server.request import ChatRequest, Conversation, GenerationRequest, ReasoningOptions, ReasoningSupport
from glimpse.v1 import chat_pb2, content_pb2, generation_pb2
from tests.server.parse.served import MODEL
from tests.server.requests import GENERATION, image_part, png, request, text_part, user, video_part

VOCAB_SIZE = MODEL.vocab_size


def parse(wire: chat_pb2.CreateChatCompletionRequest, *, streaming: bool = False) -> ChatRequest:
    return parse_chat(wire, CallContext(), MODEL, streaming=streaming)


def conversation_of(wire: chat_pb2.CreateChatCompletionRequest) -> Conversation:
    (prompt,) = parse(wire).generation.prompts
    assert isinstance(prompt, Conversation)
    return prompt


def sources_of(conversation: Conversation) -> list[object]:
    return [medium.source for medium in conversation.media if isinstance(medium, ImageInput | VideoInput)]


def sampling_of(wire: chat_pb2.CreateChatCompletionRequest) -> SamplingParams:
    return parse(wire).generation.sampling


def with_member(**members: object) -> chat_pb2.CreateChatCompletionRequest:
    wire = request()
    wire.MergeFrom(chat_pb2.CreateChatCompletionRequest(**members))  # pyright: ignore[reportArgumentType] - a table's row
    return wire


def with_part(part: content_pb2.ContentPart) -> chat_pb2.CreateChatCompletionRequest:
    return request(user("What?", part))


def with_source(**source: object) -> chat_pb2.CreateChatCompletionRequest:
    media_source = content_pb2.MediaSource(**source)  # pyright: ignore[reportArgumentType] - a table's row
    return with_part(content_pb2.ContentPart(image=content_pb2.ImagePart(source=media_source)))


def with_video(data: bytes, **members: Any) -> chat_pb2.CreateChatCompletionRequest:
    return with_part(video_part(data, **members))


def with_frames(*sources: dict[str, Any], **members: Any) -> chat_pb2.CreateChatCompletionRequest:
    return with_part(content_pb2.ContentPart(video={"frames": {"frames": sources}, **members}))


def message(**members: object) -> chat_pb2.CreateChatCompletionRequest:
    return request(content_pb2.Message(**members))  # pyright: ignore[reportArgumentType] - a table's row


PART = "messages[0].content[1]"
BACKGROUND = "media_io_options.image.rgba_background_color"
TOOL = chat_pb2.Tool(function=chat_pb2.FunctionDefinition(name="f"))
TOOL_CALL = content_pb2.ToolCall(id="1", function=content_pb2.FunctionCall(name="f"))
REQUIRED = chat_pb2.ToolChoice(mode=chat_pb2.TOOL_CHOICE_MODE_REQUIRED)
NAMED = chat_pb2.ToolChoice(named_tool=chat_pb2.NamedToolChoice(function=chat_pb2.FunctionName(name="f")))
SAYS = {"content": [text_part("x")]}
EMBEDDINGS = content_pb2.AudioEmbeddings(embeddings=content_pb2.TensorSource(serialized=b"x"))

REFUSED: list[tuple[chat_pb2.CreateChatCompletionRequest, str, str]] = [
    # the request, the field, the reason
    (chat_pb2.CreateChatCompletionRequest(), "messages", "missing_value"),
    (request(*[user("x")] * 4097), "messages", "invalid_value"),
    (request(user(*["x"] * 4097)), "messages[0].content", "invalid_value"),
    (
        message(role=content_pb2.ROLE_ASSISTANT, tool_calls=[TOOL_CALL] * 1025),
        "messages[0].tool_calls",
        "invalid_value",
    ),
    (with_member(tools=[TOOL] * 129), "tools", "invalid_value"),
    (
        with_member(chat_template_kwargs=json.dumps({"a": "x" * (1 << 20)})),
        "chat_template_kwargs",
        "invalid_value",
    ),
    (message(**SAYS), "messages[0].role", "missing_value"),
    (message(role=17, **SAYS), "messages[0].role", "invalid_value"),
    (message(role=content_pb2.ROLE_USER), "messages[0].content", "missing_value"),
    (message(role=content_pb2.ROLE_TOOL, tool_call_id="1", **SAYS), "messages[0].tool_call_id", "invalid_value"),
    (message(role=content_pb2.ROLE_USER, tool_call_id="1", **SAYS), "messages[0].tool_call_id", "invalid_value"),
    (message(role=content_pb2.ROLE_USER, tool_calls=[TOOL_CALL], **SAYS), "messages[0].tool_calls", "invalid_value"),
    (with_part(content_pb2.ContentPart()), PART, "missing_value"),
    (with_part(content_pb2.ContentPart(uuid="a")), f"{PART}.uuid", "invalid_value"),
    (with_part(content_pb2.ContentPart(uuid="a", text="b")), f"{PART}.uuid", "invalid_value"),
    (with_part(content_pb2.ContentPart(uuid="", image={})), f"{PART}.uuid", "invalid_value"),
    (with_part(content_pb2.ContentPart(uuid="a" * 1025, image={})), f"{PART}.uuid", "invalid_value"),
    (
        with_part(content_pb2.ContentPart(uuid="a", image_embeddings={"grid_thw": {}})),
        f"{PART}.image_embeddings.embeddings",
        "missing_value",
    ),
    (
        with_part(content_pb2.ContentPart(uuid="a", video={"frames": {}})),
        f"{PART}.video.frames.frames",
        "invalid_value",
    ),
    (with_part(content_pb2.ContentPart(video={})), f"{PART}.video.source", "missing_value"),
    (with_video(b""), f"{PART}.video.source.data", "missing_value"),
    (
        with_part(content_pb2.ContentPart(video={"source": {"url": "%"}})),
        f"{PART}.video.source.url",
        "invalid_media_source",
    ),
    (
        with_part(content_pb2.ContentPart(video={"source": {"url": "data:video/jpeg;base64,"}})),
        f"{PART}.video.source.url",
        "invalid_media_source",
    ),
    (with_part(content_pb2.ContentPart(video={"frames": {}})), f"{PART}.video.frames.frames", "invalid_value"),
    (with_frames({}), f"{PART}.video.frames.frames[0]", "missing_value"),
    (with_frames({"data": b"x"}, {"url": "ftp://x"}), f"{PART}.video.frames.frames[1].url", "media_url_refused"),
    (with_frames({"data": b"x"}, start_seconds=1), f"{PART}.video.start_seconds", "invalid_value"),
    (with_video(b"x", fps=0), f"{PART}.video.fps", "invalid_value"),
    (with_video(b"x", fps=float("nan")), f"{PART}.video.fps", "invalid_value"),
    (with_video(b"x", fps=1, num_frames=4), f"{PART}.video.num_frames", "invalid_value"),
    (with_video(b"x", num_frames=0), f"{PART}.video.num_frames", "invalid_value"),
    (with_video(b"x", max_frames=769), f"{PART}.video.max_frames", "invalid_value"),
    (with_video(b"x", min_pixels=9, max_pixels=8), f"{PART}.video.min_pixels", "invalid_value"),
    (with_video(b"x", total_pixels=10**12), f"{PART}.video.total_pixels", "invalid_value"),
    (with_video(b"x", start_seconds=-1), f"{PART}.video.start_seconds", "invalid_value"),
    (with_video(b"x", start_seconds=2, end_seconds=1), f"{PART}.video.end_seconds", "invalid_value"),
    (request(user(*[video_part(b"x")] * 2)), "messages", "too_many_videos"),
    (with_part(content_pb2.ContentPart(audio={})), f"{PART}.audio.source", "missing_value"),
    (with_part(content_pb2.ContentPart(audio={"source": {"data": b"x"}})), f"{PART}.audio.source", "unsupported"),
    (with_part(content_pb2.ContentPart(audio_embeddings=EMBEDDINGS)), f"{PART}.audio_embeddings", "unsupported"),
    (with_part(content_pb2.ContentPart(image_embeddings={})), f"{PART}.image_embeddings.embeddings", "missing_value"),
    (with_part(content_pb2.ContentPart(image={})), f"{PART}.image.source", "missing_value"),
    (with_source(data=b""), f"{PART}.image.source.data", "missing_value"),
    (with_source(url="%%%"), f"{PART}.image.source.url", "invalid_media_source"),
    (with_source(url="file://elsewhere/x"), f"{PART}.image.source.url", "media_url_refused"),
    (with_part(image_part(b"x", min_pixels=9, max_pixels=8)), f"{PART}.image.min_pixels", "invalid_value"),
    (
        with_part(image_part(b"x", min_pixels=300_000, detail=content_pb2.IMAGE_DETAIL_LOW)),
        f"{PART}.image.min_pixels",
        "invalid_value",
    ),
    (with_part(image_part(b"x", min_pixels=0)), f"{PART}.image.min_pixels", "invalid_value"),
    (request(user(*[image_part(b"x")] * 3)), "messages", "too_many_images"),
    (with_member(tool_choice=REQUIRED), "tool_choice", "invalid_value"),
    (with_member(tool_choice=NAMED), "tool_choice", "invalid_value"),
    (with_member(parallel_tool_calls=True), "parallel_tool_calls", "invalid_value"),
    (with_member(response_format={"json_schema": {}}), "response_format.json_schema.schema", "missing_value"),
    (
        with_member(structured_outputs={"regex": "a"}, tools=[TOOL]),
        "structured_outputs.regex",
        "conflicting_values",
    ),
    (with_member(structured_outputs={}), "structured_outputs", "missing_value"),
    (with_member(structured_outputs={"json": ""}), "structured_outputs.json", "missing_value"),
    (with_member(structured_outputs={"json_object": False}), "structured_outputs.json_object", "invalid_value"),
    (with_member(structured_outputs={"choice": {}}), "structured_outputs.choice.values", "invalid_value"),
    (with_member(structured_outputs={"choice": {"values": ["a", ""]}}), "structured_outputs.choice", "invalid_value"),
    (
        with_member(structured_outputs={"regex": "a"}, response_format={"json_object": {}}),
        "structured_outputs",
        "conflicting_values",
    ),
    (with_member(include_reasoning=False), "include_reasoning", "unsupported"),
    (with_member(thinking_token_budget=1), "thinking_token_budget", "unsupported"),
    (
        request(content_pb2.Message(role=content_pb2.ROLE_USER, content=[text_part("a")], reasoning="b")),
        "messages[0].reasoning",
        "invalid_value",
    ),
    (with_member(continue_final_message=True), "continue_final_message", "invalid_value"),
    (
        with_member(continue_final_message=True, add_generation_prompt=True),
        "continue_final_message",
        "conflicting_values",
    ),
    (with_member(chat_template_kwargs="{"), "chat_template_kwargs", "invalid_value"),
    (with_member(chat_template_kwargs="[]"), "chat_template_kwargs", "invalid_type"),
    (with_member(chat_template_kwargs='{"tools": []}'), "chat_template_kwargs.tools", "unsupported"),
    (with_member(metadata={str(key): "" for key in range(17)}), "metadata", "invalid_value"),
    (
        with_member(media_io_options={"video": {"fps": 1}}, media_processor_options={"num_frames": 4}),
        "media_processor_options",
        "conflicting_values",
    ),
    *(
        (with_member(media_io_options={"image": {"rgba_background_color": colour}}), BACKGROUND, "invalid_value")
        for colour in ([0, 0], [0, 0, 0, 0], [0, 256, 0])
    ),
    (with_member(media_processor_options={"min_pixels": 0}), "media_processor_options.min_pixels", "invalid_value"),
    (with_member(stream_options={"include_usage": True}), "stream_options", "invalid_value"),
    (request(n=129), "generation.n", "invalid_value"),
    (request(n=0), "generation.n", "invalid_value"),
    (request(temperature=2.5), "generation.temperature", "invalid_value"),
    (request(temperature=float("nan")), "generation.temperature", "invalid_value"),
    (request(top_p=-0.1), "generation.top_p", "invalid_value"),
    (request(top_k=-2), "generation.top_k", "invalid_value"),
    (request(max_completion_tokens=0), "generation.max_completion_tokens", "invalid_value"),
    (request(min_tokens=9), "generation.min_tokens", "invalid_value"),
    (request(top_logprobs=3), "generation.top_logprobs", "invalid_value"),
    (request(logprobs=True, top_logprobs=21), "generation.top_logprobs", "invalid_value"),
    (request(stop=["a", ""]), "generation.stop[1]", "invalid_value"),
    (request(stop=["a"] * 17), "generation.stop", "invalid_value"),
    (request(stop=["a" * 4097]), "generation.stop[0]", "invalid_value"),
    (request(stop_token_ids=[1] * 1025), "generation.stop_token_ids", "invalid_value"),
    (request(logit_bias=dict.fromkeys(range(16385), 1.0)), "generation.logit_bias", "invalid_value"),
    (request(stop_token_ids=[5, VOCAB_SIZE]), "generation.stop_token_ids[1]", "invalid_value"),
    (request(stop_token_ids=[-1]), "generation.stop_token_ids[0]", "invalid_value"),
    (request(logit_bias={VOCAB_SIZE: 1}), f"generation.logit_bias[{VOCAB_SIZE}]", "invalid_value"),
    (request(logit_bias={7: 100.5}), "generation.logit_bias[7]", "invalid_value"),
    (request(allowed_token_ids=[VOCAB_SIZE]), "generation.allowed_token_ids[0]", "invalid_value"),
    (request(bad_words=["a", ""]), "generation.bad_words[1]", "invalid_value"),
    (request(bad_words=["a" * 257]), "generation.bad_words[0]", "invalid_value"),
    (request(logit_bias={7: float("nan")}), "generation.logit_bias[7]", "invalid_value"),
]


@pytest.mark.parametrize(("wire", "field", "reason"), REFUSED)
def test_names_the_field_that_cannot_be_served(
    wire: chat_pb2.CreateChatCompletionRequest, field: str, reason: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(wire)
    assert (caught.value.field, caught.value.reason) == (field, reason)
    assert caught.value.message


def test_applies_the_documented_defaults() -> None:
    wire = chat_pb2.CreateChatCompletionRequest(messages=[user("Hello")])
    chat = parse(wire)
    (conversation,) = chat.generation.prompts
    assert chat.generation == replace(GENERATION, prompts=(conversation,))
    assert (chat.include_usage, chat.metadata, chat.echoes_service_tier) == (False, {}, False)
    assert conversation == Conversation(messages=(ChatMessage(role="user", content=("Hello",)),), media=[])


def test_zero_differs_from_unset() -> None:
    sampling = sampling_of(request(temperature=0, top_p=0, seed=0, top_k=0))
    assert (sampling.temperature, sampling.top_p, sampling.seed, sampling.top_k) == (0, 0, 0, 0)


@pytest.mark.parametrize("top_k", [0, -1])
def test_top_k_of_0_and_minus_1_disable_top_k(top_k: int) -> None:
    assert sampling_of(request(top_k=top_k)).top_k == 0


def test_parses_every_generation_option() -> None:
    same: dict[str, Any] = {
        "temperature": 0.5,
        "top_p": 0.25,
        "top_k": 3,
        "min_p": 0.125,
        "frequency_penalty": -1,
        "presence_penalty": 1.5,
        "repetition_penalty": 2,
        "logit_bias": {3: -100, 4: 100},
        "seed": -5,
        "include_stop_str_in_output": True,
        "min_tokens": 2,
        "ignore_eos": True,
        "skip_special_tokens": False,
    }
    wire = request(
        max_completion_tokens=7,
        stop=["a", "b"],
        stop_token_ids=[1, 2],
        logprobs=True,
        top_logprobs=4,
        n=3,
        return_token_ids=True,
        **same,
    )
    generation = parse(wire).generation
    assert (generation.num_completions, generation.return_token_ids) == (3, True)
    expected = SamplingParams(max_tokens=7, stop=("a", "b"), stop_token_ids=(1, 2), logprobs=4, **same)
    assert sampling_of(wire) == expected


def test_logprobs_without_top_logprobs_have_no_alternatives() -> None:
    assert sampling_of(request(logprobs=True)).logprobs == 0
    assert sampling_of(request(logprobs=False)).logprobs is None


def test_images_keep_their_positions() -> None:
    first, second = png(colour=(1, 2, 3)), png(colour=(4, 5, 6))
    wire = request(user("a", image_part(first), "b"), user(image_part(second)))
    conversation = conversation_of(wire)
    slot = MediaSlot(kind=MediaKind.IMAGE)
    assert [message.content for message in conversation.messages] == [("a", slot, "b"), (slot,)]
    assert sources_of(conversation) == [DataSource(data=first), DataSource(data=second)]
    assert [image.field for image in conversation.media] == [
        "messages[0].content[1].image.source",
        "messages[1].content[0].image.source",
    ]


@pytest.mark.parametrize(
    ("detail", "expected"),
    [
        (content_pb2.IMAGE_DETAIL_UNSPECIFIED, Detail.AUTO),
        (content_pb2.IMAGE_DETAIL_AUTO, Detail.AUTO),
        (content_pb2.IMAGE_DETAIL_HIGH, Detail.AUTO),
        (content_pb2.IMAGE_DETAIL_LOW, Detail.LOW),
        (content_pb2.IMAGE_DETAIL_ORIGINAL, Detail.ORIGINAL),
    ],
)
def test_detail_leaves_the_bounds_as_sent(detail: content_pb2.ImageDetail, expected: Detail) -> None:
    wire = with_part(image_part(b"x", detail=detail, max_pixels=5000))
    (image,) = conversation_of(wire).media
    assert isinstance(image, ImageInput)
    assert (image.detail, image.max_pixels) == (expected, 5000)


def test_videos_keep_their_positions_among_images() -> None:
    wire = request(user(image_part(b"p"), "a", video_part(b"v")))
    conversation = conversation_of(wire)
    assert conversation.messages[0].content == (
        MediaSlot(kind=MediaKind.IMAGE),
        "a",
        MediaSlot(kind=MediaKind.VIDEO),
    )
    assert sources_of(conversation) == [DataSource(data=b"p"), DataSource(data=b"v")]
    assert conversation.media[1].field == "messages[0].content[2].video.source"


@pytest.mark.parametrize(
    ("video", "source"),
    [
        ({"source": {"url": "http://a.example/c.mp4"}}, parse_url_text("http://a.example/c.mp4")),
        ({"source": {"url": "YQ=="}}, DataSource(data=b"a")),
        (
            {"source": {"url": "data:video/jpeg;base64,YQ==,Yg=="}},
            FrameSources(frames=(DataSource(data=b"a"), DataSource(data=b"b"))),
        ),
        (
            {"frames": {"frames": [{"data": b"a"}, {"url": "Yg=="}]}},
            FrameSources(frames=(DataSource(data=b"a"), DataSource(data=b"b"))),
        ),
    ],
)
def test_a_video_is_a_file_or_frames(video: dict[str, Any], source: object) -> None:
    assert sources_of(conversation_of(with_part(content_pb2.ContentPart(video=video)))) == [source]


UPLOAD: dict[str, Any] = {"upload_id": "u"}


@pytest.mark.parametrize(
    ("part", "source"),
    [
        (content_pb2.ContentPart(image={"source": UPLOAD}), UploadSource(handle="u")),
        (content_pb2.ContentPart(video={"source": UPLOAD}), UploadSource(handle="u")),
        (
            content_pb2.ContentPart(video={"frames": {"frames": [UPLOAD, {"data": b"a"}]}}),
            FrameSources(frames=(UploadSource(handle="u"), DataSource(data=b"a"))),
        ),
    ],
)
def test_every_medium_may_be_an_upload(part: content_pb2.ContentPart, source: object) -> None:
    (medium,) = conversation_of(with_part(part)).media
    assert isinstance(medium, ImageInput | VideoInput)
    assert (medium.source, medium.uuid) == (source, None)


def test_a_medium_may_be_only_a_uuid() -> None:
    image_ref, video_ref = (
        content_pb2.ContentPart(uuid="a", image={}),
        content_pb2.ContentPart(uuid="a", video={"fps": 5}),
    )
    image, video = conversation_of(request(user(image_ref, video_ref))).media
    assert isinstance(image, ImageInput)
    assert isinstance(video, VideoInput)
    named = CachedSource(uuid="a")
    assert (image.source, image.uuid, image.field) == (named, "a", "messages[0].content[0].uuid")
    assert (video.source, video.uuid, video.field) == (named, "a", "messages[0].content[1].uuid")
    assert video.options == VideoOptions(fps=5)


def test_a_medium_may_be_sent_with_a_uuid() -> None:
    part = image_part(b"x")
    part.uuid = "a"
    (image,) = conversation_of(with_part(part)).media
    assert isinstance(image, ImageInput)
    assert (image.source, image.uuid, image.field) == (DataSource(data=b"x"), "a", f"{PART}.image.source")


def test_parses_every_video_option() -> None:
    options: dict[str, Any] = {"num_frames": 8, "max_frames": 6, "start_seconds": 0.5, "end_seconds": 9.0,
                              "min_pixels": 5000, "max_pixels": 6000, "total_pixels": 70000}  # fmt: skip
    (video,) = conversation_of(with_video(b"x", **options)).media
    (rated,) = conversation_of(with_video(b"x", fps=2.5)).media
    assert isinstance(video, VideoInput)
    assert isinstance(rated, VideoInput)
    assert (video.options, rated.options) == (VideoOptions(**options), VideoOptions(fps=2.5))
    known = {field.name for field in content_pb2.VideoPart.DESCRIPTOR.fields}
    assert known == {"source", "frames"} | set(VideoOptions.__dataclass_fields__)


@pytest.mark.parametrize(
    ("role", "name"),
    [
        (content_pb2.ROLE_SYSTEM, "system"),
        (content_pb2.ROLE_DEVELOPER, "developer"),
        (content_pb2.ROLE_USER, "user"),
        (content_pb2.ROLE_ASSISTANT, "assistant"),
    ],
)
def test_maps_roles_to_the_names_of_chat_templates(role: content_pb2.Role, name: str) -> None:
    parsed = conversation_of(request(content_pb2.Message(role=role, content=[text_part("x")]))).messages[0]
    assert (parsed.role, parsed.content, parsed.name) == (name, ("x",), None)


@pytest.mark.parametrize(
    "wire",
    [
        with_member(tool_choice=chat_pb2.ToolChoice(mode=chat_pb2.TOOL_CHOICE_MODE_NONE)),
        with_member(response_format={"text": {}}),
        with_member(user="me", prompt_cache_key="k"),
        request(n=1),
    ],
)
def test_accepts_options_set_to_their_defaults(wire: chat_pb2.CreateChatCompletionRequest) -> None:
    assert conversation_of(wire).messages


def test_a_stream_may_include_usage() -> None:
    wire = with_member(stream_options={"include_usage": True}, cache_salt="s")
    chat = parse(wire, streaming=True)
    assert (chat.include_usage, chat.generation.cache_salt) == (True, "s")


def test_parses_all_fields_of_generation_options() -> None:
    known = {field.name for field in generation_pb2.GenerationOptions.DESCRIPTOR.fields}
    sampling = set(SamplingParams.__dataclass_fields__)
    assert known - sampling == {"max_completion_tokens", "top_logprobs", "return_token_ids", "return_timings"}


def accepts(name: str, value: Any) -> bool:
    try:
        return bool(SamplingDefaults(**{name: value}))
    except ValidationError:
        return False


def test_the_proto_and_the_defaults_of_checkpoints_have_the_same_ranges() -> None:
    others = {"max_completion_tokens": "max_tokens"}
    compared = {"min_tokens"}  # a uint32 that no rule bounds
    for field in generation_pb2.GenerationOptions.DESCRIPTOR.fields:
        rules, name = Dialect().field(field), others.get(field.name, field.name)
        step = 0.001 if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT else 1
        for bound, beyond in ((rules.min, -step), (rules.max, step)):
            if bound is not None and name in SamplingDefaults.__dataclass_fields__:
                value_type = type(step)
                assert accepts(name, value_type(bound)), field.name
                assert not accepts(name, value_type(bound + beyond)), field.name
                compared.add(name)
    assert compared == SamplingDefaults.__dataclass_fields__.keys()


SCHEMA = '{"type": "object"}'


@pytest.mark.parametrize(
    ("members", "kind", "text"),
    [
        ({"response_format": {"json_object": {}}}, GrammarKind.JSON_OBJECT, ""),
        ({"response_format": {"json_schema": {"schema": SCHEMA}}}, GrammarKind.JSON_SCHEMA, SCHEMA),
        ({"structured_outputs": {"json": SCHEMA}}, GrammarKind.JSON_SCHEMA, SCHEMA),
        ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, GrammarKind.JSON_SCHEMA, SCHEMA),
        ({"structured_outputs": {"json_object": True}}, GrammarKind.JSON_OBJECT, ""),
        ({"structured_outputs": {"regex": "a+"}}, GrammarKind.REGEX, "a+"),
        ({"structured_outputs": {"choice": {"values": ["ä", "b"]}}}, GrammarKind.CHOICE, '["ä", "b"]'),
        ({"structured_outputs": {"grammar": 'start: "a"'}}, GrammarKind.LARK, 'start: "a"'),
        ({"structured_outputs": {"regex": "a"}, "response_format": {"text": {}}}, GrammarKind.REGEX, "a"),
    ],
)
def test_a_response_format_becomes_a_grammar(members: dict[str, Any], kind: GrammarKind, text: str) -> None:
    constraint = parse(with_member(**members)).generation.constraint
    assert constraint is not None
    assert constraint.grammar == Grammar(kind=kind, text=text)


def test_shows_tools_unless_tool_choice_is_none() -> None:
    called = parse(with_member(tools=[TOOL])).generation
    assert called.tools is not None
    assert (called.tools.choice, conversation_of(with_member(tools=[TOOL])).options.tools) == (
        ToolMode.AUTO,
        called.tools.definitions,
    )
    none = with_member(tools=[TOOL], tool_choice={"mode": chat_pb2.TOOL_CHOICE_MODE_NONE})
    assert (parse(none).generation.tools, conversation_of(none).options.tools) == (None, ())
    formed = parse(with_member(tools=[TOOL], tool_choice=none.tool_choice, response_format={"json_object": {}}))
    assert formed.generation.constraint is not None


def test_parses_how_the_prompt_ends() -> None:
    answered = content_pb2.Message(role=content_pb2.ROLE_ASSISTANT, content=[text_part("So")])
    open_end = request(user("Hello"), answered)
    open_end.continue_final_message = True
    bare = with_member(add_generation_prompt=False)
    ends = [conversation_of(wire) for wire in (request(), open_end, bare)]
    assert [(end.options.add_generation_prompt, end.options.continue_final_message) for end in ends] == [
        (True, False),
        (False, True),
        (False, False),
    ]


def test_passes_variables_to_the_template() -> None:
    wire = with_member(chat_template_kwargs='{"enable_thinking": false}', reasoning_effort=4)
    support = ReasoningSupport(has_effort=True)
    chat = parse_chat(wire, CallContext(), replace(MODEL, reasoning=support), streaming=False)
    (conversation,) = chat.generation.prompts
    assert isinstance(conversation, Conversation)
    assert conversation.options.template_kwargs == {"enable_thinking": False, "reasoning_effort": "medium"}


def parse_for(
    support: ReasoningSupport, wire: chat_pb2.CreateChatCompletionRequest, call: CallContext | None = None
) -> GenerationRequest:
    model = replace(MODEL, reasoning=support, template_variables=frozenset({"enable_thinking"}))
    return parse_chat(wire, call or CallContext(), model, streaming=False).generation


def test_the_efforts_are_those_of_openai_s_client() -> None:
    efforts = {name for each in get_args(ReasoningEffort) for name in get_args(each)}
    assert efforts == set(enum_names(chat_pb2.ReasoningEffort.DESCRIPTOR).values())


@pytest.mark.parametrize(
    ("support", "variables"),
    [
        (ReasoningSupport(), {}),
        (ReasoningSupport(has_switch=True, is_parsed=True), {"enable_thinking": False}),
        (ReasoningSupport(has_effort=True), {"reasoning_effort": "none"}),
        (ReasoningSupport(has_effort=True, has_switch=True), {"reasoning_effort": "none", "enable_thinking": False}),
    ],
)
def test_effort_none_turns_off_reasoning(support: ReasoningSupport, variables: dict[str, Any]) -> None:
    (conversation,) = parse_for(support, with_member(reasoning_effort=chat_pb2.REASONING_EFFORT_NONE)).prompts
    assert isinstance(conversation, Conversation)
    assert conversation.options.template_kwargs == variables


@pytest.mark.parametrize(
    ("support", "chosen", "variables", "ignored"),
    [
        (ReasoningSupport(), "{}", {}, ["reasoning_effort"]),
        (ReasoningSupport(has_switch=True, is_parsed=True), "{}", {"enable_thinking": True}, ["reasoning_effort"]),
        (
            ReasoningSupport(has_switch=True),
            '{"enable_thinking": false}',
            {"enable_thinking": False},
            ["reasoning_effort"],
        ),
        (ReasoningSupport(has_effort=True), "{}", {"reasoning_effort": "high"}, []),
    ],
)
def test_an_effort_turns_on_reasoning_and_is_told_where_the_template_has_no_efforts(
    support: ReasoningSupport, chosen: str, variables: dict[str, Any], ignored: list[str]
) -> None:
    call = CallContext()
    wire = with_member(reasoning_effort=chat_pb2.REASONING_EFFORT_HIGH, chat_template_kwargs=chosen)
    (conversation,) = parse_for(support, wire, call).prompts
    assert isinstance(conversation, Conversation)
    assert conversation.options.template_kwargs == variables
    assert call.ignored_fields == ignored


def test_variables_that_no_template_reads_are_told() -> None:
    templates = ChatTemplates(
        default=ChatTemplate("{{ style }}", {}), tools=ChatTemplate("{{ enable_thinking }}{{ tone }}", {})
    )
    wire = with_member(chat_template_kwargs='{"style": 1, "tone": 2, "enable_thinking": false, "persona": 3}')
    call = CallContext()
    parse_chat(wire, call, replace(MODEL, template_variables=templates.variables), streaming=False)
    assert call.ignored_fields == ["chat_template_kwargs.persona"]


def test_a_variable_that_resembles_one_that_a_template_reads_is_refused() -> None:
    model = replace(MODEL, template_variables=ChatTemplate("{{ messages }}{{ enable_thinking }}", {}).variables)
    wire = with_member(chat_template_kwargs='{"message": 1, "enableThinking": false}')
    with pytest.raises(InvalidRequest, match="unknown variable; did you mean 'enable_thinking'") as refused:
        parse_chat(wire, CallContext(), model, streaming=False)
    assert refused.value.field == "chat_template_kwargs.enableThinking"


@pytest.mark.parametrize(("value", "ignored"), [("true", []), ("false", ["chat_template_kwargs.enable_thinking"])])
def test_a_model_that_always_reasons_is_told_to_by_any_template(value: str, ignored: list[str]) -> None:
    model = replace(MODEL, reasoning=ReasoningSupport(is_parsed=True))
    wire, call = with_member(chat_template_kwargs=f'{{"enable_thinking": {value}}}'), CallContext()
    parse_chat(wire, call, model, streaming=False)
    assert call.ignored_fields == ignored


@pytest.mark.parametrize(
    ("members", "field", "code"),
    [
        ({"reasoning_effort": chat_pb2.REASONING_EFFORT_NONE}, "reasoning_effort", "unsupported"),
        ({"include_reasoning": False, "generation": {"logprobs": True}}, "include_reasoning", "conflicting_values"),
        (
            {"include_reasoning": False, "generation": {"return_token_ids": True}},
            "include_reasoning",
            "conflicting_values",
        ),
    ],
)
def test_refuses_what_a_model_that_always_reasons_cannot_do(members: dict[str, Any], field: str, code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_for(ReasoningSupport(is_parsed=True), with_member(**members))
    assert (caught.value.field, caught.value.reason) == (field, code)


def test_parses_earlier_reasoning_and_what_is_asked_of_new_one() -> None:
    earlier = content_pb2.Message(role=content_pb2.ROLE_ASSISTANT, content=[text_part("a")], reasoning="b")
    wire = request(user("Hello"), earlier, user("So?"))
    wire.include_reasoning, wire.thinking_token_budget = False, 0
    generation = parse_for(ReasoningSupport(is_parsed=True), wire)
    (conversation,) = generation.prompts
    assert isinstance(conversation, Conversation)
    assert [message.reasoning for message in conversation.messages] == [None, "b", None]
    assert generation.reasoning == ReasoningOptions(include=False, max_tokens=0)


def test_defaults_apply_to_media_without_own_options() -> None:
    wire = request(user(image_part(b"a"), image_part(b"b", max_pixels=9999), video_part(b"c", num_frames=2)))
    wire.media_processor_options.min_pixels, wire.media_processor_options.max_pixels = 100, 200
    wire.media_io_options.video.fps = 3
    first, second, video = conversation_of(wire).media
    assert isinstance(first, ImageInput)
    assert isinstance(second, ImageInput)
    assert isinstance(video, VideoInput)
    assert (first.min_pixels, first.max_pixels) == (100, 200)
    assert (second.min_pixels, second.max_pixels) == (100, 9999)
    assert video.options == VideoOptions(num_frames=2, min_pixels=100, max_pixels=200)
    (rated,) = conversation_of(_with_rate(video_part(b"c"))).media
    assert isinstance(rated, VideoInput)
    assert rated.options == VideoOptions(fps=3)


def test_a_background_applies_to_all_images() -> None:
    wire = request(user(image_part(b"a"), image_part(b"b")))
    wire.media_io_options.image.rgba_background_color.extend((0, 128, 255))
    assert [image.background for image in _images(wire)] == [(0, 128, 255)] * 2
    wire.ClearField("media_io_options")
    assert [image.background for image in _images(wire)] == [None] * 2


def _images(wire: chat_pb2.CreateChatCompletionRequest) -> list[ImageInput]:
    return [medium for medium in conversation_of(wire).media if isinstance(medium, ImageInput)]


def test_refuses_defaults_that_contradict_a_medium() -> None:
    wire = request(user(image_part(b"a", max_pixels=50)))
    wire.media_processor_options.min_pixels = 100
    with pytest.raises(InvalidRequest) as caught:
        parse(wire)
    assert caught.value.field == "media_processor_options.min_pixels"


def _with_rate(part: content_pb2.ContentPart) -> chat_pb2.CreateChatCompletionRequest:
    wire = with_part(part)
    wire.media_processor_options.fps = 3
    return wire
