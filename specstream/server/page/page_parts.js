/* Plays PCM as it comes. `position` is the sample that is heard now: the clock of everything else. */
class Player {
  constructor() {
    this.context = null;
    this.reset();
  }
  wake() {
    clearTimeout(this.resting);
    this.context ??= new AudioContext({ sampleRate: RATE });
    if (this.context.state === "suspended") this.context.resume();
  }
  /* An open context computes silence all the time: one that has nothing to play is put to sleep in a while. */
  rest() {
    clearTimeout(this.resting);
    this.resting = setTimeout(() => {
      if (!this.paused && this.ahead <= 0) this.context?.suspend();
    }, 3000);
  }
  reset() {
    for (const { node } of this.queue ?? []) node.stop();
    this.resume();
    this.queue = [];
    this.next = 0; // when the audio that has come so far will have been played
    this.received = 0;
    this.heard = 0;
  }
  add(samples) {
    const buffer = this.context.createBuffer(1, samples.length, RATE);
    const channel = buffer.getChannelData(0);
    for (let i = 0; i < samples.length; i++) channel[i] = samples[i] / 32768;
    const node = this.context.createBufferSource();
    node.buffer = buffer;
    node.connect(this.context.destination);
    if (!this.paused) this.wake();
    this.next = Math.max(this.next, this.context.currentTime + 0.03);
    node.start(this.next);
    this.queue.push({ node, at: this.next, from: this.received, length: samples.length });
    this.next += samples.length / RATE;
    this.received += samples.length;
  }
  /* Stops the context's clock, and so everything that follows `position`. */
  pause() {
    this.paused = true;
    this.context?.suspend();
  }
  resume() {
    if (this.paused) this.context?.resume();
    this.paused = false;
  }
  get position() {
    if (!this.context || !this.queue.length) return this.heard;
    const now = this.context.currentTime - (this.context.outputLatency || 0);
    while (this.queue.length > 1 && this.queue[1].at <= now) this.queue.shift();
    const { at, from, length } = this.queue[0];
    this.heard = Math.max(this.heard, from + Math.min(length, Math.max(0, (now - at) * RATE)));
    return this.heard;
  }
  get playing() {
    return this.ahead > 0.05 && !this.paused;
  }
  get ahead() {
    return (this.received - this.position) / RATE;
  }
}

/* How fast the reply under way is made. */
class Figures {
  reset() {
    this.rounds = [];
    this.asked = 0; // the session's clock when the reply began
    this.heard = false;
    for (const name of ["rate", "length", "speed", "ttft", "ttfa", "lead"]) this.set(name, "–");
    this.draw();
  }
  set(name, value, unit) {
    const field = $("f-" + name);
    field.textContent = value;
    if (unit) field.append(element("small", "", unit));
  }
  add(from) {
    if (this.rounds.at(-1)?.round === from.round) return;
    this.rounds.push(from);
    const drafted = this.rounds.reduce((sum, r) => sum + r.drafted, 0);
    const accepted = this.rounds.reduce((sum, r) => sum + r.accepted, 0);
    if (drafted) this.set("rate", Math.round((100 * accepted) / drafted), "%");
    this.set("length", (1 + accepted / this.rounds.length).toFixed(2));
    const took = from.t_ms - this.asked;
    if (this.rounds.length === 1) this.set("ttft", took.toFixed(0), "ms");
    if (took > 0) this.set("speed", ((1000 * from.tokens[1]) / took).toFixed(0));
    this.draw();
  }
  sound({ t_ms, first }) {
    if (this.heard) return;
    this.heard = true;
    if (first) this.set("ttft", (first.token_ms - this.asked).toFixed(0), "ms"); // its text may have waited
    this.set("ttfa", (t_ms - this.asked).toFixed(0), "ms");
  }
  report(report) {
    if (report.drafted) this.set("rate", Math.round(100 * report.acceptance_rate), "%");
    this.set("length", report.mean_acceptance_length.toFixed(2));
    this.set("speed", report.tokens_per_second.toFixed(0));
    this.set("ttft", report.ttft_ms.toFixed(0), "ms");
    if (report.ttfa_ms !== undefined) this.set("ttfa", report.ttfa_ms.toFixed(0), "ms");
  }
  draw() {
    const canvas = $("rounds");
    const scale = window.devicePixelRatio || 1;
    canvas.width = canvas.clientWidth * scale;
    canvas.height = 56 * scale;
    const pen = canvas.getContext("2d");
    const css = getComputedStyle(document.documentElement);
    const shown = this.rounds.slice(-64);
    const most = Math.max(4, ...shown.map((r) => r.drafted));
    const step = canvas.width / Math.max(32, shown.length);
    shown.forEach((r, i) => {
      const bar = (count, colour) => {
        const height = (count / most) * (canvas.height - 2);
        pen.fillStyle = css.getPropertyValue(colour);
        pen.fillRect(i * step, canvas.height - height, step * 0.72, height);
      };
      bar(r.drafted || 0.15, "--line");
      bar(r.accepted, i % 2 ? "--b" : "--a");
    });
  }
}

