/* One prompt with and without speculation, in a session of the race's own: the user's conversation isn't touched.
   Timed one after the other, since two replies at once would slow each other, and by the server's clock. Until
   both are there nothing is drawn; then they are shown together, each at its own pace. */
const QUIET_MS = 1200;

class Race {
  /* `open` opens a WebSocket to the server; `changed` is called when a race begins and ends. */
  constructor(open, changed) {
    this.open = open;
    this.changed = changed;
    this.runs = null;
  }
  get running() {
    return this.runs !== null;
  }
  start(text, aloud) {
    if (this.running) return;
    this.text = text;
    this.aloud = aloud;
    this.runs = [];
    $("race-card").hidden = false;
    $("race-asked").textContent = text;
    for (const lane of document.querySelectorAll(".lane")) {
      lane.classList.remove("won");
      lane.querySelector(".text").textContent = "";
      for (const figure of lane.querySelectorAll("b")) figure.textContent = "–";
      lane.querySelector(".first").hidden = !aloud;
    }
    this.say("warming up …");
    $("race-card").scrollIntoView({ block: "nearest" });
    this.changed();
    this.socket = this.open();
    this.socket.onmessage = ({ data }) => this.running && this.take(JSON.parse(data));
    this.socket.onclose = () => this.end("the server gave the race no connection");
  }
  say(text) {
    $("race-says").textContent = text;
  }
  send(type, fields) {
    this.socket.send(JSON.stringify({ type, ...fields }));
  }
  /* A first reply, not shown, reads the prompt and warms up the server. */
  next() {
    const kind = ["warm", "on", "off"][this.runs.length];
    if (!kind) return this.show();
    if (kind !== "warm") this.say(`timing with speculation ${kind} …`);
    this.runs.push({ kind, deltas: [], sound: null });
    this.send("response.create", {
      response: {
        conversation: "none",
        output_modalities: [this.aloud ? "audio" : "text"],
        max_output_tokens: kind === "warm" ? 16 : 160,
        input: [{ type: "message", role: "user", content: [{ type: "input_text", text: this.text }] }],
        specstream: { speculate: kind !== "off" },
      },
    });
  }
  take(event) {
    const run = this.runs.at(-1);
    if (event.type === "session.created") return this.next();
    if (event.type === "error") return this.end(event.error.message);
    if (event.type === "response.created") Object.assign(run, { id: event.response.id, asked: event.specstream.t_ms });
    const at = event.specstream?.t_ms - run?.asked;
    if (/(text|audio_transcript)\.delta$/.test(event.type)) {
      run.deltas.push({ at, text: event.delta, tokens: event.specstream.tokens[1] });
    } else if (event.type === "response.output_audio.delta") {
      run.sound ??= at;
      return;
    } else if (event.type === "response.done") {
      clearTimeout(this.quiet);
      if (event.response.status === "failed") {
        this.end(event.response.status_details?.error?.message ?? "the reply failed");
      } else {
        this.next();
      }
      return;
    }
    clearTimeout(this.quiet);
    if (run?.sound != null) this.quiet = setTimeout(() => this.cut(run), QUIET_MS);
  }
  /* The text is complete: do not wait for the rest of the audio, which is sent at the pace of play-out. */
  cut(run) {
    if (this.runs?.at(-1) === run) this.send("response.cancel", { response_id: run.id });
  }
  /* End the race early, and say why. */
  end(why) {
    if (!this.running) return;
    this.close();
    this.say(why);
    this.changed();
  }
  close() {
    clearTimeout(this.quiet);
    this.runs = null;
    if (this.socket) this.socket.onclose = null;
    this.socket?.close();
    this.socket = null;
  }
  show() {
    const lanes = this.runs.slice(1).map((run) => ({ run, lane: $("lane-" + run.kind), shown: 0 }));
    this.close();
    const speed = ({ deltas }) => {
      const first = deltas[0], last = deltas.at(-1);
      return last && last.at > first.at ? (1000 * (last.tokens - first.tokens)) / (last.at - first.at) : 0;
    };
    const began = performance.now();
    const step = () => {
      if (this.running) return; // the next race has begun
      const now = performance.now() - began;
      for (const at of lanes) {
        const { deltas } = at.run;
        while (at.shown < deltas.length && deltas[at.shown].at <= now) {
          at.lane.querySelector(".text").append(deltas[at.shown++].text);
          at.lane.querySelector(".text").scrollTop = 1e6;
        }
        if (at.run.sound !== null && at.run.sound <= now)
          at.lane.querySelector(".first b").textContent = `${at.run.sound.toFixed(0)} ms`;
        if (at.shown === deltas.length) at.lane.querySelector(".speed b").textContent = speed(at.run).toFixed(0);
      }
      const rest = lanes.some(({ shown, run }) => shown < run.deltas.length || run.sound > now);
      if (rest) return void requestAnimationFrame(step);
      const [on, off] = lanes.map(({ run }) => speed(run));
      lanes[on >= off ? 0 : 1].lane.classList.add("won");
      this.say(off ? `With speculation ${(on / off).toFixed(2)} times the tokens a second.` : "The reply was too short to time.");
      this.changed();
    };
    requestAnimationFrame(step);
  }
}
