// The positions of boxes: arithmetic on the layers and columns that the export has computed.
//
// A group is a stack of rows, one per layer. Boxes of the same column are aligned vertically, even when boxes
// grow: each column is computed as far left and as far right as its neighbours allow, then placed between the
// two in igraph's proportion. An edge that passes a row reserves a narrow slot in it. Groups of roles, such as the
// gradients, are in a column at the right.

import { LAYOUTS, ROOT } from "./graph.js";

const OP = { width: 160, height: 38, letter: 8 };
const CONSTANT = { width: 104, height: 24, letter: 7 };
const CLOSED = { width: 156, height: 52, letter: 9.5 };
const WIDEST = 230; // of a closed box: longer names are cut
export const HEAD = 32; // pixels of an open group's title
const PASSAGE = 9; // wide, where an edge goes by
const GAP = { x: 18, y: 26, labelled: 36 }; // labelled: where layouts are written below boxes
const PADDING = 20;
const ASIDE = 54; // pixels between a model and what is set apart from it

/**
 * boxes: item -> {item, x, y, width, height, isOpen}; order: outer ones first; standsIn: for each item the
 * box that shows it (-1: none); ways: pair of siblings -> points between them; width and height of all.
 */
export function arrange(stage, open, withGhosts) {
  const counts = stage.counts(withGhosts);
  const links = stage.links(withGhosts);
  const blocks = new Map();
  const sizeOf = (item) => {
    if (!isOpen(item)) return closedSize(stage, item);
    const block = arrangeChildren(stage, item, counts, links, sizeOf);
    blocks.set(item, block);
    return block;
  };
  const isOpen = (item) => item === ROOT || (open.has(item) && !stage.tree.isOperation(item));
  const root = sizeOf(ROOT);
  const picture = {
    stage,
    counts,
    boxes: new Map(),
    order: [],
    standsIn: new Int32Array(stage.tree.size).fill(-1),
    ways: new Map(),
    width: root.width,
    height: root.height,
  };
  place(picture, blocks, ROOT, 0, 0);
  for (const item of stage.tree.outerFirst) {
    if (picture.standsIn[item] < 0 && counts[item])
      picture.standsIn[item] = picture.standsIn[stage.tree.parent[item]];
  }
  return picture;
}

/** A closed box is wider for a long name, by about as much as its letters take. */
function closedSize(stage, item) {
  const { width, height, letter } = look(stage, item);
  const named = Math.ceil(stage.tree.labels[item].length * letter) + 24;
  return { width: Math.max(width, Math.min(named, WIDEST)), height };
}

function look(stage, item) {
  if (!stage.tree.isOperation(item)) return CLOSED;
  return isConstant(stage, item) ? CONSTANT : OP;
}

export function isConstant(stage, item) {
  return stage.op(item) === "Const";
}

function place(picture, blocks, item, left, top) {
  const block = blocks.get(item);
  for (const [pair, points] of block.ways) {
    picture.ways.set(
      pair,
      points.map(([x, y]) => [x + left, y + top]),
    );
  }
  for (const { item: child, x, y, width, height } of block.places) {
    const isOpen = blocks.has(child);
    const box = { item: child, x: x + left, y: y + top, width, height, isOpen };
    picture.boxes.set(child, box);
    picture.order.push(box);
    picture.standsIn[child] = child;
    if (isOpen) place(picture, blocks, child, box.x, box.y);
  }
}

function arrangeChildren(stage, group, counts, links, sizeOf) {
  const { tree } = stage;
  const gap = stage.name === LAYOUTS ? GAP.labelled : GAP.y;
  const rows = new Map();
  const children = tree.children[group].filter((child) => counts[child]);
  const aside = children.filter((child) => tree.kind[child] === "role");
  for (const item of children) {
    if (tree.kind[item] === "role") continue;
    const { width, height } = sizeOf(item);
    addTo(rows, tree.layer[item], { item, column: tree.column[item], width, height });
  }
  const routes = (tree.routes.get(group) ?? []).filter(({ source, target }) =>
    links.has(tree.pair(source, target)),
  );
  addPassages(tree, rows, routes);
  const layers = [...rows.keys()].sort((a, b) => a - b);
  for (const row of rows.values()) row.sort((a, b) => a.column - b.column);
  const { centres, width } = setColumns([...rows.values()]);
  const head = group === ROOT ? PADDING : HEAD + PADDING / 2;
  const places = [];
  const rowAt = new Map();
  let top = head;
  for (const layer of layers) {
    const height = Math.max(...rows.get(layer).map((entry) => entry.height));
    rowAt.set(layer, [top, height]);
    for (const entry of rows.get(layer)) {
      if (entry.item < 0) continue;
      const x = PADDING + centres.get(entry.column) - entry.width / 2;
      places.push({ ...entry, x, y: top + (height - entry.height) / 2 });
    }
    top += height + gap;
  }
  const ways = new Map(
    routes.map((route) => [tree.pair(route.source, route.target), way(tree, route, rowAt, centres)]),
  );
  const block = { places, right: PADDING + width, bottom: layers.length ? top - gap : head };
  putBeside(block, aside, head, tree, sizeOf);
  const least = group === ROOT ? 0 : CLOSED.width;
  const shift = Math.max(0, least - block.right - PADDING) / 2;
  for (const entry of places) entry.x += shift;
  for (const points of ways.values()) for (const point of points) point[0] += shift;
  return { places, ways, width: Math.max(least, block.right + PADDING), height: block.bottom + PADDING };
}

/** Put the groups of roles in a column at the right of what is in the block. */
function putBeside(block, aside, head, tree, sizeOf) {
  if (!aside.length) return;
  const left = block.places.length ? block.right + ASIDE : PADDING;
  let top = head;
  for (const item of [...aside].sort((a, b) => tree.layer[a] - tree.layer[b])) {
    const { width, height } = sizeOf(item);
    block.places.push({ item, width, height, x: left, y: top });
    block.right = Math.max(block.right, left + width);
    block.bottom = Math.max(block.bottom, top + height);
    top += height + GAP.y;
  }
}

function addTo(rows, layer, entry) {
  const row = rows.get(layer);
  if (row) row.push(entry);
  else rows.set(layer, [entry]);
}

/** Edges of one producer share their places, so each is added once; rows without boxes are not drawn. */
function addPassages(tree, rows, routes) {
  const seen = new Set();
  for (const { source, columns } of routes) {
    columns.forEach((column, step) => {
      const layer = tree.layer[source] + 1 + step;
      const key = `${layer} ${column}`;
      if (rows.has(layer) && !seen.has(key)) {
        seen.add(key);
        rows.get(layer).push({ item: -1, column, width: PASSAGE, height: 0 });
      }
    });
  }
}

function way(tree, { source, columns }, rowAt, centres) {
  const points = [];
  columns.forEach((column, step) => {
    const row = rowAt.get(tree.layer[source] + 1 + step);
    if (!row) return;
    const [top, height] = row;
    const x = PADDING + centres.get(column);
    points.push([x, top], [x, top + height]);
  });
  return points;
}

/** The centre of each column, so that neighbours in a row do not meet, and the width of all. */
function setColumns(rows) {
  const columns = [...new Set(rows.flat().map((entry) => entry.column))].sort((a, b) => a - b);
  const number = new Map(columns.map((column, i) => [column, i]));
  const half = new Float64Array(columns.length);
  const before = columns.map(() => []);
  const after = columns.map(() => []);
  for (const row of rows) {
    row.forEach((entry, at) => {
      const right = number.get(entry.column);
      half[right] = Math.max(half[right], entry.width / 2);
      if (!at) return;
      const left = number.get(row[at - 1].column);
      const arePassages = entry.item < 0 && row[at - 1].item < 0;
      const distance = (row[at - 1].width + entry.width) / 2 + (arePassages ? 0 : GAP.x);
      before[right].push([left, distance]);
      after[left].push([right, distance]);
    });
  }
  const least = half.slice();
  for (let i = 0; i < columns.length; i++)
    for (const [j, gap] of before[i]) least[i] = Math.max(least[i], least[j] + gap);
  const width = columns.reduce((most, _, i) => Math.max(most, least[i] + half[i]), 0);
  const most = half.map((size) => width - size);
  for (let i = columns.length - 1; i >= 0; i--)
    for (const [j, gap] of after[i]) most[i] = Math.min(most[i], most[j] - gap);
  const span = columns.at(-1) - columns[0] || 1;
  const centres = new Map();
  const at = new Float64Array(columns.length);
  columns.forEach((column, i) => {
    const wanted =
      columns.length > 1
        ? half[0] + ((column - columns[0]) / span) * (width - half[0] - half.at(-1))
        : width / 2;
    at[i] = Math.min(
      most[i],
      before[i].reduce((x, [j, gap]) => Math.max(x, at[j] + gap), Math.max(least[i], wanted)),
    );
    centres.set(column, at[i]);
  });
  return { centres, width };
}
