// Turns of the conversation, as they are shown.
import { ChevronLeft, ChevronRight, Pencil, Play, RefreshCw, Trash2 } from "lucide";
import type { ComponentChildren, ComponentType } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Icon, IconButton } from "./controls";
import { answerTools, choose, edit, goOn, regenerate, remove, versions, type Setup } from "./conversation";
import { CopyButton } from "./copy";
import { Groundings, MediaFigure } from "./figure";
import { Form, parsed } from "./form";
import { seenOf } from "./media";
import { t, type Text } from "./text";
import type { AssistantTurn, Media, MediumUsage, TokenLogprob, ToolCall, ToolTurn, Turn, UserTurn } from "./types";
import { Figures } from "./usage";

interface UserProps {
  turn: UserTurn;
  // What the model saw of each medium, by its id.
  seen: Map<string, MediumUsage[]>;
  setups: Setup[];
  isRunning: boolean;
}

export function UserMessage({ turn, seen, setups, isRunning }: UserProps) {
  const [isEditing, setEditing] = useState(false);
  const send = (text: string): void => {
    setEditing(false);
    if (text.trim()) edit(turn, text.trim(), setups);
  };
  return (
    <article class="turn user" aria-label={t("You")}>
      {turn.media.length > 0 && (
        <div class="media">
          {turn.media.map((media) => (
            <MediaFigure key={media.id} media={media} seenAs={seen.get(media.id)} />
          ))}
        </div>
      )}
      {isEditing ? <Editor text={turn.text} onSend={send} onCancel={() => setEditing(false)} /> : <p class="text written">{turn.text}</p>}
      <Actions turn={turn}>
        <CopyButton text={turn.text} />
        <IconButton icon={Pencil} label={t("Edit")} isDisabled={isRunning} onClick={() => setEditing(true)} />
      </Actions>
    </article>
  );
}

function Editor({ text, onSend, onCancel }: { text: string; onSend: (text: string) => void; onCancel: () => void }) {
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => field.current!.focus(), []);
  const submit = (event: Event): void => {
    event.preventDefault();
    onSend(field.current!.value);
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
    if (event.key === "Escape") onCancel();
  };
  return (
    <form class="editor" onSubmit={submit}>
      <textarea ref={field} rows={3} aria-label={t("Edited message")} defaultValue={text} onKeyDown={onKeyDown} />
      <div class="actions">
        <span class="space" />
        <button type="button" onClick={onCancel}>
          {t("Cancel")}
        </button>
        <button type="submit" class="primary">
          {t("Send")}
        </button>
      </div>
    </form>
  );
}

// What can be done with a turn, and its versions.
function Actions({ turn, children }: { turn: Turn; children?: ComponentChildren }) {
  const all = versions(turn);
  const place = all.findIndex(({ id }) => id === turn.id);
  const step = (by: number): void => choose(all[place + by]!);
  return (
    <div class="tools">
      {all.length > 1 && (
        <span class="versions">
          <IconButton icon={ChevronLeft} label={t("Previous version")} isDisabled={place === 0} onClick={() => step(-1)} />
          <span>
            {place + 1}/{all.length}
          </span>
          <IconButton icon={ChevronRight} label={t("Next version")} isDisabled={place === all.length - 1} onClick={() => step(1)} />
        </span>
      )}
      {children}
      <IconButton icon={Trash2} label={t("Delete")} onClick={() => remove(turn)} />
    </div>
  );
}

interface AssistantProps {
  turn: AssistantTurn;
  // The media of the conversation up to this answer.
  media: Media[];
  isLast: boolean;
  setups: Setup[];
  isRunning: boolean;
}

// An answer, or the compared answers to a question side by side.
export function AssistantTurns(props: AssistantProps) {
  const { turn } = props;
  if (!turn.isCompared) return <AssistantMessage {...props} />;
  const compared = versions(turn).filter((each) => each.role === "assistant" && each.isCompared) as AssistantTurn[];
  return (
    <div class="columns">
      {compared.map((each) => (
        <div key={each.id} class="column">
          <p class="faint setup">
            {each.setup}
            {each.id === turn.id ? ` · ${t("goes on from here")}` : <button class="small" onClick={() => choose(each)}>{t("Go on from here")}</button>}
          </p>
          <AssistantMessage {...props} turn={each} />
        </div>
      ))}
    </div>
  );
}

function AssistantMessage({ turn, media, isLast, setups, isRunning }: AssistantProps) {
  const usages = turn.usage?.media_usage?.media ?? [];
  const images = media.some(({ kind }) => kind === "document") ? [] : media.filter(({ kind }) => kind === "image");
  const isWaiting = turn.isRunning && !turn.text && !turn.reasoning && !turn.toolCalls.length;
  const value = turn.schema && !turn.isRunning ? parsed(turn.text) : undefined;
  return (
    <article class="turn assistant" aria-label={t("Model")} aria-busy={turn.isRunning}>
      {turn.reasoning && (
        <details class="reasoning" open={turn.isRunning}>
          <summary>{t("Reasoning")}</summary>
          <p class="written">{turn.reasoning}</p>
        </details>
      )}
      {isWaiting && <p class="faint waiting">{t("Waiting for the first token …")}</p>}
      {value === undefined ? turn.text && <Markdown text={turn.text} isRunning={turn.isRunning} /> : <Form text={turn.text} value={value} schema={turn.schema} />}
      {turn.tokens.length > 0 && <Tokens tokens={turn.tokens} />}
      {turn.toolCalls.length > 0 && (
        <ToolCalls calls={turn.toolCalls} isOpen={isLast && !turn.isRunning} onResults={(results) => answerTools(turn, results, setups)} />
      )}
      {images.map((image, index) => (
        <Groundings key={image.id} found={turn.groundings.filter((each) => each.image_index === index)} image={image} seen={turn.images[index]} />
      ))}
      <Ending turn={turn} setups={setups} />
      <Figures turn={turn} seen={seenOf(media, usages)} media={media} />
      {!turn.isRunning && (
        <Actions turn={turn}>
          <CopyButton text={turn.text} />
          <IconButton icon={RefreshCw} label={t("Regenerate")} isDisabled={isRunning} onClick={() => regenerate(turn, setups.slice(0, 1))} />
        </Actions>
      )}
    </article>
  );
}

const CUT: Record<string, Text> = {
  interrupted: "The page was closed or reloaded during this answer.",
  length: "The answer reached its token limit.",
  stopped: "Stopped.",
};

// Why an answer is not whole, and how to go on.
function Ending({ turn, setups }: { turn: AssistantTurn; setups: Setup[] }) {
  const cut = turn.error ? null : CUT[turn.finishReason ?? ""];
  if (turn.isRunning || !(turn.error || cut)) return null;
  const canGoOn = turn.text !== "" && !turn.schema && !turn.toolCalls.length;
  return (
    <div class={turn.error ? "error" : "notice"} role={turn.error ? "alert" : undefined}>
      <p>{turn.error?.message ?? t(cut!)}</p>
      {turn.error?.detail && (
        <details>
          <summary>{t("Details")}</summary>
          <p class="written">{turn.error.detail}</p>
        </details>
      )}
      {canGoOn && (
        <button class="small" onClick={() => goOn(turn, setups[0]!)}>
          <Icon of={Play} /> {t("Continue")}
        </button>
      )}
      {turn.error && <button class="small" onClick={() => regenerate(turn, setups.slice(0, 1))}>{t("Try again")}</button>}
    </div>
  );
}

type Rendered = ComponentType<{ text: string; isRunning: boolean }>;
let loaded: Rendered | null = null;

// Loads what shows Markdown.
export async function loadMarkdown(): Promise<Rendered | null> {
  // Without a connection, the next answer tries again.
  loaded ??= await import("./markdown").then((part) => part.default, () => null);
  return loaded;
}

// Markdown once its part of the page is loaded, and the text as it is until then.
function Markdown({ text, isRunning }: { text: string; isRunning: boolean }) {
  const [Shown, setShown] = useState<Rendered | null>(() => loaded);
  useEffect(() => {
    if (!Shown) void loadMarkdown().then((rendered) => setShown(() => rendered));
  }, [Shown]);
  return Shown ? <Shown text={text} isRunning={isRunning} /> : <p class="text written">{text}</p>;
}

// The tokens of an answer with their probabilities: on hover, and in a table.
function Tokens({ tokens }: { tokens: TokenLogprob[] }) {
  return (
    <details class="probabilities">
        <summary>{t("Token probabilities")}</summary>
        <p class="written tokens">
          {tokens.map((token, index) => (
            <span key={index} class={confidence(token.logprob)} title={alternatives(token)}>
              {token.token}
            </span>
          ))}
        </p>
        <div class="wide" tabIndex={0} role="region" aria-label={t("Token probabilities")}>
          <table>
            <thead>
              <tr>
                <th scope="col">{t("Token")}</th>
                <th scope="col">{t("Probability")}</th>
                <th scope="col">{t("Most likely")}</th>
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
          <pre tabIndex={0} aria-label={t("Tool call")}>{`${call.function.name}(${call.function.arguments})`}</pre>
          {isOpen && (
            <label>
              {t("Result of {name}", { name: call.function.name })}
              <textarea
                rows={2}
                value={results[index] ?? ""}
                onInput={({ currentTarget }) => setResults(calls.map((_, i) => (i === index ? currentTarget.value : (results[i] ?? ""))))}
              />
            </label>
          )}
        </div>
      ))}
      {isOpen && <button type="submit">{calls.length === 1 ? t("Send the result") : t("Send the results")}</button>}
    </form>
  );
}

export function ToolMessage({ turn }: { turn: ToolTurn }) {
  const title = t("Result of {name}", { name: turn.name });
  return (
    <article class="turn tool" aria-label={title}>
      <p class="faint">{title}</p>
      <p class="text written">{turn.text}</p>
    </article>
  );
}
