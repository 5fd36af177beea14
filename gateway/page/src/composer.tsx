// Where the user writes, and adds media by choosing, dropping, pasting or recording.
import { useEffect, useRef, useState } from "preact/hooks";
import { MediaFigure } from "./message";
import { readMedia, recordingObstacle, startRecording, type Recording } from "./media";
import type { Kind, Media } from "./types";

interface ComposerProps {
  // The kinds of media that the model accepts.
  kinds: Kind[];
  isRunning: boolean;
  onSend: (text: string, media: Media[]) => void;
  onStop: () => void;
}

export function Composer({ kinds, isRunning, onSend, onStop }: ComposerProps) {
  const [text, setText] = useState("");
  const { media, problem, setMedia, add } = useMedia(kinds);
  const isOver = useDrop(add);
  const send = (event: Event): void => {
    event.preventDefault();
    if (isRunning || !(text.trim() || media.length)) return;
    onSend(text.trim(), media);
    setText("");
    setMedia([]);
  };
  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
    if (event.key === "Escape" && isRunning) onStop();
  };
  const onPaste = (event: ClipboardEvent): void => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    void add(files);
  };
  return (
    <form class={isOver ? "composer over" : "composer"} onSubmit={send}>
      {media.length > 0 && <Chosen media={media} onRemove={(gone) => setMedia(media.filter((each) => each !== gone))} />}
      {problem && (
        <p class="error" role="alert">
          {problem}
        </p>
      )}
      <label class="hidden" for="question">
        Message
      </label>
      <textarea
        id="question"
        rows={2}
        placeholder={kinds.length ? `Ask about ${kinds.map((kind) => NAMES[kind]).join(" or ")}. Drop or paste it here.` : "Ask"}
        value={text}
        onInput={({ currentTarget }) => setText(currentTarget.value)}
        onKeyDown={onKeyDown}
        onPaste={onPaste}
      />
      <div class="actions">
        {kinds.length > 0 && <Choose kinds={kinds} onFiles={add} />}
        {kinds.includes("audio") && <Record onFile={(file) => add([file])} />}
        <span class="space" />
        {isRunning ? (
          <button type="button" onClick={onStop}>
            Stop
          </button>
        ) : (
          <button type="submit" class="primary">
            Send
          </button>
        )}
      </div>
    </form>
  );
}

const NAMES: Record<Kind, string> = { image: "an image", video: "a video", audio: "audio", document: "a PDF" };

function useMedia(kinds: Kind[]) {
  const [media, setMedia] = useState<Media[]>([]);
  const [problem, setProblem] = useState("");
  const add = async (files: File[]): Promise<void> => {
    const results = await Promise.allSettled(files.map(readMedia));
    const read = results.flatMap((result) => (result.status === "fulfilled" ? [result.value] : []));
    const failed = results.flatMap((result) => (result.status === "rejected" ? [(result.reason as Error).message] : []));
    const refused = read.filter(({ kind }) => !kinds.includes(kind));
    failed.push(...refused.map(({ name, kind }) => `'${name}': this model does not read ${kind === "audio" ? kind : `${kind}s`}`));
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
          <button type="button" aria-label={`Remove ${each.name}`} onClick={() => onRemove(each)}>
            ×
          </button>
        </div>
      ))}
    </div>
  );
}

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
        aria-label="Files"
        accept={kinds.map((kind) => (kind === "document" ? "application/pdf" : `${kind}/*`)).join(",")}
        onChange={onChange}
      />
      <button type="button" onClick={() => input.current?.click()}>
        Add files
      </button>
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
      setProblem("The browser gave no access to a microphone.");
    }
  };
  return (
    <>
      <button type="button" aria-pressed={recording !== null} disabled={problem !== null} title={problem ?? ""} onClick={toggle}>
        {recording ? "Stop recording" : "Record"}
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
