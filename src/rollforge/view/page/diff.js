// The words in which two texts differ: longest common subsequence over words, bounded in size.

const MOST = 3000;

/** [{kind: "same"|"left"|"right", text}] for two texts. */
export function diff(left, right) {
  const a = words(left);
  const b = words(right);
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
  let tail = 0;
  while (tail < a.length - head && tail < b.length - head && a[a.length - 1 - tail] === b[b.length - 1 - tail]) tail += 1;
  const middle = between(a.slice(head, a.length - tail), b.slice(head, b.length - tail));
  return merge([
    ...a.slice(0, head).map((text) => ({ kind: "same", text })),
    ...middle,
    ...a.slice(a.length - tail).map((text) => ({ kind: "same", text })),
  ]);
}

function words(text) {
  return text.match(/\s+|\w+|[^\s\w]/gu) ?? [];
}

function between(a, b) {
  if (a.length > MOST || b.length > MOST) return [{ kind: "left", text: a.join("") }, { kind: "right", text: b.join("") }];
  const best = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      best[i][j] = a[i] === b[j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
    }
  }
  const parts = [];
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      parts.push({ kind: "same", text: a[i] });
      i += 1;
      j += 1;
    } else if (j >= b.length || (i < a.length && best[i + 1][j] >= best[i][j + 1])) {
      parts.push({ kind: "left", text: a[i] });
      i += 1;
    } else {
      parts.push({ kind: "right", text: b[j] });
      j += 1;
    }
  }
  return parts;
}

function merge(parts) {
  const found = [];
  for (const part of parts) {
    const last = found[found.length - 1];
    if (last && last.kind === part.kind) last.text += part.text;
    else found.push({ ...part });
  }
  return found.filter((part) => part.text);
}
