/* The storyboard: one card a shot, folded away while there is none. */
class Board {
  constructor() {
    this.shots = new Map(); // by shot_id: its card, and the sample at which it is due
    this.current = null;
  }
  reset() {
    $("board").hidden = true;
    $("shots").replaceChildren();
    this.shots.clear();
    this.current = null;
  }
  add(shot) {
    $("board").hidden = false;
    const old = this.shots.get(shot.shot_id);
    const number = old?.number ?? this.shots.size + 1; // a server goes on counting from reply to reply
    const card = this.card(shot, number, old?.card.querySelector("details").open ?? false);
    if (old) old.card.replaceWith(card);
    else $("shots").append(card);
    if (old && this.current === old.card) this.current = null;
    this.shots.set(shot.shot_id, { card, number, at: (shot.t_start_ms / 1000) * RATE });
  }
  card(shot, number, open) {
    const card = element("article", "shot");
    let hash = 0;
    for (const char of shot.setting + shot.subject) hash = (hash * 31 + char.codePointAt(0)) % 360;
    card.style.setProperty("--hue", `hsl(${hash} 48% 52%)`);
    const head = element("header");
    head.append(element("span", "", shot.rev > 0 ? `${number} · version ${shot.rev + 1}` : String(number)));
    head.append(element("span", "", `${(shot.t_start_ms / 1000).toFixed(1)} s`));
    /* A template's action often names the subject ("Pip, a small robot") and the place: no words twice on a card. */
    const has = (text, part) => text.toLowerCase().includes(part.toLowerCase());
    const named = has(shot.action, shot.subject.split(",")[0]);
    const title = named ? shot.action : [shot.subject, shot.action].filter(Boolean).join(" – ");
    const facts = element("ul");
    for (const fact of [shot.camera, shot.setting])
      if (fact && !has(title, fact)) facts.append(element("li", "", fact));
    card.append(head, element("h3", "", title), facts, this.prompt(shot, open));
    return card;
  }
  prompt(shot, open) {
    const details = element("details");
    details.open = open;
    const text = element("p", "", shot.prompt);
    const copy = element("button", "", "Copy");
    copy.type = "button";
    copy.addEventListener("click", async () => {
      copy.textContent = (await copied(text)) ? "Copied" : "Marked: copy it yourself";
      setTimeout(() => (copy.textContent = "Copy"), 2000);
    });
    details.append(element("summary", "", "Prompt"), text);
    if (shot.negative) details.append(element("p", "without", `Without: ${shot.negative}`));
    details.append(copy);
    return details;
  }
  step(sample, playing) {
    let current = null;
    for (const shot of this.shots.values()) if (playing && shot.at <= sample) current = shot.card;
    if (current === this.current) return;
    this.current?.classList.remove("now");
    this.current = current;
    if (!current) return;
    current.classList.add("now");
    $("shots").scrollTo({ left: current.offsetLeft - $("shots").offsetLeft - 2, behavior: "smooth" });
  }
}

/* Copies an element's text. A browser gives its clipboard to https and localhost only: elsewhere the old way. */
async function copied(node) {
  try {
    await navigator.clipboard.writeText(node.textContent);
    return true;
  } catch {
    getSelection().selectAllChildren(node);
    return document.execCommand("copy");
  }
}
