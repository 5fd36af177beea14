// Files that the user drops, pastes, chooses or records.
import type { Kind, Media, MediumUsage, Turn } from "./types";

let lastId = 0;

export function newId(): number {
  lastId += 1;
  return lastId;
}

export function kindOf(mime: string): Kind | null {
  if (mime === "application/pdf") return "document";
  const kind = mime.split("/")[0];
  return kind === "image" || kind === "video" || kind === "audio" ? kind : null;
}

// Reads a file. Throws an Error whose message is for the user.
export async function readMedia(file: File): Promise<Media> {
  const kind = kindOf(file.type);
  if (!kind) throw new Error(`'${file.name}': expected an image, a video, audio or a PDF, got ${file.type || "an unknown type"}`);
  const objectUrl = URL.createObjectURL(file);
  const size = await measure(kind, objectUrl);
  const base = { id: newId(), kind, name: file.name, mime: file.type, bytes: file.size, objectUrl };
  return { ...base, dataUrl: await readDataUrl(file), ...size };
}

function readDataUrl(file: File): Promise<string> {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result as string);
    reader.onerror = () => reject(new Error(`'${file.name}' cannot be read`));
    // Parameters such as codecs are of no use to the server.
    reader.readAsDataURL(file.slice(0, file.size, file.type.split(";")[0]));
  });
}

type Size = Pick<Media, "width" | "height" | "seconds">;
const UNKNOWN: Size = { width: 0, height: 0, seconds: 0 };

// The server may know formats that the browser does not.
function measure(kind: Kind, url: string): Promise<Size> {
  if (kind === "document") return Promise.resolve(UNKNOWN);
  return new Promise((resolve) => {
    if (kind === "image") {
      const image = new Image();
      image.onload = () => resolve({ width: image.naturalWidth, height: image.naturalHeight, seconds: 0 });
      image.onerror = () => resolve(UNKNOWN);
      image.src = url;
      return;
    }
    const player = document.createElement(kind);
    player.preload = "metadata";
    player.onloadedmetadata = () => {
      const seconds = Number.isFinite(player.duration) ? player.duration : 0;
      const { videoWidth = 0, videoHeight = 0 } = player as Partial<HTMLVideoElement>;
      resolve({ width: videoWidth, height: videoHeight, seconds });
    };
    player.onerror = () => resolve(UNKNOWN);
    player.src = url;
  });
}

export function describe(media: Media): string {
  const size = media.width ? `${media.width} × ${media.height}, ` : "";
  const seconds = media.seconds ? `${media.seconds.toFixed(1)} s, ` : "";
  return `${size}${seconds}${readableBytes(media.bytes)}`;
}

// The media of a conversation, in order.
export const mediaOf = (turns: readonly Turn[]): Media[] => turns.flatMap((turn) => (turn.role === "user" ? turn.media : []));

// Whether the model saw each medium as one. A document is as many as it has pages.
export const areSingle = (media: readonly Media[]): boolean => media.every(({ kind }) => kind !== "document");

// What the model saw of each medium, by its id, as the last answer that tells says it.
export function lastSeen(turns: readonly Turn[]): Map<number, MediumUsage> {
  const seen = new Map<number, MediumUsage>();
  turns.forEach((turn, index) => {
    const usages = turn.role === "assistant" ? (turn.usage?.media_usage?.media ?? []) : [];
    const media = mediaOf(turns.slice(0, index));
    if (!areSingle(media)) return;
    media.forEach(({ id }, place) => {
      const usage = usages[place];
      if (usage) seen.set(id, usage);
    });
  });
  return seen;
}

const TIERS: Record<MediumUsage["cache_tier"], string> = {
  none: "nothing of it cached",
  file: "from the cache of files",
  decoded: "from the cache of decoded media",
  encoder: "from the encoder's cache",
  prefix: "from the prefix cache",
};

// A medium as the model saw it, in words.
export function describeSeen(usage: MediumUsage): string {
  return [seenSize(usage), `${usage.tokens} tokens`, TIERS[usage.cache_tier]].filter(Boolean).join(", ");
}

function seenSize({ width, height, num_tiles: tiles = 0, num_frames: frames, duration_seconds: seconds }: MediumUsage): string {
  if (seconds !== undefined) return `${seconds.toFixed(1)} s`;
  if (width === undefined) return "";
  const size = `${width} × ${height}`;
  if (frames !== undefined) return `${frames} frames of ${size}`;
  return tiles > 1 ? `${tiles} tiles of up to ${size}` : size;
}

export function readableBytes(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`;
  const kib = bytes / 1024;
  return kib < 1024 ? `${kib.toFixed(0)} KiB` : `${(kib / 1024).toFixed(1)} MiB`;
}

// Why audio cannot be recorded here; null if it can.
export function recordingObstacle(): string | null {
  if (!window.isSecureContext) return "Browsers record on https pages and on localhost only.";
  return navigator.mediaDevices && window.MediaRecorder ? null : "This browser cannot record.";
}

export interface Recording {
  stop(): Promise<File>;
}

export async function startRecording(): Promise<Recording> {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  const recorder = new MediaRecorder(stream);
  const pieces: Blob[] = [];
  recorder.ondataavailable = ({ data }) => pieces.push(data);
  recorder.start();
  return {
    stop: () =>
      new Promise((resolve) => {
        recorder.onstop = () => {
          for (const track of stream.getTracks()) track.stop();
          const mime = recorder.mimeType.split(";")[0]!;
          resolve(new File(pieces, `recording.${mime.split("/")[1]}`, { type: mime }));
        };
        recorder.stop();
      }),
  };
}
