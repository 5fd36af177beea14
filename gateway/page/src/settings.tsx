// The settings of requests, presets of them, a second setting to compare with, and what the model accepts.
import { useState } from "preact/hooks";
import { Check, Trash2 } from "lucide";
import { IconButton, LabelledButton } from "./controls";
import { useRemembered } from "./preferences";
import { DEFAULTS, MEDIA, SAMPLING, THINKING, type NumberField } from "./request";
import { t, type Text } from "./text";
import type { Model, Settings } from "./types";

interface PanelProps {
  settings: Settings;
  second: Settings | null;
  models: Model[];
  modelOf: (settings: Settings) => Model | undefined;
  onChange: (settings: Settings) => void;
  onSecond: (settings: Settings | null) => void;
}

export function SettingsPanel({ settings, second, models, modelOf, onChange, onSecond }: PanelProps) {
  const [isSecond, setSecond] = useState(false);
  const onB = isSecond && second !== null;
  const current = onB ? second : settings;
  return (
    <section aria-label={t("Settings")} class="settings">
      <label class="check">
        <input
          type="checkbox"
          checked={second !== null}
          onChange={({ currentTarget }) => {
            onSecond(currentTarget.checked ? settings : null);
            setSecond(currentTarget.checked);
          }}
        />
        {t("Compare two settings")}
      </label>
      {second && (
        <div class="switch" role="group" aria-label={t("Settings to edit")}>
          <button aria-pressed={!onB} onClick={() => setSecond(false)}>
            A
          </button>
          <button aria-pressed={onB} onClick={() => setSecond(true)}>
            B
          </button>
        </div>
      )}
      <Fields key={onB ? "B" : "A"} settings={current} model={modelOf(current)} models={onB ? models : []} onChange={onB ? onSecond : onChange} />
    </section>
  );
}

interface FieldsProps {
  settings: Settings;
  model: Model | undefined;
  // The models to choose from; none where another place of the page has the choice.
  models: Model[];
  onChange: (settings: Settings) => void;
}

const EXAMPLE_SCHEMA = '{"type": "object", "properties": {"shapes": {"type": "array", "items": {"type": "string"}}}, "required": ["shapes"]}';
const EXAMPLE_TOOLS = '[{"name": "get_weather", "description": "Weather of a city", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]';
const EFFORTS = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
const MAIN = 2;

function Fields({ settings, model, models, onChange }: FieldsProps) {
  const set = (change: Partial<Settings>): void => onChange({ ...settings, ...change });
  const area = (name: "system" | "stop" | "schema" | "tools", title: Text, rows: number, placeholder = "") => (
    <label>
      {t(title)}
      <textarea rows={rows} spellcheck={name === "system"} placeholder={placeholder} value={settings[name]} onInput={({ currentTarget }) => set({ [name]: currentTarget.value })} />
    </label>
  );
  const numbers = (fields: NumberField[]) => (
    <div class="numbers">
      {fields.map(({ name, title, without }) => (
        <label key={name}>
          {t(title)}
          <input inputMode="decimal" placeholder={without} value={String(settings[name])} onInput={({ currentTarget }) => set({ [name]: currentTarget.value })} />
        </label>
      ))}
    </div>
  );
  const { capabilities } = model ?? {};
  return (
    <>
      {models.length > 0 && (
        <label>
          {t("Model of B")}
          <select value={model?.id ?? ""} onChange={({ currentTarget }) => set({ model: currentTarget.value })}>
            {models.map(({ id }) => (
              <option key={id}>{id}</option>
            ))}
          </select>
        </label>
      )}
      <Presets settings={settings} onChange={onChange} />
      {area("system", "System prompt", 2)}
      {numbers(SAMPLING.slice(0, MAIN))}
      <details>
        <summary>{t("More sampling options")}</summary>
        {numbers(SAMPLING.slice(MAIN))}
        {area("stop", "Stop strings, one a line", 2)}
      </details>
      {model && (model.input_modalities.includes("image") || model.input_modalities.includes("video")) && (
        <details>
          <summary>{t("Images and videos")}</summary>
          {numbers(MEDIA)}
        </details>
      )}
      {capabilities?.reasoning && (
        <details>
          <summary>{t("Reasoning")}</summary>
          <div class="numbers">
            <label>
              {t("Effort")}
              <select value={settings.effort} onChange={({ currentTarget }) => set({ effort: currentTarget.value })}>
                <option value="">–</option>
                {EFFORTS.map((effort) => (
                  <option key={effort}>{effort}</option>
                ))}
              </select>
            </label>
          </div>
          {numbers([THINKING])}
        </details>
      )}
      <details>
        <summary>{t("Answer as JSON")}</summary>
        {area("schema", "JSON Schema", 5, EXAMPLE_SCHEMA)}
      </details>
      {model && capabilities?.tools !== false && (
        <details>
          <summary>{t("Tools")}</summary>
          {area("tools", "Functions, as a JSON list", 6, EXAMPLE_TOOLS)}
          <label>
            {t("Tool choice")}
            <select value={settings.toolChoice} onChange={({ currentTarget }) => set({ toolChoice: currentTarget.value as Settings["toolChoice"] })}>
              <option value="auto">auto</option>
              <option value="required">required</option>
              <option value="none">none</option>
            </select>
          </label>
        </details>
      )}
      {capabilities?.logprobs !== false && (
        <label class="check">
          <input type="checkbox" checked={settings.logprobs} onChange={({ currentTarget }) => set({ logprobs: currentTarget.checked })} />
          {t("Show token probabilities")}
        </label>
      )}
      {model && <Limits model={model} />}
    </>
  );
}

const SHIPPED: [Text, Partial<Settings>][] = [
  ["Precise", { temperature: "0" }],
  ["Balanced", { temperature: "0.7", topP: "0.95" }],
  ["Creative", { temperature: "1.1", topP: "0.95", minP: "0.05" }],
];

// Settings under names: those of the page, and the user's own.
function Presets({ settings, onChange }: Pick<FieldsProps, "settings" | "onChange">) {
  const [own, setOwn] = useRemembered<Record<string, Settings>>("presets", {});
  const [name, setName] = useState("");
  const [chosen, setChosen] = useState("");
  const choose = (key: string): void => {
    setChosen(key);
    const shipped = SHIPPED.find(([title]) => title === key)?.[1];
    const change = shipped ? { ...DEFAULTS, ...shipped, system: settings.system } : own[key];
    if (change) onChange({ ...change, model: settings.model });
  };
  const save = (): void => {
    if (!name.trim()) return;
    setOwn({ ...own, [name.trim()]: settings });
    setChosen(name.trim());
    setName("");
  };
  const drop = (): void => {
    setOwn(Object.fromEntries(Object.entries(own).filter(([key]) => key !== chosen)));
    setChosen("");
  };
  return (
    <details>
      <summary>{t("Presets")}</summary>
      <div class="actions">
        <select aria-label={t("Preset")} value={chosen} onChange={({ currentTarget }) => choose(currentTarget.value)}>
          <option value="">–</option>
          {SHIPPED.map(([title]) => (
            <option key={title} value={title}>
              {t(title)}
            </option>
          ))}
          {Object.keys(own).map((key) => (
            <option key={key}>{key}</option>
          ))}
        </select>
        {chosen in own && <IconButton icon={Trash2} label={t("Delete the preset")} onClick={drop} />}
      </div>
      <div class="actions">
        <input aria-label={t("Name of a new preset")} placeholder={t("Name")} value={name} onInput={({ currentTarget }) => setName(currentTarget.value)} />
        <LabelledButton icon={Check} isDisabled={!name.trim()} onClick={save}>
          {t("Save")}
        </LabelledButton>
      </div>
    </details>
  );
}

function Limits({ model }: { model: Model }) {
  const { capabilities } = model;
  const rows: [Text, string | number | undefined][] = [
    ["Context window", t("{count} tokens", { count: model.max_model_len })],
    ["Reads", model.input_modalities.join(", ")],
    ["Images per request", capabilities.max_images],
    ["Videos per request", capabilities.max_videos],
    ["Audio files per request", capabilities.max_audios],
    ["PDFs per request", capabilities.max_documents],
  ];
  return (
    <details class="figures">
      <summary>{t("Limits of the model")}</summary>
      <dl class="rows">
        {rows
          .filter(([, value]) => value)
          .map(([name, value]) => (
            <div key={name}>
              <dt>{t(name)}</dt>
              <dd>{value}</dd>
            </div>
          ))}
      </dl>
    </details>
  );
}
