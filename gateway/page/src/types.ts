// What the page knows: media, turns of the conversation, settings, and the parts of the API's JSON that it reads.

export type Kind = "image" | "video" | "audio" | "document";

export interface Media {
  id: number;
  kind: Kind;
  name: string;
  mime: string;
  bytes: number;
  // The file itself, for requests.
  dataUrl: string;
  // The same for elements of the page: browsers decode it without copying it.
  objectUrl: string;
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

export interface UserTurn {
  role: "user";
  id: number;
  text: string;
  media: Media[];
}

export interface AssistantTurn {
  role: "assistant";
  id: number;
  text: string;
  reasoning: string;
  toolCalls: ToolCall[];
  tokens: TokenLogprob[];
  isRunning: boolean;
  finishReason: string | null;
  error: string | null;
  usage: Usage | null;
  videos: SampledVideo[];
  images: SeenImage[];
  groundings: Grounding[];
  // Milliseconds from the request to the first and to the last token; null before.
  firstMs: number | null;
  lastMs: number | null;
}

export interface ToolTurn {
  role: "tool";
  id: number;
  callId: string;
  name: string;
  text: string;
}

export type Turn = UserTurn | AssistantTurn | ToolTurn;

export interface Settings {
  system: string;
  temperature: string;
  maxTokens: string;
  seed: string;
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
