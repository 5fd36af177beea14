// What the page knows: media, turns of the conversation, settings, and the parts of the API's JSON that it reads.

export type Kind = "image" | "video" | "audio" | "document";

// A file of a conversation. Its content is kept apart, under its id.
export interface Media {
  id: string;
  kind: Kind;
  name: string;
  mime: string;
  bytes: number;
  // Of images and videos, in pixels; 0 if the browser cannot decode the file.
  width: number;
  height: number;
  // Of videos and audio; 0 if unknown.
  seconds: number;
}

export interface ToolCall {
  id: string;
  type: "function";
  function: { name: string; arguments: string };
}

export interface TokenLogprob {
  token: string;
  logprob: number;
  top_logprobs: { token: string; logprob: number }[];
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  prompt_tokens_details?: { cached_tokens?: number; image_tokens?: number; video_tokens?: number; audio_tokens?: number };
  completion_tokens_details?: { reasoning_tokens?: number };
  media_usage?: { media: MediumUsage[] };
  timings?: Timings;
}

// How long the stages of a request took in the server.
export interface Timings {
  first_token_milliseconds: number;
  // They add up to `first_token_milliseconds`.
  first_token_stages: Record<`${"preparation" | "fetch" | "decode_media" | "queue" | "encode" | "prefill"}_milliseconds`, number>;
  // From the first to the last token.
  decode_milliseconds: number;
}

// One medium of the conversation as the model saw it.
export interface MediumUsage {
  modality: Kind;
  tokens: number;
  cache_tier: "none" | "file" | "decoded" | "encoder" | "prefix";
  width?: number;
  height?: number;
  num_tiles?: number;
  num_frames?: number;
  duration_seconds?: number;
}

export interface SampledVideo {
  num_frames: number;
  width: number;
  height: number;
  fps?: number;
  frame_seconds?: number[];
}

// One image of the conversation as the model saw it. Pixels are those of the file, before it is turned.
export interface SeenImage {
  width: number;
  height: number;
  orientation: number;
}

// A box or a point in pixels of an image.
export interface Grounding {
  label: string;
  image_index: number;
  box?: { left: number; top: number; right: number; bottom: number };
  point?: { x: number; y: number };
}

export interface Conversation {
  id: string;
  title: string;
  created: number;
  updated: number;
  // The last turn of the branch that is shown.
  leaf: string | null;
}

// Turns of a conversation are a tree: turns with the same parent are versions of each other.
interface Node {
  id: string;
  conversation: string;
  parent: string | null;
  created: number;
  text: string;
}

export interface UserTurn extends Node {
  role: "user";
  media: Media[];
}

export interface AssistantTurn extends Node {
  role: "assistant";
  reasoning: string;
  toolCalls: ToolCall[];
  tokens: TokenLogprob[];
  isRunning: boolean;
  finishReason: string | null;
  error: Failure | null;
  usage: Usage | null;
  videos: SampledVideo[];
  images: SeenImage[];
  groundings: Grounding[];
  // Milliseconds from the request to the first and to the last token; null before.
  firstMs: number | null;
  lastMs: number | null;
  // The model and the settings in a few words.
  setup: string;
  // It stands beside the answers of other settings to the same question.
  isCompared: boolean;
  // The JSON Schema that the answer had to match; empty without one.
  schema: string;
}

export interface ToolTurn extends Node {
  role: "tool";
  callId: string;
  name: string;
}

export type Turn = UserTurn | AssistantTurn | ToolTurn;

export interface Failure {
  // For the reader.
  message: string;
  // As the server wrote it, if that is different.
  detail: string;
}

export interface Settings {
  // The served model; empty for the first one.
  model: string;
  system: string;
  temperature: string;
  topP: string;
  topK: string;
  minP: string;
  frequencyPenalty: string;
  presencePenalty: string;
  repetitionPenalty: string;
  seed: string;
  maxTokens: string;
  minTokens: string;
  // One string a line.
  stop: string;
  effort: string;
  thinkingBudget: string;
  fps: string;
  maxPixels: string;
  logprobs: boolean;
  schema: string;
  tools: string;
  toolChoice: "auto" | "required" | "none";
}

export interface Model {
  id: string;
  max_model_len: number;
  input_modalities: string[];
  capabilities: {
    tools?: boolean;
    structured_outputs?: boolean;
    logprobs?: boolean;
    reasoning?: boolean;
    reasoning_effort?: boolean;
    grounding?: boolean;
    max_choices?: number;
    max_images?: number;
    max_videos?: number;
    max_audios?: number;
    max_documents?: number;
  };
}

export interface Chunk {
  choices: {
    delta: { content?: string | null; reasoning?: string | null; tool_calls?: ToolCallDelta[] };
    logprobs?: { content?: TokenLogprob[] | null } | null;
    finish_reason: string | null;
    groundings?: Grounding[];
  }[];
  usage?: Usage | null;
  videos?: SampledVideo[];
  images?: SeenImage[];
}

export interface ToolCallDelta {
  index: number;
  id?: string;
  function?: { name?: string; arguments?: string };
}
