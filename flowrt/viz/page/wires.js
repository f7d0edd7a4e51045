// The edges as they are drawn: one wire for all edges between two boxes.

import { pointsAcross } from "./detours.js";

const STRENGTH = ["control", "data", "transfer"]; // a wire has the style of its strongest edge
export const BULGE = 48; // pixels that a wire around stands out
const BORDER = 9; // pixels from the border of a group that a wire keeps beside its boxes
const ABOVE = 16; // pixels above a box where a wire beside others turns to it

/** All wires of a picture. */
export function bundle(picture, withGhosts) {
  const { stage, standsIn } = picture;
  const { tree } = stage;
  const { source, target } = tree.edges;
  const wires = new Map();
  for (const edge of stage.shownEdges(withGhosts)) {
    const from = standsIn[source[edge]];
    const to = standsIn[target[edge]];
    if (from < 0 || to < 0 || from === to) continue;
    const key = tree.pair(from, to);
    let wire = wires.get(key);
    if (!wire) wires.set(key, (wire = new Wire(picture, from, to)));
    wire.add(edge);
  }
  return [...wires.values()];
}

/** `edges` between the boxes of the items `from` and `to`; `isRemoved`: none of them is left. */
class Wire {
  #picture;
  #curve = null;
  #strength = 0;
  #isAside;

  constructor(picture, from, to) {
    this.#picture = picture;
    this.from = from;
    this.to = to;
    this.edges = [];
    this.isRemoved = true;
    this.#isAside = picture.stage.tree.isApart(from, to);
    const [a, b] = [picture.boxes.get(from), picture.boxes.get(to)];
    this.top = Math.min(a.y, b.y);
    this.bottom = Math.max(a.y + a.height, b.y + b.height);
  }

  add(edge) {
    const { stage } = this.#picture;
    this.edges.push(edge);
    this.#strength = Math.max(this.#strength, STRENGTH.indexOf(stage.kindOf(edge)));
    if (stage.hasEdge[edge]) this.isRemoved = false;
  }

  get kind() {
    return STRENGTH[this.#strength];
  }

  /** Whether it connects the model with what is set apart from it, within a device: drawn only if followed. */
  get isApart() {
    return this.#isAside && this.kind !== "transfer";
  }

  /**
   * {points, course, left, right}: points that a smooth line goes through. Its course is "down", or, to what
   * does not stand below, "across" between the sides that face, or "around" at the right of both. It is made
   * when it is first asked for: of 30,000 wires few are in sight.
   */
  get curve() {
    this.#curve ??= curveBetween(this.#picture, this.from, this.to);
    return this.#curve;
  }
}

function curveBetween(picture, from, to) {
  const [a, b] = [picture.boxes.get(from), picture.boxes.get(to)];
  const course = courseOf(picture, from, to, a, b);
  const points = course === "down" ? wayDown(picture, from, to) : wayAside(picture, from, to, course);
  const xs = points.map(([x]) => x);
  return {
    points,
    course,
    left: Math.min(...xs),
    right: Math.max(...xs) + (course === "around" ? BULGE : 0),
  };
}

function courseOf(picture, from, to, a, b) {
  const { tree } = picture.stage;
  const isApart = a.x + a.width < b.x || b.x + b.width < a.x;
  const [above, below] = tree.siblings(from, to);
  const betweenDevices = tree.kind[above] === "device";
  const isPastOthers =
    tree.kind[above] === "role" && tree.kind[below] === "role" && tree.layer[below] - tree.layer[above] > 1;
  if (isPastOthers) return "around";
  if (b.y >= a.y + a.height && !betweenDevices) return "down";
  return isApart ? "across" : "around";
}

/** From the middle of a side of the one box to one of the other. */
function wayAside(picture, from, to, course) {
  const [a, b] = [picture.boxes.get(from), picture.boxes.get(to)];
  const ends = sides(course, a, b);
  if (course === "around") return ends;
  const outer = picture.stage.tree.siblings(from, to).map((item) => picture.boxes.get(item));
  return pointsAcross(picture, ends, [a, b], outer);
}

function sides(course, a, b) {
  const fromRight = course === "around" || a.x < b.x;
  const toRight = course === "around" || !fromRight;
  return [
    [a.x + (fromRight ? a.width : 0), a.y + a.height / 2],
    [b.x + (toRight ? b.width : 0), b.y + b.height / 2],
  ];
}

/** Out of the groups around the one end, along the layers, into the groups around the other. */
function wayDown(picture, from, to) {
  const { tree } = picture.stage;
  const [above, below] = tree.siblings(from, to);
  const [a, b] = [picture.boxes.get(from), picture.boxes.get(to)];
  return [
    [a.x + a.width / 2, a.y + a.height],
    ...wayOut(picture, from, above),
    ...(picture.ways.get(tree.pair(above, below)) ?? []),
    ...wayIn(picture, to, below),
    [b.x + b.width / 2, b.y],
  ];
}

/** Points from an item down through the bottoms of the groups around it, up to `outermost`. */
function wayOut(picture, item, outermost) {
  const points = [];
  const box = picture.boxes.get(item);
  let x = box.x + box.width / 2;
  let bottom = box.y + box.height;
  for (let child = item; child !== outermost; child = picture.stage.tree.parent[child]) {
    const group = picture.boxes.get(picture.stage.tree.parent[child]);
    const end = group.y + group.height;
    if (!isFree(picture, child, x, bottom, end)) {
      x = nearerBorder(group, x);
      points.push([x, bottom + ABOVE]);
    }
    points.push([x, end]);
    bottom = end;
  }
  return points;
}

/** Points through the tops of the groups around an item, from `outermost` down to it. */
function wayIn(picture, item, outermost) {
  const points = [];
  const box = picture.boxes.get(item);
  let x = box.x + box.width / 2;
  let { y: top } = box;
  for (let child = item; child !== outermost; child = picture.stage.tree.parent[child]) {
    const group = picture.boxes.get(picture.stage.tree.parent[child]);
    if (!isFree(picture, child, x, group.y, top)) {
      x = nearerBorder(group, x);
      points.unshift([x, top - ABOVE]);
    }
    points.unshift([x, group.y]);
    top = group.y;
  }
  return points;
}

/** Whether no box beside `item` in its group is in the way at x, from top to bottom. */
function isFree(picture, item, x, top, bottom) {
  const { parent, children } = picture.stage.tree;
  return children[parent[item]].every((other) => {
    const box = other === item ? null : picture.boxes.get(other);
    return !box || x < box.x || x > box.x + box.width || bottom <= box.y || top >= box.y + box.height;
  });
}

function nearerBorder({ x, width }, at) {
  return at - x < x + width - at ? x + BORDER : x + width - BORDER;
}

/** Draw a curve into a path: a canvas context. */
export function trace(path, { points, course }) {
  let [x, y] = points[0];
  path.moveTo(x, y);
  for (const [nextX, nextY] of points.slice(1)) {
    const [dx, dy] = [(nextX - x) / 2, (nextY - y) / 2];
    if (course === "around") path.bezierCurveTo(x + BULGE, y, nextX + BULGE, nextY, nextX, nextY);
    else if (course === "across") path.bezierCurveTo(x + dx, y, nextX - dx, nextY, nextX, nextY);
    else if (dx === 0) path.lineTo(nextX, nextY);
    else path.bezierCurveTo(x, y + dy, nextX, nextY - dy, nextX, nextY);
    [x, y] = [nextX, nextY];
  }
}

/** Where the last of a curve comes from: [dx, dy]. */
export function arrival({ points, course }) {
  if (course === "down") return [0, -1];
  return course === "around" || points[0][0] > points[1][0] ? [1, 0] : [-1, 0];
}
