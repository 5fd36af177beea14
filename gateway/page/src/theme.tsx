// Light or dark: the system's, or the user's choice, which holds while the page is open.
import { useState } from "preact/hooks";

const THEMES = ["system", "light", "dark"] as const;

export function ThemeSwitch() {
  const [theme, setTheme] = useState<string>("system");
  const choose = (name: string): void => {
    setTheme(name);
    document.documentElement.dataset.theme = name;
  };
  return (
    <select aria-label="Colours" value={theme} onChange={({ currentTarget }) => choose(currentTarget.value)}>
      {THEMES.map((name) => (
        <option key={name} value={name}>
          {name === "system" ? "system colours" : name}
        </option>
      ))}
    </select>
  );
}
