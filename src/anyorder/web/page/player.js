// Play button, step slider and keys. Knows steps only; whoever owns it draws.

import { el, icon } from "./dom.js";

const PACE = { slow: 900, normal: 420, fast: 140 };

/** Controls for steps 0..last: `{node, go(step), play(), pause(), reset(last, step), playing, step}`; `onStep(step)` is told of every change. */
export function player(onStep) {
  let last = 0;
  let step = 0;
  let pace = "normal";
  let timer = null;

  const button = el("button", { type: "button", class: "play", onclick: toggle });
  const slider = el("input", { type: "range", min: "0", max: "0", step: "1", "aria-label": "Step", oninput: () => (pause(), go(Number(slider.value))) });
  const count = el("output", { class: "count" });
  const speed = el("button", { type: "button", class: "plain speed", onclick: faster });
  const told = el("span", { class: "unseen", "aria-live": "polite", role: "status" });
  const node = el("div", { class: "player", role: "group", "aria-label": "Player" }, button, slider, count, speed, told);
  draw();

  function draw() {
    const label = timer ? "Pause" : "Play";
    if (button.title !== `${label} (space)`) button.replaceChildren(icon(label.toLowerCase()));
    button.setAttribute("aria-label", label);
    button.title = `${label} (space)`;
    speed.textContent = { slow: "½×", normal: "1×", fast: "3×" }[pace];
    speed.setAttribute("aria-label", `Speed: ${pace}`);
    speed.title = "Speed";
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
    timer = setInterval(tick, PACE[pace]);
    told.textContent = `Playing from step ${step} of ${last}`;
    draw();
  }

  function pause() {
    if (!timer) return;
    clearInterval(timer);
    timer = null;
    told.textContent = `Paused at step ${step} of ${last}`;
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

  function faster() {
    const names = Object.keys(PACE);
    pace = names[(names.indexOf(pace) + 1) % names.length];
    if (timer) {
      clearInterval(timer);
      timer = setInterval(tick, PACE[pace]);
    }
    draw();
  }

  /** Space, arrows, Home and End, wherever the focus is, unless it is where these keys mean something else. */
  function key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (!node.isConnected || node.offsetParent === null) return;
    const own = event.target === slider;
    if (!own && event.target.closest?.("input:not([type=checkbox]), select, textarea, [contenteditable], [role=tablist]")) return;
    if (event.key === " " && event.target.closest?.("button, [type=checkbox], summary")) return;
    const act = {
      " ": toggle,
      ArrowRight: () => (pause(), go(step + 1)),
      ArrowLeft: () => (pause(), go(step - 1)),
      Home: () => (pause(), go(0)),
      End: () => (pause(), go(last)),
    }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }
  document.addEventListener("keydown", key);

  return {
    node,
    go,
    play,
    pause,
    /** Other steps: the slider jumps there without a call of `onStep`. */
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
