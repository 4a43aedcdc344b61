// Questions to the server. Addresses are relative, so that the page works behind any proxy prefix.

/** Ask; a refusal becomes an error with the server's own words. */
export async function ask(path, parameters = {}, options = {}) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(parameters)) {
    if (value !== undefined && value !== null && value !== "") query.set(key, value);
  }
  const answer = await fetch(`api/${path}?${query}`, options);
  if (answer.status === 304) return null;
  if (!answer.ok) throw new Error((await answer.text()).trim() || answer.statusText);
  return answer.json();
}

/** Write a label. */
export function tell(path, parameters, body) {
  return ask(path, parameters, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-Rollforge": "1" },
    body: JSON.stringify(body),
  });
}
