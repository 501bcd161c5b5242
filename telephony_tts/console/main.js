// What all pages share: which one is shown, the token, the language, light and dark, and the state of the server.
// And the page "Is it well?", which shows that state.

import { ServerError, element, one, read, useToken } from "./server.js";
import { currentLanguage, t, translate, useLanguage } from "./texts.js";

const PAGES = {
  say: () => import("./say.js"),
  calls: () => import("./calls.js"),
  voices: () => import("./voices.js"),
  compare: () => import("./compare.js"),
  well: async () => well,
};
const ASK_MS = 5_000;
const ASK_LOADING_MS = 500;
const ASK_LOST_MS = 1_000;
const ANSWER_MS = 5_000;
const IS_HERE = ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname); // reachable without a network

let shown = null;
let timer = 0;

async function show() {
  const name = Object.hasOwn(PAGES, location.hash.slice(1)) ? location.hash.slice(1) : "say";
  if (shown?.name === name) return;
  shown?.page?.hide?.();
  shown = { name, page: null };
  const here = shown;
  for (const each of Object.keys(PAGES)) one(`#${each}`).hidden = each !== name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${t(name)} – Telephony TTS`;
  tell("");
  const page = await PAGES[name]();
  if (shown !== here) return;
  here.page = page;
  page.show?.(last);
}

// A problem that the person should know of; "" for none.
export function tell(problem) {
  const place = one("#problem");
  place.hidden = !problem;
  place.textContent = problem;
}

let last = null;
let nAsked = 0;

export const serverState = () => last;

// Ask how the server is, and again from time to time.
export async function askState() {
  clearTimeout(timer);
  const asked = ++nAsked;
  let wait = ASK_MS, found;
  try {
    if (!navigator.onLine && !IS_HERE) throw new ServerError(0, "offline", t("offline"));
    found = { ...(await read("console/api/state", { signal: AbortSignal.timeout(ANSWER_MS) })), error: null };
    if (!found.ready) wait = ASK_LOADING_MS;
  } catch (error) {
    found = { ...last, ready: false, error };
    wait = ASK_LOST_MS;
  }
  if (asked !== nAsked) return; // it was asked again meanwhile
  last = found;
  const [state, text] = healthOf(last);
  const health = one("#health");
  health.dataset.state = state;
  health.textContent = text;
  shown?.page?.state?.(last);
  dispatchEvent(new CustomEvent("server-state", { detail: last }));
  if (last.error?.status !== 401) timer = setTimeout(askState, document.hidden ? 6 * wait : wait);
}

function healthOf({ error, ready, draining }) {
  if (error?.status === 401) return ["warn", t("needsToken")];
  if (error) return ["bad", t(error.code === "offline" ? "offline" : "unreachable")];
  if (draining) return ["warn", t("draining")];
  return ready ? ["good", t("ready")] : ["warn", t("starting")];
}

function askToken() {
  const dialog = one("#token-dialog");
  if (!dialog.open) dialog.showModal();
}

one("#token-dialog form").addEventListener("submit", async () => {
  useToken(one("#token").value);
  one("#token").value = "";
  await askState();
  dispatchEvent(new Event("token-given"));
});
addEventListener("token-needed", askToken);

one("#language").value = currentLanguage();
one("#language").addEventListener("change", ({ target }) => {
  useLanguage(target.value);
  document.title = `${t(shown.name)} – Telephony TTS`;
  askState(); // its words are in the other language too
});

const isDark = () => {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};
function useTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  one("#theme").setAttribute("aria-pressed", String(isDark()));
}
useTheme(localStorage.getItem("theme"));
one("#theme").addEventListener("click", () => {
  const theme = isDark() ? "light" : "dark";
  localStorage.setItem("theme", theme);
  useTheme(theme);
  dispatchEvent(new Event("theme"));
});

// ------------------------------------------------ the page "Is it well?": engines, and what `doctor` says

const seen = new Map(); // since when an engine loads
let findings = [];

function stateOf(engine) {
  if (engine.loading === "waiting") return ["warn", t("queued")];
  if (engine.loading === "loading") {
    if (!seen.has(engine.name)) seen.set(engine.name, performance.now());
    return ["warn", t("loading", Math.round((performance.now() - seen.get(engine.name)) / 1000))];
  }
  return engine.ready ? ["good", t("ready")] : ["bad", t("notResponding")];
}

function showEngines(server) {
  if (!server?.engines) return;
  const n = server.engines.filter((engine) => engine.loading === "loaded").length;
  const cards = server.engines.map((engine) => {
    const [kind, text] = stateOf(engine);
    const facts = [["load", engine.load.toFixed(2)], ["inQueue", engine.queued], ["running", engine.running], ["nVoices", engine.voices]];
    const rows = facts.flatMap(([name, value]) => [element("dt", {}, t(name)), element("dd", {}, String(value))]);
    const progress = engine.loading === "loading" ? [element("progress", { "aria-label": engine.name }), element("p", { className: "hint step" }, engine.step)] : [];
    return element("article", { className: "card" },
      element("h2", {}, engine.name, element("span", { className: `state ${kind}` }, text)), ...progress, element("dl", {}, ...rows));
  });
  one("#engines").replaceChildren(...cards);
  one("#engines").dataset.loaded = `${n}/${server.engines.length}`;
}

const KINDS = { ok: "good", optional: "", missing: "warn", warning: "warn", broken: "bad" };

function drawFindings() {
  const order = ["broken", "warning", "missing", "ok", "optional"];
  const sorted = findings.toSorted((a, b) => order.indexOf(a.state) - order.indexOf(b.state));
  const rows = sorted.map(({ state: found, what, detail }) => element("tr", {},
    element("td", {}, element("span", { className: `state ${KINDS[found] ?? ""}` }, t(found))),
    element("th", { scope: "row" }, what), element("td", {}, detail)));
  const head = ["state", "part", "detail"].map((key) => element("th", { scope: "col" }, t(key)));
  one("#findings").replaceChildren(element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
}

async function examine() {
  one("#examine").disabled = true;
  one("#examining").textContent = t("examining");
  try {
    ({ findings } = await read("console/api/doctor"));
    drawFindings();
  } catch (error) {
    if (error.status !== 401) tell(error.message);
  } finally {
    one("#examine").disabled = false;
    one("#examining").textContent = "";
  }
}

one("#examine").addEventListener("click", examine);
addEventListener("token-given", () => !one("#well").hidden && examine());
addEventListener("language", () => findings.length && drawFindings());

const well = {
  show(server) {
    showEngines(server);
    if (!findings.length) examine();
  },
  state: showEngines,
};

// ------------------------------------------------------------------------------------------- begin

addEventListener("hashchange", show);
document.addEventListener("visibilitychange", () => !document.hidden && askState());
for (const change of ["online", "offline"]) addEventListener(change, askState);
translate();
show();
askState();
