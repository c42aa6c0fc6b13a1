const player = new Player();
const face = new Face();
const transcript = new Transcript();
const board = new Board();
const figures = new Figures();
const turn = { id: null, item: null, aloud: true, waiting: null, stopped: false, items: [], heard: "", asked: "", ear: "" };
const microphone = new Microphone((type, fields) => socket?.readyState === WebSocket.OPEN && send(type, fields));
const race = new Race((type, fields) => send(type, fields));
let socket = null;

const send = (type, fields) => socket.send(JSON.stringify({ type, ...fields }));
const status = (kind, text) => {
  if ($("status").className === kind && $("status").lastElementChild.textContent === text) return;
  $("status").className = kind;
  $("status").lastElementChild.textContent = text;
};
/* Shows in one word what happens now; a lost connection has set its own message. */
function state() {
  if (!turn.open) return;
  const busy = turn.ear || (player.ahead > 0.05 && "speaking") || (turn.id && (turn.item ? "writing" : "thinking"));
  if (busy) status("busy", busy);
  else status("on", microphone.on ? "listening" : "ready");
}
const ready = () => {
  $("send").disabled = socket?.readyState !== WebSocket.OPEN || !$("prompt").value.trim();
  $("stop").disabled = !turn.id && player.ahead <= 0.05;
  $("race").disabled = $("send").disabled && !turn.asked;
  $("race").disabled ||= race.running || turn.id !== null || socket?.readyState !== WebSocket.OPEN;
};

function ask(text) {
  transcript.user(text);
  const content = [{ type: "input_text", text }];
  send("conversation.item.create", { item: { type: "message", role: "user", content } });
  reply(text);
}

/* Ask for a reply to the conversation as it stands. */
function reply(text) {
  turn.aloud = $("aloud").checked;
  turn.asked = text;
  for (const part of [player, face, board, figures]) part.reset();
  send("response.create", { response: { output_modalities: [turn.aloud ? "audio" : "text"] } });
  turn.id = "asked";
  turn.item = null;
}

/* Run `act` now, or once the reply under way has ended; a newer `act` replaces one that waits. */
function soon(act) {
  if (turn.id) turn.waiting = act;
  else act();
}

/* Stop at once, and truncate the item in the server's conversation at the audio that was heard. */
function stop() {
  const heard = Math.floor((player.position / RATE) * 1000);
  const playing = player.ahead > 0.05;
  turn.stopped = true;
  transcript.draft("");
  player.reset();
  face.reset();
  figures.set("lead", "–");
  if (turn.id) send("response.cancel", {});
  if (turn.aloud && turn.item && (turn.id || playing)) {
    send("conversation.item.truncate", { item_id: turn.item, content_index: 0, audio_end_ms: heard });
    if (!turn.id) transcript.end("cancelled", `stopped after ${(heard / 1000).toFixed(1)} s`);
  }
}

const handlers = {
  "session.created": (event) => {
    const events = ["avatar", "prompt", "report", "preview"];
    const session = { type: "realtime", specstream: { events } };
    const hears = Boolean(event.session.audio.input.turn_detection);
    /* The page itself interrupts and requests replies: only a transcript tells whether a sound was a word. */
    const detection = { type: "semantic_vad", interrupt_response: false, create_response: false };
    if (hears) session.audio = { input: { transcription: {}, turn_detection: detection } };
    $("mic").hidden = !hears;
    send("session.update", { session });
  },
  "session.updated": (event) => {
    if (event.session.output_modalities[0] === "text") {
      $("aloud").checked = false;
      $("aloud").disabled = true;
    }
    turn.open = true;
    ready();
  },
  /* While a reply is heard, a sound only pauses it; words end it, and a cough lets it go on. */
  "input_audio_buffer.speech_started": () => {
    if (turn.id || player.ahead > 0.05) player.pause();
    turn.ear = "hearing you";
  },
  "input_audio_buffer.speech_stopped": () => (turn.ear = "understanding"),
  "conversation.item.input_audio_transcription.delta": (event) => {
    if (player.paused && event.delta.trim()) stop();
    turn.heard += event.delta;
    transcript.hear(turn.heard, false);
  },
  "conversation.item.input_audio_transcription.completed": (event) => {
    const said = event.transcript.trim();
    turn.heard = turn.ear = "";
    transcript.hear(said, true);
    if (!said) return player.resume();
    if (turn.id || player.ahead > 0.05) stop();
    soon(() => reply(said));
  },
  "conversation.item.input_audio_transcription.failed": (event) => {
    player.resume();
    turn.heard = turn.ear = "";
    transcript.hear("", true);
    transcript.note(event.error?.message ?? "what was said could not be recognised");
  },
  "response.created": (event) => {
    turn.id = event.response.id;
    turn.item = null;
    turn.stopped = false;
    transcript.begin(turn.aloud);
    figures.asked = event.specstream.t_ms;
  },
  "conversation.item.added": (event) => turn.items.push(event.item.id),
  "conversation.item.deleted": (event) => (turn.items = turn.items.filter((id) => id !== event.item_id)),
  "response.output_item.added": (event) => (turn.item = event.item.id),
  "specstream.preview": (event) => turn.stopped || transcript.draft(event.text),
  "response.output_text.done": () => transcript.draft(""),
  "response.output_audio_transcript.done": () => transcript.draft(""),
  "response.output_text.delta": (event) => grow(event),
  "response.output_audio_transcript.delta": (event) => grow(event),
  "response.output_audio.delta": (event) => {
    if (turn.stopped) return; // it was on its way already
    figures.sound(event.specstream.t_ms);
    player.add(Uint8Array.from(atob(event.delta), (char) => char.charCodeAt(0)));
    transcript.words.push(...(event.specstream.words ?? []));
  },
  "response.output_audio.done": (event) => transcript.words.push(...(event.specstream.words ?? [])),
  "specstream.avatar.delta": (event) => turn.stopped || face.add(event.cue),
  "specstream.prompt.delta": (event) => board.add(event.shot),
  "specstream.report": (event) => figures.report(event.report),
  "response.done": ({ response }) => {
    turn.id = null;
    const details = response.status_details;
    const notes = { cancelled: "stopped", incomplete: "the reply reached its longest length" };
    transcript.end(response.status, details?.error?.message ?? notes[response.status]);
    const next = turn.waiting;
    turn.waiting = null;
    next?.();
    ready();
  },
  error: ({ error }) => {
    const quiet = ["response_cancel_not_active", "unsupported_content_type"];
    if (quiet.includes(error.code)) return;
    if (turn.id === "asked") turn.id = null;
    transcript.end("failed", error.message);
    ready();
  },
};

function grow(event) {
  transcript.add(event.delta, event.specstream);
  figures.add(event.specstream);
}

/* A suggestion is meant as the first words of a conversation: what was said before is forgotten. */
function offer(text) {
  if (socket.readyState !== WebSocket.OPEN || turn.id) return;
  player.wake();
  if (player.ahead > 0.05) stop();
  for (const id of turn.items) send("conversation.item.delete", { item_id: id });
  transcript.clear();
  ask(text);
  ready();
}

/* A browser doesn't say why a WebSocket wasn't opened; the plain pages do. */
async function whyNot() {
  const answer = async (path) => {
    const url = new URL(path, location.href);
    url.search = location.search;
    return fetch(url, { cache: "no-store" }).then((response) => response.status, () => 0);
  };
  const health = await answer("healthz");
  if (health === 0) return "the server doesn't answer; is it still running?";
  if (health === 503) return "the server is stopping";
  if ((await answer("metrics")) !== 401) return "too many clients now; trying again";
  const given = new URLSearchParams(location.search).get("token");
  return given ? "the key in this address is wrong" : "this server wants a key: add ?token=KEY";
}

function connect() {
  const url = new URL("v1/realtime", location.href);
  url.protocol = url.protocol.replace("http", "ws");
  url.search = location.search; // ?token=… travels on
  socket = new WebSocket(url, ["realtime"]);
  let opened = false;
  socket.onopen = () => (opened = true);
  socket.onmessage = ({ data }) => {
    const event = JSON.parse(data);
    if (race.takes(event)) return;
    handlers[event.type]?.(event);
  };
  socket.onclose = async ({ code, reason }) => {
    turn.open = false;
    turn.ear = "";
    if (turn.id) transcript.end("cancelled");
    turn.id = null;
    turn.items = [];
    ready();
    if (code === 1008 && reason.startsWith("idle_timeout")) {
      status("off", "closed after a long silence; touch to go on");
      for (const act of ["pointerdown", "keydown"]) addEventListener(act, wake);
      return;
    }
    const trying = setTimeout(connect, opened ? 2000 : 4000);
    const why = await whyNot();
    if (socket.readyState === WebSocket.CLOSED) status("off", why);
    if (why.includes("key")) clearTimeout(trying); // no other answer will come
  };
}

function wake() {
  for (const act of ["pointerdown", "keydown"]) removeEventListener(act, wake);
  connect();
}

let last = performance.now();
function frame(now) {
  const sample = player.position;
  const playing = player.ahead > 0.02;
  const doing = face.step(Math.min(0.1, (now - last) / 1000), playing ? sample : -RATE);
  last = now;
  if (turn.aloud) {
    transcript.said(sample);
    board.step(sample, playing);
    if (player.received) figures.set("lead", Math.max(0, player.ahead).toFixed(1), "s");
    if (player.received && !playing && !turn.id && transcript.whole) {
      transcript.finish();
      transcript.whole = false;
    }
  }
  $("cue").textContent = doing || (playing ? "speaking" : "at rest");
  $("stop").disabled = !turn.id && !playing;
  state();
  requestAnimationFrame(frame);
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("prompt").value.trim();
  if (!text || socket.readyState !== WebSocket.OPEN) return;
  player.wake();
  $("prompt").value = "";
  if (turn.id || player.ahead > 0.05) stop();
  soon(() => ask(text));
  ready();
});
$("stop").addEventListener("click", stop);
$("race").addEventListener("click", () => {
  if (player.ahead > 0.05) stop();
  race.start($("prompt").value.trim() || turn.asked, $("aloud").checked);
  ready();
});
$("mic").addEventListener("click", async () => {
  player.wake();
  if (microphone.on) {
    microphone.stop();
    turn.ear = "";
  } else {
    try {
      await microphone.start();
    } catch (error) {
      transcript.note(error.message);
    }
  }
  $("mic").setAttribute("aria-pressed", String(microphone.on));
  $("mic").textContent = microphone.on ? "Mute" : "Talk";
});
for (const button of document.querySelectorAll(".offers button"))
  button.addEventListener("click", () => offer(button.textContent));
$("prompt").addEventListener("input", ready);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") stop();
  if (event.key === "Enter" && !event.shiftKey && event.target === $("prompt")) {
    event.preventDefault();
    $("ask").requestSubmit();
  }
});
addEventListener("resize", () => figures.draw());
figures.reset();
connect();
requestAnimationFrame(frame);
