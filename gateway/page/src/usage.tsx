// What an answer took: times, tokens and caches.
import { describeSeen } from "./media";
import { duration, t, type Text } from "./text";
import type { AssistantTurn, Media, MediumUsage, Timings } from "./types";

interface FiguresProps {
  turn: AssistantTurn;
  seen: Map<string, MediumUsage[]>;
  media: Media[];
}

// Times, tokens and caches of an answer.
export function Figures({ turn, seen, media }: FiguresProps) {
  const rows = [...speedRows(turn), ...tokenRows(turn), ...mediaRows(turn, seen, media)];
  if (!rows.length) return null;
  return (
    <details class="figures">
      <summary>{summary(turn)}</summary>
      <dl class="rows">
        {rows.map(([name, value], index) => (
          <div key={index}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      {turn.usage?.timings && <Timeline timings={turn.usage.timings} />}
    </details>
  );
}

const STAGES: [keyof Timings["first_token_stages"], Text][] = [
  ["preparation_milliseconds", "Prepare"],
  ["fetch_milliseconds", "Fetch files"],
  ["decode_media_milliseconds", "Decode files"],
  ["queue_milliseconds", "Queue"],
  ["encode_milliseconds", "Encode"],
  ["prefill_milliseconds", "Prefill"],
];

// The stages of a request in the server, each as a bar that begins where the one before it ends.
function Timeline({ timings }: { timings: Timings }) {
  const { first_token_stages: stages, first_token_milliseconds: first, decode_milliseconds: decode } = timings;
  const all: [Text, number][] = [...STAGES.map(([name, title]): [Text, number] => [title, stages[name]]), ["Tokens", decode]];
  const spans = all.filter(([, ms]) => ms >= 0.05);
  const beginOf = (index: number): number => spans.slice(0, index).reduce((sum, [, ms]) => sum + ms, 0);
  return (
    <figure class="timeline">
      <figcaption>{t("Where the server’s time went")}</figcaption>
      <ol>
        {spans.map(([title, ms], index) => (
          <li key={title}>
            <span>{t(title)}</span>
            <svg viewBox={`0 0 ${first + decode} 1`} preserveAspectRatio="none" aria-hidden="true">
              <rect x={beginOf(index)} width={ms} height="1" />
            </svg>
            <span>{duration(ms)}</span>
          </li>
        ))}
      </ol>
    </figure>
  );
}

// A name and its value.
type Row = [string, string];

// Chunks that arrive together say nothing about speed.
const MIN_TIMED_TOKENS = 16;
const MIN_TIMED_MS = 200;

function summary(turn: AssistantTurn): string {
  const { usage, firstMs } = turn;
  const parts = [
    usage ? t("{prompt} + {answer} tokens", { prompt: usage.prompt_tokens, answer: usage.completion_tokens }) : "",
    firstMs === null ? "" : t("first token after {time}", { time: duration(firstMs) }),
    speed(turn),
  ];
  return parts.filter(Boolean).join(" · ");
}

function speed({ firstMs, lastMs, usage }: AssistantTurn): string {
  const following = (usage?.completion_tokens ?? 0) - 1;
  if (firstMs === null || lastMs === null || following < MIN_TIMED_TOKENS || lastMs - firstMs < MIN_TIMED_MS) return "";
  return t("{count} tokens/s", { count: ((1000 * following) / (lastMs - firstMs)).toFixed(1) });
}

const ENDINGS: Record<string, Text> = {
  stop: "end of the answer (stop)",
  length: "token limit (length)",
  tool_calls: "tool calls",
  stopped: "stopped by you",
  interrupted: "page closed",
};

function speedRows(turn: AssistantTurn): Row[] {
  const { firstMs, finishReason, setup } = turn;
  const ending = ENDINGS[finishReason ?? ""];
  const rows: Row[] = [
    [t("Time to first token"), firstMs === null ? "" : duration(firstMs)],
    [t("Speed"), speed(turn)],
    [t("Ended by"), ending ? t(ending) : (finishReason ?? "")],
    [t("Settings"), setup],
  ];
  return rows.filter(([, value]) => value);
}

function tokenRows({ usage }: AssistantTurn): Row[] {
  const details = usage?.prompt_tokens_details ?? {};
  const rows: [Text, number | undefined][] = [
    ["Tokens from the prefix cache", details.cached_tokens],
    ["Image tokens", details.image_tokens],
    ["Video tokens", details.video_tokens],
    ["Audio tokens", details.audio_tokens],
    ["Reasoning tokens", usage?.completion_tokens_details?.reasoning_tokens],
  ];
  return rows.filter(([, value]) => value).map(([name, value]) => [t(name), String(value)]);
}

function mediaRows({ videos }: AssistantTurn, seen: Map<string, MediumUsage[]>, media: Media[]): Row[] {
  const pages = media.flatMap(({ id, name }) =>
    (seen.get(id) ?? []).map((usage, index, { length }): Row => [length > 1 ? `${name}, ${index + 1}` : name, describeSeen(usage)]),
  );
  const sampled = videos
    .filter((video) => video.frame_seconds?.length)
    .map((video, index): Row => [
      t("Frames of video {number}", { number: index + 1 }),
      `${(video.frame_seconds ?? []).map((seconds) => seconds.toFixed(1)).join(", ")} s`,
    ]);
  return [...pages, ...sampled];
}
