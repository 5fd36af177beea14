// The request as a program: curl, Python, Node and gRPC. Media are read from files of the names that they have here.
import type { Media, Settings, ToolCall, Turn } from "./types";
import { requestBody } from "./request";

export const LANGUAGES = ["curl", "Python", "Node", "gRPC"] as const;
export type Language = (typeof LANGUAGES)[number];

export interface Conversation {
  model: string;
  turns: readonly Turn[];
  settings: Settings;
  // The address of the page, such as http://127.0.0.1:8080.
  origin: string;
  hasKey: boolean;
}

export function snippet(language: Language, conversation: Conversation): string {
  return { curl, Python: python, Node: node, gRPC: grpc }[language](conversation);
}

// Marks the places of media in JSON; no text has this control character.
const MARK = "\u0001";

function bodyOf({ model, turns, settings }: Conversation, files: Media[]): Record<string, unknown> {
  return requestBody(model, turns, settings, (media) => {
    files.push(media);
    return `${MARK}${files.length - 1}${MARK}`;
  });
}

// Replaces the quoted marks in `text`, which JSON writes as \u0001.
function withMedia(text: string, files: Media[], expression: (media: Media) => string): string {
  return text.replace(/"\\u0001(\d+)\\u0001"/g, (_, index) => expression(files[Number(index)]!));
}

const shellQuoted = (text: string): string => `'${text.replaceAll("'", String.raw`'\''`)}'`;

function curl(conversation: Conversation): string {
  const files: Media[] = [];
  const json = JSON.stringify({ ...bodyOf(conversation, files), stream: true }, null, 1);
  // Within the document, the shell replaces $(…), and takes a backslash before these characters away.
  const escaped = json.replace(/[\\$`]/g, String.raw`\$&`);
  const body = escaped.replace(/"\\\\u0001(\d+)\\\\u0001"/g, (_, index) => {
    const { mime, name } = files[Number(index)]!;
    return `"data:${mime};base64,$(base64 -w0 ${shellQuoted(name)})"`;
  });
  const key = conversation.hasKey ? ` -H "authorization: Bearer $GLIMPSE_API_KEY"` : "";
  const address = `${conversation.origin}/v1/chat/completions`;
  return `curl -sSN ${address} -H 'content-type: application/json'${key} -d @- <<JSON\n${body}\nJSON\n`;
}

// Python writes some of JSON's values otherwise. Strings are the same.
function pythonLiteral(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(pythonLiteral).join(", ")}]`;
  if (value && typeof value === "object") {
    const members = Object.entries(value).map(([name, member]) => `${JSON.stringify(name)}: ${pythonLiteral(member)}`);
    return `{${members.join(", ")}}`;
  }
  if (value === true) return "True";
  if (value === false) return "False";
  return value === null ? "None" : JSON.stringify(value);
}

function python(conversation: Conversation): string {
  const files: Media[] = [];
  const members = Object.entries(bodyOf(conversation, files));
  const options = members.map(([name, value]) => `    ${name}=${pythonLiteral(value)},`).join("\n");
  const url = (media: Media): string => `data_url(${JSON.stringify(media.mime)}, ${JSON.stringify(media.name)})`;
  const helper = `
def data_url(mime, path):
    return f"data:{mime};base64,{base64.b64encode(open(path, 'rb').read()).decode()}"

`;
  const key = conversation.hasKey ? 'os.environ["GLIMPSE_API_KEY"]' : '"none"';
  const imports = [files.length ? "import base64\n" : "", conversation.hasKey ? "import os\n" : ""].join("");
  return `# pip install openai
${imports}from openai import OpenAI
${files.length ? helper : ""}
client = OpenAI(base_url=${JSON.stringify(`${conversation.origin}/v1`)}, api_key=${key})
stream = client.chat.completions.create(
${withMedia(options, files, url)}
    stream=True,
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
`;
}

function node(conversation: Conversation): string {
  const files: Media[] = [];
  const json = JSON.stringify({ ...bodyOf(conversation, files), stream: true }, null, 2);
  const url = (media: Media): string => `dataUrl(${JSON.stringify(media.mime)}, ${JSON.stringify(media.name)})`;
  const helper = 'const dataUrl = (mime, path) => `data:${mime};base64,${readFileSync(path).toString("base64")}`;\n';
  const key = conversation.hasKey ? "process.env.GLIMPSE_API_KEY" : '"none"';
  return `// npm install openai; save as ask.mjs
${files.length ? 'import { readFileSync } from "node:fs";\n' : ""}import OpenAI from "openai";

${files.length ? helper : ""}const client = new OpenAI({ baseURL: ${JSON.stringify(`${conversation.origin}/v1`)}, apiKey: ${key} });
const stream = await client.chat.completions.create(${withMedia(json, files, url)});
for await (const chunk of stream) process.stdout.write(chunk.choices[0]?.delta?.content ?? "");
console.log();
`;
}

// Typed gRPC through the gateway, with the package's own client.
function grpc(conversation: Conversation): string {
  const { turns, settings, origin, hasKey } = conversation;
  const { hostname, host, port, protocol } = new URL(origin);
  const isSecure = protocol === "https:";
  const target = port ? host : `${hostname}:${isSecure ? 443 : 80}`;
  const options = [hasKey && ', api_key=os.environ["GLIMPSE_API_KEY"]', isSecure && ", tls=Tls()"];
  const system = settings.system.trim() ? `    Message("system", ${JSON.stringify(settings.system)}),\n` : "";
  const hasTools = settings.tools.trim() !== "" || turns.some(({ role }) => role === "tool");
  return `${hasKey ? "import os\n" : ""}from glimpse import Client
from glimpse.client import Audio, Document, Image, Message, ${isSecure ? "Tls, " : ""}Video
${hasTools ? "from glimpse.v1 import chat_pb2, content_pb2\n" : ""}
messages = [
${system}${turns.map((turn) => grpcMessage(turn, settings)).join("")}]
with Client(${JSON.stringify(target)}${options.filter(Boolean).join("")}) as client:
    for chunk in client.stream(
        messages,
${grpcOptions(conversation)}    ):
        print(chunk.text, end="", flush=True)
print()
`;
}

function grpcOptions({ model, settings }: Conversation): string {
  const fields = requestBody(model, [], settings, () => "");
  const { messages: _, response_format: format, tools, tool_choice: choice, ...same } = fields;
  const options = Object.entries(same).map(([name, value]) => `${name}=${pythonLiteral(value)}`);
  if (format) options.push(`response_format=${pythonLiteral((format as { json_schema: { schema: unknown } }).json_schema.schema)}`);
  if (tools) {
    options.push(`tools=[${(tools as { function: Definition }[]).map((tool) => grpcTool(tool.function)).join(", ")}]`);
    options.push(`tool_choice=chat_pb2.ToolChoice(mode="TOOL_CHOICE_MODE_${String(choice).toUpperCase()}")`);
  }
  return options.map((option) => `        ${option},\n`).join("");
}

interface Definition {
  name: string;
  description?: string;
  parameters?: unknown;
}

function grpcTool({ name, description, parameters }: Definition): string {
  const members = [`name=${JSON.stringify(name)}`];
  if (description) members.push(`description=${JSON.stringify(description)}`);
  if (parameters) members.push(`parameters=${JSON.stringify(JSON.stringify(parameters))}`);
  return `chat_pb2.Tool(function=chat_pb2.FunctionDefinition(${members.join(", ")}))`;
}

function grpcMessage(turn: Turn, settings: Settings): string {
  const media = turn.role === "user" ? turn.media : [];
  const parts = media.map((each) => grpcMedia(each, settings));
  if (turn.text) parts.push(JSON.stringify(turn.text));
  const members = [JSON.stringify(turn.role), `[${parts.join(", ")}]`];
  if (turn.role === "tool") members.push(`tool_call_id=${JSON.stringify(turn.callId)}`);
  if (turn.role === "assistant" && turn.toolCalls.length) members.push(`tool_calls=[${turn.toolCalls.map(grpcCall).join(", ")}]`);
  return `    Message(${members.join(", ")}),\n`;
}

function grpcCall({ id, function: { name, arguments: text } }: ToolCall): string {
  const called = `content_pb2.FunctionCall(name=${JSON.stringify(name)}, arguments=${JSON.stringify(text)})`;
  return `content_pb2.ToolCall(id=${JSON.stringify(id)}, function=${called})`;
}

function grpcMedia({ kind, name }: Media, settings: Settings): string {
  const pixels = settings.maxPixels.trim() && kind !== "audio" ? `, max_pixels=${Number(settings.maxPixels)}` : "";
  const rate = settings.fps.trim() && kind === "video" ? `, fps=${Number(settings.fps)}` : "";
  const type = { image: "Image", video: "Video", audio: "Audio", document: "Document" }[kind];
  return `${type}(${JSON.stringify(name)}${rate}${pixels})`;
}
