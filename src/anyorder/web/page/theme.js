// Light or dark: the system's choice until the reader makes one.

import { icon } from "./dom.js";

const KEY = "anyorder-theme";

/** Makes a button that switches; `onchange` is called afterwards, for whatever is drawn in colours of its own. */
export function themeButton(button, onchange = () => {}) {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let chosen = remembered();
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
    remember(chosen);
    apply();
  });
  dark.addEventListener("change", apply);
  apply();
}

/** A page from disk may have no storage; then the choice lasts as long as the page. */
function remembered() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null;
  }
}

function remember(value) {
  try {
    localStorage.setItem(KEY, value);
  } catch {
    // Nothing to do.
  }
}
