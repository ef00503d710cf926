package check

import (
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// OpKind is an action or an observation of a client.
type OpKind int

const (
	// Take: an item was added: an instance to a lease, or a lease to a Mac.
	Take OpKind = iota
	// Full: no item was added, because there was no room.
	Full
	// Drop: an item is absent afterwards, even if it was absent before.
	Drop
	// Read: exactly these items were present.
	Read
)

// An Op is one operation of a client on the slot table of a lease, or on the lease of a Mac.
type Op struct {
	Kind OpKind
	// Items are the items of a Read; otherwise the one item.
	Items []string
	// Unknown means that the operation may not have happened.
	Unknown bool
	// Client ran the operation from Call to Return, which are times since the start.
	Client       int
	Call, Return time.Duration
}

// Histories are the clients' operations on tables: the slots of leases, and the leases of Macs. It
// is safe for concurrent use.
type Histories struct {
	mu     sync.Mutex
	tables map[string][]Op
}

// Add adds an operation on the table of an object.
func (h *Histories) Add(key string, op Op) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tables == nil {
		h.tables = map[string][]Op{}
	}
	h.tables[key] = append(h.tables[key], op)
}

// CheckHistories checks that the operations on each table could have happened one by one, each at a
// moment between call and return. It returns the numbers of checked tables, of operations, and of
// tables left undecided for lack of time.
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
			c.violate(key, "Linearizable", "no order of the %d operations explains the clients' observations", len(history))
		case porcupine.Unknown:
			undecided++
		}
	}
	return tables, operations, undecided
}

// history drops operations of unknown outcome that have no visible effect.
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

// taken reports whether an item was ever in a table.
func (c *Checker) taken(key, item string) bool {
	if node, ok := strings.CutPrefix(key, nodePrefix); ok {
		return c.bound[leasePrefix+item] == node
	}
	return c.created[instancePrefix+item]
}

// dropped reports whether an item ever left a table.
func (c *Checker) dropped(key, item string) bool {
	if strings.HasPrefix(key, nodePrefix) {
		return c.released[leasePrefix+item]
	}
	return c.stopped[instancePrefix+item]
}

// model is a table with room for a number of items. Its state is the sorted items.
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
