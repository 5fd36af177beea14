// openai-node's client of the Responses API: its plain functions, its streaming helper and its parsing helper.
import OpenAI from "openai";
import { zodResponsesFunction, zodTextFormat } from "openai/helpers/zod";
import { drive, Shapes, WEATHER, Weather } from "./driver.mjs";

const responses = ({ url }) => new OpenAI({ baseURL: url, apiKey: "none", maxRetries: 0 }).responses;
const tools = [zodResponsesFunction({ ...WEATHER, parameters: Weather })];

function request({ model, max_tokens, question, image }) {
  const content = [{ type: "input_text", text: question }];
  if (image) content.unshift({ type: "input_image", image_url: image, detail: "auto" });
  return { model, input: [{ role: "user", content }], temperature: 0, max_output_tokens: max_tokens };
}

async function plain(task) {
  const response = await responses(task).create({ ...request(task), input: request(task).input });
  return { text: response.output_text };
}

async function streamed(task) {
  const pieces = [];
  const stream = responses(task).stream(request(task));
  stream.on("response.output_text.delta", ({ delta }) => pieces.push(delta));
  const { output_text } = await stream.finalResponse();
  if (output_text !== pieces.join("")) throw new Error(`the pieces are not ${output_text}`);
  return { pieces };
}

async function tool(task) {
  const { input, ...options } = request(task);
  const asked = await responses(task).create({ ...options, input, tools });
  const calls = asked.output.filter(({ type }) => type === "function_call");
  const outputs = calls.map(({ call_id }) => ({ type: "function_call_output", call_id, output: task.forecast }));
  const answer = await responses(task).create({ ...options, input: [...input, ...asked.output, ...outputs], tools });
  const previous_response_id = asked.id;
  const same = await responses(task).create({ ...options, input: outputs, previous_response_id, tools });
  if (same.output_text !== answer.output_text) throw new Error(`${same.output_text} is not ${answer.output_text}`);
  const { output } = await responses(task).retrieve(asked.id);
  if (output.length !== asked.output.length) throw new Error("the stored response differs");
  await responses(task).delete(asked.id);
  return { text: answer.output_text, calls: calls.map(({ name, arguments: text }) => ({ name, arguments: JSON.parse(text) })) };
}

async function streamedTool(task) {
  const { output } = await responses(task).stream({ ...request(task), tools }).finalResponse();
  const calls = output.filter(({ type }) => type === "function_call");
  return { calls: calls.map(({ name, parsed_arguments }) => ({ name, arguments: parsed_arguments })) };
}

async function schema(task) {
  const text = { format: zodTextFormat(Shapes, "shapes") };
  const response = await responses(task).parse({ ...request(task), text });
  return { value: response.output_parsed };
}

await drive({ plain, streamed, image: plain, tool, streamed_tool: streamedTool, schema });
