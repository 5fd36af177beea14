// Where the user writes, adds media by choosing, dropping, pasting or recording, and sees what the question would cost.
import { ArrowUp, Mic, Paperclip, Square, X } from "lucide";
import { useEffect, useRef, useState } from "preact/hooks";
import { Icon, IconButton, LabelledButton } from "./controls";
import { stop, type Setup } from "./conversation";
import { MediaFigure } from "./figure";
import { newId, readMedia, recordingObstacle, startRecording, type Recording } from "./media";
import { loadMarkdown } from "./message";
import { quote, type Quote } from "./quote";
import { duration, t, type Text } from "./text";
import type { Kind, Media, Turn, UserTurn } from "./types";

interface ComposerProps {
  // The kinds of media that the model accepts.
  kinds: Kind[];
  // The conversation so far.
  path: Turn[];
  setup: Setup;
  isRunning: boolean;
  onSend: (text: string, media: Media[]) => void;
}

export function Composer({ kinds, path, setup, isRunning, onSend }: ComposerProps) {
  const [text, setText] = useState("");
  const { media, problem, setMedia, add } = useMedia(kinds);
  const isOver = useDrop(add);
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => field.current!.focus({ preventScroll: true }), []);
  const send = (event: Event): void => {
    event.preventDefault();
    if (isRunning || !(text.trim() || media.length)) return;
    onSend(text.trim(), media);
    setText("");
    setMedia([]);
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
  };
  const onPaste = (event: ClipboardEvent): void => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    void add(files);
  };
  const names = kinds.map((kind) => t(NAMES[kind])).join(", ");
  return (
    <form class={isOver ? "composer over" : "composer"} onSubmit={send}>
      {media.length > 0 && <Chosen media={media} onRemove={(gone) => setMedia(media.filter((each) => each !== gone))} />}
      {problem && (
        <p class="error" role="alert">
          {problem}
        </p>
      )}
      <label class="hidden" for="question">
        {t("Message")}
      </label>
      <textarea
        ref={field}
        id="question"
        rows={1}
        placeholder={kinds.length ? t("Ask about {kinds}: drop or paste it anywhere.", { kinds: names }) : t("Ask")}
        value={text}
        onInput={({ currentTarget }) => {
          setText(currentTarget.value);
          // The answer needs it with its first words.
          void loadMarkdown();
        }}
        onKeyDown={onKeyDown}
        onPaste={onPaste}
      />
      <div class="actions">
        {kinds.length > 0 && <Choose kinds={kinds} onFiles={add} />}
        {kinds.includes("audio") && <Record onFile={(file) => add([file])} />}
        <Costs text={text.trim()} media={media} path={path} setup={setup} />
        <span class="space" />
        {isRunning ? (
          <button type="button" onClick={stop}>
            <Icon of={Square} /> {t("Stop")}
          </button>
        ) : (
          <button type="submit" class="primary">
            <Icon of={ArrowUp} /> {t("Send")}
          </button>
        )}
      </div>
    </form>
  );
}

const NAMES: Record<Kind, Text> = { image: "an image", video: "a video", audio: "audio", document: "a PDF" };

const QUOTE_AFTER_MS = 700;
// Quoting sends the media. Above this, only the request itself does.
const MAX_QUOTED_BYTES = 32 * 1024 * 1024;

// What the question would cost, some time after the last change of it.
function Costs({ text, media, path, setup }: Pick<ComposerProps, "path" | "setup"> & { text: string; media: Media[] }) {
  const [costs, setCosts] = useState<Quote | null>(null);
  const history = path.at(-1)?.id;
  useEffect(() => {
    setCosts(null);
    const bytes = media.reduce((sum, each) => sum + each.bytes, 0);
    if (!(text || media.length) || bytes > MAX_QUOTED_BYTES) return;
    const abort = new AbortController();
    const ask = async (): Promise<void> => {
      const turn: UserTurn = { role: "user", id: newId(), conversation: "", parent: null, created: 0, text, media };
      // A question that cannot be quoted tells why when it is sent.
      const found = await quote(setup.model, [...path, turn], setup.settings, abort.signal).catch(() => null);
      if (!abort.signal.aborted) setCosts(found);
    };
    const timer = setTimeout(ask, QUOTE_AFTER_MS);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [text, media, history, setup.name, setup.settings.system, setup.settings.maxPixels, setup.settings.tools]);
  if (!costs) return null;
  const parts = [
    t("{count} of {window} tokens", { count: costs.tokens, window: costs.window }),
    costs.cached ? t("{count} cached", { count: costs.cached }) : "",
    costs.firstMs === null ? "" : t("answer begins in about {time}", { time: duration(costs.firstMs) }),
  ];
  return (
    <span class="quote faint" role="note" aria-label={t("Expected cost")}>
      {parts.filter(Boolean).join(" · ")}
    </span>
  );
}

const PLURALS: Record<Kind, Text> = { image: "images", video: "videos", audio: "audio", document: "PDFs" };

function useMedia(kinds: Kind[]) {
  const [media, setMedia] = useState<Media[]>([]);
  const [problem, setProblem] = useState("");
  const add = async (files: File[]): Promise<void> => {
    const results = await Promise.allSettled(files.map(readMedia));
    const read = results.flatMap((result) => (result.status === "fulfilled" ? [result.value] : []));
    const failed = results.flatMap((result) => (result.status === "rejected" ? [(result.reason as Error).message] : []));
    const refused = read.filter(({ kind }) => !kinds.includes(kind));
    failed.push(...refused.map(({ name, kind }) => t("“{name}”: this model does not read {kind}.", { name, kind: t(PLURALS[kind]) })));
    setProblem(failed.join(" "));
    setMedia((before) => [...before, ...read.filter((each) => !refused.includes(each))]);
  };
  return { media, setMedia, problem, add };
}

// Files may be dropped anywhere on the page. Tells whether one is over it.
function useDrop(add: (files: File[]) => Promise<void>): boolean {
  const [isOver, setOver] = useState(false);
  useEffect(() => {
    const over = (event: DragEvent): void => {
      event.preventDefault();
      setOver(event.type === "dragover");
      if (event.type === "drop") void add([...(event.dataTransfer?.files ?? [])]);
    };
    const names = ["dragover", "dragleave", "drop"] as const;
    for (const name of names) document.addEventListener(name, over);
    return () => {
      for (const name of names) document.removeEventListener(name, over);
    };
  }, [add]);
  return isOver;
}

function Chosen({ media, onRemove }: { media: Media[]; onRemove: (media: Media) => void }) {
  return (
    <div class="media">
      {media.map((each) => (
        <div key={each.id} class="chosen">
          <MediaFigure media={each} />
          <IconButton icon={X} label={t("Remove {name}", { name: each.name })} onClick={() => onRemove(each)} />
        </div>
      ))}
    </div>
  );
}

// Browsers do not count all of these formats among images and videos.
const ACCEPTED: Record<Kind, string> = {
  image: "image/*,.heic,.heif,.avif",
  video: "video/*,.mkv,.avi",
  audio: "audio/*,.flac",
  document: "application/pdf",
};

function Choose({ kinds, onFiles }: { kinds: Kind[]; onFiles: (files: File[]) => Promise<void> }) {
  const input = useRef<HTMLInputElement>(null);
  const onChange = async ({ currentTarget }: { currentTarget: HTMLInputElement }): Promise<void> => {
    const files = [...(currentTarget.files ?? [])];
    currentTarget.value = "";
    await onFiles(files);
  };
  return (
    <>
      <input
        ref={input}
        class="hidden"
        type="file"
        multiple
        tabIndex={-1}
        aria-label={t("Files")}
        accept={kinds.map((kind) => ACCEPTED[kind]).join(",")}
        onChange={onChange}
      />
      <LabelledButton icon={Paperclip} onClick={() => input.current?.click()}>
        {t("Add files")}
      </LabelledButton>
    </>
  );
}

function Record({ onFile }: { onFile: (file: File) => Promise<void> }) {
  const [recording, setRecording] = useState<Recording | null>(null);
  const [problem, setProblem] = useState(recordingObstacle());
  const toggle = async (): Promise<void> => {
    if (recording) {
      setRecording(null);
      await onFile(await recording.stop());
      return;
    }
    try {
      setRecording(await startRecording());
    } catch {
      setProblem(t("The browser gave no access to a microphone."));
    }
  };
  return (
    <>
      <button type="button" aria-pressed={recording !== null} disabled={problem !== null} title={problem ?? ""} onClick={toggle}>
        <Icon of={Mic} /> {recording ? t("Stop recording") : t("Record")}
      </button>
      {recording && <Timer />}
    </>
  );
}

// The seconds since it is shown.
function Timer() {
  const [seconds, setSeconds] = useState(0);
  useEffect(() => {
    const start = performance.now();
    const timer = setInterval(() => setSeconds(Math.floor((performance.now() - start) / 1000)), 200);
    return () => clearInterval(timer);
  }, []);
  return (
    <span class="faint" role="timer">
      {seconds} s
    </span>
  );
}
