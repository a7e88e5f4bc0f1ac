"use strict";
// Which code wrote: page writes by call stack and cell, without the page that shows them. A cell
// has some rows and columns of the heatmap.
function Code(code, bandRows, columns) {
  const stacks = code.stacks.length, nodes = code.parents.length;
  const width = Math.ceil(columns / code.columnsPerCell);
  // The first row of each row of cells, and the end.
  const rowStarts = [];
  let rows = 0;
  for (const own of bandRows) {
    for (let row = 0; row < own; row += code.rowsPerCell) rowStarts.push(rows + row);
    rows += own;
  }
  rowStarts.push(rows);
  const height = rowStarts.length - 1;
  const columnStarts = [];
  for (let column = 0; column < columns; column += code.columnsPerCell) columnStarts.push(column);
  columnStarts.push(columns);
  const rowOf = new Uint32Array(rows);
  for (let row = 0; row < height; row++) rowOf.fill(row, rowStarts[row], rowStarts[row + 1]);

  // Counts: of which stack, in which cell, how many page writes.
  const stackOf = [], cellOf = [], pagesOf = [];
  {
    const input = Uint8Array.from(atob(code.counts), (c) => c.charCodeAt(0));
    let at = 0;
    const number = () => {
      let value = 0;
      for (let scale = 1; ; scale *= 128) {
        const byte = input[at++];
        value += (byte & 127) * scale;
        if (byte < 128) return value;
      }
    };
    for (let next = 0; at < input.length; next++) {
      next += number();
      const row = next % height, column = Math.floor(next / height) % width;
      stackOf.push(Math.floor(next / height / width));
      cellOf.push(row * width + column);
      pagesOf.push(number());
    }
  }

  // The functions of a stack, innermost first, without the root; each once.
  const functionsOf = Array.from(code.stacks, (node) => {
    const functions = [];
    for (; node > 0; node = code.parents[node]) functions.push(code.functions[node]);
    return functions;
  });

  return {
    width, height, rowStarts, columnStarts,
    cellAt: (row, column) => rowOf[row] * width + Math.floor(column / code.columnsPerCell),
    name: (number) => code.names[number],

    // Page writes of each stack in the cells of chosen columns and rows.
    sums(inColumn, inRow) {
      const sums = new Float64Array(stacks);
      for (let i = 0; i < pagesOf.length; i++) {
        const cell = cellOf[i];
        if (inColumn[cell % width] && inRow[Math.floor(cell / width)]) sums[stackOf[i]] += pagesOf[i];
      }
      return sums;
    },

    // The flame graph of such sums: for each node that wrote, its depth, the page writes to its
    // left and its own.
    flame(sums) {
      const pages = new Float64Array(nodes);
      for (let stack = 0; stack < stacks; stack++) pages[code.stacks[stack]] += sums[stack];
      for (let node = nodes - 1; node > 0; node--) pages[code.parents[node]] += pages[node];
      const children = Array.from({ length: nodes }, () => []);
      for (let node = 1; node < nodes; node++) if (pages[node] > 0) children[code.parents[node]].push(node);
      const places = [];
      const todo = pages[0] > 0 ? [[0, 0, 0]] : [];
      while (todo.length > 0) {
        const [node, depth, from] = todo.pop();
        places.push({ node, name: code.functions[node], depth, from, pages: pages[node] });
        let left = from;
        const named = children[node].map((child) => [code.names[code.functions[child]], child]);
        named.sort(([a], [b]) => (a < b ? -1 : a > b ? 1 : 0));
        for (const [, child] of named) {
          todo.push([child, depth + 1, left]);
          left += pages[child];
        }
      }
      return places;
    },

    // Functions by what they wrote themselves, and with those that they called; threads are none.
    functions(sums) {
      const found = new Map();
      for (let stack = 0; stack < stacks; stack++) {
        if (sums[stack] === 0) continue;
        const functions = functionsOf[stack].length > 1 ? functionsOf[stack].slice(0, -1) : functionsOf[stack];
        for (const name of new Set(functions)) {
          const counts = found.get(name) ?? { name, own: 0, total: 0 };
          counts.total += sums[stack];
          if (name === functions[0]) counts.own += sums[stack];
          found.set(name, counts);
        }
      }
      const order = (a, b) => b.own - a.own || b.total - a.total || a.name - b.name;
      return Array.from(found.values()).sort(order);
    },

    // Whether each cell has page writes by a function or those that it called.
    cellsOf(name) {
      const cells = new Uint8Array(width * height);
      const has = functionsOf.map((functions) => functions.includes(name));
      for (let i = 0; i < pagesOf.length; i++) if (has[stackOf[i]]) cells[cellOf[i]] = 1;
      return cells;
    },

    // The functions that wrote most themselves in a cell, and all page writes there.
    writersIn(cell) {
      const sums = new Float64Array(stacks);
      let all = 0;
      for (let i = 0; i < pagesOf.length; i++) {
        if (cellOf[i] !== cell) continue;
        sums[stackOf[i]] += pagesOf[i];
        all += pagesOf[i];
      }
      return { all, functions: this.functions(sums).filter((counts) => counts.own > 0) };
    },

    // Which of some places in a row lie between two points: those whose middle does, and where none
    // is so small, the one that holds the middle of the two.
    within(places, from, to) {
      const chosen = Uint8Array.from(places, ([start, end]) => Number((start + end) / 2 >= from && (start + end) / 2 < to));
      const middle = (from + to) / 2;
      const around = places.findIndex(([start, end]) => start <= middle && middle < end);
      if (around >= 0) chosen[around] = 1;
      return chosen;
    },
  };
}
