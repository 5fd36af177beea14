// The conversations that the browser keeps: listed, searched, renamed, deleted, exported and imported.
import { Download, Keyboard, Pencil, Plus, Trash2, Upload } from "lucide";
import { useEffect, useRef, useState } from "preact/hooks";
import { Icon, IconButton, LabelledButton } from "./controls";
import { open, removeConversation, rename, startNew, undo, type Shown } from "./conversation";
import { readableBytes } from "./media";
import { exportAll, fileBytes, importAll, MAX_FILE_BYTES, search, watchConversations } from "./store";
import { t } from "./text";
import { LanguageChoice, ThemeChoice } from "./theme";
import type { Conversation } from "./types";

interface Props {
  shown: Shown;
  onShortcuts: () => void;
  // A conversation was chosen.
  onChosen: () => void;
}

export function Sidebar({ shown, onShortcuts, onChosen }: Props) {
  const { all, found, words, setWords } = useConversations();
  return (
    <nav class="sidebar" aria-label={t("Conversations")}>
      <button
        class="primary wide-button"
        onClick={() => {
          startNew();
          onChosen();
        }}
      >
        <Icon of={Plus} /> {t("New conversation")}
      </button>
      <input
        id="search"
        type="search"
        aria-label={t("Search conversations")}
        placeholder={t("Search conversations")}
        value={words}
        onInput={({ currentTarget }) => setWords(currentTarget.value)}
      />
      <ul class="conversations">
        {found.map((each) => (
          <Entry key={each.id} conversation={each} isOpen={each.id === shown.conversation.id} onChosen={onChosen} />
        ))}
      </ul>
      {words && !found.length && <p class="faint">{t("Nothing found.")}</p>}
      {!all.length && shown.isKept && <p class="faint">{t("Conversations are kept in this browser alone.")}</p>}
      {!shown.isKept && <p class="error">{t("This browser keeps nothing: conversations end with the page.")}</p>}
      {shown.canUndo && (
        <p role="status" class="notice">
          {t("Deleted.")} <button onClick={undo}>{t("Undo")}</button>
        </p>
      )}
      <span class="space" />
      <Files count={all.length} />
      <div class="choices">
        <ThemeChoice />
        <LanguageChoice />
      </div>
      <div class="actions">
        <a href="/docs">{t("API reference")}</a>
        <span class="space" />
        <IconButton icon={Keyboard} label={t("Keyboard shortcuts")} onClick={onShortcuts} />
      </div>
    </nav>
  );
}

function useConversations() {
  const [all, setAll] = useState<Conversation[]>([]);
  const [words, setWords] = useState("");
  const [ids, setIds] = useState<Set<string> | null>(null);
  useEffect(() => watchConversations(setAll, () => setAll([])), []);
  useEffect(() => {
    let isCurrent = true;
    const find = async (): Promise<void> => {
      const found = words.trim() ? await search(words.trim()).catch(() => new Set<string>()) : null;
      if (isCurrent) setIds(found);
    };
    void find();
    return () => void (isCurrent = false);
  }, [words, all]);
  return { all, found: ids ? all.filter(({ id }) => ids.has(id)) : all, words, setWords };
}

function Entry({ conversation, isOpen, onChosen }: { conversation: Conversation; isOpen: boolean; onChosen: () => void }) {
  const [isNaming, setNaming] = useState(false);
  const title = conversation.title || t("Untitled");
  if (isNaming) return <Naming conversation={conversation} onEnd={() => setNaming(false)} />;
  return (
    <li class={isOpen ? "entry current" : "entry"}>
      <button
        class="title"
        aria-current={isOpen ? "page" : undefined}
        onClick={() => {
          void open(conversation.id);
          onChosen();
        }}
      >
        {title}
      </button>
      <IconButton icon={Pencil} label={t("Rename “{name}”", { name: title })} onClick={() => setNaming(true)} />
      <IconButton icon={Trash2} label={t("Delete “{name}”", { name: title })} onClick={() => void removeConversation(conversation.id)} />
    </li>
  );
}

function Naming({ conversation, onEnd }: { conversation: Conversation; onEnd: () => void }) {
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current!.select(), []);
  const save = (event: Event): void => {
    event.preventDefault();
    // The field loses the focus when it goes, too.
    if (!field.current) return;
    rename(conversation, field.current.value.trim() || conversation.title);
    onEnd();
  };
  return (
    <li class="entry">
      <form onSubmit={save}>
        <input
          ref={field}
          aria-label={t("Title")}
          defaultValue={conversation.title}
          onBlur={save}
          onKeyDown={({ key }) => key === "Escape" && onEnd()}
        />
      </form>
    </li>
  );
}

// Export and import, and how much of what the browser keeps is taken.
function Files({ count }: { count: number }) {
  const input = useRef<HTMLInputElement>(null);
  const [bytes, setBytes] = useState(0);
  const [problem, setProblem] = useState("");
  useEffect(() => void fileBytes().then(setBytes, () => undefined), [count]);
  const take = async ({ currentTarget }: { currentTarget: HTMLInputElement }): Promise<void> => {
    const file = currentTarget.files?.[0];
    currentTarget.value = "";
    if (!file) return;
    try {
      await importAll(file);
      setProblem("");
    } catch {
      setProblem(t("“{name}” is no export of conversations.", { name: file.name }));
    }
  };
  return (
    <div class="files">
      {problem && (
        <p class="error" role="alert">
          {problem}
        </p>
      )}
      <div class="actions">
        <LabelledButton icon={Download} onClick={() => void save()} isDisabled={!count}>
          {t("Export")}
        </LabelledButton>
        <LabelledButton icon={Upload} onClick={() => input.current!.click()}>
          {t("Import")}
        </LabelledButton>
        <input ref={input} class="hidden" type="file" accept="application/json,.json" tabIndex={-1} aria-label={t("Conversations to import")} onChange={take} />
      </div>
      <p class="faint">{t("Files: {used} of {bound}. Beyond that, the oldest are dropped.", { used: readableBytes(bytes), bound: readableBytes(MAX_FILE_BYTES) })}</p>
    </div>
  );
}

async function save(): Promise<void> {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await exportAll());
  link.download = `glimpse-conversations-${new Date().toISOString().slice(0, 10)}.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
