/* Where the time of a turn went, and where a word of a reply came from. */

/* The steps of a turn, each from the end of the one before it. Times are the server's, of one clock. */
const STEPS = { heard: "transcript", token: "first token", phrase: "first phrase", voice: "voice", sound: "first sound" };
const AUDIBLE = 328; // 1 % of full scale, as the server's ttfa_ms has it

class Turns {
  constructor() {
    $("turn-before").addEventListener("click", () => this.show(this.shown - 1));
    $("turn-after").addEventListener("click", () => this.show(this.shown + 1));
    this.clear();
  }
  clear() {
    this.turns = [];
    this.shown = -1;
    this.spoken = {}; // of the turn that the user is speaking
    $("steps").replaceChildren(...Object.values(STEPS).map((step) => this.row(step, 0, 0, "–")));
    $("turn-name").textContent = "Time of a turn";
    $("turn-total").textContent = "From its end to the first sound.";
    $("turn-before").disabled = $("turn-after").disabled = true;
  }
  get last() {
    return this.turns.at(-1);
  }
  /* The server takes the user's turn to be over, or has its transcript. */
  ended(t_ms) {
    this.spoken.end = t_ms;
  }
  heard(t_ms) {
    this.spoken.heard = t_ms;
  }
  begin(t_ms) {
    const { end, heard } = this.spoken;
    this.spoken = {};
    this.turns.push(heard === undefined ? { start: t_ms } : { start: end ?? heard, heard });
    this.samples = 0;
  }
  token(t_ms) {
    if (this.last?.token === undefined) this.mark({ token: t_ms });
  }
  /* Audio that came at `t_ms`: its first piece tells of the steps before it, and where it can be heard. */
  audio({ t_ms, first }, samples) {
    const turn = this.last;
    if (!turn || turn.sound !== undefined) return;
    turn.came ??= t_ms;
    if (first) this.mark({ token: first.token_ms, phrase: first.phrase_ms, voice: first.voice_ms });
    const loud = samples.findIndex((sample) => Math.abs(sample) >= AUDIBLE);
    if (loud >= 0) this.mark({ sound: Math.max(t_ms, turn.came + (1000 * (this.samples + loud)) / RATE) });
    this.samples += samples.length;
  }
  mark(times) {
    for (const [step, t_ms] of Object.entries(times)) if (t_ms !== undefined) this.last[step] = t_ms;
    this.show(this.turns.length - 1);
  }
  /* One step: its bar, from one share of the whole time to another. */
  row(name, from, to, text) {
    const row = element("li");
    const bar = element("i");
    bar.style.marginLeft = `${100 * from}%`;
    bar.style.width = `${100 * (to - from)}%`;
    const track = element("span", "track");
    if (to > from) track.append(bar);
    row.append(element("span", "", name), track, element("b", "", text));
    return row;
  }
  show(index) {
    const turn = this.turns[index];
    if (!turn) return;
    this.shown = index;
    const steps = Object.keys(STEPS).filter((step) => turn[step] !== undefined);
    const end = Math.max(...steps.map((step) => turn[step])) - turn.start;
    const rows = [];
    let before = 0;
    for (const step of steps) {
      const at = Math.max(before, turn[step] - turn.start);
      rows.push(this.row(STEPS[step], before / (end || 1), at / (end || 1), `${(at - before).toFixed(0)} ms`));
      before = at;
    }
    $("steps").replaceChildren(...rows);
    $("turn-name").textContent = `Time of turn ${index + 1}`;
    const from = turn.heard === undefined ? "the question" : "the end of your turn, its silence not counted,";
    $("turn-total").textContent = `${end.toFixed(0)} ms from ${from} to the ${STEPS[steps.at(-1)]}`;
    $("turn-before").disabled = index === 0;
    $("turn-after").disabled = index === this.turns.length - 1;
  }
}

const DRAFTERS = {
  draft: "the draft model",
  suffix: "a look-up of what followed the same words before",
  lookahead: "look-ahead",
  eagle: "the EAGLE head",
  medusa: "the Medusa head",
  block: "the block head",
  mtp: "the model's own head for further tokens",
  "early-exit": "the target's lower layers",
};

/* What is known of a reply's characters and tokens; both are counted as the server counts them. */
class Provenance {
  constructor() {
    this.chars = [];
    this.tokens = [];
    this.spans = []; // the pieces on the page
  }
  delta({ tokens, ends, ...round }) {
    for (let token = tokens[0]; token < tokens[1]; token++) {
      const kept = round.kept && round.kept[0] <= token && token < round.kept[1];
      this.tokens[token] = { ...round, token, end: ends?.[token - tokens[0]] ?? 0, kept };
    }
  }
  piece(span, start, text) {
    const chars = Array.from(text);
    for (const [index, char] of chars.entries()) this.chars[start + index] = char;
    this.spans.push({ span, start, end: start + chars.length });
    return start + chars.length;
  }
  /* The range of the word with this character, without white space. */
  word(at) {
    const solid = (index) => /\S/.test(this.chars[index] ?? " ");
    while (!solid(at) && at < this.chars.length) at++;
    let [start, end] = [at, at];
    while (solid(start - 1)) start--;
    while (solid(end)) end++;
    return [start, end];
  }
  text(start, end) {
    return this.chars.slice(start, end).join("");
  }
  /* The tokens that wrote a range: what each wrote, and why it stands there. */
  of(start, end) {
    const found = [];
    let begin = 0;
    for (const token of this.tokens) {
      if (token && begin < end && token.end > start && token.end > begin)
        found.push({ ...token, text: this.text(begin, token.end) });
      begin = Math.max(begin, token?.end ?? 0);
    }
    return found;
  }
}

/* Why a token stands where it stands, in plain words. */
function because({ kept, proposer, drafted, accepted }) {
  if (kept) return `drafted by ${DRAFTERS[proposer] ?? proposer ?? "the draft"}, accepted by the target`;
  if (!drafted) return "written by the target; nothing was drafted in this round";
  if (accepted < drafted) return "the target's own, in place of a drafted token that it rejected";
  return "the target's own; it accepted all drafted tokens before it";
}

/* The panel beside a word that was clicked. */
class Origin {
  constructor() {
    this.replies = new WeakMap(); // by reply: its provenance
    $("log").addEventListener("click", (event) => {
      const reply = event.target.closest(".reply");
      const known = this.replies.get(reply);
      const piece = known?.spans.find(({ span }) => span === event.target);
      if (piece && getSelection().isCollapsed) this.open(reply, ...known.word(this.within(piece, event)));
      else this.close();
    });
    $("log").addEventListener("keydown", (event) => {
      const known = this.replies.get(event.target);
      const step = { Enter: 0, ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!known || step === undefined) return;
      event.preventDefault();
      const here = this.reply === event.target;
      let at = here ? (step > 0 ? this.end + 1 : this.start - 2) : 0;
      if (here && step === 0) at = this.start;
      const [start, end] = known.word(Math.max(0, at));
      if (start < end) this.open(event.target, start, end);
    });
    $("log").addEventListener("wheel", () => this.close(), { passive: true });
    $("origin-close").addEventListener("click", () => this.close());
  }
  /* A piece is a word, or white space and a word: the character that was meant. */
  within({ start, end }) {
    return end - 1 > start ? end - 1 : start;
  }
  open(reply, start, end) {
    this.close();
    Object.assign(this, { reply, start, end });
    const known = this.replies.get(reply);
    const shown = known.spans.filter((piece) => piece.start < end && piece.end > start);
    for (const { span } of shown) span.classList.add("chosen");
    $("origin-word").textContent = known.text(start, end);
    const rows = known.of(start, end).map((token) => {
      const row = element("li", token.kept ? "kept" : "");
      row.append(element("b", "", token.text), element("span", "", because(token)));
      const round = `token ${token.token + 1}, round ${token.round}`;
      const count = token.drafted ? `: ${token.accepted} of ${token.drafted} drafted tokens accepted` : "";
      row.append(element("small", "", round + count));
      return row;
    });
    $("origin-tokens").replaceChildren(...rows);
    $("origin").hidden = false;
    this.place(shown.at(-1).span);
  }
  /* Below the word where there is room, else above it. */
  place(span) {
    const card = $("origin").offsetParent.getBoundingClientRect();
    const rects = span.getClientRects();
    const word = rects[rects.length - 1];
    const { offsetWidth: width, offsetHeight: height } = $("origin");
    const left = Math.max(8, Math.min(word.left - card.left, card.width - width - 8));
    const below = word.bottom - card.top + 6;
    const top = below + height < card.height ? below : Math.max(8, word.top - card.top - height - 6);
    Object.assign($("origin").style, { left: `${left}px`, top: `${top}px` });
  }
  close() {
    if (!this.reply) return false;
    for (const { span } of this.replies.get(this.reply).spans) span.classList.remove("chosen");
    this.reply = null;
    $("origin").hidden = true;
    return true;
  }
}
