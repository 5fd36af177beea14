// The conversation that is open, the answers that are being generated, and what can be done with both. A conversation is a
// tree of turns; one of its branches is shown.
import { useEffect, useState } from "preact/hooks";
import { ApiError, streamChat } from "./api";
import { failureOf } from "./errors";
import { contentOf, dataUrls, mediaOf, newId, releaseContents, setContent } from "./media";
import { requestBody } from "./request";
import * as store from "./store";
import { t } from "./text";
import type { AssistantTurn, Chunk, Conversation, Media, Settings, ToolCall, ToolCallDelta, ToolTurn, Turn, UserTurn } from "./types";

// What answers a question.
export interface Setup {
  model: string;
  settings: Settings;
  // Answers can carry boxes and points.
  grounds: boolean;
  // The model and the settings in a few words.
  name: string;
}

const SAVE_INTERVAL_MS = 500;
const DRAW_INTERVAL_MS = 30;

let conversation = blank();
let turns = new Map<string, Turn>();
// The answers that this tab generates, of all conversations.
const live = new Map<string, { turn: AssistantTurn; abort: AbortController }>();
let removed: store.Removed | null = null;
let isKept = true;
let isRefused = false;

const listeners = new Set<() => void>();
let isScheduled = false;
let drawn = 0;

// Draws what has changed: at once, and what follows at intervals.
function changed(): void {
  if (isScheduled) return;
  isScheduled = true;
  const wait = drawn + DRAW_INTERVAL_MS - performance.now();
  if (wait > 0) setTimeout(draw, wait);
  else queueMicrotask(draw);
}

function draw(): void {
  isScheduled = false;
  drawn = performance.now();
  for (const listener of listeners) listener();
}

function blank(): Conversation {
  return { id: newId(), title: "", created: Date.now(), updated: Date.now(), leaf: null };
}

export interface Shown {
  conversation: Conversation;
  // The branch that is shown.
  path: Turn[];
  isRunning: boolean;
  // Something was deleted, and can be restored.
  canUndo: boolean;
  // The browser keeps conversations.
  isKept: boolean;
  // A request was refused for want of a valid key.
  isRefused: boolean;
}

// The open conversation. The component is rendered again when it changes.
export function useConversation(): Shown {
  const [, redraw] = useState({});
  useEffect(() => {
    const listener = (): void => redraw({});
    listeners.add(listener);
    return () => void listeners.delete(listener);
  }, []);
  useEffect(() => {
    const follow = (): void => void open(location.hash.slice(1));
    addEventListener("hashchange", follow);
    follow();
    return () => removeEventListener("hashchange", follow);
  }, []);
  const path = pathTo(conversation.leaf);
  const isRunning = [...live.values()].some(({ turn }) => turn.conversation === conversation.id);
  return { conversation, path, isRunning, canUndo: removed !== null, isKept, isRefused };
}

function pathTo(leaf: string | null): Turn[] {
  const path: Turn[] = [];
  for (let id = leaf; id !== null; ) {
    const turn = turns.get(id);
    if (!turn || path.includes(turn)) break;
    path.unshift(turn);
    id = turn.parent;
  }
  return path;
}

// The versions of a turn, itself among them, the oldest first.
export function versions(turn: Turn): Turn[] {
  return [...turns.values()].filter(({ parent, role }) => parent === turn.parent && role === turn.role).sort((a, b) => a.created - b.created);
}

const childrenOf = (id: string): Turn[] => [...turns.values()].filter(({ parent }) => parent === id).sort((a, b) => a.created - b.created);

function subtree(turn: Turn): Turn[] {
  return [turn, ...childrenOf(turn.id).flatMap(subtree)];
}

// Shows the newest branch through a turn.
export function choose(turn: Turn): void {
  let leaf = turn;
  for (let next: Turn | undefined = turn; next; next = childrenOf(next.id).at(-1)) leaf = next;
  setLeaf(leaf.id);
}

function setLeaf(leaf: string | null): void {
  conversation = { ...conversation, leaf };
  keep(store.saveConversation(conversation));
  changed();
}

// A browser may refuse to keep anything, such as in a private window. The page then works without.
function keep(saving: Promise<unknown>): void {
  saving.catch(() => {
    isKept = false;
    changed();
  });
}

function put(turn: Turn): void {
  if (turn.conversation !== conversation.id) return;
  turns.set(turn.id, turn);
  changed();
}

export function startNew(): void {
  conversation = blank();
  turns = new Map();
  history.replaceState(null, "", location.pathname + location.search);
  releaseContents(() => false);
  changed();
}

export async function open(id: string): Promise<void> {
  if (!id || id === conversation.id) return;
  const loaded = await store.loadConversation(id).catch(() => null);
  if (!loaded) return;
  conversation = loaded.conversation;
  turns = new Map(await Promise.all(loaded.turns.map(async (turn) => [turn.id, await asItIs(turn)] as const)));
  releaseContents((each) => loaded.files.some((file) => file.id === each));
  for (const file of loaded.files) setContent(file.id, file.blob);
  if (location.hash !== `#${id}`) history.replaceState(null, "", `#${id}`);
  changed();
}

// A kept turn says that it is running. That is true if a tab still generates it.
async function asItIs(turn: Turn): Promise<Turn> {
  if (turn.role !== "assistant" || !turn.isRunning) return turn;
  const here = live.get(turn.id);
  if (here) return here.turn;
  const locks = await navigator.locks?.query();
  if (locks?.held?.some(({ name }) => name === turn.id)) return turn;
  const ended: AssistantTurn = { ...turn, isRunning: false, finishReason: "interrupted" };
  keep(store.saveTurn(ended));
  return ended;
}

// Asks a question, of each setup. The first one's answer is the one that the conversation goes on from.
export function ask(text: string, media: Media[], setups: Setup[]): void {
  const leaf = withoutFailure();
  const turn: UserTurn = { ...node(leaf, text), role: "user", media };
  if (!conversation.title) conversation.title = (text || media[0]?.name || "").slice(0, 80);
  const files = media.flatMap((each) => {
    const blob = contentOf(each);
    return blob ? [{ id: each.id, conversation: conversation.id, blob, added: Date.now() }] : [];
  });
  if (files.length) keep(store.saveFiles(files));
  add([turn]);
  answer(turn, setups);
}

// Asks a question again in other words. The old version stays.
export function edit(old: UserTurn, text: string, setups: Setup[]): void {
  const turn: UserTurn = { ...node(old.parent, text), role: "user", media: old.media };
  add([turn]);
  answer(turn, setups);
}

// Another answer instead of one. The old version stays unless it has no words.
export function regenerate(old: AssistantTurn, setups: Setup[]): void {
  const parent = turns.get(old.parent ?? "");
  if (!parent) return;
  if (!old.text && !old.toolCalls.length) forget([old]);
  answer(parent, setups);
}

export function answerTools(calling: AssistantTurn, results: string[], setups: Setup[]): void {
  let parent = calling.id;
  const added = calling.toolCalls.map((call, index): ToolTurn => {
    const turn: ToolTurn = { ...node(parent, results[index] ?? ""), role: "tool", callId: call.id, name: call.function.name };
    parent = turn.id;
    return turn;
  });
  add(added);
  answer(added.at(-1)!, setups);
}

const node = (parent: string | null, text: string) => ({ id: newId(), conversation: conversation.id, parent, created: Date.now(), text });

function add(added: Turn[]): void {
  for (const turn of added) {
    turns.set(turn.id, turn);
    keep(store.saveTurn(turn));
  }
  conversation = { ...conversation, updated: Date.now() };
  if (location.hash !== `#${conversation.id}`) history.replaceState(null, "", `#${conversation.id}`);
  setLeaf(added.at(-1)!.id);
}

// Lets each setup answer a turn that has no answer or gets another one.
export function answer(parent: Turn, setups: Setup[]): void {
  const answers = setups.map((setup, index): AssistantTurn => ({
    ...node(parent.id, ""),
    created: Date.now() + index,
    role: "assistant",
    reasoning: "",
    toolCalls: [],
    tokens: [],
    isRunning: true,
    finishReason: null,
    error: null,
    usage: null,
    videos: [],
    images: [],
    groundings: [],
    firstMs: null,
    lastMs: null,
    setup: setup.name,
    isCompared: setups.length > 1,
    schema: setup.settings.schema,
  }));
  const before = pathTo(parent.id);
  add(answers);
  setLeaf(answers[0]!.id);
  answers.forEach((turn, index) => void generate(turn, before, setups[index]!, {}));
}

// Lets the model go on where an answer ended.
export function goOn(turn: AssistantTurn, setup: Setup): void {
  const before = pathTo(turn.id);
  // Its usage will be that of this request, and so are its times.
  const going: AssistantTurn = { ...turn, isRunning: true, finishReason: null, error: null, firstMs: null, lastMs: null };
  put(going);
  void generate(going, before, setup, { continue_final_message: true });
}

async function generate(first: AssistantTurn, before: Turn[], setup: Setup, options: object): Promise<void> {
  const abort = new AbortController();
  let turn = first;
  let saved = 0;
  const show = (change: Partial<AssistantTurn>): void => {
    // It may have been deleted meanwhile.
    if (turn !== first && !live.has(turn.id)) return;
    turn = { ...turn, ...change };
    if (turn.isRunning) live.set(turn.id, { turn, abort });
    else live.delete(turn.id);
    put(turn);
    if (turn.isRunning && performance.now() - saved < SAVE_INTERVAL_MS) return;
    saved = performance.now();
    keep(store.saveTurn(turn));
  };
  show({});
  // Other tabs see by the lock that the answer is still being generated.
  const ended = Promise.withResolvers<void>();
  void navigator.locks?.request(turn.id, () => ended.promise);
  const { settings, grounds } = setup;
  const start = performance.now();
  try {
    const media = mediaOf(before);
    // Without media the request leaves at once, before anything is drawn.
    const urlOf = media.length ? await dataUrls(media) : () => "";
    const body = requestBody(setup.model, before, settings, urlOf);
    const asked = { stream: true, stream_options: { include_usage: true }, return_timings: true, ...(grounds ? { grounding: true } : {}) };
    for await (const chunk of streamChat({ ...body, ...options, ...asked }, abort.signal)) show(withChunk(turn, chunk, performance.now() - start));
    show({ isRunning: false });
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) isRefused = true;
    const isStopped = error instanceof DOMException && error.name === "AbortError";
    const failure = failureOf(error, before, settings.system.trim() !== "") ?? { message: t("Something went wrong in this page."), detail: String(error) };
    show({ isRunning: false, ...(isStopped ? { finishReason: "stopped" } : { error: failure }) });
  } finally {
    ended.resolve();
  }
}

export function stop(): void {
  for (const { turn, abort } of live.values()) if (turn.conversation === conversation.id) abort.abort();
}

export function acceptKey(): void {
  isRefused = false;
  changed();
}

// Deletes a turn and what follows it.
export function remove(turn: Turn): void {
  const gone = subtree(turn);
  setLeaf(turn.parent);
  forget(gone);
}

// Stops an answer whose turn is deleted.
function end(id: string): void {
  const ending = live.get(id);
  live.delete(id);
  ending?.abort.abort();
}

function forget(gone: Turn[]): void {
  for (const { id } of gone) {
    end(id);
    turns.delete(id);
  }
  const taking = store.removeTurns(gone, [...turns.values()]).then((taken) => {
    removed = taken;
    changed();
  });
  keep(taking);
}

export async function removeConversation(id: string): Promise<void> {
  for (const { turn } of [...live.values()]) if (turn.conversation === id) end(turn.id);
  if (id === conversation.id) startNew();
  removed = await store.removeConversation(id);
  changed();
}

// Brings back what was deleted last.
export async function undo(): Promise<void> {
  if (!removed) return;
  const { conversations, turns: gone, files } = removed;
  await store.restore(removed);
  removed = null;
  for (const turn of gone) put(await asItIs(turn));
  for (const { id, blob } of files) setContent(id, blob);
  if (conversations[0]) await open(conversations[0].id);
  else if (gone[0]?.conversation === conversation.id) choose(gone[0]);
  changed();
}

export function rename(renamed: Conversation, title: string): void {
  if (renamed.id === conversation.id) conversation = { ...conversation, title };
  keep(store.saveConversation({ ...(renamed.id === conversation.id ? conversation : renamed), title }));
  changed();
}

// A question whose answer failed or was stopped before its first word is asked anew from where it stood.
function withoutFailure(): string | null {
  const path = pathTo(conversation.leaf);
  const last = path.at(-1);
  const isEmpty = last?.role === "assistant" && !last.text && !last.toolCalls.length;
  const asked = path.at(-2);
  return isEmpty ? ((asked?.role === "user" ? asked.parent : asked?.id) ?? null) : conversation.leaf;
}

function withChunk(turn: AssistantTurn, chunk: Chunk, elapsed: number): Partial<AssistantTurn> {
  const change: Partial<AssistantTurn> = {};
  if (chunk.usage) change.usage = chunk.usage;
  if (chunk.videos?.length) change.videos = chunk.videos;
  if (chunk.images?.length) change.images = chunk.images;
  const choice = chunk.choices[0];
  if (!choice) return change;
  const { content, reasoning, tool_calls: calls } = choice.delta;
  if (content) change.text = turn.text + content;
  if (reasoning) change.reasoning = turn.reasoning + reasoning;
  if (calls?.length) change.toolCalls = calls.reduce(withCall, turn.toolCalls);
  if (choice.logprobs?.content?.length) change.tokens = [...turn.tokens, ...choice.logprobs.content];
  if (choice.groundings?.length) change.groundings = choice.groundings;
  if (choice.finish_reason) change.finishReason = choice.finish_reason;
  if (content || reasoning || calls?.length) {
    change.firstMs = turn.firstMs ?? elapsed;
    change.lastMs = elapsed;
  }
  return change;
}

function withCall(calls: ToolCall[], delta: ToolCallDelta): ToolCall[] {
  const call = calls[delta.index] ?? { id: "", type: "function", function: { name: "", arguments: "" } };
  const merged: ToolCall = {
    id: delta.id ?? call.id,
    type: "function",
    function: {
      name: call.function.name + (delta.function?.name ?? ""),
      arguments: call.function.arguments + (delta.function?.arguments ?? ""),
    },
  };
  return Object.assign([...calls], { [delta.index]: merged });
}
