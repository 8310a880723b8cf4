// Requests to the gateway that serves this page.

export class ApiError extends Error {
  constructor(message, status, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

function headers(key) {
  const sent = { "content-type": "application/json" };
  if (key) sent.authorization = `Bearer ${key}`;
  return sent;
}

async function throwError(response) {
  const text = await response.text();
  let error = { message: text || `status ${response.status}` };
  try {
    error = JSON.parse(text).error;
  } catch { /* a proxy's error, not the gateway's */ }
  if (response.status === 401) error.message = "The API key is missing or wrong. Enter it in the settings.";
  throw new ApiError(error.message, response.status, error.code);
}

export async function get(path, key) {
  const response = await fetch(path, { headers: headers(key) });
  if (!response.ok) await throwError(response);
  return response.json();
}

export async function post(path, body, key) {
  const response = await fetch(path, { method: "POST", headers: headers(key), body: JSON.stringify(body) });
  if (!response.ok) await throwError(response);
  return response.json();
}

// Yields the objects of a streamed answer. Aborting the signal cancels the request.
export async function* stream(path, body, key, signal) {
  const response = await fetch(path, {
    method: "POST", headers: headers(key), body: JSON.stringify(body), signal,
  });
  if (!response.ok) await throwError(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new ApiError("The answer ended unexpectedly.");
    const lines = (held + value).split("\n");
    held = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      const data = line.slice("data: ".length);
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(chunk.error.message);
      yield chunk;
    }
  }
}
