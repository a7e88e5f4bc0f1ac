// Runs the scripts of a page without a browser: elements that remember what they are given, and
// events that are sent by hand. Reads the scripts and the data blocks, prints what the page shows.
"use strict";
const { readFileSync } = require("node:fs");
const { scripts, blocks } = JSON.parse(readFileSync(0, "utf8"));

class FakeElement {
  constructor(tag) {
    Object.assign(this, { tag, children: [], listeners: {}, dataset: {}, style: {}, attributes: {} });
    Object.assign(this, { textContent: "", className: "", hidden: false, disabled: false, clientWidth: 1000, offsetWidth: 50, offsetHeight: 20 });
    this.classList = { add: (name) => { this.className += " " + name; } };
  }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  send(name, event) { this.listeners[name]({ preventDefault() {}, ...event }); }
  setAttribute(name, value) { this.attributes[name] = value; }
  append(...more) { this.children.push(...more); }
  replaceChildren(...all) { this.children = all; }
  contains() { return false; }
  querySelectorAll(tag) { return this.children.flatMap((child) => [...(child.tag === tag ? [child] : []), ...child.querySelectorAll(tag)]); }
  getBoundingClientRect() { return { left: 0, top: 0 }; }
  setPointerCapture() {}
  get parentElement() { return (this.parent ??= new FakeElement("div")); }
  get tBodies() { return [(this.tbody ??= new FakeElement("tbody"))]; }
  getContext() {
    const plain = {
      createImageData: (width, height) => ({ width, height, data: new Uint8ClampedArray(4 * width * height) }),
      putImageData: (image) => { this.image = image; },
      drawImage: (layer) => { this.image = layer.image; },
      measureText: (text) => ({ width: 7 * text.length }),
    };
    return new Proxy(plain, { get: (of, name) => of[name] ?? (() => {}), set: () => true });
  }
}

const sections = blocks.map((block) => {
  const parts = new Map();
  const section = new FakeElement("section");
  section.querySelector = (selector) => {
    const name = selector.slice(1);
    if (!parts.has(name)) parts.set(name, new FakeElement(name));
    return parts.get(name);
  };
  section.querySelector(".data").textContent = block;
  return section;
});
globalThis.document = {
  querySelectorAll: (selector) => (selector === "section.map" ? sections : []),
  getElementById: () => null,
  createElement: (tag) => new FakeElement(tag),
  documentElement: null,
  activeElement: null,
};
globalThis.window = { devicePixelRatio: 1, addEventListener() {} };
globalThis.getComputedStyle = () => ({ getPropertyValue: () => "#123456" });
globalThis.matchMedia = () => ({ addEventListener() {} });
globalThis.ResizeObserver = class { observe() {} };
(0, eval)(scripts.join("\n"));

const seen = sections.map((section) => {
  const part = (name) => section.querySelector("." + name);
  const rows = () => part("functions").tBodies[0].children.map((row) => row.children.map((cell) => cell.textContent || cell.children.map((c) => c.textContent).join("")));
  // Pixels of the map that have a colour.
  const coloured = () => {
    const { data } = part("chart").image;
    let count = 0;
    for (let i = 0; i < data.length; i += 4) if (data[i] !== data[i + 1] || data[i + 1] !== data[i + 2]) count++;
    return count;
  };
  const state = () => ({ scope: part("scope").textContent, rows: rows(), coloured: coloured(), all: part("all-code").disabled });
  const states = { whole: state() };
  const mouse = (x, y) => ({ pointerType: "mouse", button: 0, pointerId: 1, clientX: x, clientY: y });
  const overlay = part("overlay");
  overlay.send("pointermove", mouse(500, 40));
  states.tip = part("tip").children.map((line) => line.textContent);
  // The second half of the time.
  overlay.send("pointerdown", mouse(576, 40));
  overlay.send("pointermove", mouse(981, 41));
  overlay.send("pointerup", mouse(981, 41));
  states.late = state();
  part("reset").send("click", {});
  states.reset = state();
  const button = () => part("functions").tBodies[0].querySelectorAll("button")[1];
  states.name = button().textContent;
  button().send("click", {});
  states.chosen = state();
  part("all-code").send("click", {});
  states.back = state();
  // The flame graph's lowest row is everything, the one above it threads.
  const flame = part("flame-graph");
  const height = Number(flame.style.height.slice(0, -2));
  flame.send("pointermove", mouse(20, height - 22));
  states.flameTip = part("flame-tip").children.map((line) => line.textContent);
  flame.send("click", mouse(20, height - 4));
  states.root = state();
  flame.send("click", mouse(20, height - 22));
  states.thread = state();
  return states;
});
console.log(JSON.stringify(seen));
