// The playground: conversations with the model, their settings, and the request as a program.
import { ArrowDown } from "lucide";
import { render } from "preact";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError, listModels } from "./api";
import { Composer } from "./composer";
import { Dialog, LabelledButton } from "./controls";
import { acceptKey, answer, ask, startNew, stop, useConversation, type Setup } from "./conversation";
import { CopyPanel } from "./copy";
import { Header } from "./header";
import { lastSeen, mediaOf } from "./media";
import { AssistantTurns, ToolMessage, UserMessage } from "./message";
import { useRemembered } from "./preferences";
import { DEFAULTS } from "./request";
import { SettingsPanel } from "./settings";
import { Sidebar } from "./sidebar";
import { t, type Text } from "./text";
import { applyRemembered } from "./theme";
import type { Kind, Model, Settings, Turn } from "./types";

const KINDS: Kind[] = ["image", "video", "audio", "document"];
const WIDE = matchMedia("(min-width: 64rem)");
// How near to the end of the messages a reader is who follows them, in pixels.
const NEAR = 60;

function useModels() {
  const [models, setModels] = useState<Model[]>([]);
  const [problem, setProblem] = useState<ApiError | null>(null);
  const load = useCallback(async () => {
    try {
      setModels(await listModels());
      setProblem(null);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      setProblem(error);
    }
  }, []);
  useEffect(() => void load(), [load]);
  return { models, problem, load };
}

type Panel = "list" | "settings";

function Playground() {
  const { models, problem, load } = useModels();
  const shown = useConversation();
  const [stored, setSettings] = useRemembered("settings", DEFAULTS);
  const settings = { ...DEFAULTS, ...stored };
  // The second of two settings that are compared.
  const [second, setSecond] = useState<Settings | null>(null);
  const [hasKey, setHasKey] = useState(false);
  const [panels, setPanels] = useState<Record<Panel, boolean>>({ list: WIDE.matches, settings: WIDE.matches });
  const [hasHelp, setHelp] = useState(false);
  const toggle = (panel: Panel): void => {
    const other = panel === "list" ? "settings" : "list";
    setPanels({ ...panels, [panel]: !panels[panel], ...(WIDE.matches ? {} : { [other]: false }) });
  };
  const modelOf = ({ model }: Settings): Model | undefined => models.find(({ id }) => id === model) ?? models[0];
  const model = modelOf(settings);
  const setups = [settings, ...(second ? [second] : [])].map((each): Setup => setupOf(each, modelOf(each)));
  useShortcuts({
    onSearch: () => {
      setPanels({ ...panels, list: true });
      setTimeout(() => document.getElementById("search")?.focus());
    },
    onNew: startNew,
    onHelp: () => setHelp(true),
  });
  const onKey = async (isGiven: boolean): Promise<void> => {
    setHasKey(isGiven);
    acceptKey();
    await load();
  };
  const chosen = (): void => {
    if (!WIDE.matches) setPanels({ ...panels, list: false });
  };
  return (
    <>
      <Header
        models={models}
        model={model}
        onModel={(id) => setSettings({ ...settings, model: id })}
        asksKey={shown.isRefused || problem?.status === 401}
        onKey={onKey}
        onHealthy={load}
        panels={panels}
        onPanel={toggle}
      />
      <main class="app">
        {panels.list && <Sidebar shown={shown} onShortcuts={() => setHelp(true)} onChosen={chosen} />}
        <section class="conversation" aria-label={t("Conversation")}>
          {problem && problem.status !== 401 && (
            <div class="error" role="alert">
              <p>{problem.message}</p>
              <button onClick={load}>{t("Try again")}</button>
            </div>
          )}
          <Turns path={shown.path} isRunning={shown.isRunning} setups={setups} />
          <Composer
            key={shown.conversation.id}
            kinds={KINDS.filter((kind) => (kind === "document" ? model?.capabilities.max_documents : model?.input_modalities.includes(kind)))}
            path={shown.path}
            setup={setups[0]!}
            isRunning={shown.isRunning}
            onSend={(text, media) => ask(text, media, setups)}
          />
        </section>
        {panels.settings && (
          <aside aria-label={t("Settings")}>
            <SettingsPanel settings={settings} second={second} models={models} modelOf={modelOf} onChange={setSettings} onSecond={setSecond} />
            <CopyPanel turns={shown.path} model={model?.id ?? ""} settings={settings} hasKey={hasKey} />
          </aside>
        )}
      </main>
      {hasHelp && <Shortcuts onClose={() => setHelp(false)} />}
    </>
  );
}

function setupOf(settings: Settings, model: Model | undefined): Setup {
  const temperature = settings.temperature.trim() ? ` · T ${settings.temperature}` : "";
  return { model: model?.id ?? "", settings, grounds: model?.capabilities.grounding === true, name: `${model?.id ?? ""}${temperature}` };
}

interface TurnsProps {
  path: Turn[];
  isRunning: boolean;
  setups: Setup[];
}

function Turns({ path, isRunning, setups }: TurnsProps) {
  const { place, isAtEnd, follow, onScroll } = useFollowing(path);
  const seen = lastSeen(path);
  const last = path.at(-1);
  return (
    <div class="scene">
      <div ref={place} class="turns" role="log" aria-live="off" tabIndex={0} aria-label={t("Messages")} onScroll={onScroll}>
        <div>
          <h2 class={path.length ? "hidden" : "faint"}>{path.length ? t("Messages") : t("Ask the model about an image")}</h2>
          {path.map((turn, index) => (
            <Shown key={turn.id} turn={turn} path={path} index={index} seen={seen} setups={setups} isRunning={isRunning} />
          ))}
          {last && last.role !== "assistant" && !isRunning && (
            <button class="answer" onClick={() => answer(last, setups)}>
              {t("Answer")}
            </button>
          )}
        </div>
      </div>
      {!isAtEnd && (
        <div class="latest">
          <LabelledButton icon={ArrowDown} onClick={follow}>
            {t("Latest")}
          </LabelledButton>
        </div>
      )}
      <p class="hidden" role="status">
        {announcement(last, isRunning)}
      </p>
    </div>
  );
}

interface ShownProps extends TurnsProps {
  turn: Turn;
  index: number;
  seen: ReturnType<typeof lastSeen>;
}

// A turn is rendered again only when something of it changes, not with each token of the last one.
function Shown({ turn, path, index, seen, setups, isRunning }: ShownProps) {
  const isLast = index === path.length - 1;
  const seenHere = turn.role === "user" ? turn.media.map(({ id }) => seen.get(id)?.map(({ cache_tier: tier }) => tier).join()).join() : "";
  // Of compared answers, any may change.
  const change = turn.role === "assistant" && turn.isCompared ? {} : null;
  return useMemo(() => {
    if (turn.role === "user") return <UserMessage turn={turn} seen={seen} setups={setups} isRunning={isRunning} />;
    if (turn.role === "tool") return <ToolMessage turn={turn} />;
    return <AssistantTurns turn={turn} media={mediaOf(path.slice(0, index))} isLast={isLast} setups={setups} isRunning={isRunning} />;
  }, [turn, isLast, seenHere, change, isRunning, JSON.stringify(setups)]);
}

// Follows the end of the messages until the reader scrolls up, and again once the end is in sight.
function useFollowing(path: Turn[]) {
  const place = useRef<HTMLDivElement>(null);
  const isFollowing = useRef(true);
  const lastTop = useRef(0);
  const [isAtEnd, setAtEnd] = useState(true);
  const asked = path.findLast(({ role }) => role === "user")?.id;
  const follow = (): void => {
    isFollowing.current = true;
    place.current!.scrollTop = place.current!.scrollHeight;
    lastTop.current = place.current!.scrollTop;
  };
  const onScroll = (): void => {
    const { scrollTop, scrollHeight, clientHeight } = place.current!;
    const rest = scrollHeight - scrollTop - clientHeight;
    // More text may have come since the scroll that this event tells of: the end is then far, though nobody scrolled up.
    if (scrollTop >= lastTop.current) isFollowing.current ||= rest < NEAR;
    else isFollowing.current = rest < 2;
    lastTop.current = scrollTop;
    setAtEnd(isFollowing.current || rest < NEAR);
  };
  useLayoutEffect(follow, [asked]);
  useEffect(() => {
    // What is shown grows, and may shrink when its height is no longer a guess: then the browser scrolls up, and tells of it in
    // the next frame, by when more text may have come. Sizes are observed in this frame, after its scrolls and its layout.
    const observer = new ResizeObserver(() => isFollowing.current && follow());
    observer.observe(place.current!);
    observer.observe(place.current!.firstElementChild!);
    return () => observer.disconnect();
  }, []);
  return { place, isAtEnd, follow, onScroll };
}

// The longest text that is read out. Who wants more reads the messages.
const MAX_ANNOUNCED = 4000;

// Screen readers hear the answer once it is complete, rather than word by word.
function announcement(last: Turn | undefined, isRunning: boolean): string {
  if (isRunning) return t("The model answers.");
  return last?.role === "assistant" ? last.text.slice(0, MAX_ANNOUNCED) : "";
}

const KEYS: [string, Text][] = [
  ["Enter", "Send"],
  ["Shift + Enter", "New line"],
  ["Esc", "Stop"],
  ["/", "Write a message"],
  ["Ctrl + K", "Search conversations"],
  ["Ctrl + Shift + O", "New conversation"],
  ["?", "Keyboard shortcuts"],
];

function Shortcuts({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title={t("Keyboard shortcuts")} onClose={onClose}>
      <dl class="rows">
        {KEYS.map(([key, title]) => (
          <div key={key}>
            <dt>{t(title)}</dt>
            <dd>
              <kbd>{key}</kbd>
            </dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}

function useShortcuts({ onSearch, onNew, onHelp }: { onSearch: () => void; onNew: () => void; onHelp: () => void }): void {
  useEffect(() => {
    const onKey = (event: KeyboardEvent): void => {
      const isWriting = event.target instanceof Element && event.target.matches("input, textarea, select");
      const isCommand = event.ctrlKey || event.metaKey;
      if (document.querySelector("dialog[open]")) return;
      if (event.key === "Escape") return stop();
      const run = isCommand
        ? { k: onSearch, O: onNew, o: event.shiftKey ? onNew : undefined }[event.key]
        : isWriting
          ? undefined
          : { "/": () => document.getElementById("question")?.focus(), "?": onHelp }[event.key];
      if (!run) return;
      event.preventDefault();
      run();
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  });
}

void applyRemembered().then(() => render(<Playground />, document.body));
