// The page "Calls": who is on the line, their sound, hanging up, and the recordings of earlier calls.

import { audioContext } from "./call.js";
import { askState, serverState, tell } from "./main.js";
import { ask, element, one, read } from "./server.js";
import { addTexts, t } from "./texts.js";

addTexts({
  onTheLine: ["On the line", "当前通话"],
  nCalls: ["{0} of {1} calls", "{0} / {1} 路通话"],
  work: ["{0}: load {1}, {2} speaking, {3} waiting", "{0}：负载 {1}，合成 {2}，排队 {3}"],
  nSilent: ["{0} processes of the server do not answer. Their calls are missing here.", "有 {0} 个服务进程无响应，其通话未显示。"],
  stale: ["The server has said nothing for {0} s. What is shown may be over. Asking again …", "服务器已 {0} 秒无消息，显示的内容可能已过时。正在重试…"],
  noCalls: ["No call is on the line.", "当前没有通话。"],
  call: ["Call", "通话"],
  door: ["Door", "入口"],
  legs: ["Legs", "线路"],
  callState: ["State", "状态"],
  age: ["For", "时长"],
  said: ["Being said", "正在说的内容"],
  listen: ["Listen", "监听"],
  stopListening: ["Stop listening", "停止监听"],
  hangUp: ["Hang up", "挂断"],
  sure: ["Really hang up?", "确定挂断？"],
  legBot: ["bot", "机器人"],
  legMedia: ["telephone", "电话"],
  stateSpeaking: ["speaking", "说话中"],
  statePreparing: ["preparing", "准备中"],
  stateSilent: ["silent", "静默"],
  statePaused: ["paused", "已暂停"],
  recordings: ["Recordings", "录音"],
  cannotRecord: ["This server records nothing: set recordings.folder.", "此服务器不录音：请设置 recordings.folder。"],
  noRecordings: ["There are no recordings.", "没有录音。"],
  open: ["Open", "打开"],
  close: ["Close", "关闭"],
  begun: ["Begun", "开始"],
  mayNot: ["What is said, listening, hanging up and recordings need a supervisor's token (server.supervisor_tokens).", "查看内容、监听、挂断和录音需要主管令牌（server.supervisor_tokens）。"],
  recordedCall: ["The call in time: above the caller, below what the caller heard", "通话时间轴：上为来电者，下为其听到的内容"],
  story: ["What happened", "发生了什么"],
});

const SILENT_MS = 5_000; // both streams say something every second
const AGAIN_MS = 2_000;

let watching = null; // what ends the stream of calls
let listening = null; // {call, stop}
let calls = null;
let asked = ""; // the call that the next click on "Hang up" ends

const page = one("#calls");
const title = element("h1", { id: "calls-title" });
const count = element("span", { className: "hint" });
const loads = element("span", { className: "hint" });
const hint = element("p", { className: "hint", hidden: true });
const silent = element("p", { className: "hint warn", role: "status" });
const head = element("thead");
const body = element("tbody");
const table = element("table", { id: "live" }, head, body);
const rows = new Map(); // the name of each call, and its row
const noCalls = element("p", { className: "hint" });
const listTitle = element("h2", { hidden: true });
const list = element("div", { id: "recordings", className: "cards" });
const shownCall = element("div", { id: "recorded", hidden: true });
page.append(
  element("div", { className: "row" }, title, count, element("span", { className: "push" }), loads), hint, silent,
  element("div", { className: "scroll", tabIndex: 0, role: "group", "aria-labelledby": "calls-title" }, table), noCalls, listTitle, list, shownCall,
);

// --------------------------------------------------------------------- live

// Ends a request when nothing comes any more: a network that is gone closes no connection.
function patience(request) {
  const giveUp = () => request.abort(new Error(t("stale", SILENT_MS / 1000)));
  let timer = setTimeout(giveUp, SILENT_MS);
  return {
    sign() {
      clearTimeout(timer);
      timer = setTimeout(giveUp, SILENT_MS);
    },
    end: () => clearTimeout(timer),
  };
}

async function watch() {
  const stop = new AbortController();
  watching = stop;
  while (watching === stop) {
    const request = new AbortController();
    stop.signal.onabort = () => request.abort();
    const waiting = patience(request);
    try {
      const response = await ask("console/api/calls", { signal: request.signal });
      tell("");
      let text = "";
      for await (const piece of lines(response)) {
        waiting.sign();
        text += piece;
        const end = text.lastIndexOf("\n");
        if (end < 0) continue;
        const last = text.lastIndexOf("\n", end - 1);
        calls = JSON.parse(text.slice(last + 1, end));
        text = text.slice(end + 1);
        drawCalls();
      }
    } catch (error) {
      if (watching !== stop || error.status === 401) return;
      tell(error.message);
    } finally {
      waiting.end();
    }
    table.classList.add("stale");
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    if (watching === stop) await askState();
    while (watching === stop && serverState()?.error) {
      await new Promise((resolve) => addEventListener("server-state", resolve, { once: true }));
    }
  }
}

async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

const minutes = (ms) => `${Math.floor(ms / 60000)}:${String(Math.floor(ms / 1000) % 60).padStart(2, "0")}`;

function drawCalls() {
  if (!calls) return;
  count.textContent = t("nCalls", calls.calls.length, calls.most_calls);
  loads.textContent = Object.entries(calls.engines)
    .map(([name, { load, running, queued }]) => t("work", name, load.toFixed(2), running, queued)).join(" · ");
  silent.textContent = calls.n_silent ? t("nSilent", calls.n_silent) : "";
  hint.hidden = calls.may_hear;
  hint.textContent = t("mayNot");
  noCalls.hidden = calls.calls.length > 0;
  noCalls.textContent = t("noCalls");
  const heads = ["call", "door", "legs", "voice", "callState", "age", ...(calls.may_hear ? ["said", ""] : [])];
  table.hidden = !calls.calls.length;
  table.classList.remove("stale");
  drawHead(heads.map((name) => name && t(name)));
  drawRows();
  if (listening && !calls.calls.some(({ call }) => call === listening.call)) stopListening();
}

// Only when it changes, so that text selected in it stays selected.
function drawHead(titles) {
  if ([...head.querySelectorAll("th, td")].map((cell) => cell.textContent).join("\n") === titles.join("\n")) return;
  head.replaceChildren(element("tr", {}, ...titles.map((name) => element(name ? "th" : "td", name ? { scope: "col" } : {}, name))));
}

// A row stays where it is as long as its call lasts. If a button is replaced between a press and its release, the browser
// sends no click; the focus and selected text are lost too.
function drawRows() {
  const shown = calls.calls.map((call) => {
    let row = rows.get(call.call);
    if (row?.mayHear !== calls.may_hear) rows.set(call.call, row = newRow(call.call));
    fill(row, call);
    return row;
  });
  const wanted = new Set(shown.map((row) => row.line));
  for (const [name, row] of rows) {
    if (wanted.has(row.line)) continue;
    row.line.remove();
    rows.delete(name);
  }
  shown.forEach((row, n) => row.line.isConnected || body.insertBefore(row.line, body.children[n] ?? null));
}

function newRow(name) {
  const texts = Array.from({ length: 6 }, (_, n) => element(n ? "td" : "th", n ? {} : { scope: "row" }));
  const line = element("tr", {}, ...texts);
  const row = { line, texts, mayHear: calls.may_hear };
  rows.get(name)?.line.remove();
  if (!row.mayHear) return row;
  row.said = element("div", { tabIndex: 0 }); // always two lines high, so that the buttons do not move with the text
  row.listen = element("button", { type: "button" });
  row.listen.dataset.key = `listen ${name}`;
  row.listen.addEventListener("click", () => (listening?.call === name ? stopListening() : listenTo(name)));
  row.hang = element("button", { type: "button" });
  row.hang.dataset.key = `hang ${name}`;
  row.hang.addEventListener("click", () => hangUp(name));
  line.append(element("td", { className: "said" }, row.said), element("td", { className: "n" }, row.listen, " ", row.hang));
  return row;
}

function fill(row, call) {
  const legs = [call.bot && t("legBot"), call.media && t("legMedia")].filter(Boolean).join(" + ") || "–";
  const state = { speaking: "stateSpeaking", preparing: "statePreparing", silent: "stateSilent", paused: "statePaused" }[call.state];
  [call.call, call.door, legs, call.voice, t(state), minutes(call.age_ms)].forEach((text, n) => put(row.texts[n], text));
  if (!row.mayHear) return;
  const isHeard = listening?.call === call.call;
  put(row.said, call.said ?? "");
  row.listen.ariaPressed = String(isHeard);
  put(row.listen, t(isHeard ? "stopListening" : "listen"));
  put(row.hang, t(asked === call.call ? "sure" : "hangUp"));
}

function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

async function hangUp(call) {
  if (asked !== call) {
    asked = call;
    setTimeout(() => { asked = ""; drawCalls(); }, 4000);
    return drawCalls();
  }
  asked = "";
  try {
    await ask(`console/api/calls/${encodeURIComponent(call)}`, { method: "DELETE" });
  } catch (error) {
    tell(error.message);
  }
}

// ----------------------------------------------------------------- listening

async function listenTo(call) {
  stopListening();
  const stop = new AbortController();
  listening = { call, stop, speaker: null };
  drawCalls();
  const here = listening;
  const waiting = patience(stop);
  try {
    const context = await audioContext();
    const response = await ask(`console/api/calls/${encodeURIComponent(call)}/sound`, { signal: stop.signal });
    here.speaker = new AudioWorkletNode(context, "speaker", { numberOfInputs: 0, outputChannelCount: [1], processorOptions: { rateHz: 8000 } });
    here.speaker.connect(context.destination);
    const cushion = () => here.speaker.port.postMessage({ pcm: new Float32Array(2000) }); // for the jitter of the network
    here.speaker.port.onmessage = ({ data }) => data.dry !== undefined && cushion();
    cushion();
    const reader = response.body.getReader();
    let rest = new Uint8Array(0);
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      waiting.sign();
      const bytes = new Uint8Array(rest.length + value.length);
      bytes.set(rest);
      bytes.set(value, rest.length);
      const whole = bytes.length - (bytes.length % 4);
      rest = bytes.slice(whole);
      const both = new Int16Array(bytes.buffer, 0, whole / 2);
      const pcm = Float32Array.from({ length: both.length / 2 }, (_, n) => (both[2 * n] + both[2 * n + 1]) / 32768);
      here.speaker.port.postMessage({ pcm }, [pcm.buffer]);
    }
  } catch (error) {
    if (error.name !== "AbortError") tell(error.message);
  } finally {
    waiting.end();
  }
  if (listening === here) stopListening();
}

function stopListening() {
  if (!listening) return;
  listening.stop.abort();
  listening.speaker?.disconnect();
  listening = null;
  drawCalls();
}

// ---------------------------------------------------------------- recordings

async function loadRecordings() {
  list.replaceChildren();
  listTitle.hidden = !serverState()?.supervises;
  listTitle.textContent = t("recordings");
  if (listTitle.hidden) return;
  try {
    const { recordings, can_record } = await read("console/api/recordings");
    list.replaceChildren(...recordings.map(cardOf));
    if (!recordings.length) list.append(element("p", { className: "hint" }, t(can_record ? "noRecordings" : "cannotRecord")));
  } catch (error) {
    list.replaceChildren(element("p", { className: "hint" }, error.message));
  }
}

// The name has the time, the call, and random characters.
function cardOf(name) {
  const [, time, call] = name.match(/^(\w+)-(.*)-[0-9a-f]{12}$/) ?? [null, "", name];
  const when = time.replace(/(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z/, "$1-$2-$3 $4:$5:$6 UTC");
  const button = element("button", { type: "button", ariaLabel: `${t("open")} ${call}` }, t("open"));
  button.addEventListener("click", () => openRecording(name));
  return element("article", { className: "card" }, element("h3", {}, call), element("p", { className: "hint" }, when), button);
}

async function openRecording(name) {
  try {
    const recording = await read(`console/api/recordings/${name}`);
    const sound = recording.has_sound ? await (await ask(`console/api/recordings/${name}/sound`)).blob() : null;
    drawRecording(recording, sound);
  } catch (error) {
    tell(error.message);
  }
}

function drawRecording(recording, sound) {
  const player = element("audio", { controls: true });
  if (sound) player.src = URL.createObjectURL(sound);
  const canvas = element("canvas", { role: "img", ariaLabel: t("recordedCall"), className: "strip" });
  const close = element("button", { type: "button" }, t("close"));
  close.addEventListener("click", () => {
    player.pause();
    URL.revokeObjectURL(player.src);
    shownCall.hidden = true;
    shownCall.replaceChildren();
  });
  const seek = (ms) => { player.currentTime = ms / 1000; player.play().catch(() => {}); };
  const story = element("ol", { className: "events story" }, ...recording.story.map(([ms, who, what]) => {
    const at = element("button", { type: "button", className: "at" }, minutes(Math.max(0, ms)));
    at.addEventListener("click", () => seek(Math.max(0, ms)));
    return element("li", {}, at, ` ${who}: ${what}`);
  }));
  shownCall.replaceChildren(
    element("div", { className: "row" }, element("h2", {}, recording.call), element("span", { className: "push" }), close),
    ...recording.problems.map((problem) => element("p", { className: "bad" }, problem)), player, canvas, element("h3", {}, t("story")), story,
  );
  shownCall.hidden = false;
  const draw = () => drawStrip(canvas, recording, player.currentTime * 1000);
  canvas.addEventListener("click", (event) => seek((event.offsetX / canvas.clientWidth) * recording.length_ms));
  player.addEventListener("timeupdate", draw);
  draw();
  shownCall.scrollIntoView({ block: "nearest" });
}

function drawStrip(canvas, recording, nowMs) {
  const ratio = devicePixelRatio || 1;
  canvas.width = canvas.clientWidth * ratio;
  canvas.height = canvas.clientHeight * ratio;
  const { width, height } = canvas;
  const pen = canvas.getContext("2d");
  const style = getComputedStyle(canvas);
  const x = (ms) => (ms / recording.length_ms) * width;
  const colour = (name) => style.getPropertyValue(name).trim();
  const half = (height - 46 * ratio) / 2;
  for (const [channel, peaks] of recording.peaks.entries()) {
    pen.fillStyle = colour(channel ? "--accent" : "--s3");
    for (const [n, peak] of peaks.entries()) {
      const tall = Math.max(1, Math.min(1, peak) ** 0.6 * half);
      pen.fillRect((n / peaks.length) * width, channel * half + (half - tall) / 2, Math.max(1, width / peaks.length), tall);
    }
  }
  pen.font = `${12 * ratio}px ${style.fontFamily}`;
  pen.textBaseline = "middle";
  for (const [begin, end, label] of recording.lanes.sentences ?? []) {
    pen.fillStyle = colour("--line");
    pen.fillRect(x(begin), 2 * half + 4 * ratio, Math.max(2, x(end) - x(begin) - 2), 22 * ratio);
    pen.save();
    pen.beginPath();
    pen.rect(x(begin), 2 * half, x(end) - x(begin) - 4 * ratio, 30 * ratio);
    pen.clip();
    pen.fillStyle = style.color;
    pen.fillText(label, x(begin) + 4 * ratio, 2 * half + 15 * ratio);
    pen.restore();
  }
  for (const [ms, kind] of recording.ticks) {
    pen.fillStyle = colour(["interruption", "error"].includes(kind) ? "--bad" : "--good");
    pen.fillRect(x(ms), kind === "mark" ? 2 * half : 0, 1.5 * ratio, height);
  }
  pen.fillStyle = style.color;
  pen.fillRect(x(nowMs), 0, 1.5 * ratio, height);
}

// ------------------------------------------------------------------- the page

function write() {
  title.textContent = t("onTheLine");
  drawCalls();
}

export function show() {
  write();
  watch();
  loadRecordings();
}

export function hide() {
  watching?.abort();
  watching = null;
  stopListening();
}

addEventListener("language", () => { if (!page.hidden) { write(); loadRecordings(); } });
addEventListener("token-given", () => { if (!page.hidden) { hide(); show(); } });
addEventListener("server-state", () => { if (!page.hidden && !list.children.length) loadRecordings(); });
