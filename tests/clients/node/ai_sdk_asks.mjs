// What the Vercel AI SDK is asked, with any of its providers.
import { generateObject, generateText, isStepCount, Output, streamText, tool as makeTool } from "ai";
import { drive, Shapes, WEATHER, Weather } from "./driver.mjs";

let modelOf;

function request(task) {
  const { max_tokens, question, image } = task;
  const content = [{ type: "text", text: question }];
  if (image) content.unshift({ type: "file", mediaType: "image/png", data: image.split(",")[1] });
  const messages = [{ role: "user", content }];
  return { model: modelOf(task), messages, temperature: 0, maxOutputTokens: max_tokens, maxRetries: 0 };
}

async function plain(task) {
  const { text } = await generateText(request(task));
  return { text };
}

async function streamed(task) {
  const pieces = [];
  const { textStream } = streamText({ ...request(task), onError: rethrow });
  for await (const piece of textStream) pieces.push(piece);
  return { pieces };
}

async function tool(task) {
  const weather = makeTool({ ...WEATHER, inputSchema: Weather, execute: async () => task.forecast });
  const { text, steps } = await generateText({ ...request(task), tools: { weather }, stopWhen: isStepCount(2) });
  return { text, calls: callsOf(steps[0].toolCalls) };
}

async function streamedTool(task) {
  const weather = makeTool({ ...WEATHER, inputSchema: Weather });
  const result = streamText({ ...request(task), tools: { weather }, onError: rethrow });
  return { calls: callsOf(await result.toolCalls) };
}

// The current API, and the deprecated one that programs still use.
async function schema(task) {
  const { output } = await generateText({ ...request(task), output: Output.object({ schema: Shapes }) });
  await generateObject({ ...request(task), schema: Shapes });
  return { value: output };
}

const callsOf = (calls) => calls.map(({ toolName, input }) => ({ name: toolName, arguments: input }));

function rethrow({ error }) {
  throw error;
}

// Answers tasks with the model that `chosen` makes of each.
export function driveAiSdk(chosen) {
  modelOf = chosen;
  return drive({ plain, streamed, image: plain, tool, streamed_tool: streamedTool, schema });
}
