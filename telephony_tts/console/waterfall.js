// Where the time of a turn went: bars, figures, the last turns, and what can be saved.

import { element, one, save } from "./server.js";
import { t } from "./texts.js";

const STAGES = ["stageText", "stageQueue", "stageEngine", "stageFrame", "stageServer", "stageNetwork", "stageDecode", "stageOutput", "stageSilence", "stageCut"];
const COLOURS = { stageText: 0, stageQueue: 1, stageEngine: 2, stageFrame: 3, stageServer: 3, stageNetwork: 4, stageDecode: 1, stageOutput: 5, stageSilence: 6, stageCut: 6 };

// The stages from the text to the first sound that is heard: [name, begin, length] in ms since the text was sent. Of a turn
// that ended sooner they go up to its end.
export function stages(turn) {
  const known = turn.latency ?? {};
  const first = known.first_audio_ms ?? turn.firstAudioMs ?? undefined;
  const { text_to_sentence_ms: text = 0, queue_ms: queue, first_pcm_ms: engine } = known;
  const found = [];
  if (known.text_to_sentence_ms !== undefined) found.push(["stageText", text]);
  if (engine !== undefined) {
    found.push(["stageQueue", queue], ["stageEngine", engine]);
    if (first !== undefined) found.push(["stageFrame", Math.max(0, first - queue - engine)]);
  } else if (first !== undefined) found.push(["stageServer", first]); // the turn is not over, so its parts are not known
  if (first !== undefined && turn.firstFrameAt !== null) {
    const arrived = turn.firstFrameAt - turn.sentAt;
    const decoded = arrived + turn.decodeMs;
    const begun = Math.max(decoded, (turn.begunAt ?? turn.firstFrameAt) - turn.sentAt);
    const audible = Math.max(begun, (turn.audibleAt ?? turn.begunAt ?? turn.firstFrameAt) - turn.sentAt);
    found.push(["stageNetwork", Math.max(0, arrived - text - first)], ["stageDecode", turn.decodeMs], ["stageOutput", begun - decoded], ["stageSilence", audible - begun]);
  }
  const endMs = endedAfter(turn) ?? Infinity;
  let at = 0;
  const bars = found.map(([name, length]) => {
    const begin = Math.min(at, endMs);
    at = Math.min(at + length, endMs);
    return [name, begin, at - begin];
  });
  if (turn.audibleAt === null && at < endMs && endMs < Infinity) bars.push(["stageCut", at, endMs - at]);
  return bars;
}

// When a turn ended that was not heard to its end, in ms since its text was sent.
function endedAfter(turn) {
  if (turn.endedAt === null || turn.outcome === "done") return undefined;
  return (turn.interruptedAt ?? turn.endedAt) - turn.sentAt;
}

const FIGURES = {
  ...Object.fromEntries(STAGES.map((name) => [name, (turn) => stages(turn).find(([each]) => each === name)?.[2]])),
  networkFirst: (turn) => (turn.firstFrameAt === null ? undefined : turn.firstFrameAt - turn.sentAt),
  audibleFirst: (turn) => (turn.audibleAt === null ? undefined : turn.audibleAt - turn.sentAt),
  heardFor: (turn) => turn.heardMs,
  endedAfter,
  toSilence: (turn) => (turn.silentAt === null ? undefined : Math.max(0, turn.silentAt - turn.interruptedAt)),
  gaps: (turn) => turn.gaps.length,
  gapTime: (turn) => (turn.gaps.length ? turn.gaps.reduce((sum, { gap_ms }) => sum + gap_ms, 0) : undefined),
  lateFrames: (turn) => turn.nLate,
  underruns: (turn) => turn.underruns ?? undefined,
};
const COUNTS = ["gaps", "lateFrames", "underruns"];
const MAIN = ["networkFirst", "audibleFirst", "heardFor", ...COUNTS]; // shown also where nothing is known of them

export function percentile(values, share) {
  const sorted = values.filter((value) => value !== undefined).sort((a, b) => a - b);
  return sorted.length ? sorted[Math.min(sorted.length - 1, Math.ceil(share * sorted.length) - 1)] : undefined;
}

function shown(name, value) {
  if (value === undefined || value === null) return "–";
  return COUNTS.includes(name) ? String(value) : value.toFixed(value < 10 ? 1 : 0);
}

const TITLE_CHARS = 40;
let drawn = null;
let all = [];

export function showTurn(turn, turns) {
  drawn = turn;
  all = turns;
  one("#waterfall").hidden = false;
  one("#of-turn").textContent = turn.text.length > TITLE_CHARS ? `${turn.chars.slice(0, TITLE_CHARS).join("")} …` : turn.text;
  drawBars(turn);
  const over = turns.filter((each) => each.endedAt !== null);
  const head = ["figure", "thisTurn"].map((key) => t(key)).concat("p50", "p95");
  const rows = Object.entries(FIGURES).flatMap(([name, figure]) => {
    const values = over.map(figure);
    if (!MAIN.includes(name) && [figure(turn), ...values].every((value) => value === undefined)) return [];
    const cells = [figure(turn), percentile(values, 0.5), percentile(values, 0.95)];
    return element("tr", {}, element("th", { scope: "row" }, t(name)), ...cells.map((cell) => element("td", { className: "n" }, shown(name, cell))));
  });
  one("#figures").replaceChildren(
    element("caption", { className: "hint" }, t("ofTurns", over.length)),
    element("thead", {}, element("tr", {}, ...head.map((text, n) => element("th", { scope: "col", className: n ? "n" : "" }, text)))),
    element("tbody", {}, ...rows),
  );
  one("#events").replaceChildren(...turn.events.map(({ at_ms, type, turn: _, words, ...rest }) =>
    element("li", {}, `${at_ms} ms  ${type}  ${JSON.stringify(words ? { ...rest, words: words.length } : rest)}`)));
}

function drawBars(turn) {
  const canvas = one("#bars");
  const ratio = devicePixelRatio || 1;
  canvas.width = canvas.clientWidth * ratio;
  canvas.height = canvas.clientHeight * ratio;
  const pen = canvas.getContext("2d");
  const style = getComputedStyle(canvas);
  const colour = (name) => style.getPropertyValue(name).trim();
  const ink = style.color, font = `${13 * ratio}px ${style.fontFamily}`;
  const width = canvas.width, names = Math.min(210 * ratio, width * 0.42), values = 62 * ratio;
  pen.fillStyle = getComputedStyle(one("#waterfall")).backgroundColor; // a saved picture has a ground
  pen.fillRect(0, 0, width, canvas.height);
  pen.font = font;
  pen.textBaseline = "middle";
  const bars = stages(turn);
  const total = bars.length ? bars.at(-1)[1] + bars.at(-1)[2] : 1;
  const endMs = endedAfter(turn);
  const scale = (width - names - values) / Math.max(total, 1);
  const tall = 24 * ratio;
  for (const [n, [name, begin, length]] of bars.entries()) {
    const y = n * tall + tall / 2;
    pen.fillStyle = ink;
    pen.textAlign = "left";
    pen.fillText(t(name), 0, y, names - 10 * ratio);
    pen.fillStyle = colour(`--s${COLOURS[name]}`);
    pen.fillRect(names + begin * scale, y - 7 * ratio, Math.max(length * scale, 2 * ratio), 14 * ratio);
    pen.fillStyle = ink;
    pen.fillText(length.toFixed(1), names + (begin + length) * scale + 6 * ratio, y);
  }
  if (endMs !== undefined && endMs <= total) {
    pen.fillStyle = colour("--bad");
    pen.fillRect(names + endMs * scale, 0, 2 * ratio, bars.length * tall);
  }
  drawFrames(turn, pen, { y: bars.length * tall + 18 * ratio, width, names, ratio, colour, ink });
  const label = bars.map(([name, , length]) => `${t(name)} ${length.toFixed(0)} ms`).join(", ");
  canvas.setAttribute("aria-label", label || t("waterfall"));
}

// A line for each frame: how long before it had to be played it was there. Gaps are red, with their length. The line across
// is where the sound ended for the listener.
function drawFrames(turn, pen, { y, width, names, ratio, colour, ink }) {
  if (!turn.arrivals.length) return;
  const tall = 36 * ratio;
  const step = (width - names - 4 * ratio) / Math.max(turn.arrivals.length, 50);
  pen.fillStyle = ink;
  pen.fillText(t("early"), 0, y + tall / 2, names - 10 * ratio);
  for (const [n, slack] of turn.slacks.entries()) {
    const high = Math.max(0.06, Math.min(1, slack / 250)) * tall;
    pen.fillStyle = colour(slack < 0 ? "--bad" : slack < 20 ? "--warn" : "--accent");
    pen.fillRect(names + n * step, y + tall - high, Math.max(step * 0.75, 0.7), high);
  }
  let free = 0;
  for (const { frame, gap_ms } of turn.gaps) {
    const x = names + frame * step, told = `${gap_ms.toFixed(0)} ms`;
    pen.fillStyle = colour("--bad");
    pen.fillRect(x - ratio, y - 4 * ratio, 2 * ratio, tall + 4 * ratio);
    if (x < free) continue;
    free = x + pen.measureText(told).width + 12 * ratio;
    pen.fillText(told, Math.min(x + 3 * ratio, width - pen.measureText(told).width), y - 6 * ratio);
  }
  const isWhole = turn.outcome === "done";
  const heard = Math.min(names + (turn.heardMs / 20) * step, width - 2 * ratio);
  pen.fillStyle = isWhole ? ink : colour("--bad");
  pen.fillRect(heard, y - 4 * ratio, 2 * ratio, tall + 8 * ratio);
  if (isWhole || turn.endedAt === null) return;
  const told = `${t(turn.outcome === "cleared" ? "interrupted" : turn.outcome === "lost" ? "lostTurn" : "failed")}: ${(turn.heardMs / 1000).toFixed(2)} s`;
  const isLeft = heard + pen.measureText(told).width + 6 * ratio > width;
  pen.textAlign = isLeft ? "right" : "left";
  pen.fillText(told, heard + (isLeft ? -4 : 6) * ratio, y + tall + 10 * ratio);
  pen.textAlign = "left";
}

const exported = (turn) => ({
  turn: turn.id, when: turn.when, text: turn.text, options: turn.options, outcome: turn.outcome, reason: turn.reason ?? null,
  heard_ms: turn.heardMs, heard_text: turn.chars.slice(0, turn.heardChars).join(""), audio_ms: turn.audioMs,
  figures_ms: Object.fromEntries(Object.entries(FIGURES).map(([name, figure]) => [name, figure(turn) ?? null])),
  stages_ms: stages(turn).map(([name, begin, length]) => ({ stage: name, begin, length })), latency: turn.latency, gaps: turn.gaps, frames_ms: turn.arrivals, slack_ms: turn.slacks, words: turn.words.map(({ span: _, ...word }) => word), events: turn.events,
});

one("#save-json").addEventListener("click", () => {
  const text = JSON.stringify({ made_at: new Date().toISOString(), turns: all.map(exported) }, null, 1);
  save("turns.json", new Blob([text], { type: "application/json" }));
});
one("#save-png").addEventListener("click", () => one("#bars").toBlob((png) => save(`${drawn.id}.png`, png)));
addEventListener("resize", () => drawn && drawBars(drawn));
