// Texts that can be copied: code of answers, and the request as a program.
import { Check, Copy } from "lucide";
import { useState } from "preact/hooks";
import { IconButton } from "./controls";
import { SettingError } from "./request";
import { t } from "./text";
import { LANGUAGES, snippet, type Language } from "./snippets";
import type { Settings, Turn } from "./types";

interface CopyProps {
  turns: Turn[];
  model: string;
  settings: Settings;
  hasKey: boolean;
}

const EXAMPLE: Turn = { role: "user", id: "", conversation: "", parent: null, created: 0, text: "Hello!", media: [] };

export function CopyButton({ text }: { text: string }) {
  const [isCopied, setCopied] = useState(false);
  const copy = async (): Promise<void> => {
    await writeClipboard(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 2000);
  };
  return (
    <>
      <IconButton icon={isCopied ? Check : Copy} label={t("Copy")} onClick={copy} />
      <span role="status" class="hidden">
        {isCopied ? t("Copied") : ""}
      </span>
    </>
  );
}

// Browsers have a clipboard on https pages and on localhost; elsewhere the text of a field that is selected is copied.
async function writeClipboard(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const field = document.createElement("textarea");
  field.value = text;
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

export function CopyPanel(props: CopyProps) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details class="copy" onToggle={({ currentTarget }) => setOpen(currentTarget.open)}>
      <summary>{t("Copy as code")}</summary>
      {isOpen && <Program {...props} />}
    </details>
  );
}

function Program({ turns, ...rest }: CopyProps) {
  const [language, setLanguage] = useState<Language>("curl");
  // The answer that came last is what the request asks for.
  const asked = turns.at(-1)?.role === "assistant" ? turns.slice(0, -1) : turns;
  const text = program(language, { turns: asked.length ? asked : [EXAMPLE], ...rest });
  return (
    <>
      <div class="actions">
        <select
          aria-label={t("Programming language")}
          value={language}
          onChange={({ currentTarget }) => setLanguage(currentTarget.value as Language)}
        >
          {LANGUAGES.map((name) => (
            <option key={name}>{name}</option>
          ))}
        </select>
        <CopyButton text={text} />
      </div>
      <pre tabIndex={0} aria-label={t("Code")}>
        {text}
      </pre>
    </>
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
