// The queue: what waits, since when, and for what.
import { el, phaseText, replace, table } from './dom.js';
import { age, collate, plural } from './format.js';
import { loaded, matches, notices, now, store } from './store.js';

const starting = ['Pending', 'Scheduled', 'Pulling', 'Starting'];

let root;

export function start(view) { root = view; }

const first = (a, b) => collate(a.created ?? '', b.created ?? '');

export function render() {
  const at = now();
  const leases = [...store.items.leases.values()].filter((l) => l.phase === 'Pending' && matches(l.namespace, l.name, l.class, l.reason ?? '', l.message ?? '')).sort(first);
  const releasing = [...store.items.leases.values()].filter((l) => l.phase === 'Releasing' && matches(l.namespace, l.name, l.class, l.node ?? '', l.message ?? '')).sort(first);
  const instances = [...store.items.instances.values()].filter((i) => starting.includes(i.phase) && matches(i.namespace, i.name, i.lease, i.image, i.reason ?? '', i.message ?? '')).sort(first);
  const hidden = notices('leases', 'instances');
  replace(root, JSON.stringify([leases, releasing, instances, hidden, loaded('leases'), Math.floor(at / 10e3)]), () => [
    el('h2', { class: 'hidden' }, 'Queue'),
    hidden.map((n) => el('p', { class: 'notice' }, n)),
    table('Leases that wait for a Mac', [{ title: 'Lease' }, { title: 'Class' }, { title: 'Age', number: true }, { title: 'Reason' }],
      leases.map((l) => [l.namespace + '/' + l.name, l.class, age(l.created, at), reason(l)]), loaded('leases') ? 'No lease waits for a Mac.' : 'Reading the leases…'),
    table('Instances that start', [{ title: 'Instance' }, { title: 'Phase' }, { title: 'Age', number: true }, { title: 'Mac' }, { title: 'Waits for' }],
      instances.map((i) => [i.namespace + '/' + i.name, phaseText(i.phase), age(i.created, at), i.node ?? '', reason(i)]), loaded('instances') ? 'No instance waits.' : 'Reading the instances…'),
    releasing.length > 0 && table('Macs that are released', [{ title: 'Mac' }, { title: 'Lease' }, { title: 'Waits for' }], releasing.map((l) => [l.node ?? '', l.namespace + '/' + l.name, reason(l)]), ''),
  ]);
  return plural(leases.length, 'lease') + ' and ' + plural(instances.length, 'instance') + ' waiting';
}

const reason = (o) => el('span', { class: 'reason' }, o.reason && el('b', {}, o.reason), o.message && el('span', {}, o.message));
