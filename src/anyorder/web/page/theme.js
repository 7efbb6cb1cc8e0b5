// Light or dark: the system's setting until the reader chooses.

import { icon } from "./dom.js";

const KEY = "anyorder-theme";

/** Makes a button switch the theme; `onchange` is called afterwards, for drawings with their own colors. */
export function themeButton(button, onchange = () => {}) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = loadChoice();
  const isDark = () => (chosen ? chosen === "dark" : dark.matches);

  function apply() {
    document.documentElement.dataset.theme = isDark() ? "dark" : "light";
    button.replaceChildren(icon(isDark() ? "sun" : "moon"));
    button.setAttribute("aria-label", isDark() ? "Light theme" : "Dark theme");
    button.title = button.getAttribute("aria-label");
    onchange();
  }

  button.addEventListener("click", () => {
    chosen = isDark() ? "light" : "dark";
    saveChoice(chosen);
    apply();
  });
  dark.addEventListener("change", apply);
  apply();
}

/** A page from disk may have no storage; then the choice lasts until the page is closed. */
function loadChoice() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

function saveChoice(value) {
  try {
    localStorage.setItem(KEY, value);
  } catch {
    // No storage.
  }
}
