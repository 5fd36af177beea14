// The top of the page: model, load of the server, key, colours.
import { useEffect, useState } from "preact/hooks";
import { isHealthy, setApiKey } from "./api";
import { loadReports, type Load } from "./load";
import { ThemeSwitch } from "./theme";
import type { Model } from "./types";

interface HeaderProps {
  models: Model[];
  model: Model | undefined;
  onModel: (id: string) => void;
  asksKey: boolean;
  onKey: (isGiven: boolean) => Promise<void>;
  // The server answers again.
  onHealthy: () => void;
}

export function Header({ models, model, onModel, asksKey, onKey, onHealthy }: HeaderProps) {
  return (
    <header>
      <h1>Glimpse</h1>
      {model && (
        <select aria-label="Model" value={model.id} onChange={({ currentTarget }) => onModel(currentTarget.value)}>
          {models.map(({ id }) => (
            <option key={id}>{id}</option>
          ))}
        </select>
      )}
      <Status onHealthy={onHealthy} isAllowed={model !== undefined} />
      <span class="space" />
      {asksKey && <KeyForm onKey={onKey} />}
      <nav aria-label="Pages">
        <a href="/docs">API reference</a>
      </nav>
      <ThemeSwitch />
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
        API key{" "}
        <input
          type="password"
          autocomplete="off"
          value={key}
          title="Kept until the page is closed or reloaded"
          onInput={({ currentTarget }) => setKey(currentTarget.value)}
        />
      </label>
      <button type="submit">Use it</button>
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
      {isUp ? "serving" : "not serving"}
      {isUp && load && <span class="faint"> {load}</span>}
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
  const waiting = load.waiting ? `, ${load.waiting} waiting` : "";
  return `${load.running} running${waiting}, KV cache ${(100 * load.cache).toFixed(0)} %`;
}
