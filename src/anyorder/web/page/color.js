// One sequential color scale for steps and probabilities. Lightness rises evenly from dark indigo to pale yellow, so it
// also works in gray and with color blindness. `anyorder.report.plots` uses the same formula.

const STOPS = 64;
const table = Array.from({ length: STOPS + 1 }, (_, i) => compute(i / STOPS));

/** The CSS color at t, from 0 to 1. */
export function scale(t) {
  return table[Math.round(Math.min(1, Math.max(0, t)) * STOPS)].css;
}

/** Black or white, whichever is easier to read on `scale(t)`. */
export function ink(t) {
  return table[Math.round(Math.min(1, Math.max(0, t)) * STOPS)].ink;
}

/** Where a step stands on the scale, from 0 to 1. */
export function stepTone(step, count) {
  return count > 1 ? (step - 1) / (count - 1) : 0;
}

/** The sRGB channels at t, each from 0 to 1: lightness is linear in OKLCH. */
export function rgb(t) {
  const lightness = 0.34 + 0.6 * t;
  const chroma = 0.094 + 0.036 * (2 * t - 1) ** 2; // the most that sRGB can show at every t, so no channel is clipped
  const hue = ((290 - 185 * t) * Math.PI) / 180;
  const a = chroma * Math.cos(hue);
  const b = chroma * Math.sin(hue);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return linear.map((x) => {
    const clipped = Math.min(1, Math.max(0, x));
    return clipped <= 0.0031308 ? 12.92 * clipped : 1.055 * clipped ** (1 / 2.4) - 0.055;
  });
}

function compute(t) {
  const color = rgb(t);
  const [r, g, b] = color.map((x) => (x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
  const luminance = 0.2126 * r + 0.7152 * g + 0.0722 * b;
  // The contrast of the better one is never below 4.5, the minimum of WCAG 2.
  const white = 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05;
  return { css: `rgb(${color.map((x) => Math.round(x * 255)).join(" ")})`, ink: white ? "#fff" : "#000" };
}
