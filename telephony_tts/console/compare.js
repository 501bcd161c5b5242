// The page "Compare": the same text by two voices or settings, side by side or blind, and a tally.

import { audioContext } from "./call.js";
import { tell } from "./main.js";
import { ask, element, one, read, save } from "./server.js";
import { addTexts, t } from "./texts.js";

addTexts({
  comparison: ["The same text twice", "同一文本两种声音"],
  prepare: ["Make both", "生成两者"],
  blind: ["Blind: hide which is which", "盲测：隐藏对应关系"],
  play: ["Play {0}", "播放 {0}"],
  better: ["{0} is better", "{0} 更好"],
  same: ["No difference", "没有区别"],
  rounds: ["rounds: {0}", "轮数：{0}"],
  was: ["It was {0}.", "它是 {0}。"],
  noPreference: ["No preference.", "没有偏好。"],
  wins: ["chosen", "被选次数"],
  ties: ["no difference", "没有区别"],
  saveTally: ["Save the tally", "保存统计"],
  firstAfter: ["first audio after {0} ms, {1} s of speech", "{0} 毫秒后首个音频，语音 {1} 秒"],
});

const page = one("#compare");
const HZ = 24000;
const rounds = []; // {when, text, a, b, first, chosen}
let voices = [];
let pair = null; // {settings: [a, b], pcm: [a, b], order: [0, 1], isDecided}
let playing = null;

const title = element("h1", { id: "compare-title" });
const text = element("textarea", { rows: 2, id: "compare-text" });
const blind = element("input", { type: "checkbox", id: "blind" });
const prepare = element("button", { type: "submit", className: "main", id: "prepare" });
const status = element("output", { role: "status", id: "compare-state" });
const sheet = element("form", { autocomplete: "off" });
const stage = element("div", { id: "pair", className: "cards", hidden: true });
const votes = element("div", { className: "row", id: "votes", hidden: true });
const tally = element("table", { id: "tally", hidden: true });
const saver = element("button", { type: "button", id: "save-tally", hidden: true });
const sides = ["A", "B"].map((name) => ({
  name,
  voice: element("select", { id: `voice-${name}` }),
  speed: element("input", { id: `speed-${name}`, type: "number", min: 0.5, max: 2, step: 0.05, value: 1 }),
  seed: element("input", { id: `seed-${name}`, type: "number", min: 0, max: 4294967295, placeholder: "–" }),
  instruct: element("input", { id: `instruct-${name}`, maxLength: 1000 }),
}));
page.append(title, sheet, stage, votes, element("div", { className: "scroll", tabIndex: 0, role: "group", "aria-labelledby": "compare-title" }, tally), saver);

const label = (key, input) => element("label", {}, element("span", {}, t(key)), input);

function write() {
  title.textContent = t("comparison");
  prepare.textContent = t("prepare");
  saver.textContent = t("saveTally");
  if (!text.value) text.value = t("example");
  sheet.replaceChildren(
    element("label", { className: "quiet", htmlFor: text.id }, t("text")), text,
    element("div", { className: "cards" }, ...sides.map((side) => element("fieldset", { className: "card" }, element("legend", {}, side.name),
      element("div", { className: "fields" }, label("voice", side.voice), label("speed", side.speed), label("seed", side.seed), label("instruct", side.instruct))))),
    element("label", { className: "box" }, blind, element("span", {}, t("blind"))), element("div", { className: "row" }, prepare, status),
  );
  for (const side of sides) {
    const before = side.voice.value;
    side.voice.replaceChildren(...voices.map((voice) => element("option", { value: `${voice.engine}/${voice.name}` }, `${voice.name} (${voice.engine})`)));
    if (before) side.voice.value = before;
  }
  if (!sides[1].voice.dataset.chosen && voices.length > 1) {
    sides[1].voice.selectedIndex = 1;
    sides[1].voice.dataset.chosen = "yes";
  }
  drawPair();
  drawTally();
}

function settingsOf(side) {
  const settings = { voice: side.voice.value, speed: Number(side.speed.value) || 1 };
  if (side.seed.value !== "") settings.seed = Number(side.seed.value);
  if (side.instruct.value) settings.instruct = side.instruct.value;
  return settings;
}

async function make(event) {
  event.preventDefault();
  stop();
  tell("");
  prepare.disabled = true;
  status.value = "…";
  try {
    await audioContext();
    const settings = sides.map(settingsOf);
    const made = [];
    for (const each of settings) made.push(await synthesize(text.value, each)); // one after the other: fair to both
    const order = blind.checked && crypto.getRandomValues(new Uint8Array(1))[0] % 2 ? [1, 0] : [0, 1];
    pair = { text: text.value, settings, made, order, isBlind: blind.checked, isDecided: false };
    drawPair();
    status.value = "";
  } catch (error) {
    status.value = "";
    tell(error.message);
  }
  prepare.disabled = false;
}

async function synthesize(said, settings) {
  const begun = performance.now();
  const body = JSON.stringify({ text: said, ...settings, format: "pcm", sample_rate: HZ });
  const response = await ask("tts/stream", { method: "POST", headers: { "Content-Type": "application/json" }, body });
  const reader = response.body.getReader();
  const pieces = [];
  let first = null;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    first ??= performance.now() - begun;
    pieces.push(value);
  }
  const bytes = new Uint8Array(await new Blob(pieces).arrayBuffer());
  const pcm = Float32Array.from(new Int16Array(bytes.buffer, 0, Math.floor(bytes.length / 2)), (sample) => sample / 32768);
  return { pcm, first_ms: first };
}

async function play(place) {
  stop();
  const context = await audioContext();
  const { pcm } = pair.made[pair.order[place]];
  const buffer = new AudioBuffer({ length: Math.max(1, pcm.length), sampleRate: HZ });
  buffer.copyToChannel(pcm, 0);
  playing = new AudioBufferSourceNode(context, { buffer });
  playing.connect(context.destination);
  playing.start();
}

function stop() {
  playing?.stop();
  playing = null;
}

const nameOf = (settings) => [settings.voice, settings.speed === 1 ? "" : `× ${settings.speed}`, settings.seed === undefined ? "" : `seed ${settings.seed}`, settings.instruct].filter(Boolean).join(", ");

function drawPair() {
  stage.hidden = votes.hidden = !pair;
  if (!pair) return;
  const names = pair.isBlind ? ["X", "Y"] : ["A", "B"];
  stage.replaceChildren(...pair.order.map((which, place) => {
    const button = element("button", { type: "button", id: `play-${place}` }, t("play", names[place]));
    button.addEventListener("click", () => play(place));
    const { first_ms, pcm } = pair.made[which];
    const isHidden = pair.isBlind && !pair.isDecided;
    const about = isHidden ? [] : [element("p", {}, nameOf(pair.settings[which])), element("p", { className: "hint" }, t("firstAfter", first_ms.toFixed(0), (pcm.length / HZ).toFixed(1)))];
    return element("article", { className: "card" }, button, ...about);
  }));
  const choices = [[t("better", names[0]), pair.order[0]], [t("better", names[1]), pair.order[1]], [t("same"), null]];
  votes.replaceChildren(...choices.map(([text, which], n) => {
    const button = element("button", { type: "button", id: `vote-${n}`, disabled: pair.isDecided }, text);
    button.addEventListener("click", () => vote(which));
    return button;
  }));
}

function vote(which) {
  pair.isDecided = true;
  const [a, b] = pair.settings;
  rounds.push({ when: new Date().toISOString(), text: pair.text, blind: pair.isBlind, a, b, heard_first: pair.order[0] ? "b" : "a", chosen: which === null ? null : "ab"[which] });
  status.value = which === null ? t("noPreference") : t("was", nameOf(pair.settings[which]));
  drawPair();
  drawTally();
}

function counted() {
  const counts = new Map();
  for (const { a, b, chosen } of rounds) {
    const key = `${nameOf(a)} ↔ ${nameOf(b)}`;
    const count = counts.get(key) ?? { a: nameOf(a), b: nameOf(b), n_a: 0, n_b: 0, n_same: 0 };
    count[chosen === null ? "n_same" : `n_${chosen}`]++;
    counts.set(key, count);
  }
  return [...counts.values()];
}

function drawTally() {
  tally.hidden = saver.hidden = !rounds.length;
  const heads = ["A", t("wins"), "B", t("wins"), t("ties")];
  tally.replaceChildren(
    element("caption", { className: "hint" }, t("rounds", rounds.length)),
    element("thead", {}, element("tr", {}, ...heads.map((head) => element("th", { scope: "col" }, head)))),
    element("tbody", {}, ...counted().map((row) => element("tr", {}, ...[row.a, row.n_a, row.b, row.n_b, row.n_same].map((cell) => element("td", {}, String(cell)))))),
  );
}

sheet.addEventListener("submit", make);
saver.addEventListener("click", () => save("comparison.json", new Blob([JSON.stringify({ tally: counted(), rounds }, null, 1)], { type: "application/json" })));

export async function show() {
  write();
  try {
    ({ voices } = await read("v1/voices"));
    write();
  } catch (error) {
    if (error.status !== 401) tell(error.message);
  }
}
export const hide = stop;
addEventListener("language", () => !page.hidden && write());
addEventListener("token-given", () => !page.hidden && show());
