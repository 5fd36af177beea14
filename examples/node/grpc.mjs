// Asks over typed gRPC, the picture as plain bytes: node grpc.mjs [--stream] QUESTION [PICTURE]
// GLIMPSE_TARGET overrides the address.
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const { values, positionals } = parseArgs({ allowPositionals: true, options: { stream: { type: "boolean" } } });
const [question, picture] = positionals;

const folder = (path) => fileURLToPath(new URL(path, import.meta.url));
const definition = loadSync("glimpse/v1/chat.proto", {
  includeDirs: [folder("../../api"), folder("../../third_party")],
  keepCase: true,
  enums: String,
});
const { ChatService } = grpc.loadPackageDefinition(definition).glimpse.v1;
const target = process.env.GLIMPSE_TARGET ?? "127.0.0.1:50051";
const client = new ChatService(target, grpc.credentials.createInsecure());

const content = [{ text: question }];
if (picture) content.unshift({ image: { source: { data: readFileSync(picture) } } });
const request = {
  messages: [{ role: "ROLE_USER", content }],
  generation: { temperature: 0, max_completion_tokens: 64 },
};

if (values.stream) {
  for await (const chunk of client.StreamChatCompletion(request)) {
    process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
  }
} else {
  const answer = await new Promise((resolve, reject) =>
    client.CreateChatCompletion(request, (error, response) => (error ? reject(error) : resolve(response))),
  );
  process.stdout.write(answer.choices[0].message.content);
}
client.close();
