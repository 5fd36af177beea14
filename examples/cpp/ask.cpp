// Asks about an image over gRPC, and prints the answer as it is generated: ask [--FLAG=VALUE]... QUESTION IMAGE
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "glimpse/v1/chat.grpc.pb.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace {

using Flags = std::map<std::string, std::string>;

glimpse::v1::CreateChatCompletionRequest chat_request(const std::string& question, const std::string& image,
                                                      unsigned max_tokens) {
  glimpse::v1::CreateChatCompletionRequest request;
  auto* message = request.add_messages();
  message->set_role(glimpse::v1::ROLE_USER);
  message->add_content()->mutable_image()->mutable_source()->set_data(image);
  message->add_content()->set_text(question);
  request.mutable_generation()->set_temperature(0);
  request.mutable_generation()->set_max_completion_tokens(max_tokens);
  return request;
}

std::shared_ptr<grpc::Channel> connect(const std::string& target) {
  grpc::ChannelArguments arguments;
  // Pings keep the connection open through proxies that close silent ones.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

grpc::Status ask(const Flags& flags, const glimpse::v1::CreateChatCompletionRequest& request) {
  const auto stub = glimpse::v1::ChatService::NewStub(connect(flags.at("target")));
  const int cancel_after = std::stoi(flags.at("cancel-after"));
  grpc::ClientContext context;
  const auto milliseconds = static_cast<long>(1000 * std::stod(flags.at("deadline")));
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(milliseconds));
  const auto stream = stub->StreamChatCompletion(&context, request);
  glimpse::v1::StreamChatCompletionResponse chunk;
  for (int pieces = 0; stream->Read(&chunk);) {
    for (const auto& choice : chunk.choices()) {
      if (choice.delta().content().empty()) continue;
      std::cout << choice.delta().content() << std::flush;
      if (++pieces == cancel_after) context.TryCancel();
    }
  }
  return stream->Finish();
}

// Prints the status, and the reason and the field that the server attaches to it.
void explain(const std::string& target, const grpc::Status& failure) {
  if (failure.error_code() == grpc::StatusCode::UNAVAILABLE) {
    std::cerr << "no answer from " << target << ": " << failure.error_message()
              << "\nIs the server running? `make up` starts one.\n";
    return;
  }
  std::cerr << "status " << failure.error_code() << ": " << failure.error_message() << "\n";
  google::rpc::Status status;
  status.ParseFromString(failure.error_details());
  for (const auto& detail : status.details()) {
    google::rpc::ErrorInfo info;
    google::rpc::BadRequest bad_request;
    if (detail.UnpackTo(&info)) std::cerr << "reason: " << info.reason() << "\n";
    if (!detail.UnpackTo(&bad_request)) continue;
    for (const auto& violation : bad_request.field_violations()) {
      std::cerr << "field: " << violation.field() << "\n";
    }
  }
}

}  // namespace

int main(int count, char** arguments) {
  Flags flags{{"target", "127.0.0.1:50051"}, {"deadline", "60"}, {"cancel-after", "0"}, {"max-tokens", "64"}};
  std::vector<std::string> texts;
  for (const std::string argument : std::vector<std::string>(arguments + 1, arguments + count)) {
    const auto equals = argument.find('=');
    const bool is_flag = argument.rfind("--", 0) == 0 && equals != std::string::npos;
    if (is_flag && flags.count(argument.substr(2, equals - 2))) {
      flags[argument.substr(2, equals - 2)] = argument.substr(equals + 1);
    } else {
      texts.push_back(argument);
    }
  }
  if (texts.size() != 2) {
    std::cerr << "usage: ask [--target=HOST:PORT] [--deadline=SECONDS] [--cancel-after=PIECES] [--max-tokens=N]"
                 " QUESTION IMAGE\n";
    return 2;
  }
  std::ifstream file(texts[1], std::ios::binary);
  if (!file) {
    std::cerr << "cannot read " << texts[1] << "\n";
    return 2;
  }
  const std::string image{std::istreambuf_iterator<char>(file), {}};
  const auto failure = ask(flags, chat_request(texts[0], image, std::stoul(flags["max-tokens"])));
  if (!failure.ok()) {
    explain(flags.at("target"), failure);
    return 1;
  }
  std::cout << "\n";
}
