"""A small API, compiled at test time, that uses every rule of the dialect."""

from functools import cache
from importlib import resources
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message_factory import GetMessageClass
from grpc_tools import protoc

from glimpse.dialect.rules import Dialect
from glimpse.server.codec.codec import Codec

_PROTO = """
syntax = "proto3";
package sample;

enum Colour {
  COLOUR_UNSPECIFIED = 0;
  COLOUR_DARK_RED = 1;
  COLOUR_BLUE = 2;
}

message Everything {
  string text = 1;
  optional string nickname = 2;
  bool flag = 3;
  int32 i32 = 4;
  uint32 u32 = 5;
  int64 i64 = 6;
  uint64 u64 = 7;
  float f32 = 8;
  double f64 = 9;
  bytes data = 10;
  Colour colour = 11;
  optional Colour second_colour = 12;
  repeated Colour colours = 13;
  repeated string words = 14;
  map<int32, string> by_number = 15;
  map<bool, string> by_flag = 16;
  map<string, Everything> children = 17;
  string schema = 19;
  Everything next = 20;
  Value value = 21;
  Inner inner = 22;
  bytes numbers = 23;
  repeated Shape shapes = 24;
}

message Shape {
  oneof shape {
    Circle circle = 1;
    Group group = 2;
    Nothing dot = 3;
  }
}

message Circle {
  double radius = 1;
  string schema = 2;
}

message Group {
  repeated Shape shapes = 1;
}

message Value {
  oneof value {
    string text = 1;
    double number = 2;
    bool flag = 3;
    Texts texts = 4;
    Inner inner = 5;
  }
}

message Texts {
  repeated string texts = 1;
}

message Inner {
  string label = 1;
  oneof shape {
    Nothing none = 2;
    double radius = 3;
  }
}

message Nothing {}
"""

_RULES = """
messages {
  name: "sample.Everything"
  constants { name: "object" value: "everything" }
  fields { name: "nickname" nullable: true }
  fields { name: "second_colour" nullable: true }
  fields { name: "words" accept_scalar: true omit_empty: true }
  fields { name: "schema" raw: true }
  fields { name: "next" json_name: "then" aliases: "after" shortcuts { name: "then_text" field: "text" } }
  fields { name: "inner" flatten: true }
  fields { name: "numbers" float32s: true omit_empty: true }
}
messages {
  name: "sample.Shape"
  oneofs { name: "shape" tag: "kind" internal: true forms { tag: "square" reason: "Use circle." } }
}
messages {
  name: "sample.Circle"
  fields { name: "schema" raw: true }
}
messages { name: "sample.Value" union: true }
messages { name: "sample.Texts" union: true }
messages {
  name: "sample.Inner"
  oneofs { name: "shape" tag: "kind" }
}
enums {
  name: "sample.Colour"
  values { name: "COLOUR_BLUE" aliases: "azure" }
}
"""

_RULE_FILES = (
    resources.files("glimpse.dialect") / f"{name}.txtpb" for name in ("openai", "openai_responses", "anthropic")
)
CODEC = Codec(Dialect("".join(file.read_text(encoding="utf-8") for file in _RULE_FILES) + _RULES))
"""The dialects of the API and of the sample, which describe different messages."""


@cache
def sample(name: str) -> Any:
    """Returns the class of one of the messages."""
    return GetMessageClass(_pool().FindMessageTypeByName(f"sample.{name}"))


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    with TemporaryDirectory() as folder:
        Path(folder, "sample.proto").write_text(_PROTO)
        out = Path(folder, "sample.binpb")
        if protoc.main(["protoc", f"-I{folder}", f"--descriptor_set_out={out}", "sample.proto"]) != 0:
            raise RuntimeError("the sample does not compile")
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool
