// Meaning of the colours: a mode assigns each operation a class, and each class has a colour of the theme.
//
//   by category  operation type, device, fusion group: the most frequent have colours, the rest is "other"
//   by amount    time, memory: classes are shares of the whole, so that two stages compare

import { formatBytes, formatCount, formatDevice, formatSeconds } from "./format.js";

export const MODES = {
  type: { label: "Operation type", category: (stage, item) => stage.op(item) },
  device: { label: "Device", category: (stage, item) => formatDevice(stage.device(item)), isComplete: true },
  fusion: {
    label: "Fusion group",
    category: (stage, item) => stage.graph.fused.get(stage.tree.names[item]) ?? "",
  },
  time: {
    label: "Time",
    amount: (stage, item) => stage.graph.seconds.get(stage.tree.names[item]) ?? 0,
    format: formatSeconds,
  },
  memory: { label: "Output memory", amount: (stage, item) => stage.bytes(item), format: formatBytes },
};

export const CATEGORIES = 9; // distinguishable colours; the theme defines as many
const OTHER = CATEGORIES;
const SHARES = [0.0005, 0.005, 0.02, 0.1, 1]; // upper ends of the classes of an amount

/** The modes with data for this graph. */
export function modesOf(graph) {
  return Object.keys(MODES).filter(
    (mode) => (mode !== "time" || graph.seconds.size) && (mode !== "fusion" || graph.fused.size),
  );
}

/** The mode that is shown: the chosen one, or devices where every operation has one of several. */
export function modeShown({ colour }, stage) {
  if (colour !== null) return colour;
  const devices = new Set(operationsIn(stage).map((item) => stage.device(item)));
  return devices.size > 1 && !devices.has("") ? "device" : "type";
}

/**
 * {isAmount, classOf, parts, describe, legend}. `classOf[item]` is the class or -1; `parts(item)` of a group
 * is how many operations of each class it holds; `describe(item)` its amount as text; `legend` has rows
 * {class, label, detail}.
 */
export function colouring(mode, stage) {
  return MODES[mode].amount ? byAmount(MODES[mode], stage) : byCategory(MODES[mode], stage);
}

/** `isComplete`: each category has a row and a colour, if need be that of another one. */
function byCategory({ category, isComplete = false }, stage) {
  const items = operationsIn(stage);
  const names = new Map(items.map((item) => [item, category(stage, item)]));
  const counts = new Map();
  for (const name of names.values()) counts.set(name, (counts.get(name) ?? 0) + 1);
  const ranked = [...counts.keys()]
    .filter((name) => name)
    .sort((a, b) => counts.get(b) - counts.get(a) || (a < b ? -1 : 1));
  const classAt = (rank) => (isComplete ? rank % CATEGORIES : Math.min(rank, OTHER));
  const classes = new Map(ranked.map((name, rank) => [name, classAt(rank)]));
  const classOf = new Int8Array(stage.tree.size).fill(-1);
  for (const [item, name] of names) classOf[item] = classes.get(name) ?? -1;
  const rows = isComplete ? ranked : ranked.slice(0, CATEGORIES);
  const legend = rows.map((name, rank) => ({
    class: classAt(rank),
    label: name,
    detail: counts.get(name).toLocaleString("en"),
  }));
  const rest = ranked.slice(rows.length);
  if (rest.length) {
    const others = rest.reduce((sum, name) => sum + counts.get(name), 0);
    legend.push({
      class: OTHER,
      label: formatCount(rest.length, "other"),
      detail: others.toLocaleString("en"),
    });
  }
  if (counts.get(""))
    legend.push({ class: -1, label: "none", detail: counts.get("").toLocaleString("en") });
  const sums = partsOf(stage, items, classOf);
  return {
    isAmount: false,
    classOf,
    parts: (item) => sums.subarray(item * WIDTH, (item + 1) * WIDTH),
    describe: () => "",
    legend,
  };
}

const WIDTH = CATEGORIES + 1;

function partsOf(stage, items, classOf) {
  const sums = new Int32Array(stage.tree.size * WIDTH);
  for (const item of items) {
    if (classOf[item] < 0) continue;
    for (const group of stage.tree.around(item)) sums[group * WIDTH + classOf[item]]++;
  }
  return sums;
}

function byAmount({ amount, format }, stage) {
  const sums = new Float64Array(stage.tree.size);
  for (const item of operationsIn(stage)) {
    const value = amount(stage, item);
    sums[item] += value;
    for (const group of stage.tree.around(item)) sums[group] += value;
    sums[0] += value;
  }
  const total = sums[0] || 1;
  const classOf = Int8Array.from(sums, (value) =>
    value ? SHARES.findIndex((share) => value <= share * total * (1 + 1e-9)) : -1,
  );
  const percent = (share) => `${+(share * 100).toPrecision(2)} %`;
  const legend = SHARES.map((share, i) => ({
    class: i,
    label: i ? `up to ${percent(share)}` : `under ${percent(share)}`,
    detail: "",
  }));
  legend.at(-1).label = `over ${percent(SHARES.at(-2))}`;
  legend.unshift({ class: null, label: `total ${format(sums[0])}`, detail: "" });
  const share = (value) => (value < SHARES[1] * total ? "" : ` · ${percent(value / total)}`);
  const describe = (item) => (sums[item] ? format(sums[item]) + share(sums[item]) : "");
  return { isAmount: true, classOf, parts: () => null, describe, legend };
}

function operationsIn(stage) {
  const items = [];
  for (let item = 1; item < stage.tree.size; item++) if (stage.has(item)) items.push(item);
  return items;
}
