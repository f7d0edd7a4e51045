// From one box to another with the arrow keys: along the wires, or to what stands beside it.

/** The item of the box in a direction, "up", "down", "left" or "right"; null if there is none. */
export function boxBeside(picture, wires, item, direction) {
  const box = picture.boxes.get(item);
  if (!box) return picture.order[0]?.item ?? null;
  const candidates =
    direction === "up" || direction === "down"
      ? alongWires(wires, item, direction)
      : inRow(picture, box, direction);
  const boxes = candidates
    .map((candidate) => picture.boxes.get(candidate))
    .filter((candidate) => candidate);
  const distance = (other) =>
    Math.hypot(middle(other)[0] - middle(box)[0], middle(other)[1] - middle(box)[1]);
  boxes.sort((a, b) => distance(a) - distance(b));
  return boxes[0]?.item ?? null;
}

function alongWires(wires, item, direction) {
  const [here, there] = direction === "up" ? ["to", "from"] : ["from", "to"];
  return wires.filter((wire) => wire[here] === item).map((wire) => wire[there]);
}

function inRow(picture, box, direction) {
  const { parent } = picture.stage.tree;
  const isBeyond = direction === "left" ? (other) => other.x < box.x : (other) => other.x > box.x;
  return picture.order
    .filter((other) => parent[other.item] === parent[box.item] && isBeyond(other))
    .map((other) => other.item);
}

function middle({ x, y, width, height }) {
  return [x + width / 2, y + height / 2];
}
