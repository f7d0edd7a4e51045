// Painting the picture on a canvas: groups, wires, boxes, from back to front; only the visible part.

import { isConstant, HEAD } from "./arrange.js";
import { formatBytes, formatCount } from "./format.js";
import { ROOT } from "./graph.js";
import { arrival, trace } from "./wires.js";

const READABLE = 0.42; // scale below which texts are left out
const RADIUS = { op: 7, group: 10 };
const FLAG = 17; // pixels of height, less than there is between two boxes
export const FADED = 0.22; // opacity of items that are not followed

/**
 * `scene` is {picture, wires, viewport, theme, colours, changes, selected, followed, onlyClass}; `followed`
 * is null or what `follow` found, with `boxes`, the items that show it.
 */
export function paint(context, scene) {
  const { viewport, theme } = scene;
  const ratio = devicePixelRatio;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.globalAlpha = 1;
  context.fillStyle = theme.page;
  context.fillRect(0, 0, viewport.width, viewport.height);
  context.setTransform(
    ratio * viewport.scale,
    0,
    0,
    ratio * viewport.scale,
    ratio * viewport.x,
    ratio * viewport.y,
  );
  context.textBaseline = "middle";
  const painter = new Painter(context, scene);
  const boxes = scene.picture.order.filter((box) => painter.isSeen(box));
  for (const box of boxes) if (box.isOpen) painter.openGroup(box);
  painter.drawWires(scene.wires);
  for (const box of boxes) {
    if (box.isOpen) painter.title(box);
    else painter.closedBox(box);
  }
  painter.markLosses();
}

class Painter {
  constructor(context, scene) {
    Object.assign(this, scene);
    this.context = context;
    this.hasTexts = this.viewport.scale >= READABLE;
    [this.left, this.top, this.right, this.bottom] = this.viewport.seen;
    this.pixel = 1 / this.viewport.scale;
  }

  isSeen({ x, y, width, height }) {
    return x < this.right && y < this.bottom && x + width > this.left && y + height > this.top;
  }

  isFaded(item) {
    if (this.followed) return !this.followed.boxes.has(item);
    if (this.onlyClass === null) return false;
    const { stage } = this.picture;
    if (stage.tree.isOperation(item) || this.colours.isAmount)
      return this.colours.classOf[item] !== this.onlyClass;
    return !this.colours.parts(item)[this.onlyClass];
  }

  // --- groups

  openGroup(box) {
    const { context, theme } = this;
    context.globalAlpha = 1;
    this.#outline(box, RADIUS.group);
    context.fillStyle = this.#ground(box);
    context.fill();
    this.#stroke(box.item, theme.line, 1);
  }

  #ground(box) {
    return this.picture.stage.tree.depth[box.item] % 2 ? this.theme.group : this.theme.deep;
  }

  /** The title of an open group, over the wires that pass there. */
  title(box) {
    const { context, theme, picture } = this;
    if (!this.hasTexts && box.width * this.viewport.scale < 60) return;
    context.globalAlpha = 1;
    const size = this.hasTexts ? 13 : Math.min(13 * 0.8 * this.pixel, box.width / 8);
    context.font = `600 ${size}px ${theme.font}`;
    const label = fitted(context, `▾ ${picture.stage.tree.labels[box.item]}`, box.width - 28);
    const used = this.#titleText(label, box, box.x + 14, theme.ink);
    if (!this.hasTexts) return;
    context.font = `12.5px ${theme.font}`;
    const detail = this.#detail(box.item);
    const hasRoom = used + context.measureText(detail).width + 40 < box.width;
    if (hasRoom) this.#titleText(detail, box, box.x + used + 22, theme.muted);
  }

  /** Its width. */
  #titleText(text, box, x, colour) {
    const { context } = this;
    const { width } = context.measureText(text);
    context.fillStyle = this.#ground(box);
    context.fillRect(x - 2, box.y + HEAD / 2 - 8, width + 4, 16);
    context.fillStyle = colour;
    context.fillText(text, x, box.y + HEAD / 2 + 1);
    return width;
  }

  closedBox(box) {
    const { stage } = this.picture;
    this.context.globalAlpha = this.isFaded(box.item) ? FADED : 1;
    if (!stage.tree.isOperation(box.item)) this.#closedGroup(box);
    else this.#operation(box);
  }

  #closedGroup(box) {
    const { context, theme, picture } = this;
    if (this.hasTexts) {
      // A second sheet behind: there is something in it.
      this.#outline({ ...box, x: box.x + 4, y: box.y + 4 }, RADIUS.group);
      context.fillStyle = theme.group;
      context.fill();
      this.#line(theme.line, 1);
    }
    this.#outline(box, RADIUS.group);
    context.fillStyle = this.colours.isAmount ? this.#fill(box.item) : theme.box;
    context.fill();
    if (!this.colours.isAmount) this.#strip(box);
    this.#outline(box, RADIUS.group);
    this.#stroke(box.item, theme.line, 1.2);
    if (!this.hasTexts) return;
    this.#text(picture.stage.tree.labels[box.item], box, -8, `600 14px ${theme.font}`, theme.ink);
    this.#text(
      this.#detail(box.item),
      box,
      9,
      `12.5px ${theme.font}`,
      this.colours.isAmount ? theme.ink : theme.muted,
    );
  }

  /** The classes of the contents, in proportion. */
  #strip(box) {
    const { context, theme } = this;
    const parts = this.colours.parts(box.item);
    const sum = parts.reduce((a, b) => a + b, 0);
    if (!sum) return;
    context.save();
    this.#outline(box, RADIUS.group);
    context.clip();
    let x = box.x;
    parts.forEach((count, kind) => {
      const width = (box.width * count) / sum;
      context.fillStyle = theme.strong[kind];
      context.fillRect(x, box.y + box.height - 6, width, 6);
      x += width;
    });
    context.restore();
  }

  #detail(item) {
    const { counts, stage } = this.picture;
    const count = formatCount(counts[item], "op");
    const updated = stage.tree.kind[item] === "role" ? stage.updates(item).length : 0;
    return this.colours.describe(item) || (updated ? `updates ${formatCount(updated, "variable")}` : count);
  }

  /** A flag on the corner of each box that is or holds what the gradients are of. */
  markLosses() {
    if (!this.hasTexts) return;
    const { stage, standsIn, boxes } = this.picture;
    for (const item of new Set(stage.losses.map((loss) => standsIn[loss.item ?? ROOT]))) {
      const box = boxes.get(item);
      if (box && this.isSeen(box)) this.#flag(box, "loss");
    }
  }

  #flag({ item, x, y, width }, text) {
    const { context, theme } = this;
    context.globalAlpha = this.isFaded(item) ? FADED : 1;
    context.font = `600 12.5px ${theme.font}`;
    const flag = context.measureText(text).width + 14;
    const [left, top] = [x + width - flag, y - FLAG - 1];
    context.fillStyle = theme.accent;
    context.beginPath();
    context.roundRect(left, top, flag, FLAG, 5);
    context.fill();
    context.fillStyle = theme.page;
    context.fillText(text, left + 7, top + FLAG / 2 + 0.5);
  }

  #operation(box) {
    const { context, theme, picture } = this;
    const { stage } = picture;
    const small = isConstant(stage, box.item);
    this.#outline(box, small ? box.height / 2 : RADIUS.op);
    context.fillStyle = this.#fill(box.item);
    context.fill();
    this.#stroke(box.item, theme.line, 1);
    if (!this.hasTexts) return;
    const label = stage.tree.labels[box.item];
    if (small) return this.#text(label, box, 0.5, `12.5px ${theme.font}`, theme.ink);
    const below = this.colours.describe(box.item) || this.#type(box);
    this.#text(label, box, -7, `13px ${theme.font}`, theme.ink);
    this.#text(below, box, 8.5, `12.5px ${theme.font}`, this.colours.isAmount ? theme.ink : theme.muted);
  }

  /** The operation's type and what it makes, or that alone if the name has the type, or if both have no room. */
  #type(box) {
    const { context, theme } = this;
    const { item } = box;
    const { stage } = this.picture;
    const op = stage.op(item) || stage.previous?.op(item) || "";
    const shape = stage.outputs(item)[0]?.text ?? "";
    const isSaid = stage.tree.labels[item].startsWith(op);
    if (isSaid && shape) return shape;
    const both = `${op}  ${shape}`;
    context.font = `12.5px ${theme.font}`;
    return shape && context.measureText(both).width > room(box) ? shape : both;
  }

  #fill(item) {
    const kind = this.colours.classOf[item];
    if (kind < 0) return this.theme.box;
    return (this.colours.isAmount ? this.theme.amounts : this.theme.fills)[kind];
  }

  // --- lines and texts

  #outline({ x, y, width, height }, radius) {
    this.context.beginPath();
    if (this.hasTexts) this.context.roundRect(x, y, width, height, radius);
    else this.context.rect(x, y, width, height);
  }

  #stroke(item, colour, width) {
    const own = this.changes.areAll ? null : this.changes.marks.get(item);
    const mark = own ?? this.#markInside(item);
    this.context.setLineDash(mark === "removed" ? [5, 4] : []);
    if (item === this.selected) this.#line(this.theme.accent, 2.6);
    else if (mark) this.#line(this.theme[mark], this.picture.stage.tree.isOperation(item) ? 2 : 1.8);
    else this.#line(colour, width);
    this.context.setLineDash([]);
  }

  /** A closed group has the mark of what changed most in it. */
  #markInside(item) {
    if (this.changes.areAll) return null;
    const inside = this.changes.inside.get(item);
    if (!inside || this.picture.boxes.get(item)?.isOpen) return null;
    if (inside.removed === this.picture.counts[item]) return "removed";
    if (inside.added === this.picture.counts[item]) return "added";
    return "changed";
  }

  /** Lines keep a visible width at any scale. */
  #line(colour, width) {
    this.context.strokeStyle = colour;
    this.context.lineWidth = Math.max(width, 0.6 * this.pixel);
    this.context.stroke();
  }

  #text(text, box, dy, font, colour) {
    const { context } = this;
    context.font = font;
    context.fillStyle = colour;
    const shown = fitted(context, text, room(box));
    context.textAlign = "center";
    context.fillText(shown, box.x + box.width / 2, box.y + box.height / 2 + dy);
    context.textAlign = "left";
  }

  // --- wires

  /** One path for all wires of the same style: with 40,000 wires, one path each is ten times slower. */
  drawWires(wires) {
    const looks = new Map();
    for (const wire of wires) {
      if (wire.top > this.bottom || wire.bottom < this.top) continue;
      if (wire.isApart && !this.#isFollowed(wire)) continue;
      if (wire.curve.left > this.right || wire.curve.right < this.left) continue;
      const look = this.#look(wire);
      const known = looks.get(look.key);
      if (known) known.wires.push(wire);
      else looks.set(look.key, { ...look, wires: [wire] });
    }
    const ordered = [...looks.values()].sort((a, b) => a.rank - b.rank);
    for (const look of ordered) this.#paintLook(look);
  }

  #look(wire) {
    const { theme, followed } = this;
    const isFollowed = this.#isFollowed(wire);
    const isFaded = followed !== null && !isFollowed;
    const width = Math.min(4, 1.1 + Math.log2(wire.edges.length) / 3);
    const step = Math.round(width * 2) / 2;
    const dashes = { control: [2, 4], data: [], transfer: [7, 4] }[wire.kind];
    const plain = wire.isRemoved ? theme.removed : wire.kind === "transfer" ? theme.transfer : theme.wire;
    return {
      key: `${wire.kind} ${step} ${wire.isRemoved} ${isFollowed}`,
      colour: isFollowed ? theme.accent : plain,
      width: isFollowed ? step + 0.8 : step,
      dashes: this.hasTexts ? dashes : [],
      alpha: isFaded ? FADED : wire.kind === "control" && !isFollowed ? 0.65 : 1,
      rank: isFollowed ? 1 : 0,
      isFollowed,
    };
  }

  #isFollowed(wire) {
    return this.followed !== null && wire.edges.some((edge) => this.followed.edges.has(edge));
  }

  #paintLook({ colour, width, dashes, alpha, wires, isFollowed }) {
    const { context } = this;
    context.globalAlpha = alpha;
    context.setLineDash(dashes);
    context.beginPath();
    for (const wire of wires) trace(context, wire.curve);
    this.#line(colour, width);
    context.setLineDash([]);
    if (!this.hasTexts) return;
    context.fillStyle = colour;
    context.beginPath();
    for (const wire of wires) arrow(context, wire.curve);
    context.fill();
    if (isFollowed && this.viewport.scale > 0.7 && wires.length < 60)
      for (const wire of wires) this.#label(wire);
  }

  /** The tensor of a wire that is followed, by the end that is not selected: there it is alone. */
  #label(wire) {
    const text = this.#tensor(wire);
    if (!text) return;
    const { context, theme } = this;
    const { points, course } = wire.curve;
    const isAtStart = this.picture.standsIn[this.selected] === wire.to;
    const [endX, endY] = isAtStart ? points[0] : points.at(-1);
    const [x, y] = course === "down" ? [endX, endY + (isAtStart ? 13 : -14)] : [endX, endY - 12];
    context.font = `12.5px ${theme.font}`;
    const width = context.measureText(text).width + 10;
    context.fillStyle = theme.page;
    context.beginPath();
    context.roundRect(x - width / 2, y - 9, width, 18, 9);
    context.fill();
    this.#line(theme.accent, 1);
    context.fillStyle = theme.ink;
    context.textAlign = "center";
    context.fillText(text, x, y + 0.5);
    context.textAlign = "left";
  }

  #tensor(wire) {
    const { stage } = this.picture;
    const tensors = wire.edges.map((edge) => stage.carried(edge)).filter((tensor) => tensor);
    if (tensors.length < 2) return tensors[0]?.text ?? "";
    const bytes = tensors.reduce((sum, tensor) => sum + Math.max(0, tensor.bytes), 0);
    return `${tensors.length} tensors${bytes ? `, ${formatBytes(bytes)}` : ""}`;
  }
}

/** Pixels that a text in a closed box may take. */
function room(box) {
  return box.width - 16;
}

function arrow(context, curve) {
  const [x, y] = curve.points.at(-1);
  const [dx, dy] = arrival(curve);
  context.moveTo(x, y);
  context.lineTo(x + 7 * dx - 3.5 * dy, y + 7 * dy - 3.5 * dx);
  context.lineTo(x + 7 * dx + 3.5 * dy, y + 7 * dy + 3.5 * dx);
  context.closePath();
}

const fits = new Map(); // (font, width, text) -> what is shown: measuring takes longer than drawing

/** The text, or as much of its beginning and end as there is room for. */
function fitted(context, text, room) {
  const key = `${context.font}|${Math.round(room)}|${text}`;
  let shown = fits.get(key);
  if (shown === undefined) {
    shown = cut(context, text, room);
    if (fits.size > 20000) fits.clear();
    fits.set(key, shown);
  }
  return shown;
}

function cut(context, text, room) {
  const whole = context.measureText(text).width;
  if (whole <= room) return text;
  let kept = Math.max(2, Math.floor((text.length * room) / whole) - 1);
  const shortened = () =>
    `${text.slice(0, Math.ceil(kept / 2))}…${text.slice(text.length - Math.floor(kept / 2))}`;
  while (kept > 2 && context.measureText(shortened()).width > room) kept--;
  return shortened();
}
