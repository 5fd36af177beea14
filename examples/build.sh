#!/usr/bin/env bash
# Builds a gRPC client in another language from the protos: build.sh LANGUAGE FOLDER. LANGUAGE is go, java or cpp; the
# program is FOLDER/ask. Debian's packages suffice, README.md names them.
set -euo pipefail
language=$1
mkdir -p "$2"
out=$(cd "$2" && pwd)
cd "$(dirname "$0")"
here=$PWD
cd ../api
service=glimpse/v1/chat.proto
api=(glimpse/json/v1/annotations.proto glimpse/v1/{chat,content,generation,model}.proto)
google=(google/api/{annotations,field_behavior,http}.proto google/rpc/{status,error_details}.proto)
protoc() { command protoc -I. -I../third_party "$@"; }

case $language in
go)
    # A GOPATH of its own, with Debian's Go packages behind it. The Google protos are among them.
    mkdir -p "$out/src/ask"
    protoc --go_out="$out/src" "${api[@]}"
    protoc --go-grpc_out="$out/src" "$service"
    cp "$here/go/ask.go" "$out/src/ask/"
    cd "$out/src/ask"
    GO111MODULE=off GOFLAGS=-p=2 GOPATH="$out:/usr/share/gocode" go build -o "$out/ask" .
    ;;
java)
    jars=$(printf '/usr/share/java/%s.jar:' grpc-{api,context,core,netty,protobuf,protobuf-lite,stub} \
        protobuf guava gson perfmark-api geronimo-annotation-1.3-spec \
        netty-{buffer,codec,codec-http,codec-http2,common,handler,resolver,transport})
    mkdir -p "$out/src" "$out/classes"
    protoc --java_out="$out/src" "${api[@]}" "${google[@]}"
    protoc --plugin=protoc-gen-grpc="$(command -v grpc_java_plugin)" --grpc_out="$out/src" "$service"
    javac -J-XX:TieredStopAtLevel=1 -nowarn -cp "$jars" -d "$out/classes" "$here/java/Ask.java" $(find "$out/src" -name '*.java')
    printf '#!/bin/sh\nexec java -XX:TieredStopAtLevel=1 -cp "%s" Ask "$@"\n' "$out/classes:$jars" >"$out/ask"
    chmod +x "$out/ask"
    ;;
cpp)
    mkdir -p "$out/src"
    protoc --cpp_out="$out/src" "${api[@]}" "${google[@]}"
    protoc --plugin=protoc-gen-grpc="$(command -v grpc_cpp_plugin)" --grpc_out="$out/src" "$service"
    cd "$out/src"
    # Beside their sources: two folders have an annotations.pb.cc.
    find . -name '*.pb.cc' -print0 | xargs -0 -P2 -n1 sh -c 'g++ -std=c++17 -O0 -w -I. -c "$0" -o "${0%.cc}.o"'
    g++ -std=c++17 -I. "$here/cpp/ask.cpp" $(find . -name '*.o') -lgrpc++ -lgrpc -lgpr -lprotobuf -labsl_synchronization -o "$out/ask"
    ;;
*)
    echo "build.sh: expected go, java or cpp, got '$language'" >&2
    exit 2
    ;;
esac
