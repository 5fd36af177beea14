// The request as a program, to be copied.
import { useRef, useState } from "preact/hooks";
import { SettingError } from "./request";
import { LANGUAGES, snippet, type Language } from "./snippets";
import type { Settings, Turn } from "./types";

interface CopyProps {
  turns: Turn[];
  model: string;
  settings: Settings;
  hasKey: boolean;
}

const EXAMPLE: Turn = { role: "user", id: 0, text: "Hello!", media: [] };

export function CopyPanel({ turns, ...rest }: CopyProps) {
  const [language, setLanguage] = useState<Language>("curl");
  const [isCopied, setCopied] = useState(false);
  const code = useRef<HTMLPreElement>(null);
  // The answer that came last is what the request asks for.
  const asked = turns.at(-1)?.role === "assistant" ? turns.slice(0, -1) : turns;
  const text = program(language, { turns: asked.length ? asked : [EXAMPLE], ...rest });
  const copy = async (): Promise<void> => {
    getSelection()?.selectAllChildren(code.current!);
    // Only on https pages and on localhost; elsewhere the text is selected and Ctrl-C copies it.
    await navigator.clipboard?.writeText(text);
    setCopied(navigator.clipboard !== undefined);
  };
  return (
    <details class="copy" onToggle={() => setCopied(false)}>
      <summary>Copy as code</summary>
      <div class="actions">
        <select
          aria-label="Language"
          value={language}
          onChange={({ currentTarget }) => setLanguage(currentTarget.value as Language)}
        >
          {LANGUAGES.map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
        <button onClick={copy}>Copy</button>
        <span role="status">{isCopied ? "Copied" : ""}</span>
      </div>
      <pre ref={code} tabIndex={0} aria-label="Code">
        {text}
      </pre>
    </details>
  );
}

function program(language: Language, conversation: CopyProps): string {
  try {
    return snippet(language, { ...conversation, origin: location.origin });
  } catch (error) {
    if (error instanceof SettingError) return error.message;
    throw error;
  }
}
