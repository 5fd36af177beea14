// The top of the page: panels, model, load of the server, key.
import { PanelLeft, SlidersHorizontal } from "lucide";
import { useEffect, useState } from "preact/hooks";
import { isHealthy, setApiKey } from "./api";
import { IconButton } from "./controls";
import { loadReports, type Load } from "./load";
import { t } from "./text";
import type { Model } from "./types";

interface HeaderProps {
  models: Model[];
  model: Model | undefined;
  onModel: (id: string) => void;
  asksKey: boolean;
  onKey: (isGiven: boolean) => Promise<void>;
  // The server answers again.
  onHealthy: () => void;
  panels: { list: boolean; settings: boolean };
  onPanel: (panel: "list" | "settings") => void;
}

export function Header({ models, model, onModel, asksKey, onKey, onHealthy, panels, onPanel }: HeaderProps) {
  return (
    <header>
      <IconButton icon={PanelLeft} label={t("Conversations")} isPressed={panels.list} onClick={() => onPanel("list")} />
      <h1>Glimpse</h1>
      {model && (
        <select aria-label={t("Model")} value={model.id} onChange={({ currentTarget }) => onModel(currentTarget.value)}>
          {models.map(({ id }) => (
            <option key={id}>{id}</option>
          ))}
        </select>
      )}
      <Status onHealthy={onHealthy} isAllowed={model !== undefined} />
      <span class="space" />
      {asksKey && <KeyForm onKey={onKey} />}
      <IconButton icon={SlidersHorizontal} label={t("Settings")} isPressed={panels.settings} onClick={() => onPanel("settings")} />
    </header>
  );
}

function KeyForm({ onKey }: { onKey: (isGiven: boolean) => Promise<void> }) {
  const [key, setKey] = useState("");
  const submit = async (event: Event): Promise<void> => {
    event.preventDefault();
    setApiKey(key);
    await onKey(key.trim() !== "");
  };
  return (
    <form class="key" onSubmit={submit}>
      <label>
        {t("API key")}{" "}
        <input
          type="password"
          autocomplete="off"
          value={key}
          title={t("Kept until the page is closed or reloaded")}
          onInput={({ currentTarget }) => setKey(currentTarget.value)}
        />
      </label>
      <button type="submit">{t("Use it")}</button>
    </form>
  );
}

const HEALTH_INTERVAL_MS = 3000;

function Status({ onHealthy, isAllowed }: { onHealthy: () => void; isAllowed: boolean }) {
  const [isUp, setUp] = useState<boolean | null>(null);
  const load = useLoad(isUp === true && isAllowed);
  useEffect(() => {
    let before: boolean | null = null;
    const check = async (): Promise<void> => {
      if (document.hidden) return;
      const now = await isHealthy();
      setUp(now);
      if (now && before === false) onHealthy();
      before = now;
    };
    void check();
    const timer = setInterval(check, HEALTH_INTERVAL_MS);
    const events = ["online", "offline", "visibilitychange"];
    for (const name of events) addEventListener(name, check);
    return () => {
      clearInterval(timer);
      for (const name of events) removeEventListener(name, check);
    };
  }, [onHealthy]);
  if (isUp === null) return null;
  return (
    <p class={isUp ? "status up" : "status down"} role="status">
      {isUp ? t("serving") : t("not serving")}
      {isUp && load && <span class="faint load"> {load}</span>}
    </p>
  );
}

function useLoad(isOn: boolean): string {
  const [load, setLoad] = useState<Load | null>(null);
  useEffect(() => {
    if (!isOn) return;
    const abort = new AbortController();
    const read = async (): Promise<void> => {
      try {
        for await (const report of loadReports(abort.signal)) setLoad(report);
      } catch {
        // Without reports the page shows none; the health check tells what is wrong.
        setLoad(null);
      }
    };
    void read();
    return () => abort.abort();
  }, [isOn]);
  if (!load) return "";
  const parts = [
    t("{count} running", { count: load.running }),
    load.waiting ? t("{count} waiting", { count: load.waiting }) : "",
    t("KV cache {percent} %", { percent: (100 * load.cache).toFixed(0) }),
  ];
  return parts.filter(Boolean).join(", ");
}
