// The audio thread: speech goes to the loudspeaker, the microphone comes back. Both change the rate on the way.

const HALF_TAPS = 16;
const FADE_S = 0.004; // a cut without it would click
const AUDIBLE = 0.005; // -46 dBFS: below it the sound is taken for silence
const REPORT_SAMPLES = 1024;
const FILL_S = 0.06; // so much is there before the sound begins, or so long was waited for it
const MOST_FILL_S = 0.8; // the same on a network that was late again and again

const gcd = (a, b) => (b ? gcd(b, a % b) : a);

// Windowed sinc filters for each phase of a rational change of rate.
class Phases {
  constructor(fromHz, toHz) {
    const divisor = gcd(fromHz, toHz);
    this.n = toHz / divisor;
    this.step = fromHz / divisor;
    const cutoff = Math.min(1, toHz / fromHz) * (fromHz === toHz ? 1 : 0.94);
    this.half = Math.ceil(HALF_TAPS / Math.min(1, toHz / fromHz));
    this.taps = [];
    for (let phase = 0; phase < this.n; phase++) {
      const taps = new Float32Array(2 * this.half);
      let sum = 0;
      for (let k = 0; k < taps.length; k++) {
        const x = k - this.half + 1 - phase / this.n;
        const window = 0.42 + 0.5 * Math.cos((Math.PI * x) / this.half) + 0.08 * Math.cos((2 * Math.PI * x) / this.half);
        taps[k] = Math.abs(x) > this.half ? 0 : window * (x === 0 ? cutoff : Math.sin(Math.PI * cutoff * x) / (Math.PI * x));
        sum += taps[k];
      }
      for (let k = 0; k < taps.length; k++) taps[k] /= sum;
      this.taps.push(taps);
    }
  }
}

const known = new Map();

function phasesOf(fromHz, toHz) {
  const key = `${fromHz} ${toHz}`;
  if (!known.has(key)) known.set(key, new Phases(fromHz, toHz));
  return known.get(key);
}

// Samples by their number since the beginning; old ones are forgotten.
class Samples {
  constructor() {
    this.first = 0;
    this.end = 0;
    this.data = new Float32Array(1 << 15);
  }
  append(pcm) {
    const length = this.end - this.first;
    if (length + pcm.length > this.data.length) {
      const larger = new Float32Array(Math.max(2 * this.data.length, 2 * (length + pcm.length)));
      larger.set(this.data.subarray(0, length));
      this.data = larger;
    }
    this.data.set(pcm, length);
    this.end += pcm.length;
  }
  at(n) {
    return n < this.first || n >= this.end ? 0 : this.data[n - this.first];
  }
  forget(before) {
    const n = Math.min(before, this.end) - this.first;
    if (n < this.data.length / 4) return;
    this.data.copyWithin(0, n, this.end - this.first);
    this.first += n;
  }
}

class Resampler {
  constructor(fromHz, toHz) {
    this.phases = phasesOf(fromHz, toHz);
    this.input = new Samples();
    this.at = 0; // the input sample at or before the next output sample
    this.phase = 0;
  }
  get isReady() {
    return this.at + this.phases.half < this.input.end;
  }
  next() {
    const taps = this.phases.taps[this.phase];
    const begin = this.at - this.phases.half + 1;
    let sum = 0;
    for (let k = 0; k < taps.length; k++) sum += taps[k] * this.input.at(begin + k);
    this.phase += this.phases.step;
    while (this.phase >= this.phases.n) {
      this.phase -= this.phases.n;
      this.at++;
    }
    return sum;
  }
  forget() {
    this.input.forget(this.at - this.phases.half);
  }
}

class Speaker extends AudioWorkletProcessor {
  constructor({ processorOptions }) {
    super();
    this.fromHz = processorOptions.rateHz;
    this.received = 0;
    this.played = 0; // of the received ones; those that were cleared count too
    this.marks = [];
    this.lastMarkAt = 0;
    this.fillS = FILL_S;
    this.gone = new Float32Array(0); // the end of what was cleared, faded out
    this.nSince = 0;
    this.restart();
    this.port.onmessage = ({ data }) => {
      if (data.pcm) this.take(data.pcm);
      else if (data.mark !== undefined) this.marks.push({ name: data.mark, at: this.received });
      else if (data.clear) this.clear();
      else if (data.isLate !== undefined) this.fillS = data.isLate ? Math.min(MOST_FILL_S, 2 * this.fillS) : FILL_S;
    };
  }
  restart() {
    this.resampler = new Resampler(this.fromHz, sampleRate);
    this.offset = this.received; // samples received before the resampler's first one
    this.isIdle = true;
    this.isSilent = true;
    this.fillUntil = null;
  }
  take(pcm) {
    if (this.isIdle && this.fillUntil === null) {
      this.restart();
      this.fillUntil = currentTime + this.fillS;
    }
    this.resampler.input.append(pcm);
    this.received += pcm.length;
    if (this.received - this.offset >= this.fillS * this.fromHz) this.begin();
  }
  begin() {
    if (!this.isIdle || this.fillUntil === null) return;
    this.isIdle = false;
    this.fillUntil = null;
    this.port.postMessage({ begun: currentTime });
  }
  clear() {
    const fade = Math.round(FADE_S * sampleRate);
    const gone = new Float32Array(this.isIdle ? 0 : fade);
    for (let i = 0; i < gone.length; i++) gone[i] = this.resampler.next() * (1 - i / fade);
    this.gone = gone;
    this.marks = [];
    this.played = this.received;
    this.restart();
    this.report({ cleared: currentTime });
  }
  report(more) {
    this.nSince = 0;
    this.port.postMessage({ played: this.played, received: this.received, at: currentTime, ...more });
  }
  process(_inputs, [[left, ...others]]) {
    let isDry = false;
    if (this.fillUntil !== null && currentTime >= this.fillUntil) this.begin();
    for (let i = 0; i < left.length; i++) {
      if (this.isIdle) {
        left[i] = 0;
        continue;
      }
      left[i] = this.resampler.next();
      if (this.resampler.at >= this.resampler.input.end) {
        this.isIdle = isDry = true;
        continue;
      }
      if (this.isSilent && Math.abs(left[i]) > AUDIBLE) {
        this.isSilent = false;
        this.port.postMessage({ audible: currentTime + i / sampleRate });
      }
    }
    for (let i = 0; i < Math.min(left.length, this.gone.length); i++) left[i] += this.gone[i];
    if (this.gone.length) this.gone = this.gone.subarray(Math.min(left.length, this.gone.length));
    for (const channel of others) channel.set(left);
    this.resampler.forget();
    this.nSince += left.length;
    if (!this.isIdle || isDry) this.played = Math.min(this.received, this.offset + this.resampler.at);
    if (isDry) this.played = this.received;
    while (this.marks.length && this.marks[0].at <= this.played) {
      this.lastMarkAt = this.marks[0].at;
      this.port.postMessage({ mark: this.marks.shift().name });
    }
    // Behind a mark a sentence is over; elsewhere sound is missing.
    if (isDry) this.report({ dry: currentTime, isAtMark: this.lastMarkAt === this.received });
    else if (this.nSince >= REPORT_SAMPLES && !this.isIdle) this.report({});
    return true;
  }
}

class Microphone extends AudioWorkletProcessor {
  constructor({ processorOptions }) {
    super();
    this.resampler = new Resampler(sampleRate, processorOptions.rateHz);
    this.frame = new Float32Array((processorOptions.rateHz * 20) / 1000);
    this.n = 0;
  }
  process([[input]]) {
    if (!input) return true;
    this.resampler.input.append(input);
    while (this.resampler.isReady) {
      this.frame[this.n++] = this.resampler.next();
      if (this.n === this.frame.length) {
        this.port.postMessage(this.frame.slice());
        this.n = 0;
      }
    }
    this.resampler.forget();
    return true;
  }
}

registerProcessor("speaker", Speaker);
registerProcessor("microphone", Microphone);
