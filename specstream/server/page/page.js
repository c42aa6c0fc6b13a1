const player = new Player();
const face = new Face();
const origin = new Origin();
const transcript = new Transcript(origin);
const turns = new Turns();
const board = new Board();
const figures = new Figures();
const turn = {
  open: false, // whether the session can be used
  why: "", // why there is no connection
  id: null, // of the response under way
  item: null,
  aloud: true,
  stopped: false,
  waiting: null, // what is to be done once the response has ended
  items: [],
  heard: "",
  asked: "",
  ear: "", // what the server does with the user's voice
};
const microphone = new Microphone(
  (type, fields) => socket?.readyState === WebSocket.OPEN && send(type, fields),
  (level) => ($("level").firstElementChild.style.transform = `scaleX(${level})`),
);
const race = new Race(openSocket, () => ready());
let socket = null;

const send = (type, fields) => socket.send(JSON.stringify({ type, ...fields }));
const connected = () => socket?.readyState === WebSocket.OPEN;

/* What goes on, one thing at a time: the first that holds. */
function goesOn() {
  if (turn.why) return ["off", turn.why];
  if (!turn.open) return ["", "connecting"];
  if (turn.ear) return ["busy", turn.ear];
  if (player.playing) return ["busy", "speaking"];
  if (turn.stopped) return ["on", microphone.on ? "listening" : "stopped"];
  if (turn.id) return ["busy", turn.item ? "writing" : "thinking"];
  if (race.running) return ["busy", "racing"];
  return ["on", microphone.on ? "listening" : "ready"];
}
/* Shows what goes on, and what can be done now. */
function ready() {
  const [kind, text] = goesOn();
  const shown = $("status").lastElementChild;
  if ($("status").className !== kind) $("status").className = kind;
  if (shown.textContent !== text) shown.textContent = text;
  $("send").disabled = !connected() || !$("prompt").value.trim();
  $("stop").disabled = !turn.id && player.ahead <= 0.05;
  $("race").disabled = race.running || turn.id !== null || !connected();
  $("fresh").disabled = transcript.empty;
}

function ask(text) {
  transcript.user(text);
  const content = [{ type: "input_text", text }];
  send("conversation.item.create", { item: { type: "message", role: "user", content } });
  reply(text);
}

/* Ask for a reply to the conversation as it stands. */
function reply(text) {
  race.end("The race was stopped: you asked something.");
  turn.aloud = $("aloud").checked;
  turn.asked = text;
  turn.stopped = false;
  remember(true);
  for (const part of [player, face, board, figures]) part.reset();
  if (turn.aloud) player.wake();
  send("response.create", { response: { output_modalities: [turn.aloud ? "audio" : "text"] } });
  turn.id = "asked";
  turn.item = null;
  ready();
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
  if (!turn.id && !playing) return;
  turn.stopped = true;
  transcript.draft("");
  player.reset();
  face.reset();
  figures.set("lead", "–");
  if (turn.id) send("response.cancel", {});
  if (turn.aloud && turn.item && (turn.id || playing)) {
    send("conversation.item.truncate", { item_id: turn.item, content_index: 0, audio_end_ms: heard });
    if (!turn.id) transcript.end("cancelled");
  }
  move();
  ready();
}

/* Forget all that was said, then do `act`: the next words are the first of a conversation. */
function fresh(act) {
  if (player.ahead > 0.05 || turn.id) stop();
  soon(() => {
    for (const id of turn.items) if (connected()) send("conversation.item.delete", { item_id: id });
    transcript.clear();
    turns.clear();
    board.reset();
    figures.reset();
    turn.asked = "";
    turn.stopped = false;
    remember(false);
    act?.();
    ready();
  });
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
    introduce(event.specstream.names ?? {});
    if (!transcript.empty) transcript.divide("New conversation: the connection was lost, and the model no longer knows what stands above.");
    else if (remembered()) transcript.divide("New conversation: the page was loaded again, and the model doesn't know what was said before.");
    remember(false);
    send("session.update", { session });
  },
  "specstream.resumed": () => {
    turn.open = true;
    turn.why = "";
  },
  "session.updated": (event) => {
    if (event.session.output_modalities[0] === "text") {
      $("aloud").checked = false;
      $("aloud").disabled = true;
    }
    turn.open = true;
  },
  /* While a reply is heard, a sound only pauses it; words end it, and a cough or "mm-hm" lets it go on. */
  "input_audio_buffer.speech_started": () => {
    if (turn.id || player.ahead > 0.05) player.pause();
    turn.ear = "hearing you";
  },
  "input_audio_buffer.speech_stopped": (event) => {
    turn.ear = "understanding";
    turns.ended(event.specstream.t_ms);
  },
  "conversation.item.input_audio_transcription.delta": (event) => {
    if (player.paused && event.delta.trim() && !event.specstream.listening) stop();
    turn.heard += event.delta;
    transcript.hear(turn.heard, false);
  },
  "conversation.item.input_audio_transcription.completed": (event) => {
    const said = event.transcript.trim();
    turn.heard = turn.ear = "";
    transcript.hear(said, true);
    if (!said) return resume();
    if (event.specstream.listening && (turn.id || player.ahead > 0.05)) {
      send("conversation.item.delete", { item_id: event.item_id }); // it is no question
      return resume();
    }
    turns.heard(event.specstream.t_ms);
    stop();
    soon(() => reply(said));
  },
  "conversation.item.input_audio_transcription.failed": (event) => {
    resume();
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
    turns.begin(event.specstream.t_ms);
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
    figures.sound(event.specstream);
    const samples = new Int16Array(Uint8Array.from(atob(event.delta), (char) => char.charCodeAt(0)).buffer);
    player.add(samples);
    turns.audio(event.specstream, samples);
    transcript.words.push(...(event.specstream.words ?? []));
    move();
  },
  "response.output_audio.done": (event) => transcript.words.push(...(event.specstream.words ?? [])),
  "specstream.avatar.delta": (event) => {
    if (!turn.stopped) face.add(event.cue);
    move();
  },
  "specstream.prompt.delta": (event) => board.add(event.shot),
  "specstream.report": (event) => figures.report(event.report),
  "response.done": ({ response }) => {
    turn.id = null;
    const notes = { incomplete: "The reply reached its longest length." };
    transcript.end(response.status, response.status_details?.error?.message ?? notes[response.status]);
    const next = turn.waiting;
    turn.waiting = null;
    next?.();
    move();
  },
  error: ({ error }) => {
    const quiet = ["response_cancel_not_active", "unsupported_content_type", "input_audio_buffer_commit_empty"];
    if (error.code === "input_audio_buffer_commit_empty") turn.ear = "";
    if (quiet.includes(error.code)) return;
    if (turn.id === "asked") turn.id = null;
    transcript.end("failed", error.message);
  },
};

function grow(event) {
  transcript.add(event.delta, event.specstream);
  figures.add(event.specstream);
  turns.token(event.specstream.t_ms);
}

function resume() {
  player.resume();
  move();
}

/* Who answers: the names of the models and of the voice. */
function introduce({ target, draft, voice, ears }) {
  const none = target && "none";
  const parts = [["model", target], ["draft", draft ?? none], ["voice", voice ?? none], ["ears", ears]];
  for (const place of document.querySelectorAll(".names")) {
    place.replaceChildren();
    for (const [what, name] of parts.filter(([, name]) => name)) {
      const part = element("span", "", `${what} `);
      part.append(element("b", "", name));
      place.append(part, " ");
    }
  }
}

const wayBack = new WayBack();
function connect() {
  socket = openSocket(wayBack.query());
  let opened = false;
  socket.onopen = () => {
    opened = true;
    turn.why = "";
  };
  socket.onmessage = ({ data }) => {
    const event = JSON.parse(data);
    if (!wayBack.saw(event, (seq) => send("specstream.ack", { seq }))) return;
    handlers[event.type]?.(event);
    ready();
  };
  socket.onclose = async ({ code, reason }) => {
    turn.open = false;
    if (wayBack.open(code)) {
      turn.why = "the connection broke; coming back";
      setTimeout(connect, 300);
      return ready();
    }
    turn.ear = "";
    if (turn.id) transcript.end("cancelled");
    turn.id = turn.waiting = null;
    turn.items = [];
    if (code === 1008 && reason.startsWith("idle_timeout")) {
      turn.why = "closed after a long silence; touch to go on";
      for (const act of ["pointerdown", "keydown"]) addEventListener(act, wake);
      return ready();
    }
    ready();
    const trying = setTimeout(connect, opened ? 2000 : 4000);
    const why = await whyNot();
    if (socket.readyState === WebSocket.CLOSED) turn.why = why;
    if (why.includes("key")) clearTimeout(trying); // no other answer will come
    ready();
  };
}

function wake() {
  for (const act of ["pointerdown", "keydown"]) removeEventListener(act, wake);
  turn.why = "";
  connect();
}

/* Frames are drawn only while something moves. */
let moving = false;
let last = 0;
function move() {
  if (moving) return;
  moving = true;
  last = performance.now();
  requestAnimationFrame(frame);
}
function frame(time) {
  const sample = player.position;
  const playing = player.ahead > 0.02;
  const doing = face.step(Math.min(0.1, Math.max(0, time - last) / 1000), playing ? sample : -RATE);
  last = time;
  if (turn.aloud) {
    transcript.said(sample);
    board.step(sample, playing);
    if (player.received) figures.set("lead", Math.max(0, player.ahead).toFixed(1), "s");
    if (player.received && !playing && !turn.id && transcript.whole) {
      transcript.finish();
      transcript.whole = false;
    }
  }
  if ($("cue").textContent !== doing) $("cue").textContent = doing;
  ready();
  if (!playing) player.rest();
  moving = (playing && !player.paused) || face.moving;
  if (moving) requestAnimationFrame(frame);
}
/* A blink now and then, unless nobody looks, the user wants nothing to move, or a race is being timed. */
function blink() {
  setTimeout(blink, 3000 + 3000 * Math.random());
  if (document.hidden || race.running || matchMedia("(prefers-reduced-motion: reduce)").matches) return;
  face.blink();
  move();
}

/* The button says what is, and what a click does. */
function showMicrophone() {
  $("mic").setAttribute("aria-pressed", String(microphone.on));
  $("mic").querySelector("b").textContent = microphone.on ? "Microphone on" : "Microphone off";
  $("mic").querySelector("small").textContent = microphone.on ? "click to mute" : "click to talk";
  $("level").hidden = !microphone.on;
}
async function toggleMicrophone() {
  player.wake();
  if (microphone.on) {
    microphone.stop();
    if (turn.ear === "hearing you" && connected()) send("input_audio_buffer.commit", {}); // what was said counts
  } else {
    try {
      await microphone.start();
    } catch (error) {
      transcript.note(error.message);
    }
  }
  showMicrophone();
  ready();
}

$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("prompt").value.trim();
  if (!text || !connected()) return;
  player.wake();
  $("prompt").value = "";
  stop();
  soon(() => ask(text));
  ready();
});
$("stop").addEventListener("click", stop);
$("fresh").addEventListener("click", () => {
  fresh();
  $("prompt").focus();
});
$("race").addEventListener("click", () => {
  stop();
  const offer = document.querySelector(".offers button");
  race.start($("prompt").value.trim() || turn.asked || offer.textContent, $("aloud").checked);
});
$("mic").addEventListener("click", toggleMicrophone);
/* A suggestion is meant as the first words of a conversation. */
for (const button of document.querySelectorAll(".offers button"))
  button.addEventListener("click", () => {
    if (!connected()) return;
    player.wake();
    fresh(() => ask(button.textContent));
  });
$("prompt").addEventListener("input", ready);
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !origin.close()) stop();
  if (event.key === "Enter" && !event.shiftKey && event.target === $("prompt")) {
    event.preventDefault();
    $("ask").requestSubmit();
  }
});
addEventListener("resize", () => {
  origin.close();
  figures.draw();
  if (!transcript.empty) transcript.scroll();
});
figures.reset();
showMicrophone();
connect();
setTimeout(blink, 2000);
