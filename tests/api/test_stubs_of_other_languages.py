"""The protos compile to Go, Java and C# without mapping options."""

import shutil
import subprocess
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileOptions

from glimpse.gateway.openapi.document import compiled_protos
from tests.paths import ROOT

PROTOS = sorted(str(path.relative_to(ROOT / "api")) for path in (ROOT / "api/glimpse").rglob("*.proto"))
OPTIONS: dict[str, FileOptions] = {
    file.name: file.options for file in compiled_protos(ROOT).file if file.name.startswith("glimpse/")
}


def stubs(folder: Path, *options: str) -> set[str]:
    """Returns the names of the files that protoc writes."""
    paths = [f"-I{ROOT / 'api'}", f"-I{ROOT / 'third_party'}"]
    subprocess.run(["protoc", *paths, *options, *PROTOS], check=True, cwd=folder)
    return {str(path.relative_to(folder)) for path in folder.rglob("*.*")}


def needs(*programs: str) -> pytest.MarkDecorator:
    missing = [program for program in programs if shutil.which(program) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


@pytest.mark.parametrize("proto", PROTOS)
def test_every_file_names_its_package_in_each_language(proto: str) -> None:
    options = OPTIONS[proto]
    package = proto.rpartition("/")[0]
    assert options.go_package.partition(";")[0] == package
    assert options.java_package == package.replace("/", ".")
    assert options.java_multiple_files
    assert options.csharp_namespace.lower() == package.replace("/", ".")


@needs("protoc")
def test_java_stubs_are_generated(tmp_path: Path) -> None:
    files = stubs(tmp_path, "--java_out=.")
    assert {"glimpse/v1/CreateChatCompletionRequest.java", "glimpse/v1/ChatProto.java"} <= files


@needs("protoc")
def test_csharp_stubs_are_generated(tmp_path: Path) -> None:
    assert {"V1/Chat.cs", "OpenAI/V1/Openai.cs"} <= stubs(
        tmp_path, "--csharp_out=.", "--csharp_opt=base_namespace=Glimpse"
    )


@needs("protoc", "protoc-gen-go")
def test_go_stubs_are_generated(tmp_path: Path) -> None:
    files = stubs(tmp_path, "--go_out=.")
    assert files == {proto.replace(".proto", ".pb.go") for proto in PROTOS}
    assert "package glimpsev1" in (tmp_path / "glimpse/v1/chat.pb.go").read_text()
