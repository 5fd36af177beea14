// Calls of the gateway's API: JSON, and answers as server-sent events.
import { t } from "./text";
import type { Chunk, Model } from "./types";

// Kept in memory alone: closing or reloading the page forgets it.
let apiKey = "";

export function setApiKey(key: string): void {
  apiKey = key.trim();
}

export function authorization(): Record<string, string> {
  return apiKey ? { authorization: `Bearer ${apiKey}` } : {};
}

export class ApiError extends Error {
  constructor(
    message: string,
    // The HTTP status; 0 without a response.
    readonly status: number,
    // The field of the request that the error is about; empty if it is about none.
    readonly field = "",
  ) {
    super(message);
  }
}

export async function call(path: string, options: RequestInit): Promise<Response> {
  const headers = { ...authorization(), ...(options.body ? { "content-type": "application/json" } : {}) };
  let response: Response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(t("The server cannot be reached. Check that it runs and that this device is connected."), 0);
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

async function errorOf(response: Response): Promise<ApiError> {
  const text = await response.text();
  try {
    const { error } = JSON.parse(text);
    return new ApiError(error.message, response.status, error.param ?? "");
  } catch {
    return new ApiError(text || t("The server answered with status {status}.", { status: response.status }), response.status);
  }
}

export async function listModels(): Promise<Model[]> {
  const response = await call("/v1/models", {});
  return (await response.json()).data;
}

export async function isHealthy(): Promise<boolean> {
  try {
    const response = await fetch("/health");
    await response.text();
    return response.ok;
  } catch {
    return false;
  }
}

// Yields the chunks of an answer. Throws ApiError, also for an error in the middle of the stream.
export async function* streamChat(body: object, signal: AbortSignal): AsyncGenerator<Chunk> {
  const response = await call("/v1/chat/completions", { method: "POST", body: JSON.stringify(body), signal });
  let isDone = false;
  for await (const data of events(response)) {
    if (data === "[DONE]") {
      isDone = true;
      continue;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.message, response.status, chunk.error.param ?? "");
    yield chunk;
  }
  if (!isDone) throw new ApiError(t("The connection ended before the answer did."), 0);
}

async function* events(response: Response): AsyncGenerator<string> {
  const reader = response.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read().catch((error: unknown) => {
        if (error instanceof DOMException && error.name === "AbortError") throw error;
        throw new ApiError(t("The connection ended before the answer did."), 0);
      });
      if (done) return;
      const pieces = (rest + value).split("\n\n");
      rest = pieces.pop()!;
      for (const piece of pieces) if (piece.startsWith("data: ")) yield piece.slice("data: ".length);
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}
