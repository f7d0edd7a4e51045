// A tooltip for the item under the pointer, also read by screen readers.

import { HEAD } from "./arrange.js";
import { byId } from "./dom.js";
import { formatBytes, formatCount, formatDevice } from "./format.js";

export const BESIDE = { x: 14, y: 18 }; // pixels from the pointer
export const MARGIN = 8; // pixels from the border of the field

/** An item in a few lines: its name, type and device, and outputs. */
export function describe({ stage, counts }, item) {
  const { tree } = stage;
  if (!tree.isOperation(item)) return `${tree.names[item]}\n${formatCount(counts[item], "operation")}`;
  const where = [stage.op(item), formatDevice(stage.device(item))].filter((text) => text).join(" on ");
  const outputs = stage
    .outputs(item)
    .map(({ text, bytes }) => (bytes < 0 ? text : `${text}, ${formatBytes(bytes)}`));
  return [tree.names[item], where, ...outputs].filter((line) => line).join("\n");
}

/** Show the tip for the item at a point of the canvas; no tip for no item (null), or inside a group. */
export function showTip({ picture, viewport, canvas }, item, x, y) {
  const tip = byId("tip");
  const box = item === null ? null : picture.boxes.get(item);
  tip.hidden = !box || (box.isOpen && viewport.toPicture(x, y)[1] > box.y + HEAD);
  canvas.style.cursor = tip.hidden ? "grab" : "pointer";
  if (tip.hidden) return;
  tip.textContent = describe(picture, item);
  const left = Math.min(x + BESIDE.x, viewport.width - tip.offsetWidth - MARGIN);
  const top = Math.min(y + BESIDE.y, viewport.height - tip.offsetHeight - MARGIN);
  tip.style.translate = `${left}px ${top}px`;
}
