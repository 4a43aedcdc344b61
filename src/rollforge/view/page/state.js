// The state of the page is its address: what is open, filtered and sorted. A link is a finding.

/** The state in the address. */
export function read() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

/** The address of a state; empty values are left out. */
export function link(state) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(state)) {
    if (value !== undefined && value !== null && value !== "") query.set(key, value);
  }
  return `#${query}`;
}

/** Go to a state: the same page with some values changed. With `replace` the page shows that state already. */
export function go(changes, { replace = false } = {}) {
  const next = link({ ...read(), ...changes });
  if (replace) history.replaceState(null, "", next);
  else location.hash = next;
}
