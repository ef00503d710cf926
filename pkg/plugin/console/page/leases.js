// The timeline of leases: bound to floor, the held part, virtual machines, and now.
import { el, look, replace, shape, svg } from './dom.js';
import { collate, date, clock, floorText, plural } from './format.js';
import { enter, rove } from './keys.js';
import { filter, instancesByLease, loaded, matches, notices, now, store } from './store.js';

const hour = 3600e3;
const spans = { '2 days': [-24, 30], '2 weeks': [-11 * 24, 3 * 24] };

let root, rows, axis, redraw, range = '2 days', order = '';
const drawn = new Map();

export function start(view, select, schedule) {
  [root, redraw] = [view, schedule];
  rows = el('div', { class: 'rows', role: 'list', 'aria-label': 'Leases by Mac' });
  axis = el('div', { class: 'axis', 'aria-hidden': 'true' });
  const key = el('div', { class: 'key', 'aria-hidden': 'true' }, [['bound', 'bound, up to the floor'], ['after', 'after the floor'], ['held', 'held: deleted before the floor'], ['floor', 'floor'], ['vm', 'VM'], ['now', 'now']]
    .map(([kind, name]) => el('span', {}, sample(kind), name)));
  const choice = el('fieldset', { class: 'choice' }, el('legend', { class: 'hidden' }, 'Time shown'), Object.keys(spans).map((name) => el('label', {},
    el('input', { type: 'radio', name: 'span', value: name, checked: name === range, onchange: () => { range = name; redraw(); } }), name)));
  root.append(el('h2', { class: 'hidden' }, 'Leases'), el('div', { class: 'notices' }), el('div', { class: 'head' }, choice, key), axis, rows);
  rove(rows, '.row', false);
  const open = (event) => {
    const row = event.target.closest('.row');
    if (row?.dataset.node) select(row.dataset.node, row);
  };
  rows.addEventListener('click', open);
  rows.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' || event.key === ' ') {
      event.preventDefault();
      open(event);
    }
  });
}

function sample(kind) {
  const line = { floor: 'tick', now: 'now' }[kind];
  return svg('svg', { width: 18, height: 12 }, line ? svg('line', { class: line, x1: 9, x2: 9, y1: 0, y2: 12 }) : svg('rect', { class: kind, x: 0.5, y: kind === 'vm' ? 4 : 1, width: 17, height: kind === 'vm' ? 4 : 10 }));
}

const shown = () => [...store.items.leases.values()]
  .filter((l) => l.bound && !l.released && (filter.phases.size === 0 || filter.phases.has(look(l.phase))) && matches(l.namespace, l.name, l.node ?? '', l.serial ?? '', l.class, l.phase))
  .sort((a, b) => collate(a.node ?? '', b.node ?? '') || collate(a.bound, b.bound));

export function render() {
  const at = now(), [from, to] = spans[range].map((h) => at + h * hour), list = shown();
  const x = (time) => Math.min(100, Math.max(0, ((time - from) / (to - from)) * 100));
  const minute = Math.floor(at / 60e3);
  replace(root.querySelector('.notices'), JSON.stringify(notices('leases', 'instances')), () => notices('leases', 'instances').map((n) => el('p', { class: 'notice' }, n)));
  replace(axis, range + minute, () => [el('span', {}, 'Mac, lease'), drawAxis(from, to, at, x)]);
  const keys = list.map((l) => l.namespace + '/' + l.name);
  if (order !== keys.join('\n')) {
    order = keys.join('\n');
    const present = new Set(keys);
    for (const key of drawn.keys()) if (!present.has(key)) drawn.delete(key);
    for (const key of keys) if (!drawn.has(key)) drawn.set(key, { row: el('div', { class: 'row', role: 'listitem', tabindex: '-1' }), signature: '' });
    rows.replaceChildren(...keys.map((key) => drawn.get(key).row));
    enter(rows, '.row');
  }
  for (const lease of list) draw(lease, at, minute, x);
  if (list.length === 0 && !rows.firstChild) rows.append(el('p', { class: 'empty' }, loaded('leases') ? 'No lease has a Mac.' : 'Reading the leases…'));
  return plural(list.length, 'lease');
}

function drawAxis(from, to, at, x) {
  const step = range === '2 days' ? 6 * hour : 48 * hour, marks = [];
  for (let t = Math.ceil(from / step) * step; t < to; t += step) {
    const midnight = t % (24 * hour) === 0;
    marks.push(svg('line', { class: 'grid', x1: x(t) + '%', x2: x(t) + '%', y1: 16, y2: 22 }), svg('text', { x: x(t) + '%', y: 12, class: midnight ? 'day' : 'tick-label' }, midnight ? date(t) : clock(t)));
  }
  return svg('svg', { height: 22 }, marks, svg('line', { class: 'now', x1: x(at) + '%', x2: x(at) + '%', y1: 0, y2: 22 }));
}

function draw(lease, at, minute, x) {
  const key = lease.namespace + '/' + lease.name, entry = drawn.get(key), vms = instancesByLease().get(key) ?? [];
  const signature = JSON.stringify([lease, vms.map((v) => [v.name, v.started, v.stopped, v.phase]), minute, range]);
  if (entry.signature === signature) return;
  entry.signature = signature;
  const { row } = entry;
  row.dataset.node = lease.node ?? '';
  row.setAttribute('aria-label', [lease.node, 'lease ' + key, lease.phase, floorText(lease.floor, at), plural(lease.slots?.length ?? 0, 'VM')].join(', '));
  row.replaceChildren(el('span', { class: 'label' }, shape(lease.phase), el('b', {}, lease.node), el('span', { class: 'muted' }, key)), bars(lease, vms, at, x));
}

function bars(lease, vms, at, x) {
  const time = (t) => (t ? Date.parse(t) : undefined);
  const bound = time(lease.bound), floor = time(lease.floor) ?? at, held = time(lease.held);
  const bar = (kind, from, to, y, height) => (x(to) > x(from) ? svg('rect', { class: kind, x: x(from) + '%', width: x(to) - x(from) + '%', y, height }) : null);
  const until = held ?? floor;
  return svg('svg', { height: 34, 'aria-hidden': 'true' },
    bar('bound', bound, Math.min(until, floor), 4, 13), held && bar('held', held, floor, 4, 13), at > floor && bar('after', floor, at, 4, 13),
    vms.filter((v) => v.started).sort((a, b) => collate(a.started, b.started)).map((v, i) => bar('vm', time(v.started), time(v.stopped) ?? at, 20 + (i % 2) * 6, 4)),
    x(floor) < 100 && svg('line', { class: 'tick', x1: x(floor) + '%', x2: x(floor) + '%', y1: 1, y2: 20 }),
    svg('line', { class: 'now', x1: x(at) + '%', x2: x(at) + '%', y1: 0, y2: 34 }));
}

