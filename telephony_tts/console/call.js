// A call of this page: the bot's leg brings text, the media leg plays the speech and sends the microphone.
// The server takes the page for a telephone, so what it reports as heard is what this page has played.

import { openSocket } from "./server.js";
import { t } from "./texts.js";

const LEAD_MS = 200;
const OPEN_MS = 10_000; // how long the server may take to accept a connection, or to send a file
const PING_MS = 2_000; // after so long without a sign of the server the page asks for one
const ANSWER_MS = 6_000; // without an answer for so long the connection is lost
const SPEECH_HZ = { telephone: ["ulaw", 8000], wide: ["pcm", 16000], engine: ["pcm", 24000] };

const ULAW = Float32Array.from({ length: 256 }, (_, code) => {
  const bits = ~code & 0xff;
  const size = (((bits & 0x0f) << 3) + 0x84) << ((bits & 0x70) >> 4);
  return ((bits & 0x80 ? 0x84 - size : size - 0x84) / 32768);
});

function ulawOf(sample) {
  const clipped = Math.max(-32635, Math.min(32635, Math.round(sample * 32768)));
  const size = Math.abs(clipped) + 0x84;
  const exponent = 31 - Math.clz32(size) - 7;
  return ~((clipped < 0 ? 0x80 : 0) | (exponent << 4) | ((size >> (exponent + 3)) & 0x0f)) & 0xff;
}

function decoded(codec, payload) {
  if (codec === "ulaw") return Float32Array.from(new Uint8Array(payload), (code) => ULAW[code]);
  return Float32Array.from(new Int16Array(payload), (sample) => sample / 32768);
}

function encoded(codec, pcm) {
  if (codec === "ulaw") return Uint8Array.from(pcm, ulawOf);
  return Int16Array.from(pcm, (sample) => Math.max(-32768, Math.min(32767, Math.round(sample * 32768))));
}

const inTime = (promise) => {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(t("noAnswerFor", OPEN_MS / 1000))), OPEN_MS);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
};

let ready = null; // of the AudioContext, once its audio thread has our code

async function newContext() {
  const context = new AudioContext({ latencyHint: "interactive" });
  try {
    await inTime(context.audioWorklet.addModule(new URL("worklet.js", import.meta.url)));
  } catch (error) {
    context.close();
    throw error;
  }
  return context;
}

// The page's one AudioContext. A browser lets it sound only after the user did something.
export async function audioContext() {
  ready ??= newContext();
  const context = await ready.catch((error) => {
    ready = null;
    throw error;
  });
  if (context.state !== "running") await context.resume();
  return context;
}

const opened = (socket) =>
  inTime(new Promise((resolve, reject) => {
    socket.addEventListener("open", resolve, { once: true });
    socket.addEventListener("close", () => reject(new Error(t("refusedConnection"))), { once: true });
  }));

export class Call {
  // `hear` gets what happens: an event of the protocol, or one of this page: "frame", "lost", "microphone", or "speaker-"
  // with what the audio thread reports.
  static async open(quality, hear) {
    const context = await audioContext();
    const [codec, rateHz] = SPEECH_HZ[quality];
    const call = new Call(context, codec, rateHz, hear);
    try {
      await call.connect();
    } catch (error) {
      call.end();
      throw error;
    }
    return call;
  }

  constructor(context, codec, rateHz, hear) {
    Object.assign(this, { context, codec, rateHz, hear });
    this.id = `console-${crypto.getRandomValues(new Uint32Array(2)).join("-")}`;
    this.received = 0;
    this.boundary = 0; // samples received when the last turn ended
    this.progress = { played: 0, received: 0, at: 0 };
    this.isDropping = false;
    this.isOver = false;
    this.askedAt = null; // when the page asked for a sign of the server
    this.signAt = 0;
    this.watch = null;
    this.microphone = null;
    this.speaker = new AudioWorkletNode(context, "speaker", {
      numberOfInputs: 0, outputChannelCount: [1], processorOptions: { rateHz },
    });
    this.analyser = new AnalyserNode(context, { fftSize: 2048 });
    this.speaker.connect(this.analyser);
    this.speaker.connect(context.destination);
    this.speaker.port.onmessage = ({ data }) => this.fromSpeaker(data);
  }

  async connect() {
    this.bot = openSocket("v1/stream", { call: this.id, audio: "none", words: "on" });
    this.bot.onmessage = ({ data }) => this.fromServer(JSON.parse(data));
    this.bot.onclose = ({ code, reason }) => this.lose(code, reason);
    await opened(this.bot);
    this.media = openSocket("media/native");
    this.media.onmessage = ({ data }) => this.fromMedia(data);
    this.media.onclose = ({ code, reason }) => this.lose(code, reason);
    await opened(this.media);
    this.media.send(JSON.stringify({
      type: "start", call: this.id, codec: this.codec, rate_hz: this.rateHz, ptime_ms: 20, lead_ms: LEAD_MS,
    }));
    this.sign();
    this.watch = setInterval(() => this.lookForSign(), 500);
  }

  // A network that is gone closes no connection. So the page asks for a sign of the server, and waits for one.
  lookForSign() {
    const now = performance.now();
    if (this.askedAt !== null) {
      if (now - this.askedAt > ANSWER_MS) this.lose(0, "", true);
    } else if (now - this.signAt > PING_MS) {
      this.askedAt = now;
      this.send({ type: "ping" });
    }
  }

  sign() {
    this.signAt = performance.now();
    this.askedAt = null;
  }

  lose(code, reason, isSilent = false) {
    if (this.isOver) return;
    this.end();
    this.hear({ type: "lost", code, reason, isSilent });
  }

  end() {
    this.isOver = true;
    clearInterval(this.watch);
    this.closeMicrophone();
    for (const socket of [this.bot, this.media]) if (socket && socket.readyState < 2) socket.close();
    this.speaker.port.postMessage({ clear: true });
    setTimeout(() => this.speaker.disconnect(), 100);
  }

  send(message) {
    if (this.bot.readyState === 1) this.bot.send(JSON.stringify(message));
  }

  // Silence now, before the server has answered. What is still under way to this page is dropped.
  interrupt(heardMs) {
    this.speaker.port.postMessage({ clear: true });
    this.isDropping = true;
    this.send({ type: "clear", ...(heardMs === null ? {} : { heard_ms: Math.max(0, Math.round(heardMs)) }) });
  }

  // The next gap will be filled with more sound before it ends; `false`: as at first.
  expectGaps(isLate) {
    this.speaker.port.postMessage({ isLate });
  }

  fromServer(event) {
    this.sign();
    // The media leg's own `clear` says so too, if the server had sent something.
    if (event.type === "started" || event.code === "no_active_turn") this.isDropping = false;
    this.hear(event);
  }

  fromMedia(data) {
    this.sign();
    if (typeof data !== "string") {
      if (this.isDropping) return;
      const at = performance.now();
      const pcm = decoded(this.codec, data);
      const peak = pcm.reduce((most, sample) => Math.max(most, Math.abs(sample)), 0);
      const first = this.received;
      this.received += pcm.length;
      this.speaker.port.postMessage({ pcm }, [pcm.buffer]);
      this.hear({ type: "frame", first, peak, at, decodeMs: performance.now() - at });
      return;
    }
    const message = JSON.parse(data);
    if (message.type === "mark" && !this.isDropping) this.speaker.port.postMessage({ mark: message.name });
    else if (message.type === "clear") {
      this.isDropping = false;
      this.boundary = this.received;
      this.speaker.port.postMessage({ clear: true });
    }
  }

  fromSpeaker(report) {
    if (report.mark !== undefined && this.media.readyState === 1) {
      this.media.send(JSON.stringify({ type: "mark", name: report.mark }));
    }
    if (report.played !== undefined) this.progress = report;
    for (const type of ["begun", "audible", "dry", "cleared"]) {
      if (report[type] !== undefined) this.hear({ type: `speaker-${type}`, at: this.outputTime(report[type]), isAtMark: report.isAtMark });
    }
  }

  // When a time of the AudioContext leaves the loudspeaker, on the clock of performance.now().
  outputTime(contextTime) {
    const stamp = this.context.getOutputTimestamp();
    if (stamp.performanceTime > 0) return stamp.performanceTime + (contextTime - stamp.contextTime) * 1000;
    return performance.now() + (contextTime - this.context.currentTime + this.outputLatency) * 1000;
  }

  get outputLatency() {
    return this.context.outputLatency || this.context.baseLatency || 0;
  }

  // How many of the received samples have left the loudspeaker.
  get heard() {
    const { played, at, received } = this.progress;
    const since = Math.max(0, this.context.currentTime - at);
    return Math.max(0, Math.min(received, played + since * this.rateHz) - this.outputLatency * this.rateHz);
  }

  async openMicrophone() {
    const constraints = { audio: { echoCancellation: true, noiseSuppression: true, autoGainControl: true } };
    const stream = await navigator.mediaDevices.getUserMedia(constraints);
    const source = new MediaStreamAudioSourceNode(this.context, { mediaStream: stream });
    const node = new AudioWorkletNode(this.context, "microphone", {
      numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit", processorOptions: { rateHz: this.rateHz },
    });
    node.port.onmessage = ({ data }) => {
      if (this.media.readyState === 1 && this.media.bufferedAmount < 100_000) this.media.send(encoded(this.codec, data));
      this.hear({ type: "microphone", level: Math.sqrt(data.reduce((sum, x) => sum + x * x, 0) / data.length) });
    };
    source.connect(node);
    this.microphone = { stream, source };
  }

  closeMicrophone() {
    if (!this.microphone) return;
    this.microphone.source.disconnect();
    for (const track of this.microphone.stream.getTracks()) track.stop();
    this.microphone = null;
  }
}
