// The Vercel AI SDK with its provider for OpenAI-compatible servers.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { driveAiSdk } from "./ai_sdk_asks.mjs";

const options = { name: "glimpse", supportsStructuredOutputs: true };
await driveAiSdk(({ url, model }) => createOpenAICompatible({ ...options, baseURL: url })(model));
