// Asks about an image through the gateway, and prints the answer as it is generated: ask.js [flags] QUESTION IMAGE
import { existsSync, readFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { create } from "@bufbuild/protobuf";
import { Code, ConnectError, createClient, type Transport } from "@connectrpc/connect";
import { createConnectTransport, createGrpcTransport, createGrpcWebTransport, Http2SessionManager } from "@connectrpc/connect-node";
import { ChatService, CreateChatCompletionRequestSchema } from "./gen/glimpse/v1/chat_pb.js";
import { Role } from "./gen/glimpse/v1/content_pb.js";
import { BadRequestSchema, ErrorInfoSchema } from "./gen/google/rpc/error_details_pb.js";

const { values: flags, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    target: { type: "string", default: "127.0.0.1:8080" }, // HOST:PORT of the gateway
    protocol: { type: "string", default: "grpc-web" }, // or grpc, which the server itself takes too; connect or connect-json
    deadline: { type: "string", default: "60" }, // seconds for the whole answer
    "cancel-after": { type: "string", default: "0" }, // cancel after so many pieces of text; 0: never
    "max-tokens": { type: "string", default: "64" },
  },
});
const [question, path] = positionals;
if (question === undefined || path === undefined) {
  console.error("usage: ask.js [flags] QUESTION IMAGE");
  process.exit(2);
}
if (!existsSync(path)) {
  console.error(`cannot read ${path}`);
  process.exit(2);
}
const image = readFileSync(path);

const baseUrl = `http://${flags.target}`;
// Pings keep the connection open through proxies that close silent ones.
const connection = new Http2SessionManager(baseUrl, { pingIntervalMs: 10_000 });
const transports: Record<string, () => Transport> = {
  connect: () => createConnectTransport({ baseUrl, httpVersion: "1.1" }),
  "connect-json": () => createConnectTransport({ baseUrl, httpVersion: "1.1", useBinaryFormat: false }),
  "grpc-web": () => createGrpcWebTransport({ baseUrl, httpVersion: "1.1" }),
  grpc: () => createGrpcTransport({ baseUrl, sessionManager: connection }),
};

const request = create(CreateChatCompletionRequestSchema, {
  messages: [
    {
      role: Role.USER,
      content: [
        { part: { case: "image", value: { source: { source: { case: "data", value: image } } } } },
        { part: { case: "text", value: question } },
      ],
    },
  ],
  generation: { temperature: 0, maxCompletionTokens: Number(flags["max-tokens"]) },
});

async function ask(transport: Transport): Promise<void> {
  const canceller = new AbortController();
  const options = { timeoutMs: Number(flags.deadline) * 1000, signal: canceller.signal };
  let pieces = 0;
  for await (const chunk of createClient(ChatService, transport).streamChatCompletion(request, options)) {
    for (const choice of chunk.choices) {
      const text = choice.delta?.content;
      if (!text) continue;
      process.stdout.write(text);
      if (++pieces === Number(flags["cancel-after"])) canceller.abort();
    }
  }
  console.log();
}

// Prints the status, and the reason and the field that the server attaches to it.
function explain(error: ConnectError): void {
  if (error.code === Code.Unavailable) {
    console.error(`no answer from ${flags.target}: ${error.rawMessage}`);
    console.error("Is the server running? `make up` starts one.");
    return;
  }
  console.error(`${Code[error.code]}: ${error.rawMessage}`);
  for (const info of error.findDetails(ErrorInfoSchema)) console.error(`reason: ${info.reason}`);
  for (const { fieldViolations } of error.findDetails(BadRequestSchema)) {
    for (const { field } of fieldViolations) console.error(`field: ${field}`);
  }
}

const transport = transports[flags.protocol];
if (transport === undefined) {
  console.error(`'--protocol': expected one of ${Object.keys(transports).join(", ")}, got '${flags.protocol}'`);
  process.exit(2);
}
try {
  await ask(transport());
} catch (error) {
  explain(ConnectError.from(error));
  process.exitCode = 1;
}
connection.abort();
