// The Vercel AI SDK with OpenAI's own provider, which uses the Responses API.
import { createOpenAI } from "@ai-sdk/openai";
import { driveAiSdk } from "./ai_sdk_asks.mjs";

await driveAiSdk(({ url, model }) => createOpenAI({ baseURL: url, apiKey: "none" })(model));
