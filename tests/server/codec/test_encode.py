"""Encoding messages as JSON documents, byte for byte."""

import math
import struct

import pytest

from glimpse.v1 import chat_pb2, completion_pb2, content_pb2, embedding_pb2, generation_pb2, model_pb2
from tests.server.codec.decoding import decode, encode
from tests.server.codec.sample_dialect import sample


def test_encodes_a_response() -> None:
    answer = chat_pb2.CreateChatCompletionResponse(id="chatcmpl-1", created=1700000000, model="qwen")
    choice = answer.choices.add(finish_reason=generation_pb2.FINISH_REASON_STOP)
    choice.message.role = content_pb2.ROLE_ASSISTANT
    choice.message.content = "A cat → “Mia”."
    answer.usage.prompt_tokens = 70
    answer.usage.total_tokens = 70
    answer.usage.prompt_tokens_details.image_tokens = 64
    assert encode(answer) == (
        b'{"object":"chat.completion","id":"chatcmpl-1","created":1700000000,"model":"qwen","choices":[{"index":0,'
        b'"message":{"role":"assistant","content":"A cat \xe2\x86\x92 \xe2\x80\x9cMia\xe2\x80\x9d.","refusal":null},'
        b'"logprobs":null,"finish_reason":"stop"}],"usage":{"prompt_tokens":70,"completion_tokens":0,"total_tokens":70,'
        b'"prompt_tokens_details":{"cached_tokens":0,"image_tokens":64,"video_tokens":0,"audio_tokens":0}}}'
    )


def test_log_probabilities() -> None:
    logprobs = generation_pb2.Logprobs()
    token = logprobs.content.add(token=" a", logprob=-0.1, bytes=[32, 97])
    token.top_logprobs.add(token="é", logprob=-2.3025851, bytes=[195, 169])
    assert encode(logprobs) == (
        b'{"content":[{"token":" a","logprob":-0.1,"bytes":[32,97],"top_logprobs":'
        b'[{"token":"\xc3\xa9","logprob":-2.3025851,"bytes":[195,169]}]}]}'
    )


def test_elements_that_are_not_there_are_null() -> None:
    logprobs = completion_pb2.CompletionLogprobs(tokens=["a", "b"], token_logprobs=[math.nan, -1], text_offset=[0, 1])
    logprobs.top_logprobs.add()
    logprobs.top_logprobs.add(logprobs={"b": -1})
    text = b'{"tokens":["a","b"],"token_logprobs":[null,-1.0],"top_logprobs":[null,{"b":-1.0}],"text_offset":[0,1]}'
    assert encode(logprobs) == text
    read = decode(text, completion_pb2.CompletionLogprobs).message
    assert math.isnan(read.token_logprobs[0])
    assert read.top_logprobs == logprobs.top_logprobs


def test_packed_float32_values_are_an_array_of_numbers() -> None:
    values = struct.pack("<3f", 0.5, -2.0, 0.1)
    embedding = embedding_pb2.Embedding(index=1, values=values)
    assert encode(embedding) == b'{"object":"embedding","index":1,"embedding":[0.5,-2.0,0.10000000149011612]}'
    assert encode(embedding_pb2.Embedding(base64="AAAAPw==")) == (
        b'{"object":"embedding","index":0,"embedding":"AAAAPw=="}'
    )
    with pytest.raises(ValueError, match="not finite"):
        encode(embedding_pb2.Embedding(values=struct.pack("<f", math.nan)))


def test_tool_calls_with_null_content() -> None:
    message = chat_pb2.AssistantMessage(role=content_pb2.ROLE_ASSISTANT)
    call = message.tool_calls.add(id="call_1")
    call.function.name = "look"
    call.function.arguments = '{"at":"sky"}'
    assert encode(message) == (
        b'{"role":"assistant","content":null,"refusal":null,"tool_calls":[{"id":"call_1","type":"function",'
        b'"function":{"name":"look","arguments":"{\\"at\\":\\"sky\\"}"}}]}'
    )


def test_encodes_chunks_of_a_stream() -> None:
    head = chat_pb2.StreamChatCompletionResponse(id="c", created=1, model="m")
    start = b'{"object":"chat.completion.chunk","id":"c","created":1,"model":"m",'
    first, last, usage = (chat_pb2.StreamChatCompletionResponse() for _ in range(3))
    for piece in (first, last, usage):
        piece.CopyFrom(head)
    first.choices.add().delta.role = content_pb2.ROLE_ASSISTANT
    last.choices.add(finish_reason=generation_pb2.FINISH_REASON_LENGTH).delta.content = "."
    usage.usage.SetInParent()
    assert encode(first) == start + (
        b'"choices":[{"index":0,"delta":{"role":"assistant"},"logprobs":null,"finish_reason":null}]}'
    )
    assert encode(last) == start + (
        b'"choices":[{"index":0,"delta":{"content":"."},"logprobs":null,"finish_reason":"length"}]}'
    )
    assert encode(usage) == start + (
        b'"choices":[],"usage":{"prompt_tokens":0,"completion_tokens":0,"total_tokens":0}}'
    )


def test_flattened_message_keeps_its_constants() -> None:
    model = model_pb2.Model(id="m", created=5, owned_by="us", input_modalities=[model_pb2.MODALITY_IMAGE])
    text = (
        b'{"object":"model","id":"m","created":5,"owned_by":"us","max_model_len":0,"input_modalities":["image"],'
        b'"output_modalities":[]}'
    )
    assert encode(model_pb2.GetModelResponse(model=model)) == text
    assert encode(model_pb2.ListModelsResponse(data=[model])) == b'{"object":"list","data":[' + text + b"]}"


def test_raw_text_is_copied_verbatim() -> None:
    schema = chat_pb2.JsonSchema(name="s", schema='{"z": 1.0, "a": [ ]}')
    assert encode(schema) == b'{"name":"s","schema":{"z": 1.0, "a": [ ]}}'


def test_encodes_every_kind_of_field() -> None:
    message = sample("Everything")(
        i64=-(2**63), u64=2**64 - 1, f32=0.1, f64=0.1, data=b"\xff\x00", colour=1, colours=[2, 1]
    )
    message.by_number[3] = "c"
    message.by_number[-2] = "b"
    message.by_flag[True] = "yes"
    message.value.texts.texts.append("t")
    message.inner.radius = 1.5
    assert encode(message).decode() == (
        '{"object":"everything","text":"","nickname":null,"flag":false,"i32":0,"u32":0,"i64":-9223372036854775808,'
        '"u64":18446744073709551615,"f32":0.1,"f64":0.1,"data":"/wA=","colour":"dark_red","second_colour":null,'
        '"colours":["blue","dark_red"],"by_number":{"-2":"b","3":"c"},"by_flag":{"true":"yes"},"children":{},'
        '"schema":null,"value":["t"],"label":"","kind":"radius","radius":1.5,"shapes":[]}'
    )


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("field", ["f32", "f64"])
def test_refuses_to_encode_infinity_and_nan(field: str, value: float) -> None:
    with pytest.raises(ValueError, match="JSON has no number"):
        encode(sample("Everything")(**{field: value}))


def test_refuses_to_encode_an_unknown_enum_value() -> None:
    with pytest.raises(ValueError, match=r"sample\.Colour has no JSON name for 7"):
        encode(sample("Everything")(colour=7))
