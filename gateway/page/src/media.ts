// Files that the user drops, pastes, chooses or records.
import { t, type Text } from "./text";
import type { Kind, Media, MediumUsage, Turn } from "./types";

// Unlike `crypto.randomUUID`, this works on http pages too.
export function newId(): string {
  return [...crypto.getRandomValues(new Uint8Array(12))].map((byte) => byte.toString(36).padStart(2, "0")).join("");
}

// The contents of the media that are shown, and their URLs for elements of the page.
const contents = new Map<string, Blob>();
const urls = new Map<string, string>();

export const contentOf = ({ id }: Media): Blob | undefined => contents.get(id);

export function setContent(id: string, content: Blob): void {
  contents.set(id, content);
}

// Returns undefined for a file that is no longer kept.
export function objectUrl({ id }: Media): string | undefined {
  const content = contents.get(id);
  if (content && !urls.has(id)) urls.set(id, URL.createObjectURL(content));
  return urls.get(id);
}

export function releaseContents(isNeeded: (id: string) => boolean): void {
  for (const id of [...contents.keys()].filter((each) => !isNeeded(each))) {
    URL.revokeObjectURL(urls.get(id) ?? "");
    urls.delete(id);
    contents.delete(id);
  }
}

// Types of files for which not every browser has one.
const BY_SUFFIX: Record<string, string> = {
  heic: "image/heic",
  heif: "image/heif",
  avif: "image/avif",
  mkv: "video/x-matroska",
  avi: "video/x-msvideo",
  flac: "audio/flac",
};

const mimeOf = ({ type, name }: File): string =>
  // Parameters such as codecs are of no use to the server.
  type.split(";")[0] || BY_SUFFIX[name.split(".").at(-1)!.toLowerCase()] || "";

export function kindOf(mime: string): Kind | null {
  if (mime === "application/pdf") return "document";
  const kind = mime.split("/")[0];
  return kind === "image" || kind === "video" || kind === "audio" ? kind : null;
}

// Reads a file. Throws an Error whose message is for the user.
export async function readMedia(file: File): Promise<Media> {
  const mime = mimeOf(file);
  const kind = kindOf(mime);
  if (!kind) throw new Error(t("“{name}” is no image, video, audio or PDF.", { name: file.name }));
  const content = mime === "image/svg+xml" ? await rasterized(file) : file.slice(0, file.size, mime);
  const name = content.type === mime ? file.name : `${file.name}.png`;
  const media = { id: newId(), kind, name, mime: content.type, bytes: content.size, ...UNKNOWN };
  setContent(media.id, content);
  return { ...media, ...(await measure(kind, objectUrl(media)!)) };
}

// The server reads pixels. Browsers load nothing for an SVG that is an image.
async function rasterized(file: File): Promise<Blob> {
  const url = URL.createObjectURL(file);
  try {
    const image = new Image();
    image.src = url;
    await image.decode();
    const scale = 1024 / Math.max(image.naturalWidth, image.naturalHeight, 1);
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [image.naturalWidth * scale || 1024, image.naturalHeight * scale || 1024];
    const context = canvas.getContext("2d")!;
    context.fillStyle = "white";
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.drawImage(image, 0, 0, canvas.width, canvas.height);
    return await new Promise((resolve) => canvas.toBlob((blob) => resolve(blob!), "image/png"));
  } catch {
    throw new Error(t("“{name}” cannot be read.", { name: file.name }));
  } finally {
    URL.revokeObjectURL(url);
  }
}

// The URLs that requests have for media. Throws an Error whose message is for the user.
export async function dataUrls(media: readonly Media[]): Promise<(media: Media) => string> {
  const read = await Promise.all(media.map(async (each) => [each.id, await readDataUrl(each)] as const));
  const found = new Map(read);
  return ({ id }) => found.get(id)!;
}

function readDataUrl(media: Media): Promise<string> {
  return new Promise((resolve, reject) => {
    const content = contentOf(media);
    if (!content) return reject(new Error(t("“{name}” is no longer kept here. Add it again.", { name: media.name })));
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result as string);
    reader.onerror = () => reject(new Error(t("“{name}” cannot be read.", { name: media.name })));
    reader.readAsDataURL(content);
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

// What the model saw of each medium, by its id: one thing, or each page of a document. Nothing if several documents leave
// open whose page is whose.
export function seenOf(media: readonly Media[], usages: readonly MediumUsage[]): Map<string, MediumUsage[]> {
  const documents = media.filter(({ kind }) => kind === "document").length;
  if (documents > 1) return new Map();
  const pages = usages.length - (media.length - documents);
  let place = 0;
  return new Map(media.map(({ id, kind }) => [id, usages.slice(place, (place += kind === "document" ? pages : 1))]));
}

// The same, as the last answer that tells says it.
export function lastSeen(turns: readonly Turn[]): Map<string, MediumUsage[]> {
  return turns.reduce((seen, turn, index) => {
    const usages = turn.role === "assistant" ? turn.usage?.media_usage?.media : undefined;
    return usages?.length ? new Map([...seen, ...seenOf(mediaOf(turns.slice(0, index)), usages)]) : seen;
  }, new Map<string, MediumUsage[]>());
}

const TIERS: Record<MediumUsage["cache_tier"], Text> = {
  none: "not cached",
  file: "file cached",
  decoded: "decoded file cached",
  encoder: "encoder output cached",
  prefix: "prefix cached",
};

// A medium as the model saw it, in words.
export function describeSeen(usage: MediumUsage): string {
  return [seenSize(usage), t("{count} tokens", { count: usage.tokens }), t(TIERS[usage.cache_tier])].filter(Boolean).join(", ");
}

function seenSize({ width, height, num_tiles: tiles = 0, num_frames: frames, duration_seconds: seconds }: MediumUsage): string {
  if (seconds !== undefined) return `${seconds.toFixed(1)} s`;
  if (width === undefined) return "";
  const size = `${width} × ${height}`;
  if (frames !== undefined) return t("{count} frames of {size}", { count: frames, size });
  return tiles > 1 ? t("{count} tiles of up to {size}", { count: tiles, size }) : size;
}

export function readableBytes(bytes: number): string {
  if (bytes < 1024) return `${bytes} B`;
  const kib = bytes / 1024;
  return kib < 1024 ? `${kib.toFixed(0)} KiB` : `${(kib / 1024).toFixed(1)} MiB`;
}

// Why audio cannot be recorded here; null if it can.
export function recordingObstacle(): string | null {
  if (!window.isSecureContext) return t("Browsers record on https pages and on localhost only.");
  return navigator.mediaDevices && window.MediaRecorder ? null : t("This browser cannot record.");
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
