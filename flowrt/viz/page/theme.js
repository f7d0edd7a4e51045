// The colours and fonts of style.css for drawing on a canvas, in dark or light mode.

import { CATEGORIES } from "./colour.js";

const NAMES = [
  "page",
  "box",
  "group",
  "deep",
  "line",
  "ink",
  "muted",
  "wire",
  "accent",
  "transfer",
  "added",
  "removed",
  "changed",
];
const AMOUNTS = 5;

export function readTheme() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(`--${name}`).trim();
  const theme = Object.fromEntries(NAMES.map((name) => [name, value(name)]));
  theme.font = getComputedStyle(document.body).fontFamily;
  theme.fills = Array.from({ length: CATEGORIES + 1 }, (_, i) => value(`fill-${i}`));
  theme.strong = Array.from({ length: CATEGORIES + 1 }, (_, i) => value(`strong-${i}`));
  theme.amounts = Array.from({ length: AMOUNTS }, (_, i) => value(`amount-${i}`));
  return theme;
}

/** `react` is called when the reader's system goes from light to dark or back. */
export function onThemeChange(react) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", react);
}
