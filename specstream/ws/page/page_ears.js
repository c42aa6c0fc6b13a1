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
  constructor(send) {
    this.send = send;
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
      const bytes = String.fromCharCode(...new Uint8Array(data));
      this.send("input_audio_buffer.append", { audio: btoa(bytes) });
    };
    this.context.createMediaStreamSource(this.stream).connect(node);
  }
  stop() {
    for (const track of this.stream?.getTracks() ?? []) track.stop();
    this.context?.close();
    this.stream = this.context = null;
  }
}
