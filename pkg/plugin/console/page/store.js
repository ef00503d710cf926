// The state that the server streams, and what follows from it.
import { collate } from './format.js';

export const kinds = ['macs', 'leases', 'instances', 'images', 'classes'];

export const store = {
  items: Object.fromEntries(kinds.map((k) => [k, new Map()])),
  sources: {},
  offset: 0,
  revision: 0,
};

// now is the time of the server.
export const now = () => Date.now() + store.offset;

// apply applies a message. A message with the whole state replaces all items.
export function apply(message, whole) {
  store.offset = Date.parse(message.time) - Date.now();
  if (Math.abs(store.offset) < 2000) store.offset = 0;
  if (message.sources) store.sources = message.sources;
  for (const kind of kinds) {
    const changes = message.items?.[kind] ?? {};
    if (whole) store.items[kind] = new Map();
    for (const [key, item] of Object.entries(changes)) {
      if (item === null) store.items[kind].delete(key);
      else store.items[kind].set(key, item);
    }
  }
  store.revision++;
}

export const loaded = (kind) => Boolean(store.sources[kind]?.loaded);
export const denied = (kind) => Boolean(store.sources[kind]?.denied);

// notices returns what is not shown of some kinds.
export const notices = (...of) => of.map((kind) => store.sources[kind]?.notice).filter(Boolean);

// problem returns the first problem of the server, or undefined.
export const problem = () => Object.values(store.sources).find((s) => s.problem);

function memo(compute) {
  let revision = -1, value;
  return () => {
    if (revision !== store.revision) [revision, value] = [store.revision, compute()];
    return value;
  };
}

// instancesOf returns the instances of each lease, by namespace/name.
export const instancesByLease = memo(() => {
  const found = new Map();
  for (const i of store.items.instances.values()) {
    const key = i.namespace + '/' + i.lease;
    if (!found.has(key)) found.set(key, []);
    found.get(key).push(i);
  }
  return found;
});

export const leaseOf = (mac) => store.items.leases.get(mac.tenant + '/' + mac.lease);

// slotsOf returns the two slots of a Mac: the name of an instance, '' if free, '?' if not known.
export function slotsOf(mac) {
  const names = leaseOf(mac)?.slots;
  return [0, 1].map((i) => (names ? names[i] ?? '' : i < mac.vms ? '?' : ''));
}

// macs returns the Macs by place. Users who may not list Macs see the Macs of their leases.
export const macs = memo(() => {
  let found = [...store.items.macs.values()];
  if (denied('macs')) {
    found = [...store.items.leases.values()].filter((l) => l.node && !l.released).map((l) => ({
      name: l.node, serial: l.serial, class: l.class, site: '', rack: '', shelf: '', phase: l.macPhase, tenant: l.namespace, lease: l.name, floor: l.floor,
      vms: l.slots?.length ?? 0,
    }));
  }
  return found.sort((a, b) => collate(a.site, b.site) || collate(a.rack, b.rack) || collate(a.shelf, b.shelf) || collate(a.name, b.name));
});

export const macByName = memo(() => new Map(macs().map((m) => [m.name, m])));

// The filter: words that must all occur, and phases of which one must be the Mac's.
export const filter = { words: [], phases: new Set() };

const normal = (value) => value.toLowerCase();

// matches reports whether all words of the filter occur in the values.
export function matches(...values) {
  if (filter.words.length === 0) return true;
  const all = normal(values.join(' '));
  return filter.words.every((word) => all.includes(word));
}

export function setWords(value) {
  filter.words = normal(value).split(/\s+/).filter(Boolean);
}

export const macMatches = (m) => matches(m.name, m.serial, m.class, m.tenant ?? '', m.lease ?? '', 'site ' + m.site, 'rack ' + m.rack, m.phase, m.reason ?? '');
