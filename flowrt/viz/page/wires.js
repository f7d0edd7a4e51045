// The edges as they are drawn: one wire for all edges between two boxes.

/** Each {from, to, kind, edges, removed}: boxes by item, the edges it stands for. */
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
    const wire = wires.get(key);
    if (wire) wire.edges.push(edge);
    else wires.set(key, { from, to, edges: [edge] });
  }
  const found = [...wires.values()];
  for (const wire of found) {
    wire.kind = wire.edges.map((edge) => stage.kindOf(edge)).reduce(stronger);
    wire.isRemoved = wire.edges.every((edge) => !stage.hasEdge[edge]);
    wire.curve = curve(picture, wire);
  }
  return found;
}

const STRENGTH = ["control", "data", "transfer"];

function stronger(a, b) {
  return STRENGTH.indexOf(a) > STRENGTH.indexOf(b) ? a : b;
}

/**
 * {points, course, left, right, top, bottom}: points that a smooth line goes through. Its course is "down", or,
 * to what does not stand below, "across" between the sides that face, or "around" at the right of both.
 */
function curve(picture, { from, to }) {
  const [a, b] = [picture.boxes.get(from), picture.boxes.get(to)];
  const course = courseOf(picture, from, to, a, b);
  const points = pointsOf(picture, course, from, to, a, b);
  const xs = points.map(([x]) => x);
  const ys = points.map(([, y]) => y);
  return {
    points,
    course,
    left: Math.min(...xs),
    right: Math.max(...xs) + (course === "around" ? BULGE : 0),
    top: Math.min(...ys),
    bottom: Math.max(...ys),
  };
}

const BULGE = 48; // pixels that a wire around stands out

function courseOf(picture, from, to, a, b) {
  const { tree } = picture.stage;
  const isApart = a.x + a.width < b.x || b.x + b.width < a.x;
  const betweenDevices = tree.kind[tree.siblings(from, to)[0]] === "device";
  if (b.y >= a.y + a.height && !betweenDevices) return "down";
  return isApart ? "across" : "around";
}

function pointsOf(picture, course, from, to, a, b) {
  if (course === "down") return [[a.x + a.width / 2, a.y + a.height], ...between(picture, from, to, a, b), [b.x + b.width / 2, b.y]];
  const [x1, x2] = course === "around" || a.x < b.x ? [a.x + a.width, b.x] : [a.x, b.x + b.width];
  return [[x1, a.y + a.height / 2], [course === "around" ? b.x + b.width : x2, b.y + b.height / 2]];
}

/** The way between the two siblings that hold the ends, from border to border. */
function between(picture, from, to, a, b) {
  const { tree } = picture.stage;
  const [above, below] = tree.siblings(from, to);
  const points = [];
  if (above !== from) {
    const box = picture.boxes.get(above);
    points.push([a.x + a.width / 2, box.y + box.height]);
  }
  points.push(...(picture.ways.get(tree.pair(above, below)) ?? []));
  if (below !== to) points.push([b.x + b.width / 2, picture.boxes.get(below).y]);
  return points;
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
