// The racks: every Mac in its place.
import { el, look, phases, replace, shape } from './dom.js';
import { floorText, plural } from './format.js';
import { enter, rove } from './keys.js';
import { denied, filter, loaded, macMatches, macs, notices, now, slotsOf } from './store.js';

const tiles = new Map();
let root, body, places = '';

export function start(view, select) {
  root = view;
  body = el('div', { class: 'racks' });
  root.append(el('h2', { class: 'hidden' }, 'Racks'), el('div', { class: 'notices' }), body);
  rove(body, '.mac', true);
  body.addEventListener('click', (event) => {
    const tile = event.target.closest('.mac');
    if (tile) select(tile.dataset.name, tile);
  });
}

const shown = () => macs().filter((m) => (filter.phases.size === 0 || filter.phases.has(look(m.phase))) && macMatches(m));

export function render() {
  const list = shown();
  replace(root.querySelector('.notices'), JSON.stringify(notices('macs', 'leases', 'instances')), () => notices('macs', 'leases', 'instances').map((n) => el('p', { class: 'notice' }, n)));
  const placing = list.map((m) => [m.name, m.site, m.rack, m.shelf].join('\u0000')).join('\n') + loaded('macs');
  if (placing !== places) {
    places = placing;
    arrange(list);
  }
  for (const mac of list) draw(mac);
  return plural(list.length, 'Mac') + (list.length === macs().length ? '' : ' of ' + macs().length);
}

function tileOf(mac) {
  if (!tiles.has(mac.name)) {
    const tile = el('button', { class: 'mac', type: 'button', tabindex: '-1', 'data-name': mac.name });
    tiles.set(mac.name, { tile, signature: '' });
  }
  return tiles.get(mac.name).tile;
}

// arrange puts the tiles into racks and shelves.
function arrange(list) {
  const focused = document.activeElement?.closest?.('.mac')?.dataset.name;
  const present = new Set(list.map((m) => m.name));
  for (const name of tiles.keys()) if (!present.has(name)) tiles.delete(name);
  const racks = new Map();
  for (const mac of list) {
    const key = mac.site + '\u0000' + mac.rack;
    if (!racks.has(key)) racks.set(key, { site: mac.site, rack: mac.rack, shelves: new Map() });
    const { shelves } = racks.get(key);
    if (!shelves.has(mac.shelf)) shelves.set(mac.shelf, []);
    shelves.get(mac.shelf).push(mac);
  }
  body.replaceChildren(...[...racks.values()].map(drawRack));
  if (list.length === 0) body.append(el('p', { class: 'empty' }, emptyText()));
  enter(body, '.mac');
  if (focused && tiles.has(focused)) tiles.get(focused).tile.focus({ preventScroll: true });
}

function emptyText() {
  if (macs().length > 0) return 'No Mac matches the filter.';
  if (!loaded('macs') || !loaded('leases')) return 'Reading the Macs…';
  return denied('macs') ? 'None of your leases has a Mac.' : 'There are no Macs.';
}

function drawRack({ site, rack, shelves }) {
  const count = [...shelves.values()].reduce((n, s) => n + s.length, 0);
  const widest = Math.max(...[...shelves.values()].map((s) => s.length));
  const name = rack ? 'Rack ' + rack : denied('macs') ? 'Your Macs' : 'No rack';
  const section = el('section', { class: 'rack', role: 'group', 'aria-label': [site && 'Site ' + site, name, plural(count, 'Mac')].filter(Boolean).join(', ') },
    el('h3', {}, el('span', {}, name), el('span', { class: 'muted' }, site)),
    [...shelves].map(([shelf, list]) => el('div', { class: 'shelf' }, el('span', { class: 'number-of-shelf', 'aria-hidden': 'true', title: 'Shelf ' + shelf }, shelf), list.map(tileOf))));
  section.style.setProperty('--columns', Math.min(widest, 4));
  return section;
}

function draw(mac) {
  const entry = tiles.get(mac.name), slots = slotsOf(mac), at = now();
  const floor = floorText(mac.floor, at);
  const signature = [mac.phase, mac.tenant, mac.lease, floor, mac.reason, mac.heartbeat, ...slots].join('\u0000');
  if (entry.signature === signature) return;
  entry.signature = signature;
  const { tile } = entry;
  tile.dataset.look = look(mac.phase);
  tile.setAttribute('aria-label', describe(mac, slots, floor));
  tile.title = '';
  tile.replaceChildren(shape(mac.phase),
    el('span', { class: 'name' }, mac.name),
    el('span', { class: 'who' }, mac.tenant || (mac.phase === 'Available' ? mac.class : mac.phase)),
    el('span', { class: 'slots' }, slots.map((s) => el('i', { class: s ? 'used' : 'free' }))));
}

// describe returns what a screen reader says about a Mac.
export function describe(mac, slots, floor) {
  const used = slots.filter(Boolean);
  return [
    mac.name, mac.phase, mac.reason && 'reason ' + mac.reason, mac.tenant && 'tenant ' + mac.tenant, mac.lease && 'lease ' + mac.lease,
    used.length + ' of 2 VM slots used' + (used.some((s) => s !== '?') ? ': ' + used.filter((s) => s !== '?').join(' and ') : ''), floor,
    mac.shelf && 'shelf ' + mac.shelf,
  ].filter(Boolean).join(', ').replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f]/g, ' ');
}

// counts returns the number of Macs of each phase.
export function counts() {
  const found = new Map(phases.map((p) => [p, 0]));
  for (const mac of macs()) found.set(look(mac.phase), found.get(look(mac.phase)) + 1);
  return found;
}
