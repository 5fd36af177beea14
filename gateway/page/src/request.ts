// The conversation and the settings as a request of OpenAI's API.
import type { Media, Settings, Turn } from "./types";

export class SettingError extends Error {}

function json(name: string, text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new SettingError(`'${name}': expected JSON, got a text that is none: ${(error as Error).message}`);
  }
}

// Returns the body of the request. `urlOf` gives the URL of each media file.
export function requestBody(
  model: string,
  turns: readonly Turn[],
  settings: Settings,
  urlOf: (media: Media) => string,
): Record<string, unknown> {
  const system = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  return {
    model,
    messages: [...system, ...turns.map((turn) => message(turn, settings, urlOf))],
    ...numbers(settings),
    ...(settings.logprobs ? { logprobs: true, top_logprobs: 5 } : {}),
    ...responseFormat(settings),
    ...tools(settings),
  };
}

function numbers(settings: Settings): Record<string, number> {
  const fields: [string, string][] = [
    ["temperature", settings.temperature],
    ["max_completion_tokens", settings.maxTokens],
    ["seed", settings.seed],
  ];
  return Object.fromEntries(fields.filter(([, text]) => text.trim()).map(([name, text]) => [name, number(name, text)]));
}

function number(name: string, text: string): number {
  const value = Number(text);
  if (!Number.isFinite(value)) throw new SettingError(`'${name}': expected a number, got '${text}'`);
  return value;
}

function responseFormat({ schema }: Settings): object {
  if (!schema.trim()) return {};
  const format = { name: "answer", schema: json("JSON Schema", schema), strict: true };
  return { response_format: { type: "json_schema", json_schema: format } };
}

function tools({ tools: text, toolChoice }: Settings): object {
  if (!text.trim()) return {};
  const parsed = json("Tools", text);
  if (!Array.isArray(parsed)) throw new SettingError("'Tools': expected a list of functions");
  // A bare function is what the documents of most tools show.
  const wrapped = parsed.map((tool) => (tool.type === "function" ? tool : { type: "function", function: tool }));
  return { tools: wrapped, tool_choice: toolChoice };
}

function message(turn: Turn, settings: Settings, urlOf: (media: Media) => string): object {
  if (turn.role === "tool") return { role: "tool", tool_call_id: turn.callId, content: turn.text };
  if (turn.role === "assistant") {
    const calls = turn.toolCalls.length ? { tool_calls: turn.toolCalls } : {};
    return { role: "assistant", content: turn.text, ...calls };
  }
  if (!turn.media.length) return { role: "user", content: turn.text };
  const text = turn.text ? [{ type: "text", text: turn.text }] : [];
  return { role: "user", content: [...turn.media.map((media) => part(media, settings, urlOf(media))), ...text] };
}

function part(media: Media, settings: Settings, url: string): object {
  const pixels = settings.maxPixels.trim() ? { max_pixels: number("max_pixels", settings.maxPixels) } : {};
  const rate = settings.fps.trim() ? { fps: number("fps", settings.fps) } : {};
  switch (media.kind) {
    case "image":
      return { type: "image_url", image_url: { url, ...pixels } };
    case "video":
      return { type: "video_url", video_url: { url, ...rate, ...pixels } };
    case "audio":
      return { type: "audio_url", audio_url: { url } };
    case "document":
      return { type: "document", document: { url, ...pixels } };
  }
}
