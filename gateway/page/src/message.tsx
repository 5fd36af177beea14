// Turns of the conversation, as they are shown.
import { useState } from "preact/hooks";
import { Groundings } from "./figure";
import { areSingle, describe, describeSeen } from "./media";
import type { AssistantTurn, Media, MediumUsage, TokenLogprob, ToolCall, ToolTurn, UserTurn } from "./types";

interface UserProps {
  turn: UserTurn;
  // What the model saw of each medium, by its id.
  seen: Map<number, MediumUsage>;
}

export function UserMessage({ turn, seen }: UserProps) {
  return (
    <article class="turn user" aria-label="You">
      {turn.media.length > 0 && (
        <div class="media">
          {turn.media.map((media) => (
            <MediaFigure key={media.id} media={media} seenAs={seen.get(media.id)} />
          ))}
        </div>
      )}
      <p class="text">{turn.text}</p>
    </article>
  );
}

export function MediaFigure({ media, seenAs }: { media: Media; seenAs?: MediumUsage | undefined }) {
  return (
    <figure>
      {media.kind === "image" && <img src={media.objectUrl} alt={media.name} />}
      {media.kind === "video" && <video src={media.objectUrl} controls muted aria-label={media.name} />}
      {media.kind === "audio" && <audio src={media.objectUrl} controls aria-label={media.name} />}
      <figcaption>
        {media.name} <span class="faint">{describe(media)}</span>
        {seenAs && <p class="seen">To the model: {describeSeen(seenAs)}</p>}
      </figcaption>
    </figure>
  );
}

interface AssistantProps {
  turn: AssistantTurn;
  // The media of the conversation up to this answer.
  media: Media[];
  isLast: boolean;
  onRetry: () => void;
  onToolResults: (results: string[]) => void;
}

export function AssistantMessage(props: AssistantProps) {
  const { turn, media, isLast, onRetry, onToolResults } = props;
  const images = areSingle(media) ? media.filter(({ kind }) => kind === "image") : [];
  const isWaiting = turn.isRunning && !turn.text && !turn.reasoning && !turn.toolCalls.length;
  return (
    <article class="turn assistant" aria-label="Model" aria-busy={turn.isRunning}>
      {turn.reasoning && (
        <details class="reasoning" open={turn.isRunning}>
          <summary>Reasoning</summary>
          <p class="text">{turn.reasoning}</p>
        </details>
      )}
      {isWaiting && <p class="faint">Waiting for the first token …</p>}
      {turn.tokens.length ? <Tokens tokens={turn.tokens} /> : turn.text && <p class="text">{turn.text}</p>}
      {turn.toolCalls.length > 0 && (
        <ToolCalls calls={turn.toolCalls} isOpen={isLast && !turn.isRunning} onResults={onToolResults} />
      )}
      {images.map((image, index) => (
        <Groundings key={image.id} found={turn.groundings.filter((each) => each.image_index === index)} image={image} seen={turn.images[index]} />
      ))}
      {turn.error && (
        <div class="error" role="alert">
          <p>{turn.error}</p>
          {isLast && <button onClick={onRetry}>Try again</button>}
        </div>
      )}
      <Figures turn={turn} media={media} />
    </article>
  );
}

// An answer whose tokens show their probabilities: on hover, and in a table.
function Tokens({ tokens }: { tokens: TokenLogprob[] }) {
  return (
    <>
      <p class="text tokens">
        {tokens.map((token, index) => (
          <span key={index} class={confidence(token.logprob)} title={alternatives(token)}>
            {token.token}
          </span>
        ))}
      </p>
      <details>
        <summary>Probabilities of the tokens</summary>
        <div class="wide" tabIndex={0} role="region" aria-label="Probabilities of the tokens">
          <table>
            <thead>
              <tr>
                <th scope="col">Token</th>
                <th scope="col">Probability</th>
                <th scope="col">Most likely</th>
              </tr>
            </thead>
            <tbody>
              {tokens.map((token, index) => (
                <tr key={index}>
                  <td>
                    <code>{JSON.stringify(token.token)}</code>
                  </td>
                  <td>{percent(token.logprob)}</td>
                  <td>{alternatives(token)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </details>
    </>
  );
}

const percent = (logprob: number): string => `${(100 * Math.exp(logprob)).toFixed(1)} %`;
const alternatives = ({ top_logprobs, token, logprob }: TokenLogprob): string =>
  (top_logprobs.length ? top_logprobs : [{ token, logprob }])
    .map((each) => `${JSON.stringify(each.token)} ${percent(each.logprob)}`)
    .join(", ");

function confidence(logprob: number): string {
  const probability = Math.exp(logprob);
  return probability > 0.9 ? "sure" : probability > 0.5 ? "likely" : "unsure";
}

interface ToolCallsProps {
  calls: ToolCall[];
  isOpen: boolean;
  onResults: (results: string[]) => void;
}

function ToolCalls({ calls, isOpen, onResults }: ToolCallsProps) {
  const [results, setResults] = useState<string[]>([]);
  const send = (event: Event): void => {
    event.preventDefault();
    onResults(calls.map((_, index) => results[index] ?? ""));
  };
  return (
    <form class="calls" onSubmit={send}>
      {calls.map((call, index) => (
        <div key={call.id}>
          <pre tabIndex={0} aria-label="Tool call">{`${call.function.name}(${call.function.arguments})`}</pre>
          {isOpen && (
            <label>
              Result of {call.function.name}
              <textarea
                rows={2}
                value={results[index] ?? ""}
                onInput={({ currentTarget }) => setResults(calls.map((_, i) => (i === index ? currentTarget.value : (results[i] ?? ""))))}
              />
            </label>
          )}
        </div>
      ))}
      {isOpen && <button type="submit">Send the {calls.length === 1 ? "result" : "results"}</button>}
    </form>
  );
}

export function ToolMessage({ turn }: { turn: ToolTurn }) {
  return (
    <article class="turn tool" aria-label={`Result of ${turn.name}`}>
      <p class="faint">Result of {turn.name}</p>
      <p class="text">{turn.text}</p>
    </article>
  );
}

// Times, tokens and caches of an answer.
function Figures({ turn, media }: { turn: AssistantTurn; media: Media[] }) {
  const rows = [...speedRows(turn), ...tokenRows(turn), ...mediaRows(turn, media)];
  if (!rows.length) return null;
  return (
    <details class="figures">
      <summary>{summary(turn)}</summary>
      <dl>
        {rows.map(([name, value], index) => (
          <div key={index}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </details>
  );
}

// A name, a value, and the value in words for a place without the name.
type Row = [string, string, string?];

function summary(turn: AssistantTurn): string {
  const { usage } = turn;
  const parts = speedRows(turn).map(([, value, explained]) => explained ?? value);
  if (usage) parts.unshift(`${usage.prompt_tokens} + ${usage.completion_tokens} tokens`);
  return parts.join(" · ");
}

function speedRows({ firstMs, lastMs, usage, finishReason }: AssistantTurn): Row[] {
  const rows: Row[] = [];
  if (firstMs !== null) rows.push(["Time to first token", `${firstMs.toFixed(0)} ms`, `first after ${firstMs.toFixed(0)} ms`]);
  const following = (usage?.completion_tokens ?? 0) - 1;
  if (firstMs !== null && lastMs !== null && following > 0 && lastMs > firstMs) {
    rows.push(["Speed", `${((1000 * following) / (lastMs - firstMs)).toFixed(1)} tokens/s`]);
  }
  if (finishReason) rows.push(["Ended by", ENDINGS[finishReason] ?? finishReason]);
  return rows;
}

const ENDINGS: Record<string, string> = {
  stop: "the model ended",
  length: "cut at the limit of tokens",
  tool_calls: "calls tools",
  stopped: "stopped by you",
};

function tokenRows({ usage }: AssistantTurn): Row[] {
  const details = usage?.prompt_tokens_details ?? {};
  const rows: [string, number | undefined][] = [
    ["Tokens from the prefix cache", details.cached_tokens],
    ["Tokens of images", details.image_tokens],
    ["Tokens of videos", details.video_tokens],
    ["Tokens of audio", details.audio_tokens],
    ["Tokens of the reasoning", usage?.completion_tokens_details?.reasoning_tokens],
  ];
  return rows.filter(([, value]) => value).map(([name, value]) => [name, String(value)]);
}

function mediaRows({ usage, videos }: AssistantTurn, media: Media[]): Row[] {
  const names = areSingle(media) ? media.map(({ name }) => name) : [];
  const seen: Row[] = (usage?.media_usage?.media ?? []).map((each, place) => [names[place] ?? each.modality, describeSeen(each)]);
  const sampled: Row[] = videos
    .filter((video) => video.frame_seconds?.length)
    .map((video, index) => [`Frames of video ${index + 1}`, `at ${(video.frame_seconds ?? []).map((seconds) => seconds.toFixed(1)).join(", ")} s`]);
  return [...seen, ...sampled];
}
