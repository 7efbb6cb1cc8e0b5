// A choice by name: a short list in groups, and a field for any other name, which the server checks.

import { choice, el } from "./dom.js";

const OTHER = "other";

/**
 * `label` is what is chosen, such as "Schedule", and `hint` an example of another name. `check(name)` is a promise of a line
 * about a typed name; it throws an Error with one line if the name is wrong. `onChange()` is called when another name is
 * chosen, and whenever a typed one was found right. Returns `{node, offer(choices), value, check(), say(line)}`; a choice is {name, label,
 * group?}.
 */
export function namedChoice(label, hint, check, onChange = () => {}) {
  const noun = label.toLowerCase();
  let offered = [];
  let checked = null; // {name, result}: the typed name that was checked last, and a promise of {line, isRight}

  const note = el("span", { id: `${noun}-note`, class: "muted named-note", "aria-live": "polite" });
  const listed = choice(label, [], "", choose);
  const select = listed.querySelector("select");
  select.setAttribute("aria-describedby", note.id);
  const input = el("input", { type: "text", class: "named-input", maxlength: "100", placeholder: hint, "aria-label": `Another ${noun}`, "aria-describedby": note.id, spellcheck: "false", autocomplete: "off", autocapitalize: "none", hidden: true });
  input.addEventListener("input", () => say("")); // what was said is about another name
  input.addEventListener("change", checkTyped);
  const node = el("span", { class: "named" }, listed, input, note);

  function choose(name) {
    say("");
    show(name);
    if (name === OTHER) input.focus();
    else onChange();
  }

  function show(name) {
    input.hidden = name !== OTHER;
    select.title = select.selectedOptions[0]?.textContent ?? "";
  }

  function say(line, wrong = false) {
    note.textContent = line.replace(/\s+/g, " ");
    note.classList.toggle("wrong", wrong);
    if (wrong) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  }

  /** Whether the name is right; what the server says about a typed one is shown. */
  async function checkTyped() {
    if (select.value !== OTHER) return true;
    const name = input.value.trim();
    if (checked?.name !== name) checked = { name, result: ask(name) };
    const { line, isRight } = await checked.result;
    if (select.value !== OTHER || input.value.trim() !== name) return false; // it goes on being typed
    say(line, !isRight);
    if (isRight) onChange();
    return isRight;
  }

  async function ask(name) {
    if (!name) return { line: `Type a ${noun}, such as ${hint}.`, isRight: false };
    try {
      return { line: await check(name), isRight: true };
    } catch (error) {
      checked = null; // the server may not have answered
      return { line: error.message, isRight: false };
    }
  }

  function optionOf({ name, label: text }) {
    return el("option", { value: name }, `${name} – ${text}`);
  }

  return {
    node,
    /** Offers other choices; what is chosen stays. */
    offer(choices) {
      const before = this.value;
      offered = choices;
      const groups = [...new Set(choices.map(({ group }) => group ?? ""))];
      const options = groups.flatMap((group) => {
        const members = choices.filter((one) => (one.group ?? "") === group).map(optionOf);
        return group ? [el("optgroup", { label: group }, ...members)] : members;
      });
      select.replaceChildren(...options, el("option", { value: OTHER }, "another …"));
      checked = null; // another model may take other names
      this.value = before || choices[0].name;
    },
    get value() {
      return select.value === OTHER ? input.value.trim() : select.value;
    },
    /** A name that is not offered goes into the field. */
    set value(name) {
      const isOffered = offered.some((one) => one.name === name);
      select.value = isOffered ? name : OTHER;
      if (!isOffered) input.value = name;
      say("");
      show(select.value);
    },
    check: checkTyped,
    say,
  };
}
