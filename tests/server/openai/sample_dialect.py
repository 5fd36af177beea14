"""A small API of the tests' own, compiled at test time, with every option of the dialect."""

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message_factory import GetMessageClass
from grpc_tools import protoc

from tests.paths import ROOT

_API = ROOT / "api"

_PROTO = """
syntax = "proto3";
package sample;
import "glimpse/json/v1/annotations.proto";

enum Colour {
  COLOUR_UNSPECIFIED = 0;
  COLOUR_DARK_RED = 1;
  COLOUR_BLUE = 2 [(glimpse.json.v1.enum_value).aliases = "azure"];
}

message Everything {
  option (glimpse.json.v1.message) = {constants: {name: "object" value: "everything"}};
  string text = 1;
  optional string nickname = 2 [(glimpse.json.v1.field) = {nullable: true}];
  bool flag = 3;
  int32 i32 = 4;
  uint32 u32 = 5;
  int64 i64 = 6;
  uint64 u64 = 7;
  float f32 = 8;
  double f64 = 9;
  bytes data = 10;
  Colour colour = 11;
  optional Colour second_colour = 12 [(glimpse.json.v1.field) = {nullable: true}];
  repeated Colour colours = 13;
  repeated string words = 14 [(glimpse.json.v1.field) = {accept_scalar: true omit_empty: true}];
  map<int32, string> by_number = 15;
  map<bool, string> by_flag = 16;
  map<string, Everything> children = 17;
  string secret = 18 [(glimpse.json.v1.field) = {grpc_only: true}];
  string schema = 19 [(glimpse.json.v1.field) = {raw: true}];
  Everything next = 20 [(glimpse.json.v1.field) = {name: "then" aliases: "after"}];
  Value value = 21;
  Inner inner = 22 [(glimpse.json.v1.field) = {flatten: true}];
}

message Value {
  option (glimpse.json.v1.message) = {union: true};
  oneof value {
    string text = 1;
    double number = 2;
    bool flag = 3;
    Texts texts = 4;
    Inner inner = 5;
  }
}

message Texts {
  option (glimpse.json.v1.message) = {union: true};
  repeated string texts = 1;
}

message Inner {
  string label = 1;
  oneof shape {
    option (glimpse.json.v1.oneof) = {tag: "kind"};
    Nothing none = 2;
    double radius = 3;
  }
}

message Nothing {}
"""


@cache
def sample(name: str) -> Any:
    """The class of one of the messages."""
    return GetMessageClass(_pool().FindMessageTypeByName(f"sample.{name}"))


@cache
def _pool() -> descriptor_pool.DescriptorPool:
    with TemporaryDirectory() as folder:
        Path(folder, "sample.proto").write_text(_PROTO)
        out = Path(folder, "sample.binpb")
        arguments = ["protoc", f"-I{folder}", f"-I{_API}", "--include_imports", f"--descriptor_set_out={out}"]
        if protoc.main([*arguments, f"-I{Path(protoc.__file__).parent / '_proto'}", "sample.proto"]) != 0:
            raise RuntimeError("the sample does not compile")
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    return pool
