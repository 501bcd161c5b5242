// The page "Voices": make one from a recording after looking at it, try it, remove it; and edit the lexicons.

import { audioContext } from "./call.js";
import { serverState, tell } from "./main.js";
import { ask, element, one, read } from "./server.js";
import { addTexts, currentLanguage, problemText, t } from "./texts.js";

addTexts({
  newVoice: ["A voice from a recording", "用录音创建音色"],
  cannotAdd: ["This server cannot make voices: they need CosyVoice2 (engines.cosyvoice2.model). A recording can still be looked at.", "此服务器无法创建音色：需要 CosyVoice2（engines.cosyvoice2.model）。仍可检查录音。"],
  file: ["Recording, 3 to 30 s", "录音（3 至 30 秒）"],
  record: ["Record", "录制"],
  stopRecord: ["Stop", "停止"],
  recordingFor: ["{0} s of 30; at least 3 are needed", "{0} 秒，最长 30 秒，至少 3 秒"],
  recordingLength: ["How much is recorded", "录制进度"],
  name: ["Name: letters, digits, - _ .", "名称：字母、数字、- _ ."],
  transcript: ["Exactly the words of the recording", "录音的准确文字"],
  consent: ["The speaker agrees that this voice is made and used.", "说话人同意制作并使用此音色。"],
  consentBy: ["Whose voice it is", "说话人"],
  consentOn: ["Day of the consent", "同意日期"],
  consentFor: ["What it may be used for", "允许的用途"],
  replace: ["Replace a voice of this name", "替换同名音色"],
  make: ["Make the voice", "创建音色"],
  sending: ["sending {0} kB", "正在发送 {0} kB"],
  step_queued: ["waiting", "等待中"],
  step_checking: ["checking the recording", "正在检查录音"],
  step_extracting: ["extracting the voice", "正在提取音色"],
  step_storing: ["storing it", "正在保存"],
  madeVoice: ["The voice {0} is there: {1} of {2} s were kept.", "音色 {0} 已创建：保留了 {2} 秒中的 {1} 秒。"],
  exists: ["There is a voice of this name. Choose another name, or tick “Replace”.", "已有同名音色。请换名称，或勾选“替换”。"],
  notYours: ["A voice of this name belongs to another key. Choose another name.", "同名音色属于其他密钥。请换名称。"],
  unreadable: ["This file is not a recording that can be read: {0}", "无法读取此录音文件：{0}"],
  tooLarge: ["it is larger than {0} MB", "文件大于 {0} MB"],
  check: ["What the check found", "检查结果"],
  asking: ["The server is checking the recording …", "服务器正在检查录音…"],
  accepted: ["A voice can be made of this recording.", "此录音可以创建音色。"],
  refused: ["No voice can be made of this recording:", "此录音无法创建音色："],
  asRecorded: ["As recorded", "原始录音"],
  lessNoise: ["With less noise", "降噪后"],
  useThis: ["Use this one", "使用此版本"],
  reduceNoise: ["Reduce noise", "降噪"],
  reducing: ["Reducing the noise …", "正在降噪…"],
  reduceHint: ["Makes a second version to compare. The recording itself stays as it is.", "生成第二个版本供比较，原始录音保持不变。"],
  lowered: ["The noise is {0} dB lower ({1}). Listen to both, then choose.", "噪声降低了 {0} dB（{1}）。请先试听再选择。"],
  cannotReduce: ["Noise can be reduced after {0} on the server.", "在服务器上执行 {0} 后即可降噪。"],
  speechLevel: ["Speech", "语音"],
  noise: ["Noise", "噪声"],
  noiseBelow: ["{0} dBFS, {1} dB below", "{0} dBFS，低 {1} dB"],
  clipping: ["Clipping", "削波"],
  silence: ["Silence", "首尾静音"],
  length: ["Length", "长度"],
  rate: ["Rate", "采样率"],
  fine: ["good", "良好"],
  silent: ["silent or far too quiet", "无声或声音太小"],
  quiet: ["too quiet: come closer to the microphone", "太轻：请靠近麦克风"],
  loud: ["very loud: turn the microphone down", "太响：请调低麦克风"],
  noisy: ["noisy: record in a quieter place", "噪声大：请在安静处录制"],
  clipped: ["clipped: turn the microphone down and record again", "有削波：请调低麦克风重录"],
  much_silence: ["much silence: it will be cut", "静音较多：将被裁掉"],
  short: ["5 to 15 s give a better likeness", "5 至 15 秒效果更好"],
  too_short: ["too short: at least 3 s of speech are needed", "太短：至少需要 3 秒语音"],
  too_long: ["too long: at most 30 s of speech are taken", "太长：最多 30 秒语音"],
  low_rate: ["16000 Hz or more are needed", "采样率至少 16000 Hz"],
  muffled: ["nothing above 4 kHz, like a telephone: it will sound muffled", "4 kHz 以上无内容：声音会发闷"],
  wave: ["The recording in time; clipped places are red", "录音波形；削波处为红色"],
  spectrogram: ["Its frequencies in time, 0 to 12 kHz, stronger where louder", "频谱图，0 至 12 kHz，颜色越深越响"],
  allVoices: ["Voices of this server", "此服务器的音色"],
  trySentence: ["A sentence to try them with", "试听用句子"],
  tryIt: ["Try it", "试听"],
  remove: ["Remove", "删除"],
  reallyRemove: ["Really remove?", "确定删除？"],
  consentOf: ["{0} agreed on {1}: {2}", "{0} 于 {1} 同意：{2}"],
  denoisedBy: ["noise lowered by {0} dB ({1})", "噪声降低 {0} dB（{1}）"],
  ownerOf: ["key {0}", "密钥 {0}"],
  sample: ["Hello, how can I help you today?", "您好，请问有什么可以帮您？"],
  lexicons: ["Lexicons", "词典"],
  noLexicons: ["This server has no lexicons: name their files in lexicons.files.", "此服务器没有词典：请在 lexicons.files 中指定文件。"],
  entries: ["Entries, one a line", "条目，每行一个"],
  sentence: ["A sentence to test", "测试句子"],
  test: ["Test", "测试"],
  saveLexicon: ["Save", "保存"],
  saved: ["saved: {0} entries", "已保存：{0} 个条目"],
  correct: ["{0} entries, no problem", "{0} 个条目，没有问题"],
  changedElsewhere: ["Another user has saved this lexicon meanwhile. Nothing was overwritten.", "其他人已保存此词典，未覆盖任何内容。"],
  savedNow: ["What is saved now", "当前已保存的内容"],
  takeTheirs: ["Take what is saved", "采用已保存的内容"],
  keepMine: ["Keep my text, to save it over that", "保留我的内容，再次保存将覆盖"],
});

const page = one("#voices");
const HZ = 24_000;
const FRAMES_A_S = 50;
const MAX_S = 30;
const MAX_BYTES = 32e6;
const STEPS = ["queued", "checking", "extracting", "storing"];
let recording = null; // {blob, name, versions: {recording, denoised}, chosen}
let recorder = null; // ends the recording from the microphone
let playing = null;

// ------------------------------------------------------------------- the check

const db = (x) => (x > 0 ? 20 * Math.log10(x) : -120);

// What can be said of a recording from its samples, with the names of the server's check (docs/http-voices.md).
export function look(pcm, hz) {
  const size = Math.round(hz * 0.02);
  const levels = [];
  let clipped = 0, run = 0;
  for (let at = 0; at + size <= pcm.length; at += size) {
    let sum = 0;
    for (let n = at; n < at + size; n++) sum += pcm[n] * pcm[n];
    levels.push(db(Math.sqrt(sum / size)));
  }
  for (const sample of pcm) {
    run = Math.abs(sample) >= 0.985 ? run + 1 : 0; // two in a row: a single one may be a true peak
    if (run >= 2) clipped++;
  }
  const sorted = levels.toSorted((a, b) => a - b);
  const level = sorted[Math.floor(sorted.length * 0.9)] ?? -120;
  const noise = sorted[Math.floor(sorted.length * 0.1)] ?? -120;
  const isSpeech = levels.map((each) => each > Math.max(level - 25, -60));
  const first = isSpeech.indexOf(true), last = isSpeech.lastIndexOf(true);
  const length = pcm.length / hz;
  const found = { level_dbfs: level, noise_dbfs: noise, snr_db: level - noise, clipped_share: clipped / Math.max(1, pcm.length), length_s: length, kept_s: first < 0 ? 0 : (last - first + 1) / FRAMES_A_S };
  const codes = [];
  if (level - noise < 20) codes.push("noisy");
  if (length < 3) codes.push("too_short");
  if (length > MAX_S) codes.push("too_long");
  return { ...found, codes };
}

// The rows of a version: [name, value, code of the advice].
function rowsOf({ own, told }) {
  const found = told ?? own;
  const codes = told ? told.findings.map((each) => each.code) : own.codes;
  const first = (...of) => of.find((code) => codes.includes(code));
  const level = found.level_dbfs < -35 ? "quiet" : found.level_dbfs > -6 ? "loud" : undefined;
  const silence = found.length_s - found.kept_s;
  const rows = [
    ["speechLevel", `${found.level_dbfs.toFixed(0)} dBFS`, first("silent") ?? level],
    ["noise", t("noiseBelow", found.noise_dbfs.toFixed(0), Math.max(0, found.snr_db).toFixed(0)), first("noisy")],
    ["clipping", `${(found.clipped_share * 100).toFixed(2)} %`, first("clipped") ?? (own.clipped_share > 0.0002 ? "clipped" : undefined)],
    ["silence", `${silence.toFixed(1)} s`, silence > 2 ? "much_silence" : undefined],
    ["length", `${found.length_s.toFixed(1)} s`, first("too_short", "too_long", "short")],
  ];
  if (told) rows.push(["rate", `${told.rate_hz} Hz`, first("low_rate", "muffled")]);
  return rows.map(([name, value, code]) => [name, value, code ?? "fine"]);
}

async function decoded(blob) {
  if (blob.size > MAX_BYTES) throw new Error(t("tooLarge", MAX_BYTES / 1e6));
  const sound = await new OfflineAudioContext(1, 1, HZ).decodeAudioData(await blob.arrayBuffer());
  const pcm = sound.getChannelData(0).slice();
  for (let n = 1; n < sound.numberOfChannels; n++) sound.getChannelData(n).forEach((sample, at) => (pcm[at] += sample));
  return pcm.map((sample) => sample / sound.numberOfChannels);
}

async function versionOf(blob) {
  const pcm = await decoded(blob);
  return { blob, pcm, own: look(pcm, HZ), url: URL.createObjectURL(blob), told: null };
}

function forget() {
  for (const version of Object.values(recording?.versions ?? {})) URL.revokeObjectURL(version.url);
  recording = null;
  found.hidden = true;
}

async function take(blob, name) {
  tell("");
  forget();
  showForm();
  try {
    recording = { blob, name, versions: { recording: await versionOf(blob) }, chosen: "recording", verdict: "", problem: "" };
  } catch (error) {
    return tell(t("unreadable", error.message));
  }
  showForm();
  showCheck();
  if (serverState()?.can_add_voices) await askCheck(recording);
}

const withAudio = (mine, fields = {}) => {
  const body = new FormData();
  body.set("audio", mine.blob, mine.name);
  for (const [name, value] of Object.entries(fields)) body.set(name, value);
  return body;
};

// What the server finds. It judges the same file of which it would make the voice.
async function askCheck(mine) {
  mine.verdict = "asking";
  showCheck();
  try {
    const told = (await read("v1/voices/check", { method: "POST", body: withAudio(mine) })).recording;
    mine.versions.recording.told = told;
    mine.verdict = told.findings.some((each) => each.is_problem) ? "refused" : "accepted";
  } catch (error) {
    mine.verdict = error.code === "bad_audio" ? "refused" : "";
    mine.problem = error.message;
  }
  if (mine === recording) showCheck();
}

async function reduceNoise() {
  const mine = recording;
  mine.verdict = "reducing";
  mine.problem = "";
  showCheck();
  try {
    const [wav, { denoised: told }] = await Promise.all([
      ask("v1/voices/denoise", { method: "POST", body: withAudio(mine) }).then((response) => response.blob()),
      read("v1/voices/check", { method: "POST", body: withAudio(mine, { denoise: "true" }) }),
    ]);
    const version = { ...(await versionOf(wav)), told };
    if (mine !== recording) return URL.revokeObjectURL(version.url);
    mine.versions.denoised = version;
  } catch (error) {
    mine.problem = error.message;
  }
  mine.verdict = mine.versions.recording.told?.findings.some((each) => each.is_problem) ? "refused" : "accepted";
  if (mine === recording) showCheck();
}

function showCheck() {
  const { versions, verdict, problem } = recording;
  const both = Boolean(versions.denoised);
  const shown = Object.entries(versions).map(([name, version]) => articleOf(name, version, both));
  const about = (versions[recording.chosen].told ?? { findings: [] }).findings.map(({ code, message, is_problem: isProblem }) =>
    element("li", { className: isProblem ? "bad" : "warn" }, currentLanguage() === "en" ? message : t(code)));
  const problems = problem ? [element("li", { className: "bad" }, problem)] : [];
  const isBusy = verdict === "asking" || verdict === "reducing";
  const state = element("p", { className: verdict === "accepted" ? "good" : verdict === "refused" ? "bad" : "hint" }, verdict ? t(verdict) : "");
  const told = element("div", { role: "status", id: "verdict" }, state, element("ul", {}, ...problems, ...about));
  if (both) told.append(element("p", {}, t("lowered", versions.denoised.told.denoised_db, versions.denoised.told.denoised_by)));
  const server = serverState();
  const more = [];
  if (server?.can_add_voices && !both) {
    if (server.can_denoise) {
      const button = element("button", { type: "button", id: "reduce-noise", disabled: isBusy || !versions.recording.told }, t("reduceNoise"));
      button.addEventListener("click", reduceNoise);
      more.push(element("div", { className: "row" }, button, element("span", { className: "hint" }, t("reduceHint"))));
    } else more.push(element("p", { className: "hint", id: "cannot-reduce" }, t("cannotReduce", server.get_denoise)));
  }
  found.hidden = false;
  found.replaceChildren(element("h2", {}, t("check")), element("div", { className: "versions" }, ...shown), told, ...more);
  drawAll();
  showForm();
}

function articleOf(name, version, isChoice) {
  const title = t(name === "denoised" ? "lessNoise" : "asRecorded");
  const body = element("tbody", {}, ...rowsOf(version).map(([row, value, code]) => element("tr", {},
    element("th", { scope: "row" }, t(row)), element("td", { className: "n" }, value),
    element("td", {}, element("span", { className: `state ${code === "fine" ? "good" : "warn"}` }, t(code))))));
  const picture = (kind) => element("canvas", { className: `strip ${kind}`, role: "img", ariaLabel: `${title}: ${t(kind)}` });
  const parts = [picture("wave"), picture("spectrogram"),
    element("audio", { controls: true, src: version.url, ariaLabel: title }), element("table", {}, body)];
  if (isChoice) {
    const choice = element("input", { type: "radio", name: "version", value: name, checked: recording.chosen === name, id: `use-${name}` });
    choice.addEventListener("change", () => {
      recording.chosen = name;
      showCheck();
      one(`#use-${name}`).focus();
    });
    parts.push(element("label", { className: "box" }, choice, element("span", {}, t("useThis"))));
  }
  return element("article", { id: `version-${name}` }, element("h3", {}, title), ...parts);
}

function drawAll() {
  for (const [name, { pcm }] of Object.entries(recording?.versions ?? {})) {
    const article = one(`#version-${name}`);
    drawWave(one(".wave", article), pcm);
    drawSpectrogram(one(".spectrogram", article), pcm);
  }
}

function sized(canvas) {
  const ratio = devicePixelRatio || 1;
  canvas.width = canvas.clientWidth * ratio;
  canvas.height = canvas.clientHeight * ratio;
  return canvas.getContext("2d");
}

function drawWave(canvas, pcm) {
  const pen = sized(canvas), { width, height } = canvas;
  const style = getComputedStyle(canvas);
  const step = pcm.length / width;
  for (let x = 0; x < width; x++) {
    let peak = 0;
    for (let n = Math.floor(x * step); n < Math.min(pcm.length, (x + 1) * step); n++) peak = Math.max(peak, Math.abs(pcm[n]));
    const tall = Math.max(1, Math.min(1, peak) * height);
    pen.fillStyle = style.getPropertyValue(peak >= 0.985 ? "--bad" : "--accent");
    pen.fillRect(x, (height - tall) / 2, 1, tall);
  }
}

const BINS = 256; // of 47 Hz each
const WINDOW = Float32Array.from({ length: 2 * BINS }, (_, n) => 0.5 - 0.5 * Math.cos((Math.PI * n) / BINS));

// A column for each pixel, from -100 dBFS (clear) to -30 dBFS (full). Both versions are drawn on this scale.
function drawSpectrogram(canvas, pcm) {
  const pen = sized(canvas), { width, height } = canvas;
  if (!width || !height) return;
  pen.fillStyle = getComputedStyle(canvas).getPropertyValue("--accent");
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(pen.fillStyle.slice(at, at + 2), 16));
  const image = pen.createImageData(width, height);
  const real = new Float32Array(2 * BINS), imaginary = new Float32Array(2 * BINS);
  for (let x = 0; x < width; x++) {
    const from = Math.round(((x + 0.5) / width) * pcm.length) - BINS;
    for (let n = 0; n < 2 * BINS; n++) real[n] = (pcm[from + n] ?? 0) * WINDOW[n];
    imaginary.fill(0);
    transform(real, imaginary);
    for (let y = 0; y < height; y++) {
      const bin = Math.floor(((height - 1 - y) / height) * BINS);
      const level = db(Math.hypot(real[bin], imaginary[bin]) / (BINS / 2));
      image.data.set([red, green, blue, 255 * Math.max(0, Math.min(1, (level + 100) / 70))], 4 * (y * width + x));
    }
  }
  pen.putImageData(image, 0, 0);
}

// The discrete Fourier transform in place; the length is a power of two.
function transform(real, imaginary) {
  const n = real.length;
  for (let i = 1, j = 0; i < n; i++) {
    let bit = n >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) [real[i], real[j], imaginary[i], imaginary[j]] = [real[j], real[i], imaginary[j], imaginary[i]];
  }
  for (let size = 2; size <= n; size *= 2) {
    for (let k = 0; k < size / 2; k++) {
      const cos = Math.cos((2 * Math.PI * k) / size), sin = -Math.sin((2 * Math.PI * k) / size);
      for (let a = k; a < n; a += size) {
        const b = a + size / 2;
        const re = real[b] * cos - imaginary[b] * sin, im = real[b] * sin + imaginary[b] * cos;
        real[b] = real[a] - re;
        imaginary[b] = imaginary[a] - im;
        real[a] += re;
        imaginary[a] += im;
      }
    }
  }
}

// ---------------------------------------------------------------- recording one

async function record() {
  if (recorder) return recorder();
  form.record.disabled = true;
  try {
    const context = await audioContext();
    const stream = await navigator.mediaDevices.getUserMedia({ audio: { echoCancellation: false, noiseSuppression: false, autoGainControl: false } });
    const source = new MediaStreamAudioSourceNode(context, { mediaStream: stream });
    const node = new AudioWorkletNode(context, "microphone", {
      numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit", processorOptions: { rateHz: HZ },
    });
    const frames = [];
    const stop = (isWanted) => {
      recorder = null;
      node.port.onmessage = null;
      source.disconnect();
      for (const track of stream.getTracks()) track.stop();
      showRecording(null);
      if (isWanted) take(wavOf(frames), "recording.wav");
    };
    node.port.onmessage = ({ data }) => {
      frames.push(data);
      showRecording(frames.length / FRAMES_A_S, data.reduce((most, sample) => Math.max(most, Math.abs(sample)), 0));
      if (frames.length >= MAX_S * FRAMES_A_S) stop(true);
    };
    for (const track of stream.getTracks()) track.addEventListener("ended", () => recorder && stop(true));
    recorder = (isWanted = true) => stop(isWanted);
    source.connect(node);
    showRecording(0, 0);
  } catch (error) {
    tell(t("noMicrophone", error.message));
  } finally {
    form.record.disabled = false;
  }
}

function showRecording(seconds, peak) {
  const isOn = seconds !== null;
  form.progress.hidden = form.meter.hidden = !isOn;
  form.progress.value = seconds ?? 0;
  form.meter.value = peak ?? 0;
  form.seconds.value = isOn ? t("recordingFor", Math.floor(seconds)) : "";
  form.record.textContent = t(isOn ? "stopRecord" : "record");
  form.record.setAttribute("aria-pressed", String(isOn));
}

function wavOf(frames) {
  const n = frames.reduce((sum, frame) => sum + frame.length, 0);
  const view = new DataView(new ArrayBuffer(44 + 2 * n));
  const write = (at, text) => [...text].forEach((char, k) => view.setUint8(at + k, char.charCodeAt(0)));
  write(0, "RIFF");
  view.setUint32(4, 36 + 2 * n, true);
  write(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true);
  view.setUint16(22, 1, true);
  view.setUint32(24, HZ, true);
  view.setUint32(28, 2 * HZ, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  write(36, "data");
  view.setUint32(40, 2 * n, true);
  let at = 44;
  for (const frame of frames) for (const sample of frame) {
    view.setInt16(at, Math.max(-32768, Math.min(32767, Math.round(sample * 32768))), true);
    at += 2;
  }
  return new Blob([view], { type: "audio/wav" });
}

// --------------------------------------------------------------------- the form

const input = (id, more) => element("input", { id, ...more });
const form = {
  file: input("voice-file", { type: "file", accept: "audio/*,.wav,.flac,.ogg,.mp3" }),
  record: element("button", { type: "button", id: "record", ariaPressed: "false" }),
  progress: element("progress", { id: "record-progress", max: MAX_S, hidden: true }),
  meter: element("meter", { id: "record-level", max: 1, high: 0.95, hidden: true }),
  seconds: element("output", { id: "record-state" }),
  name: input("voice-name", { maxLength: 64, pattern: "[A-Za-z0-9_.\\-]+", required: true }),
  text: input("voice-text", { maxLength: 1000 }),
  by: input("consent-by", { maxLength: 500, required: true }),
  on: input("consent-on", { type: "date", required: true, value: new Date().toLocaleDateString("sv") }),
  for: input("consent-for", { maxLength: 500, required: true }),
  consent: input("voice-consent", { type: "checkbox", required: true }),
  replace: input("voice-replace", { type: "checkbox" }),
  make: element("button", { type: "submit", className: "main", id: "make-voice" }),
  steps: element("progress", { id: "make-progress", max: STEPS.length + 1, hidden: true }),
  status: element("output", { role: "status", id: "voice-state" }),
  tryMade: element("button", { type: "button", id: "try-made", hidden: true }),
};
const found = element("div", { id: "voice-check", className: "card", hidden: true });
const sheet = element("form", { id: "voice-form", autocomplete: "off" });
const cannot = element("p", { className: "hint" });
const title = element("h1", { id: "voices-title" });
const listTitle = element("h2", {});
const trySentence = input("try-sentence", { maxLength: 500 });
const tryRow = element("div", { className: "fields" });
const list = element("div", { className: "cards", id: "voice-list" });
const lexiconTitle = element("h2", {});
const lexicons = element("div", { id: "lexicons" });
let made = ""; // the voice that was made last, as engine/name
let isMaking = false;

function writeForm() {
  title.textContent = t("newVoice");
  form.record.textContent = t(recorder ? "stopRecord" : "record");
  form.make.textContent = t("make");
  form.tryMade.textContent = t("tryIt");
  form.progress.ariaLabel = t("recordingLength");
  form.meter.ariaLabel = t("level");
  form.steps.ariaLabel = t("make");
  const label = (key, field, className = "") => element("label", { className }, element("span", {}, t(key)), field);
  const box = (key, field) => element("label", { className: "box" }, field, element("span", {}, t(key)));
  sheet.replaceChildren(
    element("div", { className: "fields" }, label("file", form.file), form.record, element("div", { className: "recording" }, form.progress, form.meter, form.seconds)),
    found,
    element("div", { className: "fields" }, label("name", form.name), label("transcript", form.text, "wide"), label("consentBy", form.by), label("consentOn", form.on), label("consentFor", form.for)),
    box("consent", form.consent), box("replace", form.replace), element("div", { className: "row" }, form.make, form.steps, form.status, form.tryMade),
  );
  cannot.textContent = t("cannotAdd");
  listTitle.textContent = t("allVoices");
  if (!trySentence.dataset.changed) trySentence.value = t("sample");
  tryRow.replaceChildren(label("trySentence", trySentence, "wide"));
  lexiconTitle.textContent = t("lexicons");
  if (recording) showCheck();
  showForm();
}

function showForm() {
  const can = Boolean(serverState()?.can_add_voices);
  cannot.hidden = can || !serverState();
  form.make.disabled = !can || !recording || recording.verdict === "refused" || isMaking;
}

const stepTold = (step) => {
  form.steps.value = 1 + STEPS.indexOf(step);
  form.status.value = t(`step_${step}`);
};

async function make(event) {
  event.preventDefault();
  if (!recording || isMaking) return;
  const { blob, name, chosen } = recording;
  const body = withAudio({ blob, name }, {
    name: form.name.value, text: form.text.value, replace: String(form.replace.checked), denoise: String(chosen === "denoised"),
    consent_by: form.by.value, consent_on: form.on.value, consent_for: form.for.value,
  });
  isMaking = true;
  showForm();
  form.tryMade.hidden = true;
  form.steps.hidden = false;
  form.steps.value = 0;
  form.status.value = t("sending", Math.round(blob.size / 1000));
  tell("");
  try {
    const response = await ask("v1/voices", { method: "POST", body, headers: { Accept: "text/event-stream" } });
    const [kind, told] = await lastEvent(response);
    if (kind === "error") throw Object.assign(new Error(problemText(told)), { code: told.code });
    await loadVoices();
    form.status.value = [t("madeVoice", told.name, told.kept_s.toFixed(1), told.source_s.toFixed(1)), ...told.warnings].join(" ");
    made = `${told.engine}/${told.name}`;
    form.tryMade.hidden = false;
    form.tryMade.focus();
  } catch (error) {
    form.status.value = "";
    tell({ voice_exists: t("exists"), not_yours: t("notYours") }[error.code] ?? error.message);
    if (["voice_exists", "not_yours"].includes(error.code)) form.name.focus();
  }
  form.steps.hidden = true;
  isMaking = false;
  showForm();
}

// The last event of the response, after each step was told. A whole answer is one event.
async function lastEvent(response) {
  if (!response.headers.get("content-type").startsWith("text/event-stream")) return ["done", await response.json()];
  let last = ["error", { message: t("unreachable") }];
  let text = "";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return last;
    text += value;
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const [, kind, data] = text.slice(0, end).match(/^event: (.*)\ndata: (.*)$/s);
      text = text.slice(end + 2);
      if (kind === "progress") stepTold(JSON.parse(data).step);
      else last = [kind, JSON.parse(data)];
    }
  }
}

// ------------------------------------------------------------------- the voices

async function loadVoices() {
  try {
    const { voices } = await read("v1/voices");
    list.replaceChildren(...voices.map(cardOf));
  } catch (error) {
    if (error.status !== 401) tell(error.message);
  }
}

function cardOf(voice) {
  const key = `${voice.engine}/${voice.name}`;
  const play = element("button", { type: "button", ariaLabel: `${t("tryIt")}: ${voice.name}` }, t("tryIt"));
  play.addEventListener("click", () => speak(trySentence.value, key));
  const buttons = [play];
  if (voice.removable) {
    const remove = element("button", { type: "button", className: "remove", ariaLabel: `${t("remove")}: ${voice.name}` }, t("remove"));
    remove.addEventListener("click", () => removeVoice(voice, remove));
    buttons.push(remove);
  }
  const languages = voice.languages.length > 8 ? `${voice.languages.slice(0, 8).join(", ")} …` : voice.languages.join(", ");
  const record = [
    voice.owner && t("ownerOf", voice.owner),
    voice.consent_by && t("consentOf", voice.consent_by, voice.consent_on, voice.consent_for),
    voice.denoised_by && t("denoisedBy", voice.denoised_db, voice.denoised_by),
  ].filter(Boolean);
  return element("article", { className: "card" }, element("h3", {}, voice.name),
    element("p", { className: "hint" }, [voice.engine, languages, voice.description].filter(Boolean).join(" · ")),
    ...record.map((line) => element("p", { className: "hint" }, line)), element("div", { className: "row" }, ...buttons));
}

// The first click asks, the second one within four seconds removes.
async function removeVoice(voice, button) {
  const name = (key) => {
    button.textContent = t(key);
    button.ariaLabel = `${t(key)}: ${voice.name}`;
  };
  if (!button.dataset.asked) {
    button.dataset.asked = "true";
    name("reallyRemove");
    setTimeout(() => {
      delete button.dataset.asked;
      name("remove");
    }, 4000);
    return;
  }
  tell("");
  try {
    await ask(`v1/voices/${encodeURIComponent(voice.name)}`, { method: "DELETE" });
    if (made === `${voice.engine}/${voice.name}`) {
      form.tryMade.hidden = true;
      form.status.value = "";
    }
  } catch (error) {
    tell(error.message);
  }
  await loadVoices();
}

async function speak(text, voice) {
  stopPlaying();
  tell("");
  try {
    const context = await audioContext();
    const response = await ask("tts/stream", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ text, voice, format: "wav" }),
    });
    const buffer = await context.decodeAudioData(await response.arrayBuffer());
    stopPlaying(); // another one may have begun meanwhile
    playing = new AudioBufferSourceNode(context, { buffer });
    playing.connect(context.destination);
    playing.start();
  } catch (error) {
    tell(error.message);
  }
}

function stopPlaying() {
  playing?.stop();
  playing = null;
}

// ----------------------------------------------------------------- the lexicons

const edits = new Map(); // by name: {text, version, saved} of what is open here

async function loadLexicons() {
  try {
    const { lexicons: all } = await read("console/api/lexicons");
    lexicons.replaceChildren(...(all.length ? all.map(editorOf) : [element("p", { className: "hint" }, t("noLexicons"))]));
  } catch (error) {
    if (error.status !== 401) tell(error.message);
  }
}

function editorOf({ name, entries }) {
  const path = `console/api/lexicons/${encodeURIComponent(name)}`;
  const text = element("textarea", { rows: 8, spellcheck: false, ariaLabel: `${t("entries")}: ${name}` });
  const sentence = element("input", { value: t("sample"), ariaLabel: `${t("sentence")}: ${name}` });
  const told = element("pre", { className: "events", role: "status" });
  const conflict = element("div", { className: "conflict" });
  const title = element("summary", {}, `${name} (${entries})`);
  const button = (key, act, more = {}) => {
    const one = element("button", { type: "button", className: key, ...more }, t(key));
    one.addEventListener("click", () => act().catch((error) => showProblem(error.message)));
    return one;
  };
  const send = (where, method, about) => read(where, { method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(about) });
  const showProblem = (message) => {
    told.textContent = message;
    const line = Number(message.match(/line (\d+)/)?.[1]);
    const lines = text.value.split("\n");
    if (!line || line > lines.length) return;
    const from = lines.slice(0, line - 1).join("\n").length + (line > 1 ? 1 : 0);
    text.focus();
    text.setSelectionRange(from, from + lines[line - 1].length);
  };
  const put = (content) => {
    edits.set(name, { ...content, saved: content.text });
    text.value = content.text;
    conflict.replaceChildren();
  };
  const line = (said) => `${said.from}–${said.to} ${said.language}  ${said.text}\n  ${said.reading}`;
  const check = async () => {
    const result = await send("console/api/lexicons/check", "POST", { text: text.value, sentence: sentence.value });
    if (result.problems.length) showProblem(problemText({ code: "bad_config", message: result.problems.join("\n") }));
    else told.textContent = [t("correct", result.entries), ...result.sentences.map(line), ...result.changes.map((each) => `  ${each}`)].join("\n");
    return result;
  };
  const save = async () => {
    const wanted = text.value;
    try {
      const { entries: n, version } = await send(path, "PUT", { text: wanted, version: edits.get(name).version });
      edits.set(name, { text: text.value, version, saved: wanted });
      conflict.replaceChildren();
      told.textContent = t("saved", n);
      title.textContent = `${name} (${n})`;
    } catch (error) {
      if (error.code !== "lexicon_changed") throw error;
      await showConflict();
    }
  };
  const showConflict = async () => {
    const theirs = await read(path);
    told.textContent = t("changedElsewhere");
    conflict.replaceChildren(
      element("label", {}, element("span", {}, t("savedNow")), element("textarea", { rows: 8, readOnly: true, value: theirs.text })),
      element("div", { className: "row" },
        button("takeTheirs", async () => { put(theirs); told.textContent = ""; }),
        button("keepMine", async () => {
          edits.set(name, { text: text.value, version: theirs.version, saved: theirs.text });
          conflict.replaceChildren();
          told.textContent = "";
        })),
    );
  };
  text.addEventListener("input", () => edits.has(name) && (edits.get(name).text = text.value));
  const details = element("details", {}, title, text, element("div", { className: "row" }, sentence, button("test", check, { className: "supervised" }),
    button("tryIt", async () => {
      const { sentences } = await check();
      if (sentences.length) await speak(sentences.map((said) => said.reading).join(" "));
    }, { className: "supervised" }),
    button("saveLexicon", save, { className: "main saveLexicon supervised" })), told, conflict);
  allow(details);
  text.value = edits.get(name)?.text ?? "";
  details.open = edits.has(name); // as it was before the page was written anew
  details.addEventListener("toggle", () => {
    if (details.open && !edits.has(name)) read(path).then(put).catch((error) => (told.textContent = error.message));
    if (!details.open && edits.get(name)?.text === edits.get(name)?.saved) edits.delete(name);
  });
  return details;
}

// --------------------------------------------------------------------- the page

page.append(title, cannot, sheet, listTitle, tryRow, list, lexiconTitle, lexicons);
form.file.addEventListener("change", () => form.file.files[0] && take(form.file.files[0], form.file.files[0].name));
form.record.addEventListener("click", record);
form.tryMade.addEventListener("click", () => speak(trySentence.value, made));
trySentence.addEventListener("input", () => (trySentence.dataset.changed = "true"));
sheet.addEventListener("submit", make);

function load() {
  writeForm();
  loadVoices();
  loadLexicons();
}

// To test or save a lexicon needs a supervisor's token.
function allow(part) {
  for (const button of part.querySelectorAll(".supervised")) button.disabled = !serverState()?.supervises;
}

// The state of the server comes every few seconds. What depends on it is written again only if that has changed.
let known = "";
function state(server) {
  const now = JSON.stringify([server?.can_add_voices, server?.can_denoise, server?.supervises]);
  if (now === known) return;
  known = now;
  showForm();
  allow(lexicons);
  if (!recording) return;
  showCheck();
  if (server?.can_add_voices && !recording.verdict) askCheck(recording);
}

export const show = load;
export { state };
export function hide() {
  recorder?.(false);
  stopPlaying();
}
addEventListener("language", () => !page.hidden && load());
addEventListener("token-given", () => !page.hidden && load());
addEventListener("theme", drawAll);
addEventListener("beforeunload", (event) => {
  if ([...edits.values()].some(({ text, saved }) => text !== saved)) event.preventDefault();
});
