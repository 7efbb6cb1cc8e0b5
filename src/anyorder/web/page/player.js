// Play button, step slider and keys. It knows only step numbers; the caller draws.

import { el, icon } from "./dom.js";

const INTERVALS = { slow: 900, normal: 420, fast: 140 };

/** Controls for steps 0..last: `{node, go(step), play(), pause(), reset(last, step), playing, step}`; `onStep(step)` is called after every change. */
export function player(onStep) {
  let last = 0;
  let step = 0;
  let speed = "normal";
  let timer = null;

  const button = el("button", { type: "button", class: "play", onclick: toggle });
  const slider = el("input", { type: "range", min: "0", max: "0", step: "1", "aria-label": "Step", oninput: () => (pause(), go(Number(slider.value))) });
  const count = el("output", { class: "count" });
  const speedButton = el("button", { type: "button", class: "plain speed", onclick: nextSpeed });
  const status = el("span", { class: "visually-hidden", "aria-live": "polite", role: "status" });
  const node = el("div", { class: "player", role: "group", "aria-label": "Player" }, button, slider, count, speedButton, status);
  draw();

  function draw() {
    const label = timer ? "Pause" : "Play";
    if (button.title !== `${label} (space)`) button.replaceChildren(icon(label.toLowerCase()));
    button.setAttribute("aria-label", label);
    button.title = `${label} (space)`;
    speedButton.textContent = { slow: "½×", normal: "1×", fast: "3×" }[speed];
    speedButton.setAttribute("aria-label", `Speed: ${speed}`);
    speedButton.title = "Speed";
    slider.max = String(last);
    slider.value = String(step);
    slider.setAttribute("aria-valuetext", `step ${step} of ${last}`);
    slider.style.setProperty("--done", last ? (step / last).toFixed(4) : "0");
    count.textContent = `${step} / ${last}`;
  }

  function go(to) {
    const target = Math.min(last, Math.max(0, to));
    if (target === step) return;
    step = target;
    draw();
    onStep(step);
  }

  function play() {
    if (timer || !last) return;
    if (step === last) go(0);
    timer = setInterval(tick, INTERVALS[speed]);
    status.textContent = `Playing from step ${step} of ${last}`;
    draw();
  }

  function pause() {
    if (!timer) return;
    clearInterval(timer);
    timer = null;
    status.textContent = `Paused at step ${step} of ${last}`;
    draw();
  }

  function tick() {
    go(step + 1);
    if (step === last) pause();
  }

  function toggle() {
    if (timer) pause();
    else play();
  }

  function nextSpeed() {
    const names = Object.keys(INTERVALS);
    speed = names[(names.indexOf(speed) + 1) % names.length];
    if (timer) {
      clearInterval(timer);
      timer = setInterval(tick, INTERVALS[speed]);
    }
    draw();
  }

  /** Space, arrows, Home and End work everywhere except where these keys have another meaning. */
  function onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (!node.isConnected || node.offsetParent === null) return;
    const onSlider = event.target === slider;
    if (!onSlider && event.target.closest?.("input:not([type=checkbox]), select, textarea, [contenteditable], [role=tablist]")) return;
    if (event.key === " " && event.target.closest?.("button, [type=checkbox], summary")) return;
    const action = {
      " ": toggle,
      ArrowRight: () => (pause(), go(step + 1)),
      ArrowLeft: () => (pause(), go(step - 1)),
      Home: () => (pause(), go(0)),
      End: () => (pause(), go(last)),
    }[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }
  document.addEventListener("keydown", onKey);

  return {
    node,
    go,
    play,
    pause,
    /** Sets the last step and the current one, without calling `onStep`. */
    reset(newLast, newStep) {
      pause();
      last = newLast;
      step = Math.min(last, Math.max(0, newStep));
      draw();
    },
    get step() {
      return step;
    },
    get playing() {
      return timer !== null;
    },
  };
}
