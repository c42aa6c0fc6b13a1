/* The conversation as it grows: a reply is grey while it is drafted, has a tint for each round, and is underlined
   once it is heard. Its Markdown is laid out line by line, by the looks of its own characters. */
class Transcript {
  constructor(origin) {
    this.origin = origin;
    this.reply = null;
    $("log").addEventListener("scrollend", () => this.settle());
  }
  /* Whether something was said. */
  get empty() {
    return !$("log").querySelector(":scope > :not(.hint)");
  }
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
    this.origin.close();
    this.reply = this.hearing = null;
    for (const old of $("log").querySelectorAll(":scope > :not(.hint)")) old.remove();
    this.to(0);
  }
  /* A line across the log, between two conversations. */
  divide(text) {
    this.reply = this.hearing = null;
    $("log").append(element("p", "divide", text));
    this.scroll();
  }
  begin(aloud) {
    this.ghost = null;
    this.reply = element("div", aloud ? "reply" : "reply text");
    this.reply.tabIndex = 0;
    this.known = new Provenance();
    this.origin.replies.set(this.reply, this.known);
    this.line = null;
    this.runs = 0;
    this.round = -1;
    this.words = [];
    this.spoken = null;
    this.aloud = aloud;
    this.break();
    $("log").append(this.reply);
    this.scroll();
  }
  /* Begin a new line of the reply; `fenced`: it lies in a block of code. */
  break() {
    const { fenced, kind } = this.line ?? {};
    if (this.line) this.dress(false);
    this.line = { node: element("div", "line"), text: "", pieces: [], fenced: kind === "fence" ? !fenced : fenced };
    this.reply.append(this.line.node);
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
    this.line.node.append(this.ghost);
    this.scroll();
  }
  add(text, from) {
    this.draft("");
    if (from.round !== this.round && from.accepted > 0) this.runs++;
    this.round = from.round;
    this.known.delta(from);
    let at = from.chars[0]; // the server counts code points
    for (const part of text.split(/(\n)/)) {
      if (part === "\n") {
        this.break();
        at++;
      } else if (part) {
        at = this.write(part, at, from.accepted > 0);
      }
    }
    this.scroll();
  }
  write(text, start, tinted) {
    const run = element("span", !tinted ? "" : this.runs % 2 ? "run" : "run b");
    for (const piece of pieces(text)) {
      const span = element("span", "", piece);
      start = this.known.piece(span, start, piece);
      this.line.pieces.push({ span, at: this.line.text.length + Math.max(0, piece.search(/\S/)) });
      this.line.text += piece;
      run.append(span);
    }
    this.line.node.append(run);
    this.dress(true);
    return start;
  }
  /* Give the line and its pieces the looks that Markdown gives them. Spans stay where they are: they are clicked,
     underlined and faded in. */
  dress(growing) {
    const { node, text, fenced, pieces } = this.line;
    const style = lineKind(text, fenced);
    this.line.kind = style.kind;
    node.className = `line ${style.kind}`;
    if (style.kind === "heading") {
      node.setAttribute("role", "heading");
      node.setAttribute("aria-level", String(style.level + 2));
    }
    if (style.depth) node.style.setProperty("--depth", style.depth);
    const looks = lineLooks(text, style, growing);
    for (const { span, at } of pieces)
      for (const [bit, name] of Object.entries(LOOKS)) span.classList.toggle(name, Boolean(looks[at] & bit));
  }
  said(sample) {
    while (this.words?.length && this.words[0].samples[0] <= sample) {
      const upTo = this.words.shift().chars[1];
      for (const { span, end } of this.known.spans) {
        if (end > upTo + 1) break;
        span.classList.add("said");
        if (!span.classList.contains("mark")) this.spoken = span;
      }
      this.scroll();
    }
  }
  end(status, note) {
    this.draft("");
    this.reply?.style.removeProperty("min-height");
    if (this.reply) this.dress(false);
    if (status === "completed" || status === "incomplete") {
      this.whole = true;
    } else {
      this.reply?.classList.add("cut");
    }
    if (note) this.note(note, status === "failed");
  }
  /* A remark on the reply stands below it, even if the user has spoken since. */
  note(text, bad = true) {
    const note = element("p", bad ? "note bad" : "note", text);
    if (this.reply) this.reply.after(note);
    else $("log").append(note);
    this.scroll();
    if (bad) this.to($("log").scrollHeight);
  }
  finish() {
    for (const { span } of this.known?.spans ?? []) span.classList.add("said");
  }
  /* Scroll to the end, or, while a reply is spoken and the user is silent, to the line that is heard. */
  scroll() {
    const log = $("log");
    const at = this.aloud && this.reply && !this.hearing ? (this.spoken ?? this.reply) : null;
    if (!at) return void this.to(log.scrollHeight);
    const rects = at.getClientRects();
    const line = rects[at === this.reply ? 0 : rects.length - 1];
    if (line) this.to(log.scrollTop + line.top - log.getBoundingClientRect().top - log.clientHeight * 0.4);
  }
  /* All that the log shows is a whole number of rows high: whole rows, then, are what is scrolled by. */
  to(top) {
    const row = parseFloat(getComputedStyle($("log")).lineHeight);
    const most = $("log").scrollHeight - $("log").clientHeight;
    $("log").scrollTop = row * Math.round(Math.max(0, Math.min(top, most)) / row);
  }
  settle() {
    this.to($("log").scrollTop);
  }
}
