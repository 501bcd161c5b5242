// The page "Voices": make one from a recording after looking at it, try it, remove it; and edit the lexicons.

import { audioContext } from "./call.js";
import { serverState, tell } from "./main.js";
import { ask, element, one, read } from "./server.js";
import { addTexts, t } from "./texts.js";

addTexts({
  newVoice: ["A voice from a recording", "用录音创建音色"],
  cannotAdd: ["This server cannot make voices: they need CosyVoice2 (engines.cosyvoice2.model). A recording can still be looked at.", "此服务器无法创建音色：需要 CosyVoice2（engines.cosyvoice2.model）。仍可检查录音。"],
  file: ["Recording, 3 to 30 s", "录音（3 至 30 秒）"],
  record: ["Record", "录制"],
  stopRecord: ["Stop", "停止"],
  recordingFor: ["recording, {0} s", "录制中，{0} 秒"],
  name: ["Name", "名称"],
  transcript: ["Exactly the words of the recording", "录音的准确文字"],
  consent: ["The speaker agrees that this voice is made and used.", "说话人同意制作并使用此音色。"],
  replace: ["Replace a voice of this name", "替换同名音色"],
  make: ["Make the voice", "创建音色"],
  making: ["sending {0} kB …", "正在发送 {0} kB…"],
  made: ["The voice {0} is there: {1} of {2} s were kept.", "音色 {0} 已创建：保留了 {2} 秒中的 {1} 秒。"],
  unreadable: ["This file is not a recording that can be read: {0}", "无法读取此录音文件：{0}"],
  check: ["What the check found", "检查结果"],
  level: ["Level of the speech", "语音电平"],
  noise: ["Noise below it", "噪声"],
  clipping: ["Clipping", "削波"],
  silence: ["Silence at both ends", "首尾静音"],
  length: ["Length", "长度"],
  fine: ["good", "良好"],
  tooQuiet: ["too quiet: come closer to the microphone", "太轻：请靠近麦克风"],
  tooLoud: ["very loud: turn the microphone down", "太响：请调低麦克风"],
  noisy: ["noisy: record in a quieter place", "噪声大：请在安静处录制"],
  clipped: ["clipped: turn the microphone down and record again", "有削波：请调低麦克风重录"],
  muchSilence: ["much silence: it will be cut", "静音较多：将被裁掉"],
  tooShort: ["too short: at least 3 s of speech are needed", "太短：至少需要 3 秒语音"],
  tooLong: ["longer than 30 s: the rest will not be used", "超过 30 秒：多余部分不会使用"],
  picture: ["The recording in time; clipped places are red", "录音波形；削波处为红色"],
  allVoices: ["Voices of this server", "此服务器的音色"],
  tryIt: ["Try it", "试听"],
  remove: ["Remove", "删除"],
  reallyRemove: ["Really remove?", "确定删除？"],
  sample: ["Hello, how can I help you today?", "您好，请问有什么可以帮您？"],
  lexicons: ["Lexicons", "词典"],
  noLexicons: ["This server has no lexicons: name their files in lexicons.files.", "此服务器没有词典：请在 lexicons.files 中指定文件。"],
  entries: ["Entries, one a line", "条目，每行一个"],
  sentence: ["A sentence to test", "测试句子"],
  test: ["Test", "测试"],
  saveLexicon: ["Save", "保存"],
  saved: ["saved: {0} entries", "已保存：{0} 个条目"],
  correct: ["{0} entries, no problem", "{0} 个条目，没有问题"],
});

const page = one("#voices");
const HZ = 24000;
let recording = null; // {blob, name, pcm, hz}
let recorder = null; // ends the recording from the microphone
let asked = "";
let playing = null;

// ------------------------------------------------------------------- the check

const db = (x) => (x > 0 ? 20 * Math.log10(x) : -120);

// What can be said of a recording from its samples: [name, value, advice or "fine"].
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
  const loud = sorted[Math.floor(sorted.length * 0.9)] ?? -120;
  const quiet = sorted[Math.floor(sorted.length * 0.1)] ?? -120;
  const isSpeech = levels.map((level) => level > Math.max(loud - 25, -60));
  const first = isSpeech.indexOf(true), last = isSpeech.lastIndexOf(true);
  const silence = first < 0 ? levels.length * 0.02 : (first + levels.length - 1 - last) * 0.02;
  const length = pcm.length / hz, clippedShare = clipped / Math.max(1, pcm.length);
  return {
    level: [`${loud.toFixed(0)} dBFS`, loud < -35 ? "tooQuiet" : loud > -6 ? "tooLoud" : "fine"],
    noise: [`${Math.max(0, loud - quiet).toFixed(0)} dB`, loud - quiet < 20 ? "noisy" : "fine"],
    clipping: [`${(clippedShare * 100).toFixed(2)} %`, clippedShare > 0.0002 ? "clipped" : "fine"],
    silence: [`${silence.toFixed(1)} s`, silence > 2 ? "muchSilence" : "fine"],
    length: [`${length.toFixed(1)} s`, length < 3 ? "tooShort" : length > 30 ? "tooLong" : "fine"],
  };
}

async function take(blob, name) {
  tell("");
  try {
    const decoder = new OfflineAudioContext(1, 1, HZ);
    const decoded = await decoder.decodeAudioData(await blob.arrayBuffer());
    recording = { blob, name, pcm: decoded.getChannelData(0), hz: decoded.sampleRate };
    showCheck();
  } catch (error) {
    recording = null;
    found.hidden = true;
    tell(t("unreadable", error.message));
  }
  showForm();
}

function showCheck() {
  const rows = Object.entries(look(recording.pcm, recording.hz)).map(([name, [value, advice]]) => element("tr", {},
    element("th", { scope: "row" }, t(name)), element("td", { className: "n" }, value),
    element("td", {}, element("span", { className: `state ${advice === "fine" ? "good" : "warn"}` }, t(advice)))));
  const player = element("audio", { controls: true, src: URL.createObjectURL(recording.blob) });
  const picture = element("canvas", { className: "strip", role: "img", ariaLabel: t("picture") });
  found.hidden = false;
  found.replaceChildren(element("h3", {}, t("check")), picture, player, element("table", {}, element("tbody", {}, ...rows)));
  draw(picture, recording.pcm);
}

function draw(canvas, pcm) {
  const ratio = devicePixelRatio || 1;
  canvas.width = canvas.clientWidth * ratio;
  canvas.height = canvas.clientHeight * ratio;
  const { width, height } = canvas;
  const pen = canvas.getContext("2d");
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

// ---------------------------------------------------------------- recording one

async function record() {
  if (recorder) return recorder();
  try {
    const context = await audioContext();
    const stream = await navigator.mediaDevices.getUserMedia({ audio: { echoCancellation: false, noiseSuppression: false, autoGainControl: false } });
    const source = new MediaStreamAudioSourceNode(context, { mediaStream: stream });
    const node = new AudioWorkletNode(context, "microphone", {
      numberOfOutputs: 0, channelCount: 1, channelCountMode: "explicit", processorOptions: { rateHz: HZ },
    });
    const frames = [];
    node.port.onmessage = ({ data }) => {
      frames.push(data);
      form.status.value = t("recordingFor", (frames.length * 0.02).toFixed(0));
      if (frames.length >= 1500) recorder?.();
    };
    source.connect(node);
    recorder = () => {
      recorder = null;
      source.disconnect();
      for (const track of stream.getTracks()) track.stop();
      form.status.value = "";
      form.record.textContent = t("record");
      form.record.setAttribute("aria-pressed", "false");
      take(wavOf(frames), "recording.wav");
    };
    form.record.textContent = t("stopRecord");
    form.record.setAttribute("aria-pressed", "true");
  } catch (error) {
    tell(t("noMicrophone", error.message));
  }
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

const form = {
  file: element("input", { type: "file", accept: "audio/*,.wav,.flac,.ogg,.mp3", id: "voice-file" }),
  record: element("button", { type: "button", id: "record", ariaPressed: "false" }),
  name: element("input", { id: "voice-name", maxLength: 64, pattern: "[A-Za-z0-9_.\\-]+", required: true }),
  text: element("input", { id: "voice-text" }),
  consent: element("input", { type: "checkbox", id: "voice-consent", required: true }),
  replace: element("input", { type: "checkbox", id: "voice-replace" }),
  make: element("button", { type: "submit", className: "main", id: "make-voice" }),
  status: element("output", { role: "status", id: "voice-state" }),
};
const found = element("div", { id: "voice-check", className: "card", hidden: true });
const sheet = element("form", { id: "voice-form", autocomplete: "off" });
const cannot = element("p", { className: "hint" });
const title = element("h1", { id: "voices-title" });
const listTitle = element("h2", {});
const list = element("div", { className: "cards", id: "voice-list" });
const lexiconTitle = element("h2", {});
const lexicons = element("div", { id: "lexicons" });

function writeForm() {
  title.textContent = t("newVoice");
  form.record.textContent = t(recorder ? "stopRecord" : "record");
  form.make.textContent = t("make");
  const label = (key, input) => element("label", {}, element("span", {}, t(key)), input);
  const box = (key, input) => element("label", { className: "box" }, input, element("span", {}, t(key)));
  sheet.replaceChildren(
    element("div", { className: "fields" }, label("file", form.file), form.record, label("name", form.name), label("transcript", form.text)),
    found, box("consent", form.consent), box("replace", form.replace), element("div", { className: "row" }, form.make, form.status),
  );
  cannot.textContent = t("cannotAdd");
  listTitle.textContent = t("allVoices");
  lexiconTitle.textContent = t("lexicons");
  if (recording) showCheck();
  showForm();
}

function showForm() {
  const can = Boolean(serverState()?.can_add_voices);
  cannot.hidden = can || !serverState();
  form.make.disabled = !can || !recording;
}

async function make(event) {
  event.preventDefault();
  const body = new FormData();
  body.set("name", form.name.value);
  body.set("audio", recording.blob, recording.name);
  body.set("text", form.text.value);
  body.set("replace", String(form.replace.checked));
  form.make.disabled = true;
  form.status.value = t("making", Math.round(recording.blob.size / 1000));
  tell("");
  try {
    const response = await ask("v1/voices", { method: "POST", body, headers: { Accept: "text/event-stream" } });
    for (const [kind, data] of await eventsOf(response, (step) => (form.status.value = step))) {
      if (kind === "error") throw new Error(data.message);
      if (kind === "done") {
        form.status.value = [t("made", data.name, data.kept_s, data.source_s), ...data.warnings].join(" ");
      }
    }
    await loadVoices();
  } catch (error) {
    form.status.value = "";
    tell(error.message);
  }
  showForm();
}

// The events of the response, after each step was told. A whole answer is one event.
async function eventsOf(response, tellStep) {
  if (!response.headers.get("content-type").startsWith("text/event-stream")) return [["done", await response.json()]];
  const events = [];
  let text = "";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return events;
    text += value;
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const [, kind, data] = text.slice(0, end).match(/^event: (.*)\ndata: (.*)$/s);
      text = text.slice(end + 2);
      events.push([kind, JSON.parse(data)]);
      if (kind === "progress") tellStep(JSON.parse(data).step);
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
  play.addEventListener("click", () => speak(t("sample"), key));
  const buttons = [play];
  if (voice.removable) {
    const remove = element("button", { type: "button" }, t(asked === key ? "reallyRemove" : "remove"));
    remove.addEventListener("click", () => removeVoice(voice, key));
    buttons.push(remove);
  }
  const languages = voice.languages.length > 8 ? `${voice.languages.slice(0, 8).join(", ")} …` : voice.languages.join(", ");
  return element("article", { className: "card" }, element("h3", {}, voice.name),
    element("p", { className: "hint" }, [voice.engine, languages, voice.description].filter(Boolean).join(" · ")), element("div", { className: "row" }, ...buttons));
}

async function removeVoice(voice, key) {
  if (asked !== key) {
    asked = key;
    setTimeout(() => { asked = ""; }, 4000);
    return loadVoices();
  }
  asked = "";
  try {
    await ask(`v1/voices/${encodeURIComponent(voice.name)}`, { method: "DELETE" });
  } catch (error) {
    tell(error.message);
  }
  await loadVoices();
}

export async function speak(text, voice) {
  playing?.pause();
  try {
    const response = await ask("tts/stream", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ text, voice, format: "wav" }),
    });
    const player = (playing = new Audio(URL.createObjectURL(await response.blob())));
    player.addEventListener("ended", () => URL.revokeObjectURL(player.src));
    await player.play();
  } catch (error) {
    tell(error.message);
  }
}

// ----------------------------------------------------------------- the lexicons

async function loadLexicons() {
  try {
    const { lexicons: all } = await read("console/api/lexicons");
    lexicons.replaceChildren(...(all.length ? all.map(editorOf) : [element("p", { className: "hint" }, t("noLexicons"))]));
  } catch (error) {
    if (error.status !== 401) tell(error.message);
  }
}

function editorOf({ name, entries }) {
  const text = element("textarea", { rows: 8, spellcheck: false, ariaLabel: `${t("entries")}: ${name}` });
  const sentence = element("input", { value: t("sample"), ariaLabel: `${t("sentence")}: ${name}` });
  const told = element("pre", { className: "events", role: "status" });
  const test = element("button", { type: "button" }, t("test"));
  const hear = element("button", { type: "button" }, t("tryIt"));
  const save = element("button", { type: "button", className: "main", disabled: !serverState()?.supervises }, t("saveLexicon"));
  const send = (path, method, about) => read(path, { method, headers: { "Content-Type": "application/json" }, body: JSON.stringify(about) });
  const check = async () => {
    const result = await send("console/api/lexicons/check", "POST", { text: text.value, sentence: sentence.value });
    told.textContent = [...result.problems, ...(result.problems.length ? [] : [t("correct", result.entries)]), ...result.spoken, ...result.changes.map((line) => `  ${line}`)].join("\n");
    return result;
  };
  const guarded = (act) => () => act().catch((error) => (told.textContent = error.message));
  test.addEventListener("click", guarded(check));
  hear.addEventListener("click", guarded(async () => speak((await check()).spoken.join(" "))));
  save.addEventListener("click", guarded(async () => {
    const { entries: n } = await send(`console/api/lexicons/${encodeURIComponent(name)}`, "PUT", { text: text.value });
    told.textContent = t("saved", n);
  }));
  const details = element("details", {}, element("summary", {}, `${name} (${entries})`), text,
    element("div", { className: "row" }, sentence, test, hear, save), told);
  details.addEventListener("toggle", guarded(async () => {
    if (details.open && !text.value) ({ text: text.value } = await read(`console/api/lexicons/${encodeURIComponent(name)}`));
  }));
  return details;
}

// --------------------------------------------------------------------- the page

page.append(title, cannot, sheet, listTitle, list, lexiconTitle, lexicons);
form.file.addEventListener("change", () => form.file.files[0] && take(form.file.files[0], form.file.files[0].name));
form.record.addEventListener("click", record);
sheet.addEventListener("submit", make);

function load() {
  writeForm();
  loadVoices();
  loadLexicons();
}

export const show = load;
export const state = showForm;
export function hide() {
  recorder?.();
  playing?.pause();
}
addEventListener("language", () => !page.hidden && load());
addEventListener("token-given", () => !page.hidden && load());
