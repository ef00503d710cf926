// Images: what they contain, where they are on disk, and which are being pulled.
import { el, phaseText, replace, svg, table } from './dom.js';
import { age, bytes, collate, plural } from './format.js';
import { denied, loaded, macs, notices, now, store } from './store.js';

let root;

export function start(view) { root = view; }

export function render() {
  const at = now(), images = [...store.items.images.values()].sort((a, b) => collate(a.name, b.name));
  const pulls = [...store.items.instances.values()].filter((i) => i.phase === 'Pulling').sort((a, b) => collate(a.name, b.name));
  const where = placesOf(), hidden = notices('images', 'macs', 'instances');
  replace(root, JSON.stringify([images, pulls, [...where], hidden, Math.floor(at / 10e3)]), () => [
    el('h2', { class: 'hidden' }, 'Images'),
    hidden.map((n) => el('p', { class: 'notice' }, n)),
    table('Images', [{ title: 'Image' }, { title: 'Phase' }, { title: 'macOS' }, { title: 'Xcode' }, { title: 'Size', number: true }, { title: 'On Macs', number: true }, { title: 'By rack' }],
      images.map((i) => [i.name, i.message ? el('span', {}, phaseText(i.phase), el('span', { class: 'muted' }, ' ' + i.message)) : phaseText(i.phase), i.contents.macOS ?? '', i.contents.Xcode ?? '', bytes(i.size),
        i.replicas, racks(where.get(i.name))]), loaded('images') ? 'There are no images.' : 'Reading the images…'),
    table('Pulls in progress', [{ title: 'Image' }, { title: 'Mac' }, { title: 'For' }, { title: 'Age', number: true }, { title: 'Progress' }],
      pulls.map((i) => [i.image, i.node ?? '', i.namespace + '/' + i.name, age(i.created, at), progress(i)]), 'No image is being pulled.'),
  ]);
  return '';
}

// placesOf returns the number of Macs with an image, and of all Macs, for each image and rack.
function placesOf() {
  const totals = new Map(), found = new Map();
  if (denied('macs')) return found;
  for (const mac of macs()) {
    const rack = (mac.site + ' ' + mac.rack).trim() || 'no rack';
    totals.set(rack, (totals.get(rack) ?? 0) + 1);
  }
  for (const mac of macs()) {
    const rack = (mac.site + ' ' + mac.rack).trim() || 'no rack';
    for (const image of mac.images ?? []) {
      if (!found.has(image)) found.set(image, [...totals].map(([name, total]) => ({ name, total, n: 0 })));
      found.get(image).find((r) => r.name === rack).n++;
    }
  }
  return found;
}

// racks draws which part of each rack has an image.
function racks(list) {
  if (!list) return '';
  const full = list.filter((r) => r.n === r.total).length;
  return svg('svg', { class: 'cells', width: list.length * 9, height: 16, role: 'img', 'aria-label': 'in ' + plural(list.filter((r) => r.n > 0).length, 'rack') + ', on all Macs of ' + full },
    list.map((r, i) => svg('g', {}, svg('title', {}, r.name + ': ' + r.n + ' of ' + plural(r.total, 'Mac')), svg('rect', { class: 'ground', x: i * 9, width: 7, height: 16 }),
      svg('rect', { class: 'bound', x: i * 9, width: 7, y: 16 - (r.n / r.total) * 16, height: (r.n / r.total) * 16 }))));
}

// progress draws the percentage in the message of an instance, if it has one.
function progress(instance) {
  const percent = /(\d{1,3})(?:\.\d+)? ?%/.exec(instance.message ?? '')?.[1];
  return el('span', { class: 'reason' }, percent && el('progress', { max: 100, value: percent, 'aria-label': 'pulled' }), el('span', {}, instance.message || instance.reason || ''));
}
