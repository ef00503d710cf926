package check

import (
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// OpKind is what a client did, or saw.
type OpKind int

const (
	// Take: an item was added: an instance to a lease, or a lease to a Mac.
	Take OpKind = iota
	// Full: nothing was added, as there was no room.
	Full
	// Drop: an item is no more there, whether it was before or not.
	Drop
	// Read: these items, and no others, were there.
	Read
)

// An Op is one operation of a client on the slot table of a lease, or on the lease of a Mac.
type Op struct {
	Kind OpKind
	// Items are those that were read; else the item.
	Items []string
	// Unknown says that nobody knows whether it was done.
	Unknown bool
	// Client did it, from Call to Return, which are times since the start.
	Client       int
	Call, Return time.Duration
}

// Histories are what clients did on tables: the slots of leases, and the leases of Macs. It is safe for concurrent use.
type Histories struct {
	mu     sync.Mutex
	tables map[string][]Op
}

// Add adds an operation on the table of the object with a key.
func (h *Histories) Add(key string, op Op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tables == nil {
		h.tables = map[string][]Op{}
	}
	h.tables[key] = append(h.tables[key], op)
}

// CheckHistories checks that what clients saw of each table could have happened one by one, each at a moment
// between call and return. It returns how many tables and operations it checked, and how many tables it
// could not decide on in the time that it has for each.
func (c *Checker) CheckHistories(h *Histories, each time.Duration) (tables, operations, undecided int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, ops := range h.tables {
		room := 1
		if strings.HasPrefix(key, leasePrefix) {
			room = slotsPerMac
		}
		history := c.history(key, ops)
		tables++
		operations += len(history)
		switch porcupine.CheckOperationsTimeout(model(room), history, each) {
		case porcupine.Illegal:
			c.violate(key, "Linearizable", "what clients saw in %d operations cannot have happened in any order", len(history))
		case porcupine.Unknown:
			undecided++
		}
	}
	return tables, operations, undecided
}

// history leaves out what, as nobody knows whether it was done, need not have been done, and was not.
func (c *Checker) history(key string, ops []Op) []porcupine.Operation {
	var history []porcupine.Operation
	for _, op := range ops {
		end := int64(op.Return)
		if op.Unknown {
			if op.Kind == Take && !c.taken(key, op.Items[0]) || op.Kind == Drop && !c.dropped(key, op.Items[0]) {
				continue
			}
			end = math.MaxInt64
		}
		history = append(history, porcupine.Operation{ClientId: op.Client, Input: op, Call: int64(op.Call), Return: end})
	}
	return history
}

// taken says whether an item was ever in a table.
func (c *Checker) taken(key, item string) bool {
	if node, ok := strings.CutPrefix(key, nodePrefix); ok {
		return c.bound[leasePrefix+item] == node
	}
	return c.created[instancePrefix+item]
}

// dropped says whether an item ever left a table.
func (c *Checker) dropped(key, item string) bool {
	if strings.HasPrefix(key, nodePrefix) {
		return c.released[leasePrefix+item]
	}
	return c.stopped[instancePrefix+item]
}

// model is a table with room for items. Its state is the sorted items.
func model(room int) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return "" },
		Step: func(state, input, _ any) (bool, any) {
			op := input.(Op)
			items := split(state.(string))
			switch op.Kind {
			case Read:
				want := slices.Clone(op.Items)
				slices.Sort(want)
				return slices.Equal(items, want), state
			case Full:
				return len(items) >= room, state
			case Drop:
				items = slices.DeleteFunc(items, func(item string) bool { return item == op.Items[0] })
				return true, strings.Join(items, " ")
			}
			if len(items) >= room || slices.Contains(items, op.Items[0]) {
				return op.Unknown, state
			}
			items = append(items, op.Items[0])
			slices.Sort(items)
			return true, strings.Join(items, " ")
		},
	}
}

func split(state string) []string {
	if state == "" {
		return []string{}
	}
	return strings.Split(state, " ")
}
