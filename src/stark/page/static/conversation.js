// Exactly what each role saw and answered: window, rendered prompt, reply, tokens and cost.
"use strict";

stark.conversation = (calls, openNode) => {
  if (!calls.length) return stark.h("p", { class: "notice" }, "No call of a model is stored for this node.");
  return stark.h("div", { class: "calls" }, calls.map((call, index) => stark.callView(call, index, openNode)));
};

stark.callView = (call, index, openNode) => {
  const { format, h } = stark;
  const fact = (name, value) => h("div", { class: "fact" }, h("dt", null, name), h("dd", null, value));
  const cached = call.cached_input_tokens ? `, ${format.tokens(call.cached_input_tokens)} cached` : "";
  const window_ = call.window.length
    ? call.window.map((id) => h("button", { class: "chip", type: "button", title: `Open node ${id}`, onclick: () => openNode(id) }, id === 0 ? "root" : `#${id}`))
    : "no other node";
  return h("section", { class: "call" },
    h("h3", null, h("span", { class: `role role-${call.role}` }, call.role), stark.visible(call.answered_by || call.model), h("span", { class: "dim" }, `call ${index + 1}, ${call.finish}`)),
    h("dl", { class: "facts" },
      fact("window", window_),
      fact("tokens", `${format.tokens(call.input_tokens)} in${cached}, ${format.tokens(call.output_tokens)} out`),
      fact("cost", format.usd(call.usd)),
      fact("took", format.seconds(call.seconds)),
      fact("began", call.started_at.replace("T", " ").slice(0, 19)),
      call.form ? fact("answer form", stark.visible(call.form)) : null,
      call.notes.length ? fact("notes", call.notes.map(stark.visible).join("; ")) : null),
    call.messages.map((message) => long(`Prompt: ${message.role}`, message.content, message.role !== "system")),
    call.reply ? long("Reply", call.reply, true) : null,
    call.arguments ? long("Reply: structured answer", readable(call.arguments), true) : null,
    call.reply || call.arguments ? null : h("p", { class: "notice" }, "The reply is empty."));
};

// The fields of a structured answer as text, or the raw answer if it is not an object of texts.
const readable = (text) => {
  try {
    const fields = JSON.parse(text);
    if (fields && typeof fields === "object" && Object.values(fields).every((value) => typeof value === "string")) {
      return Object.entries(fields).map(([name, value]) => `── ${name} ──\n${value}`).join("\n\n");
    }
  } catch {} // a model may write anything
  return text;
};

// A long text is drawn when it is opened.
const long = (label, text, isOpen) => {
  const details = stark.h("details", { class: "message", open: isOpen }, stark.h("summary", null, label, stark.h("span", { class: "dim" }, `${text.length.toLocaleString("en")} characters`)));
  const draw = () => details.open && details.children.length === 1 && details.append(stark.codeView(text, { label }));
  details.addEventListener("toggle", draw);
  draw();
  return details;
};
