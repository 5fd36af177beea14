// The conversation and the settings as a request of OpenAI's API.
import { t, type Text } from "./text";
import type { Media, Settings, Turn } from "./types";

export class SettingError extends Error {}

export const DEFAULTS: Settings = {
  model: "",
  system: "",
  temperature: "0",
  topP: "",
  topK: "",
  minP: "",
  frequencyPenalty: "",
  presencePenalty: "",
  repetitionPenalty: "",
  seed: "",
  maxTokens: "",
  minTokens: "",
  stop: "",
  effort: "",
  thinkingBudget: "",
  fps: "",
  maxPixels: "",
  logprobs: false,
  schema: "",
  tools: "",
  toolChoice: "auto",
};

export interface NumberField {
  name: keyof Settings;
  // Its name in the API.
  field: string;
  title: Text;
  // What holds without a value.
  without: string;
}

export const SAMPLING: NumberField[] = [
  { name: "temperature", field: "temperature", title: "Temperature", without: "1" },
  { name: "maxTokens", field: "max_completion_tokens", title: "Max tokens", without: "4096" },
  { name: "topP", field: "top_p", title: "Top-p", without: "1" },
  { name: "topK", field: "top_k", title: "Top-k", without: "0" },
  { name: "minP", field: "min_p", title: "Min-p", without: "0" },
  { name: "seed", field: "seed", title: "Seed", without: "–" },
  { name: "frequencyPenalty", field: "frequency_penalty", title: "Frequency penalty", without: "0" },
  { name: "presencePenalty", field: "presence_penalty", title: "Presence penalty", without: "0" },
  { name: "repetitionPenalty", field: "repetition_penalty", title: "Repetition penalty", without: "1" },
  { name: "minTokens", field: "min_tokens", title: "Min tokens", without: "0" },
];
export const THINKING: NumberField = { name: "thinkingBudget", field: "thinking_token_budget", title: "Thinking budget", without: "–" };
export const MEDIA: NumberField[] = [
  { name: "maxPixels", field: "max_pixels", title: "Max pixels", without: "–" },
  { name: "fps", field: "fps", title: "Video FPS", without: "–" },
];

function json(name: string, text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new SettingError(t("{name} is not JSON: {problem}", { name, problem: (error as Error).message }));
  }
}

// Returns the body of the request. `urlOf` gives the URL of each media file. Throws SettingError.
export function requestBody(
  model: string,
  turns: readonly Turn[],
  settings: Settings,
  urlOf: (media: Media) => string,
): Record<string, unknown> {
  const system = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  const stop = settings.stop.split("\n").filter(Boolean);
  return {
    model,
    messages: [...system, ...turns.map((turn) => message(turn, settings, urlOf))],
    ...numbers([...SAMPLING, THINKING], settings),
    ...(stop.length ? { stop } : {}),
    ...(settings.effort ? { reasoning_effort: settings.effort } : {}),
    ...(settings.logprobs ? { logprobs: true, top_logprobs: 5 } : {}),
    ...responseFormat(settings),
    ...tools(settings),
  };
}

function numbers(fields: NumberField[], settings: Settings): Record<string, number> {
  const given = fields.filter(({ name }) => String(settings[name]).trim());
  return Object.fromEntries(given.map(({ name, field, title }) => [field, number(title, String(settings[name]))]));
}

function number(title: Text, text: string): number {
  const value = Number(text);
  if (!Number.isFinite(value)) throw new SettingError(t("{name} is not a number: {value}", { name: t(title), value: text }));
  return value;
}

// A setting's name in the page, by its name in the API.
export const titleOf = (field: string): Text | undefined => [...SAMPLING, THINKING, ...MEDIA].find((each) => each.field === field)?.title;

function responseFormat({ schema }: Settings): object {
  if (!schema.trim()) return {};
  const format = { name: "answer", schema: json(t("JSON Schema"), schema), strict: true };
  return { response_format: { type: "json_schema", json_schema: format } };
}

function tools({ tools: text, toolChoice }: Settings): object {
  if (!text.trim()) return {};
  const parsed = json(t("Tools"), text);
  if (!Array.isArray(parsed)) throw new SettingError(t("Tools are not a list of functions."));
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
  const { fps, ...pixels } = numbers(MEDIA, settings);
  const rate = fps === undefined ? {} : { fps };
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
