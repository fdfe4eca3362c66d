// Shows source with line numbers and colours. Python, and the C++ or CUDA inside its strings.
"use strict";

const PYTHON = new Set("False None True and as assert async await break class continue def del elif else except finally for from global if import in is lambda nonlocal not or pass raise return try while with yield self".split(" "));
const CPP = new Set("alignas alignof auto bool break case catch char class const constexpr continue default delete do double else enum extern false float for friend goto if inline int long namespace new nullptr operator private protected public return short signed sizeof static static_cast reinterpret_cast struct switch template this throw true try typedef typename union unsigned using virtual void volatile while __global__ __device__ __host__ __shared__ __restrict__ __forceinline__ __launch_bounds__ half float2 float4 int64_t int32_t uint32_t size_t dim3 blockIdx threadIdx blockDim gridDim".split(" "));
const LOOKS_CPP = /#include|__global__|torch::|at::Tensor|#pragma/;
const WORDS = {
  python: /(#[^\n]*)|("""|''')|("(?:\\[^\n]|[^"\\\n])*"?|'(?:\\[^\n]|[^'\\\n])*'?)|(\d[\w.]*)|([A-Za-z_]\w*)|([^\w"'#]+)/g,
  cpp: /(\/\/[^\n]*|\/\*[^]*?(?:\*\/|$)|^[ \t]*#[a-z]+)|(?!)(x)|("(?:\\[^\n]|[^"\\\n])*"?)|(\d[\w.]*)|([A-Za-z_]\w*)|([^\w"/]+|\/|[^])/gm,
};
const NAMES = [null, "comment", null, "string", "number"];

const scan = (text, language, tokens) => {
  const pattern = new RegExp(WORDS[language].source, WORDS[language].flags);
  const keywords = language === "python" ? PYTHON : CPP;
  for (let found; (found = pattern.exec(text)); ) {
    if (found[2] && language === "python") {
      const end = text.indexOf(found[2], pattern.lastIndex);
      const stop = end < 0 ? text.length : end;
      const inner = text.slice(pattern.lastIndex, stop);
      tokens.push(["string", found[2]]);
      if (LOOKS_CPP.test(inner)) scan(inner, "cpp", tokens);
      else tokens.push(["string", inner]);
      tokens.push(["string", text.slice(stop, stop + 3)]);
      pattern.lastIndex = stop + 3;
    } else {
      const kind = found[5] ? (keywords.has(found[5]) ? "keyword" : text[pattern.lastIndex] === "(" ? "call" : "") : NAMES[[1, 3, 4].find((group) => found[group]) ?? 0] || "";
      tokens.push([kind, found[0]]);
    }
    if (found[0] === "") pattern.lastIndex++;
  }
};

// Returns one list of [kind, text] for each line.
stark.colourLines = (text, language) => {
  const tokens = [];
  if (language === "python") scan(text, "python", tokens);
  else tokens.push(["", text]);
  const lines = [[]];
  for (const [kind, word] of tokens) {
    word.split("\n").forEach((part, index) => {
      if (index) lines.push([]);
      if (part) lines[lines.length - 1].push([kind, part]);
    });
  }
  return lines;
};

// Elements for one line. marks: [start, end] columns that changed.
stark.lineOf = (tokens, marks = []) => {
  const pieces = [];
  let column = 0;
  for (const [kind, word] of tokens) {
    let from = 0;
    while (from < word.length) {
      const at = column + from;
      const mark = marks.find(([start, end]) => at >= start && at < end);
      const next = mark ? mark[1] : Math.min(...marks.map(([start]) => (start > at ? start : Infinity)));
      const to = Math.min(word.length, next - column);
      const text = word.slice(from, to);
      const name = [kind && `t-${kind}`, mark && "changed"].filter(Boolean).join(" ");
      pieces.push(name ? stark.h("span", { class: name }, text) : text);
      from = to;
    }
    column += word.length;
  }
  return pieces;
};

const BLOCK = 100; // lines that the browser may skip together while they are out of sight

stark.codeView = (text, { language = "", regions = [], label = "" } = {}) => {
  const shown = stark.visible(text);
  const lines = stark.colourLines(shown, language);
  const isMarked = (number) => regions.some(([first, last]) => number >= first && number <= last);
  const blocks = [];
  for (let start = 0; start < lines.length; start += BLOCK) {
    const rows = lines.slice(start, start + BLOCK).map((tokens, index) => {
      const number = start + index + 1;
      return stark.h("div", { class: isMarked(number) ? "line region" : "line" },
        stark.h("span", { class: "number", "data-number": number }), stark.h("code", null, stark.lineOf(tokens)));
    });
    const block = stark.h("div", { class: "block" }, rows);
    block.style.containIntrinsicHeight = `${rows.length * 18}px`;
    blocks.push(block);
  }
  return stark.h("div", { class: "sheet" },
    stark.h("div", { class: "sheet-head" }, stark.h("span", null, label), stark.h("span", { class: "dim" }, `${lines.length.toLocaleString("en")} lines, ${shown.length.toLocaleString("en")} characters`), stark.copyButton(text)),
    stark.h("div", { class: "code", tabindex: 0, role: "region", "aria-label": label || "text" }, blocks));
};
