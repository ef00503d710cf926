package check

import (
	"k8s.io/apimachinery/pkg/types"
)

// An Ack is what a server has told a client it had done.
type Ack struct {
	Kind AckKind
	// Key is that of the object in etcd.
	Key string
	// UID, Revision and Sum are those of the object that was returned, if one was.
	UID      types.UID
	Revision int64
	Sum      uint64
	// Node is the MacNode that a lease was bound to.
	Node string
}

// An AckKind is what was done.
type AckKind int

const (
	// Written: the object was returned as it is stored.
	Written AckKind = iota
	// Gone: the object with the UID is no more.
	Gone
	// Bound: the lease was bound to Node.
	Bound
	// Released: the lease was released.
	Released
	// Stopped: the instance was asked to stop, or has ended.
	Stopped
)

// CheckAcks checks that nothing that was acknowledged is missing from the history. No two objects may have
// had the key of an Ack that is Bound, Released or Stopped.
func (c *Checker) CheckAcks(acks []Ack) {
	for _, ack := range acks {
		switch ack.Kind {
		case Written:
			if sum, ok := c.written[write{ack.Key, ack.Revision}]; !ok {
				c.violate(ack.Key, "Acknowledged", "revision %d was acknowledged, and is not in the history", ack.Revision)
			} else if sum != ack.Sum {
				c.violate(ack.Key, "Acknowledged", "what was acknowledged as revision %d is not what was stored", ack.Revision)
			}
		case Gone:
			if !c.gone[ack.UID] {
				c.violate(ack.Key, "Acknowledged", "the deletion of %s was acknowledged, and is not in the history", ack.UID)
			}
		case Bound:
			if node := c.bound[ack.Key]; node != ack.Node {
				c.violate(ack.Key, "Acknowledged", "its binding to %s was acknowledged, and it was bound to %q", ack.Node, node)
			}
		case Released:
			if !c.released[ack.Key] {
				c.violate(ack.Key, "Acknowledged", "its release was acknowledged, and is not in the history")
			}
		case Stopped:
			if !c.stopped[ack.Key] {
				c.violate(ack.Key, "Acknowledged", "its stop was acknowledged, and is not in the history")
			}
		}
	}
}
