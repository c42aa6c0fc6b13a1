/* The microphone, as the server wants it: PCM of 24 kHz in pieces of 40 ms, while it is on. */
const CAPTURE = `
registerProcessor("capture", class extends AudioWorkletProcessor {
  constructor() { super(); this.piece = new Int16Array(960); this.filled = 0; }
  process([[channel]]) {
    for (const sample of channel ?? []) {
      this.piece[this.filled++] = Math.max(-1, Math.min(1, sample)) * 32767;
      if (this.filled < this.piece.length) continue;
      this.port.postMessage(this.piece.slice().buffer);
      this.filled = 0;
    }
    return true;
  }
});`;

class Microphone {
  /* `send` sends an event; `level` is told how loud each piece is, from 0 to 1. */
  constructor(send, level) {
    this.send = send;
    this.level = level;
    this.stream = null;
  }
  get on() {
    return this.stream !== null;
  }
  /* Throws an error with a message for the user where the browser gives no microphone. */
  async start() {
    if (!navigator.mediaDevices) throw new Error("a browser gives its microphone to https and localhost only");
    const audio = { echoCancellation: true, noiseSuppression: true, channelCount: 1 };
    try {
      this.stream = await navigator.mediaDevices.getUserMedia({ audio });
      this.context = new AudioContext({ sampleRate: RATE });
      const source = URL.createObjectURL(new Blob([CAPTURE], { type: "text/javascript" }));
      await this.context.audioWorklet.addModule(source);
      URL.revokeObjectURL(source);
    } catch (error) {
      this.stop();
      throw new Error(error.name === "NotAllowedError" ? "the microphone was not allowed" : error.message);
    }
    const node = new AudioWorkletNode(this.context, "capture", { numberOfOutputs: 0 });
    node.port.onmessage = ({ data }) => {
      if (!this.on) return;
      this.level(loudness(new Int16Array(data)));
      const bytes = String.fromCharCode(...new Uint8Array(data));
      this.send("input_audio_buffer.append", { audio: btoa(bytes) });
    };
    this.context.createMediaStreamSource(this.stream).connect(node);
  }
  stop() {
    for (const track of this.stream?.getTracks() ?? []) track.stop();
    this.context?.close();
    this.stream = this.context = null;
    this.level(0);
  }
}

/* From 0 (-60 dB and below) to 1 (full scale), as loudness is heard: by its logarithm. */
function loudness(samples) {
  let sum = 0;
  for (const sample of samples) sum += sample * sample;
  const decibels = 10 * Math.log10(sum / samples.length / 32768 ** 2 + 1e-9);
  return Math.max(0, Math.min(1, 1 + decibels / 60));
}
