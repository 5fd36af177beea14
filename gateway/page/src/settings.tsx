// The settings of requests, and what the model accepts.
import type { Model, Settings } from "./types";

export const DEFAULTS: Settings = {
  system: "",
  temperature: "0",
  maxTokens: "256",
  seed: "",
  fps: "",
  maxPixels: "",
  logprobs: false,
  schema: "",
  tools: "",
  toolChoice: "auto",
};

interface PanelProps {
  settings: Settings;
  model: Model | undefined;
  onChange: (settings: Settings) => void;
}

type TextName = "temperature" | "maxTokens" | "seed" | "fps" | "maxPixels";
const NUMBERS: [TextName, string, string][] = [
  ["temperature", "Temperature", "the model's"],
  ["maxTokens", "Most tokens of an answer", "4096"],
  ["seed", "Seed", "random"],
  ["fps", "Frames per second of videos", "the model's"],
  ["maxPixels", "Most pixels of an image or a frame", "the model's"],
];
const EXAMPLE_SCHEMA = '{"type": "object", "properties": {"shapes": {"type": "array", "items": {"type": "string"}}}, "required": ["shapes"]}';
const EXAMPLE_TOOLS = '[{"name": "get_weather", "description": "Weather of a city", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}]';

export function SettingsPanel({ settings, model, onChange }: PanelProps) {
  const set = (change: Partial<Settings>): void => onChange({ ...settings, ...change });
  return (
    <section aria-label="Settings" class="settings">
      <label>
        System prompt
        <textarea rows={2} value={settings.system} onInput={({ currentTarget }) => set({ system: currentTarget.value })} />
      </label>
      <div class="numbers">
        {NUMBERS.map(([name, title, placeholder]) => (
          <label key={name}>
            {title}
            <input
              inputMode="decimal"
              placeholder={placeholder}
              value={settings[name]}
              onInput={({ currentTarget }) => set({ [name]: currentTarget.value })}
            />
          </label>
        ))}
      </div>
      {model?.capabilities.logprobs !== false && (
        <label class="check">
          <input
            type="checkbox"
            checked={settings.logprobs}
            onChange={({ currentTarget }) => set({ logprobs: currentTarget.checked })}
          />
          Show how likely each token was
        </label>
      )}
      <Structure settings={settings} onChange={set} />
      {model && model.capabilities.tools !== false && <Tools settings={settings} onChange={set} />}
      {model && <Limits model={model} />}
    </section>
  );
}

interface PartProps {
  settings: Settings;
  onChange: (change: Partial<Settings>) => void;
}

function Structure({ settings, onChange }: PartProps) {
  return (
    <details>
      <summary>Answer as JSON</summary>
      <label>
        JSON Schema
        <textarea
          rows={5}
          spellcheck={false}
          placeholder={EXAMPLE_SCHEMA}
          value={settings.schema}
          onInput={({ currentTarget }) => onChange({ schema: currentTarget.value })}
        />
      </label>
    </details>
  );
}

function Tools({ settings, onChange }: PartProps) {
  return (
    <details>
      <summary>Tools</summary>
      <label>
        Functions, as a JSON list
        <textarea
          rows={6}
          spellcheck={false}
          placeholder={EXAMPLE_TOOLS}
          value={settings.tools}
          onInput={({ currentTarget }) => onChange({ tools: currentTarget.value })}
        />
      </label>
      <label>
        Calls{" "}
        <select
          aria-label="Calls of functions"
          value={settings.toolChoice}
          onChange={({ currentTarget }) => onChange({ toolChoice: currentTarget.value as Settings["toolChoice"] })}
        >
          <option value="auto">if the model wants to</option>
          <option value="required">required</option>
          <option value="none">none</option>
        </select>
      </label>
    </details>
  );
}

function Limits({ model }: { model: Model }) {
  const { capabilities } = model;
  const rows: [string, string | number | undefined][] = [
    ["Context window", `${model.max_model_len} tokens`],
    ["Reads", model.input_modalities.join(", ")],
    ["Images of a request", capabilities.max_images],
    ["Videos of a request", capabilities.max_videos],
    ["Audio files of a request", capabilities.max_audios],
  ];
  return (
    <details class="figures">
      <summary>Limits of the model</summary>
      <dl>
        {rows
          .filter(([, value]) => value)
          .map(([name, value]) => (
            <div key={name}>
              <dt>{name}</dt>
              <dd>{value}</dd>
            </div>
          ))}
      </dl>
    </details>
  );
}
