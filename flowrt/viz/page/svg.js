// A drawing context like a canvas's that writes SVG: what paint.js draws, as a file whose texts stay texts.

/** As much of CanvasRenderingContext2D as paint.js uses; `text()` is the file. */
export class SvgContext {
  globalAlpha = 1;
  fillStyle = "";
  strokeStyle = "";
  lineWidth = 1;
  font = "";
  textAlign = "left";
  #width;
  #height;
  #parts = [];
  #path = "";
  #transform = "";
  #dashes = "";
  #clip = "";
  #clips = 0;
  #measure = document.createElement("canvas").getContext("2d");

  constructor(width, height) {
    this.#width = width;
    this.#height = height;
  }

  text() {
    const size = `width="${this.#width}" height="${this.#height}"`;
    const box = `viewBox="0 0 ${this.#width} ${this.#height}"`;
    const root = "svg"; // in the page, a closing tag as text could end the script
    return `<${root} xmlns="http://www.w3.org/2000/svg" ${size} ${box}>\n${this.#parts.join("\n")}\n</${root}>\n`;
  }

  setTransform(...matrix) {
    this.#transform = `matrix(${matrix.map(rounded).join(" ")})`;
  }

  setLineDash(dashes) {
    this.#dashes = dashes.length ? ` stroke-dasharray="${dashes.join(" ")}"` : "";
  }

  beginPath() {
    this.#path = "";
  }

  moveTo(...point) {
    this.#path += `M${point.map(rounded).join(" ")}`;
  }

  lineTo(...point) {
    this.#path += `L${point.map(rounded).join(" ")}`;
  }

  bezierCurveTo(...points) {
    this.#path += `C${points.map(rounded).join(" ")}`;
  }

  closePath() {
    this.#path += "Z";
  }

  rect(x, y, width, height) {
    this.#path += `M${rounded(x)} ${rounded(y)}h${rounded(width)}v${rounded(height)}h${rounded(-width)}Z`;
  }

  roundRect(x, y, width, height, radius) {
    const corner = (dx, dy) => `a${radius} ${radius} 0 0 1 ${dx * radius} ${dy * radius}`;
    const [w, h] = [width - 2 * radius, height - 2 * radius].map(rounded);
    this.#path += `M${rounded(x + radius)} ${rounded(y)}h${w}${corner(1, 1)}v${h}${corner(-1, 1)}`;
    this.#path += `h${-w}${corner(-1, -1)}v${-h}${corner(1, -1)}Z`;
  }

  fill() {
    this.#add("path", `d="${this.#path}" fill="${this.fillStyle}"`);
  }

  stroke() {
    const line = `stroke="${this.strokeStyle}" stroke-width="${rounded(this.lineWidth)}"${this.#dashes}`;
    this.#add("path", `d="${this.#path}" fill="none" ${line}`);
  }

  fillRect(x, y, width, height) {
    const size = `width="${rounded(width)}" height="${rounded(height)}"`;
    this.#add("rect", `x="${rounded(x)}" y="${rounded(y)}" ${size} fill="${this.fillStyle}"`);
  }

  fillText(text, x, y) {
    const anchor = this.textAlign === "center" ? ' text-anchor="middle"' : "";
    const place = `x="${rounded(x)}" y="${rounded(y)}" dominant-baseline="central"${anchor}`;
    this.#add("text", `${place} fill="${this.fillStyle}" style="${escaped(`font: ${this.font}`)}"`, text);
  }

  measureText(text) {
    this.#measure.font = this.font;
    return this.#measure.measureText(text);
  }

  /** The path bounds what is drawn until `restore`. Contexts are saved for this only. */
  clip() {
    const id = `clip${this.#clips++}`;
    this.#parts.push(`<clipPath id="${id}"><path d="${this.#path}"/></clipPath>`);
    this.#clip = ` clip-path="url(#${id})"`;
  }

  save() {}

  restore() {
    this.#clip = "";
  }

  #add(tag, attributes, text = "") {
    const alpha = this.globalAlpha < 1 ? ` opacity="${this.globalAlpha}"` : "";
    const start = `<${tag} transform="${this.#transform}"${this.#clip}${alpha} ${attributes}`;
    this.#parts.push(text ? `${start}>${escaped(text)}</${tag}>` : `${start}/>`);
  }
}

function rounded(value) {
  return Math.round(value * 100) / 100;
}

function escaped(text) {
  return text.replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`);
}
