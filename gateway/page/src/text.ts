// The page's texts in the reader's language. The English text is the name of its translations.
import type { german } from "./languages/german";

export type Text = keyof typeof german;
export type Translations = Record<Text, string>;

export const LANGUAGES = { en: "English", de: "Deutsch", es: "Español", zh: "中文" } as const;
export type Language = keyof typeof LANGUAGES;

const LOADERS: Record<Exclude<Language, "en">, () => Promise<Translations>> = {
  de: async () => (await import("./languages/german")).german,
  es: async () => (await import("./languages/spanish")).spanish,
  zh: async () => (await import("./languages/chinese")).chinese,
};

let translations: Translations | null = null;

const isLanguage = (name: string | undefined): name is Language => name !== undefined && name in LANGUAGES;

// The browser's first language that the page has.
export const preferred = (): Language => navigator.languages.map((name) => name.split("-")[0]).find(isLanguage) ?? "en";

export async function setLanguage(language: Language): Promise<void> {
  translations = language === "en" ? null : await LOADERS[language]();
  document.documentElement.lang = language;
}

// The text in the reader's language, with values where it has names such as {count}.
export function t(text: Text, values: Record<string, string | number> = {}): string {
  const translated = translations?.[text] ?? text;
  return translated.replace(/{(\w+)}/g, (name, key: string) => String(values[key] ?? name));
}

export const duration = (ms: number): string => (ms < 1000 ? `${ms.toFixed(ms < 10 ? 1 : 0)} ms` : `${(ms / 1000).toFixed(1)} s`);
