// Asks over gRPC, with the image as bytes: node grpc.mjs [--stream] QUESTION [IMAGE]
// GLIMPSE_TARGET overrides the server's address.
import { existsSync, readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import grpc from "@grpc/grpc-js";
import { loadSync } from "@grpc/proto-loader";

const { values, positionals } = parseArgs({ allowPositionals: true, options: { stream: { type: "boolean" } } });
const [question, image] = positionals;
if (!question) {
  console.error("usage: grpc.mjs [--stream] QUESTION [IMAGE]");
  process.exit(2);
}
if (image && !existsSync(image)) {
  console.error(`cannot read ${image}`);
  process.exit(2);
}

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
if (image) content.unshift({ image: { source: { data: readFileSync(image) } } });
const request = {
  messages: [{ role: "ROLE_USER", content }],
  generation: { temperature: 0, max_completion_tokens: 64 },
};

try {
  if (values.stream) {
    for await (const chunk of client.StreamChatCompletion(request)) {
      process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
    }
    console.log();
  } else {
    const response = await new Promise((resolve, reject) =>
      client.CreateChatCompletion(request, (error, response) => (error ? reject(error) : resolve(response))),
    );
    console.log(response.choices[0].message.content);
  }
} catch (error) {
  console.error(`no answer from ${target}: ${error.message}\nIs the server running? \`make up\` starts one.`);
  process.exitCode = 1;
}
client.close();
