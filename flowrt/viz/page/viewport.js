// The visible part of the picture. Screen pixels = picture pixels * scale + offset.

const LEAST_SCALE = 0.02;
const MOST_SCALE = 3;
const ROOM = 32; // pixels of margin around a fitted box

export class Viewport {
  constructor() {
    this.width = this.height = 1;
    this.scale = 1;
    this.x = this.y = 0;
  }

  resize(width, height) {
    this.x += (width - this.width) / 2;
    this.width = width;
    this.height = height;
  }

  toPicture(x, y) {
    return [(x - this.x) / this.scale, (y - this.y) / this.scale];
  }

  toScreen(x, y) {
    return [x * this.scale + this.x, y * this.scale + this.y];
  }

  /** The visible rectangle, in picture pixels: [left, top, right, bottom]. */
  get seen() {
    return [...this.toPicture(0, 0), ...this.toPicture(this.width, this.height)];
  }

  pan(dx, dy) {
    this.x += dx;
    this.y += dy;
  }

  /** Zoom by a factor; the point (x, y) of the screen stays where it is. */
  zoom(factor, x = this.width / 2, y = this.height / 2) {
    const scale = Math.min(MOST_SCALE, Math.max(LEAST_SCALE, this.scale * factor));
    this.x = x - ((x - this.x) * scale) / this.scale;
    this.y = y - ((y - this.y) * scale) / this.scale;
    this.scale = scale;
  }

  /** Show all of a box, at a scale of at most 1. */
  fit({ x, y, width, height }) {
    this.scale = this.scaleFor({ width, height });
    this.center(x + width / 2, y + height / 2);
  }

  /** Like `fit`, but show only the beginning of a box that would be too small to read. */
  fitReadable(box, leastScale) {
    this.fit(box);
    if (this.scale >= leastScale) return;
    this.scale = leastScale;
    this.center(box.x + box.width / 2, box.y + box.height / 2);
    this.x = Math.max(this.x, ROOM - box.x * this.scale);
    this.y = Math.max(this.y, ROOM - box.y * this.scale);
  }

  /** The scale, at most 1, at which all of a box is seen. */
  scaleFor({ width, height }) {
    const room = [(this.width - 2 * ROOM) / width, (this.height - 2 * ROOM) / height];
    return Math.max(LEAST_SCALE, Math.min(1, ...room));
  }

  center(x, y) {
    this.x = this.width / 2 - x * this.scale;
    this.y = this.height / 2 - y * this.scale;
  }

  /** Scroll a box into view; centred if it is not fully visible. */
  reveal({ x, y, width, height }) {
    const [left, top] = this.toScreen(x, y);
    const [right, bottom] = this.toScreen(x + width, y + height);
    const isSeen =
      left >= ROOM && top >= ROOM && right <= this.width - ROOM && bottom <= this.height - ROOM;
    if (!isSeen)
      this.center(x + width / 2, Math.min(y + height / 2, y + (this.height / 2 - ROOM) / this.scale));
  }
}
