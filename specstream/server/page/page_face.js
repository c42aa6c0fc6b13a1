"use strict";
const $ = (id) => document.getElementById(id);
const RATE = 24000;
const element = (tag, className, text) => {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
};

/* A face moved by ARKit blend shapes: the viseme of the moment, plus emotion and gesture. */
class Face {
  constructor() {
    this.now = {};
    this.shut = 0; // for how many seconds more the eyes are
    this.pupils = document.querySelectorAll(".pupil");
    this.reset();
    this.draw({}, {}, 0);
  }
  reset() {
    this.cues = [];
  }
  add(cue) {
    const start = cue.samples[0];
    const last = this.cues.findLast((c) => c.kind === "viseme");
    if (cue.kind === "viseme" && last && start < last.samples[1]) {
      this.cues = this.cues.filter((c) => c.samples[0] < start); // cues that begin after it are void
      for (const c of this.cues) if (c.kind === "viseme") c.samples[1] = Math.min(c.samples[1], start);
    }
    this.cues.push(cue);
  }
  active(kind, sample) {
    return this.cues.findLast((c) => c.kind === kind && c.samples[0] <= sample && sample < c.samples[1]);
  }
  blink() {
    this.shut = 0.12;
  }
  /* Whether some part of it moves: a face at rest costs nothing. */
  get moving() {
    return this.shut > 0 || Object.values(this.now).some((weight) => weight > 0.004);
  }
  /* Move on by `seconds`; returns what the face does, in words. */
  step(seconds, sample) {
    const viseme = this.active("viseme", sample + 0.04 * RATE);
    const emotion = this.active("emotion", sample);
    const gesture = this.active("gesture", sample);
    const target = {};
    for (const cue of [emotion, gesture, viseme])
      for (const [shape, weight] of Object.entries(cue?.weights ?? {}))
        target[shape] = Math.max(target[shape] ?? 0, weight);
    if (this.shut > 0) target.eyeBlinkLeft = target.eyeBlinkRight = 1;
    if (sample >= 0) target.sway = 1; // who speaks doesn't hold still
    this.shut -= seconds;
    for (const shape of new Set([...Object.keys(this.now), ...Object.keys(target)])) {
      const rate = shape === "sway" ? 3 : shape.startsWith("brow") || shape.startsWith("cheek") ? 8 : 26;
      const old = this.now[shape] ?? 0;
      this.now[shape] = old + ((target[shape] ?? 0) - old) * (1 - Math.exp(-rate * seconds));
    }
    const into = gesture ? (sample - gesture.samples[0]) / RATE : 0;
    this.draw(this.now, { name: gesture?.name, into }, performance.now() / 1000);
    return [emotion?.name, gesture?.name].filter(Boolean).join(" · ");
  }
  draw(weights, gesture, time) {
    const w = (name) => weights[name] ?? 0;
    const both = (name) => (w(name + "Left") + w(name + "Right")) / 2;
    const round = w("mouthPucker") + w("mouthFunnel") * 0.6;
    const wide = 34 * (1 + 0.32 * both("mouthSmile") + 0.3 * both("mouthStretch") - 0.5 * Math.min(1, round));
    const lift = 4 + 16 * (both("mouthSmile") - both("mouthFrown"));
    const open = 46 * Math.max(0, w("jawOpen") - w("mouthClose"));
    const up = open * 0.28 + 6 * both("mouthUpperUp") + 3 * w("mouthFunnel");
    const down = open * 0.72 + 7 * both("mouthLowerDown") + 3 * w("mouthFunnel");
    const thin = 1 - 0.7 * Math.max(both("mouthPress"), w("mouthRollLower") * 0.6);
    const [y, l, r] = [226, 160 - wide, 160 + wide];
    const lip = (top, bottom, grow) =>
      `M${l - grow} ${y - lift} Q160 ${y + lift * 0.5 - 2 * top} ${r + grow} ${y - lift}` +
      ` Q160 ${y + lift * 0.5 + 2 * bottom} ${l - grow} ${y - lift}Z`;
    $("inside-path").setAttribute("d", lip(up, down, -2));
    $("lips").setAttribute("d", lip(up + 6 * thin, down + 7 * thin, 5));
    $("teeth").setAttribute("y", y - up - 6 + lift * 0.25);
    $("tongue").setAttribute("cy", y + down + 12 - 24 * w("tongueOut"));
    const brow = (x, side, sign) => {
      const raise = 12 * w("browOuterUp" + side) - 9 * w("browDown" + side);
      const inner = 10 * w("browInnerUp") - 9 * w("browDown" + side);
      return `M${x - sign * 24} ${124 - raise} Q${x} ${114 - raise} ${x + sign * 22} ${122 - inner}`;
    };
    $("brow-l").setAttribute("d", brow(118, "Left", 1));
    $("brow-r").setAttribute("d", brow(202, "Right", -1));
    for (const [id, side] of [["lid-l", "Left"], ["lid-r", "Right"]]) {
      const shut = Math.min(1, w("eyeBlink" + side) + 0.35 * w("eyeSquint" + side));
      $(id).setAttribute("y", 98 + 32 * shut - 5 * w("eyeWide" + side));
    }
    const gaze = 7 * (both("eyeLookDown") - both("eyeLookUp"));
    for (const pupil of this.pupils) pupil.setAttribute("transform", `translate(0 ${gaze})`);
    $("cheeks").setAttribute("opacity", 0.22 + 0.4 * both("cheekSquint"));
    const swing = Math.sin((gesture.into ?? 0) * 13);
    const nod = gesture.name === "nod" ? 6 * swing : gesture.name === "bow" ? 12 : 0;
    const shake = gesture.name === "shake head" ? 9 * swing : 0;
    const tilt = gesture.name === "tilt head" ? 8 : 0;
    const sway = w("sway") * Math.sin(time * 0.8);
    const bob = 1.5 * w("sway") * Math.sin(time * 1.3);
    $("head").setAttribute(
      "transform",
      `translate(${shake + sway} ${nod + bob}) rotate(${tilt + sway * 0.6} 160 270)`,
    );
  }
}
