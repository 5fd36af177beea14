// The state of the conversation: its turns, and the answer that is being streamed.
import { useRef, useState } from "preact/hooks";
import { ApiError, streamChat } from "./api";
import { newId } from "./media";
import { requestBody, SettingError } from "./request";
import type { AssistantTurn, Chunk, Media, Settings, ToolCallDelta, ToolCall, Turn } from "./types";

export interface Conversation {
  turns: Turn[];
  isRunning: boolean;
  ask: (text: string, media: Media[]) => void;
  answerTools: (results: string[]) => void;
  retry: () => void;
  stop: () => void;
  clear: () => void;
}

interface Options {
  model: string;
  // Answers can carry boxes and points.
  grounds: boolean;
  settings: Settings;
  // The request was refused for want of a valid key.
  onUnauthenticated: () => void;
}

export function useConversation({ model, grounds, settings, onUnauthenticated }: Options): Conversation {
  const [turns, setTurns] = useState<Turn[]>([]);
  const running = useRef<AbortController | null>(null);
  const last = turns.at(-1);

  // Asks for the answer to `history`, and shows it at its end.
  const answer = async (history: Turn[]): Promise<void> => {
    const abort = new AbortController();
    running.current = abort;
    let turn = emptyAnswer();
    const show = (change: Partial<AssistantTurn>): void => {
      turn = { ...turn, ...change };
      // The conversation may have been cleared meanwhile.
      if (running.current === abort) setTurns([...history, turn]);
    };
    show({});
    const start = performance.now();
    try {
      const body = requestBody(model, history, settings, (media) => media.dataUrl);
      const options = { stream: true, stream_options: { include_usage: true }, ...(grounds ? { grounding: true } : {}) };
      for await (const chunk of streamChat({ ...body, ...options }, abort.signal)) {
        show(withChunk(turn, chunk, performance.now() - start));
      }
      show({ isRunning: false });
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) onUnauthenticated();
      show({ isRunning: false, ...failure(error) });
    }
    if (running.current === abort) running.current = null;
  };

  const stop = (): void => running.current?.abort();
  return {
    turns,
    isRunning: last?.role === "assistant" && last.isRunning,
    stop,
    ask: (text, media) => void answer([...withoutFailure(turns), { role: "user", id: newId(), text, media }]),
    answerTools: (results) => void answer([...turns, ...toolTurns(last, results)]),
    retry: () => void answer(turns.slice(0, -1)),
    clear: () => {
      stop();
      running.current = null;
      for (const turn of turns) if (turn.role === "user") turn.media.forEach((each) => URL.revokeObjectURL(each.objectUrl));
      setTurns([]);
    },
  };
}

function emptyAnswer(): AssistantTurn {
  return {
    role: "assistant",
    id: newId(),
    text: "",
    reasoning: "",
    toolCalls: [],
    tokens: [],
    isRunning: true,
    finishReason: null,
    error: null,
    usage: null,
    videos: [],
    images: [],
    groundings: [],
    firstMs: null,
    lastMs: null,
  };
}

function withChunk(turn: AssistantTurn, chunk: Chunk, elapsed: number): Partial<AssistantTurn> {
  const change: Partial<AssistantTurn> = {};
  if (chunk.usage) change.usage = chunk.usage;
  if (chunk.videos?.length) change.videos = chunk.videos;
  if (chunk.images?.length) change.images = chunk.images;
  const choice = chunk.choices[0];
  if (!choice) return change;
  const { content, reasoning, tool_calls: calls } = choice.delta;
  if (content) change.text = turn.text + content;
  if (reasoning) change.reasoning = turn.reasoning + reasoning;
  if (calls?.length) change.toolCalls = calls.reduce(withCall, turn.toolCalls);
  if (choice.logprobs?.content?.length) change.tokens = [...turn.tokens, ...choice.logprobs.content];
  if (choice.groundings?.length) change.groundings = choice.groundings;
  if (choice.finish_reason) change.finishReason = choice.finish_reason;
  if (content || reasoning || calls?.length) {
    change.firstMs = turn.firstMs ?? elapsed;
    change.lastMs = elapsed;
  }
  return change;
}

function withCall(calls: ToolCall[], delta: ToolCallDelta): ToolCall[] {
  const call = calls[delta.index] ?? { id: "", type: "function", function: { name: "", arguments: "" } };
  const merged: ToolCall = {
    id: delta.id ?? call.id,
    type: "function",
    function: {
      name: call.function.name + (delta.function?.name ?? ""),
      arguments: call.function.arguments + (delta.function?.arguments ?? ""),
    },
  };
  return Object.assign([...calls], { [delta.index]: merged });
}

function failure(error: unknown): Partial<AssistantTurn> {
  if (error instanceof DOMException && error.name === "AbortError") return { finishReason: "stopped" };
  if (error instanceof ApiError || error instanceof SettingError) return { error: error.message };
  throw error;
}

function toolTurns(last: Turn | undefined, results: string[]): Turn[] {
  const calls = last?.role === "assistant" ? last.toolCalls : [];
  return calls.map((call, index) => ({
    role: "tool",
    id: newId(),
    callId: call.id,
    name: call.function.name,
    text: results[index] ?? "",
  }));
}

// An answer that failed or was stopped before its first word is no part of the conversation, nor is its question.
function withoutFailure(turns: Turn[]): Turn[] {
  const last = turns.at(-1);
  const isEmpty = last?.role === "assistant" && !last.text && !last.toolCalls.length;
  return isEmpty ? turns.slice(0, -2) : turns;
}
