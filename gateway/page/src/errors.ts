// Errors of requests in words for a person: without fields of the API, and with the names that the page shows.
import { ApiError } from "./api";
import { SettingError, titleOf } from "./request";
import { t } from "./text";
import type { Failure, Turn } from "./types";

const FIELD = /^'([^']+)': /;
const UNAUTHENTICATED = 401;
const BUSY = new Set([429, 503]);

// Returns null for an error that is no one's but the page's.
export function failureOf(error: unknown, turns: readonly Turn[], hasSystem: boolean): Failure | null {
  if (error instanceof SettingError) return { message: error.message, detail: "" };
  if (!(error instanceof ApiError)) return null;
  const message = inWords(error, turns, hasSystem);
  return { message, detail: message === error.message ? "" : error.message };
}

function inWords({ message, field, status }: ApiError, turns: readonly Turn[], hasSystem: boolean): string {
  if (status === 0) return message;
  if (status === UNAUTHENTICATED) return t("The server asks for an API key. Enter it at the top of the page.");
  if (BUSY.has(status)) return t("The server is busy or still loading. Try again in a moment.");
  const path = FIELD.exec(message)?.[1] ?? field;
  const rest = message.replace(FIELD, "").replace(` (${path})`, "");
  const name = nameOf(path, turns, hasSystem);
  return name ? `${name}: ${rest}` : rest.charAt(0).toUpperCase() + rest.slice(1);
}

// What the page calls a field of the request: a setting or a file.
function nameOf(path: string, turns: readonly Turn[], hasSystem: boolean): string {
  const title = titleOf(path.split(".").at(-1)!);
  if (title) return t(title);
  const [, message, part] = /^messages\[(\d+)\]\.content\[(\d+)\]/.exec(path) ?? [];
  const turn = turns[Number(message) - (hasSystem ? 1 : 0)];
  return turn?.role === "user" ? (turn.media[Number(part)]?.name ?? "") : "";
}
