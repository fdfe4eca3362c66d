// Numbers and outcomes in words. An outcome has a shape and a word besides its colour.
"use strict";

stark.OUTCOMES = {
  faster: { word: "faster", shape: "disc", glyph: "●" },
  slower: { word: "correct, slower", shape: "ring", glyph: "○" },
  reference: { word: "reference", shape: "house", glyph: "⌂" },
  rejected: { word: "rejected", shape: "diamond", glyph: "◆" },
  compile_error: { word: "compile error", shape: "square", glyph: "■" },
  runtime_error: { word: "runtime error", shape: "triangle", glyph: "▲" },
  wrong_result: { word: "wrong result", shape: "cross", glyph: "✕" },
  timeout: { word: "timeout", shape: "bars", glyph: "‖" },
  crash: { word: "crash", shape: "triangle", glyph: "▲" },
  out_of_memory: { word: "out of memory", shape: "down", glyph: "▼" },
  unusable_reply: { word: "unusable reply", shape: "dash", glyph: "–" },
};

stark.kindOf = (row, rootMs) => {
  if (row.id === 0) return "reference";
  if (row.outcome !== "ok") return row.outcome in stark.OUTCOMES ? row.outcome : "runtime_error";
  return rootMs && row.ms > rootMs ? "slower" : "faster";
};

const threeDigits = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 }); // to make one takes longer than to use it
const few = (number) => threeDigits.format(number);
stark.format = {
  ms: (value) => {
    if (value === null || value === undefined) return "–";
    if (value < 0.1) return `${few(value * 1000)} µs`;
    return value < 1000 ? `${few(value)} ms` : `${few(value / 1000)} s`;
  },
  speed: (value) => (value === null || value === undefined ? "–" : `${value < 10 ? value.toFixed(2) : few(value)}×`),
  interval: (pair) => (pair ? `${pair[0].toFixed(2)}× to ${pair[1].toFixed(2)}×` : ""),
  usd: (value) => (value === null || value === undefined ? "not known" : value === 0 ? "$0" : `$${value < 1 ? value.toFixed(4) : value.toFixed(2)}`),
  tokens: (value) => {
    if (!value) return "0";
    if (value < 10_000) return value.toLocaleString("en");
    return value < 1e6 ? `${few(value / 1000)}k` : `${few(value / 1e6)}M`;
  },
  seconds: (value) => {
    if (value === null || value === undefined) return "–";
    if (value < 60) return `${value < 10 && !Number.isInteger(value) ? value.toFixed(1) : Math.round(value)} s`;
    const minutes = Math.floor(value / 60);
    return minutes < 60 ? `${minutes} min ${Math.round(value % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  },
  ago: (text) => {
    const seconds = (Date.now() - Date.parse(text)) / 1000;
    if (!Number.isFinite(seconds)) return text;
    if (seconds < 90) return "just now";
    for (const [size, word] of [[86400, "day"], [3600, "hour"], [60, "minute"]]) {
      const count = Math.floor(seconds / size);
      if (count) return `${count} ${word}${count > 1 ? "s" : ""} ago`;
    }
    return "";
  },
  percent: (value) => `${Math.round(value * 100)} %`,
  // A share of the bound: "~" marks a bound that is only a hint.
  share: (value, isCertain) => (value === null || value === undefined ? "" : `${isCertain ? "" : "~"}${stark.format.percent(value)}`),
};

// The share of the bound that a time reaches; null if it is not known.
stark.shareOf = (run, ms) => (run.bound?.ms && ms ? run.bound.ms / ms : null);
stark.HINT = "~ marks a bound that is only a hint";

// A small drawing of an outcome and its word.
stark.badge = (kind, word) =>
  stark.h("span", { class: `badge kind-${kind}` },
    stark.h("span", { class: "glyph", "aria-hidden": "true" }, stark.OUTCOMES[kind].glyph),
    word || stark.OUTCOMES[kind].word);
