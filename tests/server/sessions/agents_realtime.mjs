// A greeting and a spoken turn by @openai/agents-realtime: node agents_realtime.mjs URL FILE MODULES
// FILE is s16 audio at 24 kHz, MODULES the folder that holds node_modules.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [url, file, modules] = process.argv.slice(2);
const load = createRequire(modules + "/");
const { RealtimeAgent, RealtimeSession, OpenAIRealtimeWebSocket } = await import(
  pathToFileURL(load.resolve("@openai/agents-realtime")).href
);
const transport = new OpenAIRealtimeWebSocket({ url });
const agent = new RealtimeAgent({ name: "test", instructions: "Be kind." });
const session = new RealtimeSession(agent, { transport, model: "specstream" });
const done = (count) =>
  new Promise((resolve) =>
    transport.on("*", (event) => event.type === "response.done" && --count === 0 && resolve()),
  );
session.on("error", (error) => console.error(JSON.stringify(error)));
await session.connect({ apiKey: "none", url });
const greeting = done(1);
transport.sendEvent({ type: "response.create" });
await greeting;
const answer = done(1);
const pcm = readFileSync(file);
for (let at = 0; at < pcm.length; at += 9600) session.sendAudio(Uint8Array.from(pcm.subarray(at, at + 9600)).buffer);
await answer;
await new Promise((resolve) => setTimeout(resolve, 200));
console.log(JSON.stringify(session.history));
process.exit(0);
