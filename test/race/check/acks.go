package check

import (
	"k8s.io/apimachinery/pkg/types"
)

// An Ack is an action that a server has acknowledged to a client.
type Ack struct {
	Kind AckKind
	// Key is the object's key in etcd.
	Key string
	// UID, Revision and Sum describe the returned object, if there is one.
	UID      types.UID
	Revision int64
	Sum      uint64
	// Node is the MacNode of a binding.
	Node string
}

// An AckKind is the kind of the acknowledged action.
type AckKind int

const (
	// Written: the object was returned as stored.
	Written AckKind = iota
	// Gone: the object with the UID was deleted.
	Gone
	// Bound: the lease was bound to Node.
	Bound
	// Released: the lease was released.
	Released
	// Stopped: the instance was asked to stop, or has ended.
	Stopped
)

// CheckAcks checks that the history has every acknowledged action. The key of a Bound, Released or
// Stopped Ack must have had one object only.
func (c *Checker) CheckAcks(acks []Ack) {
	for _, ack := range acks {
		switch ack.Kind {
		case Written:
			if sum, ok := c.written[write{ack.Key, ack.Revision}]; !ok {
				c.violate(ack.Key, "Acknowledged", "revision %d was acknowledged, but is not in the history", ack.Revision)
			} else if sum != ack.Sum {
				c.violate(ack.Key, "Acknowledged", "the object acknowledged as revision %d differs from the stored one", ack.Revision)
			}
		case Gone:
			if !c.gone[ack.UID] {
				c.violate(ack.Key, "Acknowledged", "the deletion of %s was acknowledged, but is not in the history", ack.UID)
			}
		case Bound:
			if node := c.bound[ack.Key]; node != ack.Node {
				c.violate(ack.Key, "Acknowledged", "its binding to %s was acknowledged, but it was bound to %q", ack.Node, node)
			}
		case Released:
			if !c.released[ack.Key] {
				c.violate(ack.Key, "Acknowledged", "its release was acknowledged, but is not in the history")
			}
		case Stopped:
			if !c.stopped[ack.Key] {
				c.violate(ack.Key, "Acknowledged", "its stop was acknowledged, but is not in the history")
			}
		}
	}
}
