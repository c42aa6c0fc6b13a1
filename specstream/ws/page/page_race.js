/* One prompt with and without speculation. Timed one after the other, since two replies at once would slow
   each other; then both are shown together, each at its own pace. */
const QUIET_MS = 1200;

class Race {
  constructor(send) {
    this.send = send;
    this.runs = null;
  }
  get running() {
    return this.runs !== null;
  }
  start(text, aloud) {
    this.text = text;
    this.aloud = aloud;
    this.runs = [];
    for (const lane of document.querySelectorAll(".lane")) {
      lane.classList.remove("won");
      lane.querySelector(".text").textContent = "";
      for (const figure of lane.querySelectorAll("b")) figure.textContent = "–";
      lane.querySelector(".first").hidden = !aloud;
    }
    this.next();
  }
  /* A first reply, not shown, reads the prompt and warms up the server. */
  next() {
    const kind = ["warm", "on", "off"][this.runs.length];
    if (!kind) return this.show();
    $("race-says").textContent = kind === "warm" ? "warming up …" : `timing with speculation ${kind} …`;
    this.runs.push({ kind, id: null, deltas: [], sound: null, done: false });
    this.send("response.create", {
      response: {
        conversation: "none",
        metadata: { race: kind },
        output_modalities: [this.aloud ? "audio" : "text"],
        max_output_tokens: kind === "warm" ? 16 : 160,
        input: [{ type: "message", role: "user", content: [{ type: "input_text", text: this.text }] }],
        specstream: { speculate: kind !== "off" },
      },
    });
  }
  /* Whether the event belongs to the race; nothing else on the page may see it then. */
  takes(event) {
    const run = this.runs?.at(-1);
    if (!run) return false;
    if (event.type === "response.created" && event.response.metadata?.race === run.kind) {
      run.id = event.response.id;
      run.asked = event.specstream.t_ms;
      return true;
    }
    if (event.type === "error" && !run.id) {
      this.end(event.error.message);
      return true;
    }
    const id = event.response_id ?? event.response?.id;
    if (!run.id || !this.runs.some((other) => other.id === id)) return false;
    if (id !== run.id) return true;
    const at = event.specstream?.t_ms - run.asked;
    if (/(text|audio_transcript)\.delta$/.test(event.type)) {
      run.deltas.push({ at, text: event.delta, tokens: event.specstream.tokens[1] });
    } else if (event.type === "response.output_audio.delta") {
      run.sound ??= at;
      return true;
    } else if (event.type === "response.done") {
      clearTimeout(this.quiet);
      if (event.response.status === "failed") {
        this.end(event.response.status_details?.error?.message ?? "the reply failed");
      } else {
        this.next();
      }
      return true;
    }
    clearTimeout(this.quiet);
    if (run.sound !== null) this.quiet = setTimeout(() => this.cut(run), QUIET_MS);
    return true;
  }
  /* The text is complete: do not wait for the rest of the audio, which is sent at the pace of play-out. */
  cut(run) {
    if (this.runs?.at(-1) === run) this.send("response.cancel", { response_id: run.id });
  }
  end(why) {
    this.runs = null;
    $("race-says").textContent = why;
    ready();
  }
  show() {
    const lanes = this.runs.slice(1).map((run) => ({ run, lane: $("lane-" + run.kind), shown: 0 }));
    this.runs = null;
    const speed = ({ deltas }) => {
      const first = deltas[0], last = deltas.at(-1);
      return last && last.at > first.at ? (1000 * (last.tokens - first.tokens)) / (last.at - first.at) : 0;
    };
    const began = performance.now();
    const step = () => {
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
      $("race-says").textContent = off
        ? `speculation: ${(on / off).toFixed(2)} times the tokens a second`
        : "the reply was too short to time";
      ready();
    };
    requestAnimationFrame(step);
  }
}
