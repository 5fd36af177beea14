// What the browser remembers of the user's choices: colours, language, panels, settings and presets. No key is among it.
import { useState } from "preact/hooks";

const PREFIX = "glimpse.";

export function remembered<T>(name: string, fallback: T): T {
  try {
    const text = localStorage.getItem(PREFIX + name);
    return text === null ? fallback : (JSON.parse(text) as T);
  } catch {
    // Storage is off, or another program wrote there.
    return fallback;
  }
}

export function remember(name: string, value: unknown): void {
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // The choice then holds until the page is closed.
  }
}

export function useRemembered<T>(name: string, fallback: T): [T, (value: T) => void] {
  const [value, setValue] = useState(() => remembered(name, fallback));
  const set = (next: T): void => {
    remember(name, next);
    setValue(next);
  };
  return [value, set];
}
