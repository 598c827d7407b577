// Requests to the console's API, docs/reference/console-api.md.

/** The server has refused a request, and says why. */
export class Refused extends Error {
  constructor(status, answer) {
    super(answer.error);
    this.status = status;
    this.answer = answer;
  }
}

/** No answer has come. */
export class Unreachable extends Error {}

/** Who one is: the answer of /api/me, and when the program was started, on the page's own clock. */
export let me = null;

/** The nodes that have not answered the one that is asked; those of a program that is alone are none. */
export let missing = {};

const PATIENCE_MILLISECONDS = 15_000;

/** Returns the path of an API resource; parts between slashes are escaped. */
export function path(strings, ...parts) {
  // A browser takes these names for the way up, however they are encoded.
  const dots = parts.find((part) => part === "." || part === "..");
  const escaped = parts.map((part) => (part === dots ? "-" : encodeURIComponent(part)));
  return String.raw({ raw: strings }, ...escaped) + (dots ? query({ named: dots }) : "");
}

/** Returns a query string of what is not empty. */
export function query(parameters) {
  const filled = Object.entries(parameters).filter(
    ([, value]) => value !== undefined && value !== null && value !== "",
  );
  return filled.length ? `?${new URLSearchParams(filled)}` : "";
}

/**
 * Sends a request and returns the answer's JSON.
 *
 * @throws {Refused} the server has answered with an error.
 * @throws {Unreachable} it has not answered.
 */
export async function call(method, target, body, signal) {
  const headers = {};
  if (method !== "GET" && me?.csrf) headers["X-CSRF-Token"] = me.csrf;
  if (method !== "GET") headers["Content-Type"] = "application/json";
  const until = AbortSignal.timeout(PATIENCE_MILLISECONDS);
  let response, text;
  try {
    response = await fetch(`api/${target}`, {
      method,
      headers,
      body: method === "GET" ? undefined : JSON.stringify(body ?? {}),
      signal: method !== "GET" ? null : signal ? AbortSignal.any([signal, until]) : until,
      cache: "no-store",
    });
    text = await response.text();
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Unreachable("the broker does not answer");
  }
  let answer;
  try {
    answer = text ? JSON.parse(text) : {};
  } catch {
    answer = { error: `read ${response.status} without JSON; is something else between the page and the broker?` };
  }
  if (!response.ok)
    throw new Refused(response.status, { error: `${response.status} ${response.statusText}`, ...answer });
  missing = answer.missing ?? missing;
  return answer;
}

export const get = (target, signal) => call("GET", target, undefined, signal);

/** Asks who one is; afterwards `me` says it. */
export async function meet() {
  me = await get("me");
  me.startedAt = performance.now() / 1000 - me.started_seconds;
  return me;
}

export async function logIn(credentials) {
  await call("POST", "login", credentials);
  return meet();
}

export async function logOut() {
  await call("POST", "logout");
}
