// What a request would cost, before it is sent: `CountTokens` with a quote.
import { call } from "./api";
import { dataUrls, mediaOf } from "./media";
import { requestBody } from "./request";
import type { Settings, Turn } from "./types";

export interface Quote {
  tokens: number;
  cached: number;
  // The model's context window.
  window: number;
  // The expected time to the first token; null while the server has measured none.
  firstMs: number | null;
}

interface Part {
  type: string;
  text?: string;
  [kind: string]: unknown;
}

interface Message {
  role: string;
  content: string | Part[];
  tool_calls?: { id: string; function: object }[];
  tool_call_id?: string;
}

export async function quote(model: string, turns: Turn[], settings: Settings, signal: AbortSignal): Promise<Quote> {
  const { messages, tools } = requestBody(model, turns, settings, await dataUrls(mediaOf(turns)));
  const body = { model, messages: (messages as Message[]).map(typed), quote: true, ...(tools ? { tools: (tools as { function: Tool }[]).map(typedTool) } : {}) };
  const response = await call("/glimpse/v1/chatCompletions:countTokens", { method: "POST", body: JSON.stringify(body), signal });
  const { promptTokens, promptTokensDetails, maxModelLen, quote: costs } = await response.json();
  return {
    tokens: promptTokens ?? 0,
    cached: promptTokensDetails?.cachedTokens ?? 0,
    window: maxModelLen ?? 0,
    firstMs: costs?.firstTokenMilliseconds ?? null,
  };
}

// A message of OpenAI's API as one of the typed API.
function typed({ role, content, tool_calls: calls, tool_call_id: toolCallId }: Message): object {
  return {
    role: `ROLE_${role.toUpperCase()}`,
    content: (typeof content === "string" ? [{ type: "text", text: content }] : content).map(typedPart),
    ...(calls ? { toolCalls: calls.map(({ id, function: called }) => ({ id, function: called })) } : {}),
    ...(toolCallId ? { toolCallId } : {}),
  };
}

function typedPart(part: Part): object {
  if (part.type === "text") return { text: part.text };
  const { url, max_pixels: maxPixels, fps } = part[part.type] as { url: string; max_pixels?: number; fps?: number };
  return { [part.type.replace("_url", "")]: { source: { url }, maxPixels, fps } };
}

interface Tool {
  name: string;
  description?: string;
  parameters?: unknown;
}

const typedTool = ({ function: { name, description, parameters } }: { function: Tool }): object => ({
  function: { name, description, ...(parameters ? { parameters: JSON.stringify(parameters) } : {}) },
});
