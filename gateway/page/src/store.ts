// What the browser keeps: conversations, their turns, and the files of their media. None of it leaves this device.
import { Dexie, liveQuery, type EntityTable } from "dexie";
import type { Conversation, Turn } from "./types";

export interface StoredFile {
  // That of the medium.
  id: string;
  conversation: string;
  blob: Blob;
  added: number;
}

// Files are kept up to this many bytes. Then the oldest ones go, and their conversations say so.
export const MAX_FILE_BYTES = 512 * 1024 * 1024;

const db = new Dexie("glimpse") as Dexie & {
  conversations: EntityTable<Conversation, "id">;
  turns: EntityTable<Turn, "id">;
  files: EntityTable<StoredFile, "id">;
};
db.version(1).stores({ conversations: "id, updated", turns: "id, conversation", files: "id, conversation, added" });

// What a deletion took away.
export interface Removed {
  conversations: Conversation[];
  turns: Turn[];
  files: StoredFile[];
}

// Calls back with all conversations, the last one first, now and after each change, whichever tab makes it.
export function watchConversations(onChange: (all: Conversation[]) => void, onError: (error: unknown) => void): () => void {
  const query = liveQuery(() => db.conversations.orderBy("updated").reverse().toArray());
  const { unsubscribe } = query.subscribe({ next: onChange, error: onError });
  return unsubscribe;
}

export const saveConversation = (conversation: Conversation): Promise<unknown> => db.conversations.put(conversation);
export const saveTurn = (turn: Turn): Promise<unknown> => db.turns.put(turn);

export async function saveFiles(files: StoredFile[]): Promise<void> {
  await db.files.bulkPut(files);
  await dropOldFiles();
}

async function dropOldFiles(): Promise<void> {
  let bytes = await fileBytes();
  if (bytes <= MAX_FILE_BYTES) return;
  const gone: string[] = [];
  await db.files.orderBy("added").until(() => bytes <= MAX_FILE_BYTES).each(({ id, blob }) => {
    bytes -= blob.size;
    gone.push(id);
  });
  await db.files.bulkDelete(gone);
}

export async function fileBytes(): Promise<number> {
  let bytes = 0;
  await db.files.each(({ blob }) => void (bytes += blob.size));
  return bytes;
}

export async function loadConversation(id: string): Promise<{ conversation: Conversation; turns: Turn[]; files: StoredFile[] } | null> {
  const [conversation, turns, files] = await Promise.all([
    db.conversations.get(id),
    db.turns.where({ conversation: id }).toArray(),
    db.files.where({ conversation: id }).toArray(),
  ]);
  return conversation ? { conversation, turns, files } : null;
}

export async function removeConversation(id: string): Promise<Removed> {
  return db.transaction("rw", db.conversations, db.turns, db.files, async () => {
    const loaded = await loadConversation(id);
    await Promise.all([
      db.conversations.delete(id),
      db.turns.where({ conversation: id }).delete(),
      db.files.where({ conversation: id }).delete(),
    ]);
    return { conversations: loaded ? [loaded.conversation] : [], turns: loaded?.turns ?? [], files: loaded?.files ?? [] };
  });
}

// Deletes turns, and the files that no other turn of the conversation has.
export async function removeTurns(turns: Turn[], others: Turn[]): Promise<Removed> {
  const mediaOf = (each: Turn): string[] => (each.role === "user" ? each.media.map(({ id }) => id) : []);
  const used = new Set(others.flatMap(mediaOf));
  const unused = turns.flatMap(mediaOf).filter((id) => !used.has(id));
  const files = (await db.files.bulkGet(unused)).filter((file) => file !== undefined);
  await db.turns.bulkDelete(turns.map(({ id }) => id));
  await db.files.bulkDelete(unused);
  return { conversations: [], turns, files };
}

export async function restore({ conversations, turns, files }: Removed): Promise<void> {
  await Promise.all([db.conversations.bulkPut(conversations), db.turns.bulkPut(turns), db.files.bulkPut(files)]);
}

// The ids of the conversations whose titles or turns contain the words.
export async function search(words: string): Promise<Set<string>> {
  const wanted = words.toLowerCase();
  const found = new Set<string>();
  await db.conversations.each(({ id, title }) => void (title.toLowerCase().includes(wanted) && found.add(id)));
  await db.turns.each(({ conversation, text }) => void (text.toLowerCase().includes(wanted) && found.add(conversation)));
  return found;
}

// All conversations as a file, or one of them.
export async function exportAll(only?: string): Promise<Blob> {
  const { exportDB } = await import("dexie-export-import");
  const belongs = (table: string, { id, conversation }: { id: string; conversation: string }): boolean =>
    !only || (table === "conversations" ? id : conversation) === only;
  return exportDB(db, { filter: (table, value) => belongs(table, value) });
}

// Adds the conversations of a file that `exportAll` made. Those of the same ids are replaced.
export async function importAll(file: Blob): Promise<void> {
  const { importInto } = await import("dexie-export-import");
  await importInto(db, file, {
    overwriteValues: true,
    transform: (table, value) => {
      if (!isValid(table, value)) throw new Error("unexpected content");
      return { value };
    },
  });
  await dropOldFiles();
}

// The fields that the page relies on. What a file says beyond them is shown as text at most.
function isValid(table: string, value: Record<string, unknown>): boolean {
  const has = (type: string, ...names: string[]): boolean => names.every((name) => typeof value[name] === type);
  if (table === "conversations") return has("string", "id", "title") && has("number", "created", "updated");
  if (table === "files") return has("string", "id", "conversation") && value.blob instanceof Blob;
  if (!has("string", "id", "conversation", "text") || !has("number", "created")) return false;
  const lists = { user: ["media"], tool: [], assistant: ["toolCalls", "tokens", "videos", "images", "groundings"] }[String(value.role)];
  return lists !== undefined && lists.every((name) => Array.isArray(value[name]));
}
