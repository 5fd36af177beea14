from glimpse.json.v1 import annotations_pb2 as _annotations_pb2
from glimpse.openai.v1 import responses_pb2 as _responses_pb2
from glimpse.v1 import batch_pb2 as _batch_pb2
from glimpse.v1 import media_pb2 as _media_pb2
from glimpse.v1 import model_pb2 as _model_pb2
from google.api import annotations_pb2 as _annotations_pb2_1
from google.api import httpbody_pb2 as _httpbody_pb2
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor
