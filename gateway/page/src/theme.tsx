// Light or dark, and the language: the system's, or the user's choice, which the browser remembers.
import { remember, remembered, useRemembered } from "./preferences";
import { LANGUAGES, preferred, setLanguage, t, type Language, type Text } from "./text";

const THEMES: Record<string, Text> = { system: "System", light: "Light", dark: "Dark" };

const DARK = matchMedia("(prefers-color-scheme: dark)");

function showTheme(theme: string): void {
  const root = document.documentElement;
  root.dataset.theme = theme;
  // Swagger UI's name for it.
  root.classList.toggle("dark-mode", theme === "dark" || (theme === "system" && DARK.matches));
}

// Shows the page as it is remembered. The promise ends when its texts are loaded.
export async function applyRemembered(): Promise<void> {
  showTheme(remembered("theme", "system"));
  await setLanguage(remembered<Language>("language", preferred()));
}

export function ThemeChoice() {
  const [theme, setTheme] = useRemembered("theme", "system");
  const choose = (name: string): void => {
    setTheme(name);
    showTheme(name);
  };
  return (
    <label>
      {t("Theme")}
      <select value={theme} onChange={({ currentTarget }) => choose(currentTarget.value)}>
        {Object.entries(THEMES).map(([name, title]) => (
          <option key={name} value={name}>
            {t(title)}
          </option>
        ))}
      </select>
    </label>
  );
}

export function LanguageChoice() {
  const choose = (name: string): void => {
    remember("language", name);
    // Every text of the page changes.
    location.reload();
  };
  return (
    <label>
      {t("Language")}
      <select value={document.documentElement.lang} onChange={({ currentTarget }) => choose(currentTarget.value)}>
        {Object.entries(LANGUAGES).map(([name, title]) => (
          <option key={name} value={name} lang={name}>
            {title}
          </option>
        ))}
      </select>
    </label>
  );
}
