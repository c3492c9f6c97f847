// Requests to the service that this page came from.

let token = "";
export const setToken = (text) => { token = text; };

export class ServiceError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

async function request(path, options = {}) {
  const headers = { ...options.headers, ...(token && { Authorization: `Bearer ${token}` }) };
  let response;
  try {
    response = await fetch(path, { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServiceError("The service cannot be reached. Is it still running?", 0);
  }
  const body = await response.json().catch(() => ({}));
  if (response.ok) return body;
  const { message = `error ${response.status}`, remedy = "try again" } = body.error ?? {};
  throw new ServiceError(`${capital(message)}: ${remedy}.`, response.status);
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

const post = (path, body, signal) =>
  request(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal });

export const models = async () => (await request("v1/models")).models;

export const answer = async (question, context, model, signal) =>
  (await post("v1/answer", { question, context, model, top_k: 4 }, signal)).answers[0];

export const attention = (question, context, model, signal) =>
  post("v1/attention", { question, context, model }, signal);
