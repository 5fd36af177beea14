// The request as a program: curl, Python, Node and gRPC. Media are read from files of the names that they have here.
import type { Media, Settings, Turn } from "./types";
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
function grpc({ turns, settings, origin, hasKey, model }: Conversation): string {
  const { host, protocol } = new URL(origin);
  const target = host.includes(":") ? host : `${host}:${protocol === "https:" ? 443 : 80}`;
  const secure = [hasKey ? 'api_key=os.environ["GLIMPSE_API_KEY"]' : "", protocol === "https:" ? "tls=Tls()" : ""];
  const options = secure.filter(Boolean).map((option) => `, ${option}`).join("");
  const fields = requestBody(model, turns, settings, () => "");
  const formats: Record<string, unknown> = {
    model,
    temperature: fields.temperature,
    max_completion_tokens: fields.max_completion_tokens,
    seed: fields.seed,
    response_format: settings.schema.trim() ? JSON.parse(settings.schema) : undefined,
  };
  const given = Object.entries(formats).filter(([, value]) => value !== undefined);
  const flags = given.map(([name, value]) => `    ${name}=${pythonLiteral(value)},\n`).join("");
  const system = settings.system.trim() ? `    Message("system", ${JSON.stringify(settings.system)}),\n` : "";
  const note = settings.tools.trim() ? "# Tools: see glimpse.v1.chat_pb2.Tool.\n" : "";
  const tls = protocol === "https:" ? ", Tls" : "";
  return `${hasKey ? "import os\n" : ""}from glimpse import Client
from glimpse.client import Audio, Image, Message, Video${tls}

messages = [
${system}${turns.filter((turn) => turn.role !== "tool").map((turn) => grpcMessage(turn, settings)).join("")}]
${note}with Client(${JSON.stringify(target)}${options}) as client:
    for chunk in client.stream(messages,
${flags}    ):
        print(chunk.text, end="", flush=True)
print()
`;
}

function grpcMessage(turn: Turn, settings: Settings): string {
  const media = turn.role === "user" ? turn.media : [];
  const parts = media.map((each) => grpcMedia(each, settings));
  if (turn.text) parts.push(JSON.stringify(turn.text));
  return `    Message("${turn.role}", [${parts.join(", ")}]),\n`;
}

function grpcMedia({ kind, name }: Media, settings: Settings): string {
  const pixels = settings.maxPixels.trim() && kind !== "audio" ? `, max_pixels=${Number(settings.maxPixels)}` : "";
  const rate = settings.fps.trim() && kind === "video" ? `, fps=${Number(settings.fps)}` : "";
  const type = { image: "Image", video: "Video", audio: "Audio" }[kind];
  return `${type}(${JSON.stringify(name)}${rate}${pixels})`;
}
