// Ways for a wire between boxes side by side, where its straight course would pass behind others.
//
// A way is horizontal in a lane beside the one end, or beside the box in the way that is next to it, crosses to the
// height of the other end, and is horizontal in a lane there. Of the few ways that there are, a wire takes the first
// that passes the fewest boxes: the straight one, if that passes none.

const LANE = 13; // pixels between a box and the lane above or below it: half of what is between two rows
const TURN = 14; // pixels of width to get into a lane: two boxes are 18 apart
const CROSSING = 28; // pixels that a crossing takes where it does not take all the room
const CLEAR = 3; // pixels around a box that count as the box
const STEPS = 12; // places that are looked at between two points
const MOST = 150; // boxes of a picture in which a reader follows single wires

/**
 * The points of a wire from the side of the box a to that of b, for the course "across"; `outer` are the boxes
 * that hold them and stand in the same group.
 */
export function pointsAcross(picture, [start, end], [a, b], outer) {
  const straight = [start, end];
  if (picture.order.length > MOST) return straight;
  const others = picture.order.filter((box) => !box.isOpen && box !== a && box !== b);
  const inTheWay = passed(straight, others);
  let best = straight;
  let fewest = inTheWay.length;
  if (fewest === 0) return straight;
  const beside = [
    [a, inTheWay[0]],
    [b, inTheWay.at(-1)],
  ];
  for (const points of detours(start, end, beside, outer)) {
    const count = passed(points, others).length;
    if (count < fewest) [best, fewest] = [points, count];
    if (fewest === 0) break;
  }
  return best;
}

/** `beside` are the boxes that have lanes for the start, and for the end. */
function* detours(start, end, [besideStart, besideEnd], [outerA, outerB]) {
  const direction = Math.sign(end[0] - start[0]);
  const leave = direction > 0 ? rightOf(outerA) : outerA.x;
  const enter = direction > 0 ? outerB.x : rightOf(outerB);
  const crossings = [
    [leave, enter],
    [enter - direction * CROSSING, enter],
    [leave, leave + direction * CROSSING],
  ];
  for (const from of lanes(start, besideStart, direction)) {
    for (const to of lanes(end, besideEnd, -direction)) {
      for (const [left, entered] of crossings) {
        const points = [...from, [left, from.at(-1)[1]], [entered, to.at(-1)[1]], ...to.toReversed()];
        if (points.every(([x], i) => i === 0 || direction * (x - points[i - 1][0]) >= 0)) yield points;
      }
    }
  }
}

/** Straight on from the side of a box, or into the lane above or below one of `boxes`. */
function* lanes([x, y], boxes, direction) {
  yield [[x, y]];
  for (const lane of boxes.flatMap((box) => [box.y - LANE, box.y + box.height + LANE])) {
    yield [
      [x, y],
      [x + direction * TURN, lane],
    ];
  }
}

function rightOf({ x, width }) {
  return x + width;
}

/** The boxes that a line through the points passes, drawn as `trace` does, in its order. */
function passed(points, boxes) {
  const met = new Set();
  for (let i = 1; i < points.length; i++) {
    const [[x1, y1], [x2, y2]] = [points[i - 1], points[i]];
    for (let step = 0; step <= STEPS; step++) {
      const t = step / STEPS;
      const x = x1 + (x2 - x1) * t * (1.5 - 1.5 * t + t * t); // a Bézier curve that is horizontal at its ends
      const y = y1 + (y2 - y1) * t * t * (3 - 2 * t);
      for (const box of boxes) if (isNear(box, x, y)) met.add(box);
    }
  }
  return [...met];
}

function isNear(box, x, y) {
  const { y: top, height } = box;
  return x > box.x - CLEAR && x < rightOf(box) + CLEAR && y > top - CLEAR && y < top + height + CLEAR;
}
