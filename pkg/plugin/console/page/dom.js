// Builds elements. Everything that comes from the cluster passes through here, as text.

const SVG = 'http://www.w3.org/2000/svg';

// Characters that are invisible, or that change the order of the characters around them.
const hidden = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

// text returns a text with hidden characters escaped.
export function text(value) {
  return String(value ?? '').replace(hidden, (c) => '\\u' + c.charCodeAt(0).toString(16).padStart(4, '0'));
}

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? '' : text(value));
  }
  node.append(...children.flat().filter((c) => c !== undefined && c !== null && c !== false).map((c) => (c instanceof Node ? c : text(c))));
  return node;
}

export const el = (name, attributes = {}, ...children) => build(document.createElement(name), attributes, children);
export const svg = (name, attributes = {}, ...children) => build(document.createElementNS(SVG, name), attributes, children);
export const byId = (id) => document.getElementById(id);

export const phases = ['Available', 'Leased', 'Held', 'Releasing', 'Offline', 'Quarantined', 'Maintenance', 'Pending'];

// What phases of other kinds look like.
const alike = {
  Bound: 'Leased', Running: 'Leased', Released: 'Available', Stopped: 'Available', Scheduled: 'Pending', Pulling: 'Releasing', Starting: 'Releasing',
  Stopping: 'Releasing', Failed: 'Quarantined', Ready: 'Good', Compliant: 'Good', Violated: 'Quarantined', Incomplete: 'Held',
};

// look returns the name of the shape and colour of a phase.
export const look = (phase) => (phases.includes(phase) ? phase : alike[phase] ?? 'Pending');

// shape returns the shape of a phase. It is hidden from screen readers, which read the word.
export function shape(phase) {
  const drawn = look(phase);
  return svg('svg', { class: 'shape', 'data-look': drawn, 'aria-hidden': 'true' }, svg('use', { href: '#shape-' + drawn }));
}

// phaseText returns the shape of a phase, and the phase.
export const phaseText = (phase) => el('span', { class: 'phase' }, shape(phase), phase);

// table returns a table. A column has a title, and number if it has numbers.
export function table(caption, columns, rows, empty) {
  if (rows.length === 0) return el('div', {}, el('h3', {}, caption), el('p', { class: 'empty' }, empty));
  const align = (i) => (columns[i].number ? 'number' : undefined);
  return el('div', { class: 'scroll', role: 'region', tabindex: '0', 'aria-label': caption },
    el('table', {},
      el('caption', {}, caption),
      el('thead', {}, el('tr', {}, columns.map((c, i) => el('th', { scope: 'col', class: align(i) }, c.title)))),
      el('tbody', {}, rows.map((cells) => el('tr', {}, cells.map((cell, i) => (i === 0 ? el('th', { scope: 'row' }, cell) : el('td', { class: align(i) }, cell))))))));
}

// replace replaces the content of an element if signature differs from the last one.
export function replace(root, signature, content) {
  if (root.dataset.signature === signature) return;
  root.dataset.signature = signature;
  root.replaceChildren(...content().flat().filter(Boolean));
}
