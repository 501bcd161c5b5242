// The page "Say it": type, hear, interrupt, and see what was heard.

import { Call, audioContext } from "./call.js";
import { element, one, read } from "./server.js";
import { problemText, t } from "./texts.js";
import { askState, serverState, tell } from "./main.js";
import { showTurn } from "./waterfall.js";

const MOST_TURNS = 50;
const FRAME_MS = 20;
const LATE_MS = 20; // a frame is late when less than this is left until it must be played
const TELL_GAP_MS = 300; // a gap that is longer is told while it lasts
const BEHIND_MS = 60; // a turn is over for the listener when no more than this, and what is in the loudspeaker, is left of it
const UNDER_WAY_MS = 3_000; // sound of a turn that is over for the server may still come for so long
const UNUSED_MS = 120_000; // then the page leaves its call: others may need the room

const turns = []; // the newest first
let call = null;
let opening = null;
let callKey = "";
let voices = [];
let nTurns = 0;
let isAnimating = false;
let returning = null; // what is to be said, and to be as before, once the connection is back: {why, microphone}
let unused = 0;

const field = (id) => one(`#${id}`);
const speaking = () => turns.filter((turn) => turn.outcome === "speaking" || turn.outcome === "paused");
const current = () => speaking().at(-1) ?? null;

// ---------------------------------------------------------------- options

async function loadVoices() {
  try {
    voices = (await read("v1/voices")).voices;
    fillVoices();
  } catch (error) {
    if (error.status !== 401) tell(error.message);
  }
}

function fill(select, choices) {
  const before = select.value;
  select.replaceChildren(...choices.map(([value, text]) => element("option", { value }, text)));
  if (choices.some(([value]) => value === before)) select.value = before;
}

function fillVoices() {
  const engines = [...new Set(voices.map((voice) => voice.engine))];
  fill(field("engine"), [["", t("anyEngine")], ...engines.map((name) => [name, name])]);
  const fitting = voices.filter((voice) => !field("engine").value || voice.engine === field("engine").value);
  fill(field("voice"), [["", t("serverVoice")], ...fitting.map((voice) => [`${voice.engine}/${voice.name}`, voice.name])]);
  fillLanguages();
}

function fillLanguages() {
  const chosen = voices.filter((voice) => !field("voice").value || `${voice.engine}/${voice.name}` === field("voice").value);
  const languages = [...new Set(chosen.flatMap((voice) => voice.languages))].sort();
  fill(field("lang"), [["", t("auto")], ...languages.map((lang) => [lang, lang])]);
}

function showOptions() {
  field("speed-value").value = Number(field("speed").value).toFixed(2);
  for (const each of document.querySelectorAll("#options .bot")) each.hidden = field("how").value !== "bot";
}

// What a call is begun with: no message can take these back.
const keyOfCall = () => JSON.stringify([
  field("quality").value, field("lang").value, field("seed").value, Boolean(field("voice").value || field("engine").value),
]);

function configuration() {
  const config = { type: "config", speed: Number(field("speed").value), instruct: field("instruct").value };
  const engine = field("engine").value;
  const voice = field("voice").value || (engine && voices.find((each) => each.engine === engine)?.name);
  if (voice) config.voice = voice.includes("/") || !engine ? voice : `${engine}/${voice}`;
  if (field("lang").value) config.lang = field("lang").value;
  if (field("seed").value !== "") config.seed = Number(field("seed").value);
  if (microphoneIsOn()) config.barge_in = "on";
  return config;
}

// ------------------------------------------------------------- the call

async function theCall() {
  const key = keyOfCall();
  if (call && !call.isOver && callKey === key) return call;
  if (opening) return opening;
  for (const turn of speaking()) if (turn.call && turn.call === call) endHere(turn, "cleared", heardMs(turn));
  call?.end();
  field("say-state").value = t("connecting");
  opening = Call.open(field("quality").value, happened);
  try {
    call = await opening;
    callKey = key;
    const wantsMicrophone = microphoneIsOn() || returning?.microphone;
    returning = null;
    if (wantsMicrophone) await useMicrophone(true);
    return call;
  } finally {
    opening = null;
  }
}

function happened(event) {
  const turn = turns.find((each) => each.id === event.turn) ?? null;
  switch (event.type) {
    case "frame": return frameCame(event);
    case "speaker-begun": return note(current(), begun, event);
    case "speaker-audible": return note(current(), becameAudible, event);
    case "speaker-dry": return note(current(), wentDry, event);
    case "speaker-cleared": return note(current(), (found) => { if (found.interruptedAt !== null) found.silentAt ??= event.at; }, event);
    case "microphone": return void (field("level").value = event.level);
    case "lost": return connectionLost(event);
    case "started": return note(turn, started, event);
    case "sentence": return note(turn, (found) => found.sentences.push(event), event);
    case "words": return note(turn, (found) => { found.words.push(...event.words); draw(found); }, event);
    case "mark": return note(turn ?? current(), () => {}, event);
    case "paused": return note(turn, (found) => { found.outcome = "paused"; found.heardChars = event.heard_chars; found.heardMs = event.heard_ms; draw(found); }, event);
    case "resumed": return note(turn, resumed, event);
    case "cleared": return note(turn, cleared, event);
    case "done": return note(turn, done, event);
    case "caller": return note(current() ?? turns[0], () => {}, event);
    case "warning": return note(turn ?? current() ?? turns[0], () => {}, event);
    case "error": return failed(turn, event);
  }
}

function note(turn, act, event) {
  if (!turn) return;
  if (event && !event.type.startsWith("speaker")) turn.events.push({ at_ms: rounded(performance.now() - turn.sentAt), ...event });
  act(turn, event);
  update();
}

const rounded = (ms) => Math.round(ms * 10) / 10;

function started(turn, event) {
  turn.firstAudioMs = event.first_audio_ms;
  // With nothing before it, the first frame since then is this turn's; else the next one is.
  turn.startSample ??= speaking().at(-1) === turn ? call.boundary : call.received;
  turn.engines = event.engines;
}

function frameCame({ first, peak, at, decodeMs }) {
  const live = speaking();
  const turn = live.find((each) => each.startSample !== null && first >= each.startSample) ?? live.findLast((each) => each.startSample === null);
  if (!turn) return;
  turn.firstFrameAt ??= at;
  turn.decodeMs ??= decodeMs;
  turn.startSample ??= first;
  const dueAt = (turn.begunAt ?? at) + turn.shiftMs + turn.slacks.length * FRAME_MS;
  if (turn.isResuming) turn.shiftMs += at - dueAt;
  else if (turn.slacks.length && dueAt - at < LATE_MS) turn.nLate++;
  turn.isResuming = false;
  turn.slacks.push(rounded(dueAt - at));
  turn.arrivals.push(rounded(at - turn.sentAt));
  turn.peaks.push(peak);
  animate();
}

function begun(turn, { at }) {
  turn.begunAt ??= at;
  if (turn.dryAt === null) return;
  const gapMs = at - turn.dryAt;
  const frame = Math.round((turn.dryAt - turn.begunAt - turn.shiftMs) / FRAME_MS);
  turn.gaps.push({ at_ms: rounded(turn.dryAt - turn.sentAt), gap_ms: rounded(gapMs), frame });
  turn.shiftMs += gapMs;
  turn.dryAt = null;
  call.expectGaps(true);
  if (gapMs > TELL_GAP_MS) field("say-state").value = t("goesOn", Math.round(gapMs));
}

const isBehind = (turn) => heardMs(turn) < turn.audioMs - BEHIND_MS - 1000 * call.outputLatency;

function wentDry(turn, { at, isAtMark }) {
  turn.dryAt = at;
  if (turn.over) {
    const waitMs = isBehind(turn) ? UNDER_WAY_MS : 0;
    setTimeout(() => turn.dryAt === at && turn.over?.(), waitMs);
  }
  if (isAtMark) return;
  setTimeout(() => {
    if (turn.dryAt === at && turn.outcome === "speaking") field("say-state").value = t(navigator.onLine ? "waitsForSound" : "waitsForNetwork");
  }, TELL_GAP_MS);
}

function becameAudible(turn, { at }) {
  if (turn.audibleAt !== null) return;
  turn.audibleAt = at;
  field("say-state").value = t("firstSound", Math.round(at - turn.sentAt));
}

function resumed(turn, event) {
  turn.outcome = "speaking";
  turn.isResuming = true;
  turn.dryAt = null;
  turn.startSample = call.received - (event.from_ms * call.rateHz) / 1000;
  animate();
}

function end(turn, outcome) {
  turn.outcome = outcome;
  turn.over = null;
  turn.endedAt = performance.now();
  if (call) {
    call.boundary = call.received;
    call.expectGaps(false);
  }
  if (turn.audibleAt === null && !speaking().length) field("say-state").value = ""; // nothing is waited for any more
  leaveWhenUnused();
  draw(turn);
  showTurn(turn, turns);
}

function cleared(turn, event) {
  Object.assign(turn, { heardMs: event.heard_ms, heardChars: event.heard_chars, reason: event.reason, basis: event.basis, latency: event.latency ?? null });
  end(turn, "cleared");
}

function done(turn, event) {
  Object.assign(turn, { latency: event.latency, audioMs: event.audio_ms, underruns: event.underruns });
  turn.engines = event.engines ?? turn.engines;
  const over = () => {
    turn.heardMs = event.audio_ms;
    turn.heardChars = turn.chars.length;
    end(turn, "done");
    update();
  };
  // The server does not wait long for a late network. What is here, or under way, is still heard to its end.
  if (turn.startSample !== null && isBehind(turn)) turn.over = over;
  else over();
}

// Take what this page has played for what was heard.
function endHere(turn, outcome, ms) {
  turn.heardMs = Math.max(0, ms);
  turn.heardChars = turn.words.filter((word) => word.end_ms <= turn.heardMs).reduce((most, word) => Math.max(most, word.to), 0);
  end(turn, outcome);
}

function failed(turn, event) {
  tell(problemText(event));
  if (!turn) return;
  note(turn, (found) => {
    found.heardChars = [...(event.heard_text ?? "")].length;
    found.heardMs = event.heard_ms ?? 0;
    found.latency = event.latency ?? null;
    end(found, "failed");
  }, event);
}

function connectionLost({ code, reason, isSilent }) {
  const cut = speaking(), microphone = microphoneIsOn();
  for (const turn of cut) {
    if (turn.interruptedAt !== null) endHere(turn, "cleared", turn.interruptedMs);
    else endHere(turn, "lost", heardMs(turn));
  }
  call = null;
  setMicrophone(false);
  field("say-state").value = "";
  update();
  if (!cut.length && !microphone) return; // it is not missed, and the next text connects again
  const told = isSilent ? t("noAnswer") : reason;
  const why = told ? ` (${told})` : "";
  const isOver = code === 1000 || code === 1008; // the server wanted it so
  tell(t(isOver ? "ended" : "lost", why));
  if (isOver) return;
  returning = { why, microphone };
  askState();
}

// Connect again when the server can be reached.
async function comeBack() {
  const back = returning;
  if (!back || opening || !serverState()?.ready) return;
  try {
    await theCall();
    tell(t("back", back.why));
  } catch {
    // It is tried again with the next news of the server.
  }
}

function leaveWhenUnused() {
  clearTimeout(unused);
  unused = setTimeout(() => {
    if (speaking().length || microphoneIsOn()) return leaveWhenUnused();
    call?.end();
    call = null;
  }, UNUSED_MS);
}

// ------------------------------------------------------------- speaking

async function speak(text) {
  if (!text.trim()) return field("text").focus();
  tell("");
  const sentAt = performance.now();
  const isWhole = field("how").value === "whole";
  const turn = {
    id: `say-${++nTurns}`, text: isWhole ? text : "", chars: isWhole ? [...text] : [], when: new Date().toISOString(),
    options: { ...configuration(), quality: field("quality").value, how: field("how").value },
    sentAt, words: [], sentences: [], events: [], arrivals: [], slacks: [], peaks: [], gaps: [], nLate: 0, shiftMs: 0, isResuming: false, startSample: null,
    firstFrameAt: null, begunAt: null, audibleAt: null, dryAt: null, endedAt: null, outcome: "speaking",
    call: null, decodeMs: null, interruptedAt: null, interruptedMs: 0, silentAt: null, over: null,
    heardMs: 0, heardChars: 0, latency: null, firstAudioMs: null, audioMs: null, underruns: null, engines: null,
  };
  turns.unshift(turn);
  turns.length = Math.min(turns.length, MOST_TURNS);
  addCard(turn);
  draw(turn);
  update();
  field("interrupt").focus({ preventScroll: true });
  try {
    const here = await theCall();
    if (turn.outcome !== "speaking") return;
    field("say-state").value = t("waiting");
    turn.call = here;
    here.send(configuration());
    if (isWhole) here.send({ type: "say", turn: turn.id, text });
    else await write(here, turn, text);
  } catch (error) {
    tell(error.message);
    turns.splice(turns.indexOf(turn), 1);
    turn.card.remove();
    field("say-state").value = "";
    field("text").focus();
    update();
  }
}

const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Send the text as a language model writes it.
async function write(here, turn, text) {
  const pieces = text.match(/\s*[\u3040-\u9fff]|\s*[^\s\u3040-\u9fff]{1,4}|\s+$/gu) ?? [text];
  const everyMs = 1000 / Math.max(1, Number(field("tokens").value) || 20);
  const stallMs = Math.max(0, Number(field("stall").value) || 0);
  let due = performance.now();
  for (const [n, piece] of pieces.entries()) {
    if (turn.outcome !== "speaking" && turn.outcome !== "paused") return;
    here.send({ type: "text", turn: turn.id, text: piece, last: n === pieces.length - 1 });
    turn.text += piece;
    turn.chars = [...turn.text];
    draw(turn);
    due += everyMs + (/[,;:，；、]$/u.test(piece) ? stallMs : 0);
    if (n < pieces.length - 1) await wait(Math.max(0, due - performance.now()));
  }
}

function interrupt() {
  const turn = speaking().at(-1);
  if (!turn || turn.interruptedAt !== null) return;
  turn.interruptedAt = performance.now();
  if (!call || call.isOver) return endHere(turn, "cleared", 0);
  const playing = speaking().find((each) => each.startSample !== null && heardMs(each) > 0) ?? null;
  turn.interruptedMs = playing === turn ? heardMs(turn) : 0;
  call.interrupt(playing === turn ? turn.interruptedMs : null);
  if (turn.over) endHere(turn, "cleared", turn.interruptedMs); // for the server it is over
}

function pauseOrResume() {
  const turn = current();
  if (turn) call?.send({ type: turn.outcome === "paused" ? "resume" : "pause" });
}

const heardMs = (turn) => (turn.startSample === null ? 0 : ((call.heard - turn.startSample) / call.rateHz) * 1000);

// ----------------------------------------------------------- microphone

const microphoneIsOn = () => field("microphone").getAttribute("aria-pressed") === "true";

function setMicrophone(isOn) {
  field("microphone").setAttribute("aria-pressed", String(isOn));
  field("level").hidden = !isOn;
}

async function useMicrophone(isOn) {
  try {
    if (isOn) {
      setMicrophone(true);
      const here = call && !call.isOver ? call : await theCall();
      if (!here.microphone) await here.openMicrophone();
      here.send({ type: "config", barge_in: "on" });
      field("say-state").value = t("listening");
    } else {
      setMicrophone(false);
      call?.closeMicrophone();
      call?.send({ type: "config", barge_in: "off" });
    }
  } catch (error) {
    setMicrophone(false);
    tell(t("noMicrophone", error.message));
  }
}

// -------------------------------------------------------------- drawing

function addCard(turn) {
  turn.card = element("article", { className: "turn", id: turn.id });
  turn.line = element("p", {});
  turn.wave = element("canvas", { hidden: true, ariaHidden: "true" });
  turn.foot = element("footer", {});
  turn.card.append(turn.line, turn.wave, turn.foot);
  field("turns").prepend(turn.card, field("waterfall"));
  while (field("turns").children.length > MOST_TURNS + 1) field("turns").lastChild.remove();
}

// Write the turn's text: a span for each word whose time is known, and two parts once it is over.
function draw(turn) {
  const isOver = !["speaking", "paused"].includes(turn.outcome);
  const text = (from, to) => turn.chars.slice(from, to).join("");
  if (isOver) {
    const heard = element("span", { className: "heard" }, text(0, turn.heardChars));
    const unheard = element("span", { className: "unheard" }, text(turn.heardChars));
    turn.line.replaceChildren(...[heard, unheard].filter((span) => span.textContent));
  } else {
    const parts = [];
    let at = 0;
    for (const word of turn.words) {
      if (word.from < at) continue;
      word.span = element("span", {}, text(word.from, word.to));
      parts.push(text(at, word.from), word.span);
      at = word.to;
    }
    turn.line.replaceChildren(...parts, text(at));
  }
  light(turn);
  const outcome = {
    done: () => t("done"), failed: () => t("failed"), lost: () => t("lostTurn"), paused: () => t("paused"), speaking: () => t("speaking"),
    cleared: () => [t("cleared", (turn.heardMs / 1000).toFixed(1)), turn.reason === "barge_in" ? t("byVoice") : ""].join(" ").trim(),
  }[turn.outcome]();
  const first = turn.audibleAt === null ? [] : [t("firstSound", Math.round(turn.audibleAt - turn.sentAt))];
  const voice = turn.engines?.join(", ") ?? turn.options.voice;
  turn.foot.replaceChildren(...[outcome, ...first, voice].filter(Boolean).map((part) => element("span", {}, part)));
  if (!isOver) return;
  const times = element("button", { type: "button", className: "at" }, t("waterfall"));
  times.addEventListener("click", () => {
    showTurn(turn, turns);
    field("waterfall").scrollIntoView({ block: "nearest" });
  });
  turn.foot.append(times);
}

function light(turn) {
  if (turn.outcome !== "speaking") return;
  const now = heardMs(turn);
  for (const { span, start_ms, end_ms } of turn.words) {
    if (!span) continue;
    const name = now >= end_ms ? "heard" : now >= start_ms ? "heard now" : "";
    if (span.className !== name) span.className = name;
  }
}

function drawWave(turn) {
  const canvas = turn.wave;
  canvas.hidden = false;
  const ratio = devicePixelRatio || 1;
  const width = canvas.clientWidth * ratio, height = canvas.clientHeight * ratio;
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  const style = getComputedStyle(canvas);
  const pen = canvas.getContext("2d");
  pen.clearRect(0, 0, width, height);
  const n = Math.max(turn.peaks.length, 100);
  const step = width / n;
  const heard = (["speaking"].includes(turn.outcome) ? heardMs(turn) : turn.heardMs) / FRAME_MS;
  for (const [at, peak] of turn.peaks.entries()) {
    const tall = Math.max(1.5 * ratio, Math.min(1, peak) * height);
    pen.fillStyle = style.getPropertyValue(at <= heard ? "--accent" : "--line");
    pen.fillRect(at * step, (height - tall) / 2, Math.max(step * 0.7, 0.7), tall);
  }
}

function animate() {
  if (isAnimating) return;
  isAnimating = true;
  const step = () => {
    const live = speaking();
    for (const turn of live) {
      // Behind another turn the loudspeaker does not begin anew.
      if (turn.begunAt === null && heardMs(turn) > 0) turn.begunAt = performance.now() - heardMs(turn);
      light(turn);
      if (turn.peaks.length) drawWave(turn);
      if (turn.over && heardMs(turn) >= turn.audioMs) turn.over();
    }
    isAnimating = live.length > 0;
    if (isAnimating) requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}

function update() {
  const turn = current();
  const ofTurn = ["interrupt", "pause", "mark"];
  if (!turn && ofTurn.includes(document.activeElement?.id)) one("#say-form .main").focus({ preventScroll: true });
  for (const id of ofTurn) field(id).disabled = !turn;
  field("pause").textContent = t(turn?.outcome === "paused" ? "resume" : "pause");
  for (const each of turns) if (!["speaking", "paused"].includes(each.outcome) && each.peaks.length) drawWave(each);
}

// ------------------------------------------------------------ listening

field("text").value = t("example");
field("say-form").addEventListener("submit", (event) => {
  event.preventDefault();
  speak(field("text").value);
});
field("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    speak(field("text").value);
  }
});
field("interrupt").addEventListener("click", interrupt);
field("pause").addEventListener("click", pauseOrResume);
field("mark").addEventListener("click", () => {
  const turn = current();
  if (turn) call.send({ type: "mark", turn: turn.id, name: `mark-${turn.events.length + 1}` });
});
field("microphone").addEventListener("click", () => useMicrophone(!microphoneIsOn()));
field("engine").addEventListener("change", fillVoices);
field("voice").addEventListener("change", fillLanguages);
field("options").addEventListener("input", showOptions);
addEventListener("keydown", (event) => {
  if (field("say").hidden || event.ctrlKey || event.metaKey || event.altKey || one("dialog[open]")) return;
  const isTyping = event.target.matches("textarea, select, input:not([type=range])");
  if (event.code === "Space" && !isTyping && (current() || event.repeat)) {
    event.preventDefault(); // of a button too: it would be pressed when the key comes up
    if (!event.repeat) interrupt();
  } else if (!isTyping && event.key === "/") {
    event.preventDefault();
    field("text").focus();
    field("text").select();
  } else if (!isTyping && event.key.toLowerCase() === "p" && current()) {
    event.preventDefault();
    pauseOrResume();
  }
});
addEventListener("language", () => {
  if (!turns.length) field("text").value = t("example");
  fillVoices();
  turns.forEach(draw);
  update();
  if (turns[0]) showTurn(turns[0], turns);
});
addEventListener("theme", () => { update(); if (turns[0]) showTurn(turns[0], turns); });
addEventListener("resize", update);
addEventListener("token-given", loadVoices);
addEventListener("server-state", comeBack);
for (const change of ["online", "offline"]) {
  addEventListener(change, () => { if (current()) field("say-state").value = change === "offline" ? t("waitsForNetwork") : ""; });
}
addEventListener("pagehide", () => call?.end());
field("text").addEventListener("focus", () => void audioContextWhenAllowed(), { once: true });

// Load the audio thread before the first Enter, if the browser lets the page sound already.
async function audioContextWhenAllowed() {
  if (navigator.userActivation?.hasBeenActive) await audioContext().catch(() => {});
}

export function show() {
  showOptions();
  loadVoices();
  update();
}

export { turns };
