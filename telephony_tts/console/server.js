// The server, as the pages use it. A token stays in this tab, and travels in a header or a subprotocol only.

import { problemText, t } from "./texts.js";

export const base = new URL("../", location.href.split("#")[0]);

let token = sessionStorage.getItem("token") ?? "";

export function useToken(given) {
  token = given.trim();
  sessionStorage.setItem("token", token);
}

export class ServerError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

// The response to a request. Throws ServerError for every status that is not a success.
export async function ask(path, options = {}) {
  const headers = { ...options.headers };
  const used = token;
  if (used) headers.Authorization = `Bearer ${used}`;
  const how = { credentials: "omit", redirect: "error", ...options, headers };
  let response;
  try {
    response = await fetch(new URL(path, base), how);
  } catch (error) {
    if (options.signal?.aborted) throw options.signal.reason;
    throw new ServerError(0, "unreachable", t("cannotReach"));
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => ({}));
  if (response.status === 401 && used === token) dispatchEvent(new Event("token-needed")); // else one was given since
  const { code = "", message = response.statusText } = told.error ?? {};
  throw new ServerError(response.status, code, problemText({ code, message }));
}

export const read = async (path, options) => (await ask(path, options)).json();

const base64url = (text) =>
  btoa(String.fromCharCode(...new TextEncoder().encode(text))).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");

export function openSocket(path, options = {}) {
  const url = new URL(path, base);
  url.protocol = url.protocol.replace("http", "ws");
  url.search = new URLSearchParams(options);
  const socket = new WebSocket(url, token ? ["token.base64url", base64url(token)] : []);
  socket.binaryType = "arraybuffer";
  return socket;
}

// An element with text, attributes and children. Text stays text: nothing here becomes markup.
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key in made && key !== "list") made[key] = value;
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

export function save(name, blob) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

export const one = (selector, inside = document) => inside.querySelector(selector);
