"""A protoc plugin that generates `*_pb2_grpc.py`.

The protoc of grpcio-tools has this generator built in, but buf needs a plugin program. This one reads the plugin
request, runs the built-in generator on the same descriptors and returns the files that it writes: those of protos with
services, without the classes of an experimental API, a third of each file, which nobody uses.
"""

import re
import sys
import tempfile
from pathlib import Path

from google.protobuf.compiler import plugin_pb2
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from grpc_tools import protoc

_EXPERIMENTAL = re.compile(
    r"\n\n # This class is part of an EXPERIMENTAL API\.\nclass .*?(?=\n\n\nclass |\Z)", re.DOTALL
)


def main() -> None:
    request = plugin_pb2.CodeGeneratorRequest.FromString(sys.stdin.buffer.read())
    response = plugin_pb2.CodeGeneratorResponse(
        supported_features=plugin_pb2.CodeGeneratorResponse.FEATURE_PROTO3_OPTIONAL
    )
    with tempfile.TemporaryDirectory() as folder:
        descriptors = Path(folder, "descriptors.binpb")
        descriptors.write_bytes(FileDescriptorSet(file=request.proto_file).SerializeToString())
        out = Path(folder, "out")
        out.mkdir()
        arguments = ["protoc", f"--descriptor_set_in={descriptors}", f"--grpc_python_out={out}"]
        if protoc.main([*arguments, *request.file_to_generate]) != 0:
            response.error = "the gRPC Python generator failed"
        for path in sorted(out.rglob("*.py")):
            content = _EXPERIMENTAL.sub("", path.read_text())
            if "class " in content:
                response.file.add(name=str(path.relative_to(out)), content=content)
    sys.stdout.buffer.write(response.SerializeToString())


main()
