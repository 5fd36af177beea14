// The playground: a conversation with the model, its settings, and the request as a program.
import { render } from "preact";
import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { ApiError, listModels } from "./api";
import { Composer } from "./composer";
import { useConversation } from "./conversation";
import { CopyPanel } from "./copy";
import { Header } from "./header";
import { lastSeen, mediaOf } from "./media";
import { AssistantMessage, ToolMessage, UserMessage } from "./message";
import { DEFAULTS, SettingsPanel } from "./settings";
import type { Kind, Model, Turn } from "./types";

const KINDS: Kind[] = ["image", "video", "audio", "document"];

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

function Playground() {
  const { models, problem, load } = useModels();
  const [chosen, setChosen] = useState("");
  const [settings, setSettings] = useState(DEFAULTS);
  const [hasKey, setHasKey] = useState(false);
  const [isRefused, setRefused] = useState(false);
  const model = models.find(({ id }) => id === chosen) ?? models[0];
  const conversation = useConversation({
    model: model?.id ?? "",
    grounds: model?.capabilities.grounding === true,
    settings,
    onUnauthenticated: () => setRefused(true),
  });
  const onKey = async (isGiven: boolean): Promise<void> => {
    setHasKey(isGiven);
    setRefused(false);
    await load();
  };
  return (
    <>
      <Header
        models={models}
        model={model}
        onModel={setChosen}
        asksKey={isRefused || problem?.status === 401}
        onKey={onKey}
        onHealthy={load}
      />
      <main>
        <section class="conversation" aria-label="Conversation">
          {problem && problem.status !== 401 && (
            <div class="error" role="alert">
              <p>{problem.message}</p>
              <button onClick={load}>Try again</button>
            </div>
          )}
          <Turns conversation={conversation} />
          <Composer
            kinds={KINDS.filter((kind) => (kind === "document" ? model?.capabilities.max_documents : model?.input_modalities.includes(kind)))}
            isRunning={conversation.isRunning}
            onSend={conversation.ask}
            onStop={conversation.stop}
          />
        </section>
        <aside aria-label="Request">
          <SettingsPanel settings={settings} model={model} onChange={setSettings} />
          <CopyPanel turns={conversation.turns} model={model?.id ?? ""} settings={settings} hasKey={hasKey} />
          {conversation.turns.length > 0 && <button onClick={conversation.clear}>New conversation</button>}
        </aside>
      </main>
    </>
  );
}

function Turns({ conversation }: { conversation: ReturnType<typeof useConversation> }) {
  const { turns, isRunning, retry, answerTools } = conversation;
  const end = useRef<HTMLDivElement>(null);
  useEffect(() => end.current?.scrollIntoView({ block: "nearest" }), [turns]);
  const seen = lastSeen(turns);
  return (
    <>
      <div class="turns" role="log" aria-live="off" tabIndex={0} aria-label="Messages">
        {!turns.length && <h2 class="faint">Ask the model about an image</h2>}
        {turns.map((turn, index) => {
          if (turn.role === "user") return <UserMessage key={turn.id} turn={turn} seen={seen} />;
          if (turn.role === "tool") return <ToolMessage key={turn.id} turn={turn} />;
          return (
            <AssistantMessage
              key={turn.id}
              turn={turn}
              media={mediaOf(turns.slice(0, index))}
              isLast={index === turns.length - 1}
              onRetry={retry}
              onToolResults={answerTools}
            />
          );
        })}
        <div ref={end} />
      </div>
      <p class="hidden" role="status">
        {announcement(turns.at(-1), isRunning)}
      </p>
    </>
  );
}

// Screen readers hear the answer once it is complete, rather than word by word.
function announcement(last: Turn | undefined, isRunning: boolean): string {
  if (isRunning) return "The model answers.";
  return last?.role === "assistant" ? last.text : "";
}

render(<Playground />, document.body);
