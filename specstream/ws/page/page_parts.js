/* Plays PCM as it comes. `position` is the sample that is heard now: the clock of everything else. */
class Player {
  constructor() {
    this.context = null;
    this.reset();
  }
  wake() {
    this.context ??= new AudioContext({ sampleRate: RATE });
    if (this.context.state === "suspended") this.context.resume();
  }
  reset() {
    for (const { node } of this.queue ?? []) node.stop();
    this.resume();
    this.queue = [];
    this.next = 0; // when the audio that has come so far will have been played
    this.received = 0;
    this.heard = 0;
  }
  add(bytes) {
    const samples = new Int16Array(bytes.buffer);
    const buffer = this.context.createBuffer(1, samples.length, RATE);
    const channel = buffer.getChannelData(0);
    for (let i = 0; i < samples.length; i++) channel[i] = samples[i] / 32768;
    const node = this.context.createBufferSource();
    node.buffer = buffer;
    node.connect(this.context.destination);
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
  get ahead() {
    return (this.received - this.position) / RATE;
  }
}

/* The reply as it grows: grey while it is drafted, a tint for each round, underlined once it is heard. */
class Transcript {
  user(text) {
    this.reply = null;
    this.hearing = null;
    $("log").append(element("p", "you", text));
    this.scroll();
  }
  /* What the person is saying, as far as the recogniser knows it; `whole` ends the turn. */
  hear(text, whole) {
    if (!text && !this.hearing) return;
    if (!this.hearing) {
      this.hearing = element("p", "you partial");
      $("log").append(this.hearing);
    }
    if (text) this.hearing.textContent = text;
    if (!whole) return void this.scroll();
    this.hearing.classList.remove("partial");
    if (!text) this.hearing.remove();
    this.scroll();
    this.hearing = null;
  }
  clear() {
    this.reply = null;
    for (const old of $("log").querySelectorAll(":scope > :not(.hint)")) old.remove();
  }
  begin(aloud) {
    this.ghost = null;
    this.reply = element("p", aloud ? "reply" : "reply text");
    this.spans = [];
    this.runs = 0;
    this.round = -1;
    this.words = [];
    this.spoken = null;
    this.aloud = aloud;
    $("log").append(this.reply);
    this.scroll();
  }
  /* What is drafted behind the text, until the next event of the text. Not read aloud to a screen reader. */
  draft(text) {
    /* Lines that a rejected draft took stay free until the reply's end: the log must not jump up and down. */
    if (this.ghost) this.reply.style.minHeight = `${this.reply.offsetHeight}px`;
    this.ghost?.remove();
    this.ghost = null;
    if (!text || !this.reply) return;
    this.ghost = element("span", "draft", text);
    this.ghost.setAttribute("aria-hidden", "true");
    this.reply.append(this.ghost);
    this.scroll();
  }
  add(text, from) {
    this.draft("");
    const span = element("span", "", text);
    if (from.round !== this.round && from.accepted > 0) this.runs++;
    this.round = from.round;
    if (from.accepted > 0) span.className = this.runs % 2 ? "run" : "run b";
    span.title = `round ${from.round}: ${from.accepted} of ${from.drafted} proposed tokens accepted`;
    span.textContent = "";
    let end = from.chars[0]; // the server counts code points
    for (const word of text.match(/\s*\S+|\s+/g) ?? []) {
      const part = element("span", "", word);
      end += Array.from(word).length;
      this.spans.push({ span: part, end });
      span.append(part);
    }
    this.reply.append(span);
    this.scroll();
  }
  said(sample) {
    while (this.words?.length && this.words[0].samples[0] <= sample) {
      const upTo = this.words.shift().chars[1];
      for (const { span, end } of this.spans) {
        if (end > upTo + 1) break;
        span.classList.add("said");
        this.spoken = span;
      }
      this.scroll();
    }
  }
  end(status, note) {
    this.draft("");
    this.reply?.style.removeProperty("min-height");
    if (status === "completed" || status === "incomplete") {
      this.whole = true;
    } else {
      this.reply?.classList.add("cut");
    }
    if (note) this.note(note, status === "failed");
  }
  note(text, bad = true) {
    $("log").append(element("p", bad ? "note bad" : "note", text));
    this.scroll();
    if (bad) $("log").scrollTop = $("log").scrollHeight;
  }
  finish() {
    for (const { span } of this.spans ?? []) span.classList.add("said");
  }
  /* Scroll to the end, or, while a reply is spoken and the user is silent, to the line that is heard. */
  scroll() {
    const log = $("log");
    const at = this.aloud && this.reply && !this.hearing ? (this.spoken ?? this.reply) : null;
    if (!at) return void (log.scrollTop = log.scrollHeight);
    const rects = at.getClientRects();
    const line = rects[at === this.reply ? 0 : rects.length - 1];
    log.scrollTop += line.top - log.getBoundingClientRect().top - log.clientHeight * 0.4;
  }
}

class Board {
  constructor() {
    this.shots = new Map(); // by shot_id: its card, and the sample at which it is due
    this.hint = $("shots").firstElementChild;
    this.current = null;
  }
  reset() {
    $("shots").replaceChildren(this.hint);
    this.shots.clear();
    this.current = null;
  }
  add(shot) {
    this.hint.remove();
    const card = element("article", "shot");
    let hash = 0;
    for (const char of shot.setting + shot.subject) hash = (hash * 31 + char.codePointAt(0)) % 360;
    card.style.setProperty("--hue", `hsl(${hash} 48% 52%)`);
    const head = element("header");
    const revised = shot.rev > 0 ? ` · rev ${shot.rev}` : "";
    head.append(element("span", "", shot.shot_id + revised));
    head.append(element("span", "", `${(shot.t_start_ms / 1000).toFixed(1)} s`));
    const title = [shot.subject, shot.action].filter(Boolean).join(" – ");
    card.append(head, element("h3", "", title), element("p", "", shot.prompt));
    const facts = element("ul");
    for (const fact of [shot.setting, shot.camera, shot.style])
      if (fact) facts.append(element("li", "", fact));
    card.append(facts);
    const old = this.shots.get(shot.shot_id);
    if (old) old.card.replaceWith(card);
    else $("shots").append(card);
    this.shots.set(shot.shot_id, { card, at: (shot.t_start_ms / 1000) * RATE });
  }
  step(sample, playing) {
    let current = null;
    for (const shot of this.shots.values()) if (playing && shot.at <= sample) current = shot.card;
    if (current === this.current) return;
    this.current?.classList.remove("now");
    this.current = current;
    if (!current) return;
    current.classList.add("now");
    const [left, top] = [current.offsetLeft - $("shots").offsetLeft, current.offsetTop - $("shots").offsetTop];
    $("shots").scrollTo({ left: left - 12, top: top - 12, behavior: "smooth" });
  }
}

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
  sound(t_ms) {
    if (this.heard) return;
    this.heard = true;
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

