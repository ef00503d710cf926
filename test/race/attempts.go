package race

import (
	"context"
	"math/rand/v2"

	instancev1alpha1 "macrack.io/macrack/pkg/apis/instance/v1alpha1"
	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
)

// An attempt is one request that another client may win a race against.
type attempt struct {
	name string
	// weight is its relative frequency in the current state.
	weight func(view) int
	do     func(*worker, context.Context, view)
}

const unleased = "macrack.io/unleased:NoSchedule"

func always(n int) func(view) int { return func(view) int { return n } }

func when(n int, is func(view) bool) func(view) int {
	return func(v view) int {
		if is(v) {
			return n
		}
		return 0
	}
}

func free(v view) bool      { return v.node != nil && v.node.Status.LeaseRef == nil }
func available(v view) bool { return free(v) && v.node.Status.Phase == rackv1alpha1.MacNodeAvailable }
func leased(v view) bool    { return v.lease != nil }

func in(phases ...rackv1alpha1.MacNodeLeasePhase) func(view) bool {
	return func(v view) bool {
		for _, phase := range phases {
			if v.phase() == phase {
				return true
			}
		}
		return false
	}
}

var (
	bound     = in(rackv1alpha1.MacNodeLeaseBound)
	held      = in(rackv1alpha1.MacNodeLeaseHeld)
	releasing = in(rackv1alpha1.MacNodeLeaseReleasing)
)

// attempts are all kinds of attempts.
var attempts = []attempt{
	// Macs and their serial numbers.
	{"node/create", func(v view) int {
		if v.node == nil {
			return 60
		}
		return 1
	}, createNode},
	{"node/delete", func(v view) int {
		if free(v) {
			return 6
		}
		return 1
	}, deleteNode},
	{"node/report", func(v view) int {
		if free(v) && v.node.Status.Hardware == nil {
			return 60
		}
		return 2
	}, report},
	{"node/quarantine", when(1, func(v view) bool { return v.node != nil }), quarantine},
	{"node/recover", when(20, func(v view) bool { return v.node != nil && v.node.Status.Quarantine != nil }), endQuarantine},

	// Leases.
	{"lease/create", func(v view) int {
		if v.node != nil && v.lease == nil {
			return 8
		}
		return 1
	}, createLease},
	{"lease/bind", func(v view) int {
		switch {
		case available(v):
			return 60
		case leased(v):
			return 8
		}
		return 2
	}, bind},
	{"lease/rebind", when(3, leased), rebind},
	{"lease/withdraw", always(1), withdraw},
	{"lease/delete", when(2, bound), deleteLease},
	{"lease/delete", when(3, held), deleteLease},
	{"lease/deletecollection", when(1, bound), deleteLeases},
	{"lease/lengthen", when(1, leased), lengthen},
	{"lease/tamper", when(1, leased), tamper},
	{"lease/end", when(15, held), endHold},
	{"lease/end", when(1, bound), endHold},
	{"lease/release", when(20, releasing), release},
	{"lease/release", when(2, leased), release},
	{"node/scrub", when(15, func(v view) bool { return releasing(v) && v.node != nil && len(v.live) == 0 }), scrub},

	// Instances.
	{"instance/create", when(30, bound), createInstance},
	{"instance/create", when(30, held), createInstance},
	{"instance/create", when(8, releasing), createInstance},
	{"instance/identify", when(12, func(v view) bool { return len(v.live) > 0 }), identify},
	{"instance/run", when(10, func(v view) bool { return len(v.live) > 0 }), run},
	{"instance/stop", when(4, func(v view) bool { return len(v.live) > 0 }), stop},
	{"instance/stopped", when(8, func(v view) bool { return len(v.live) > 0 }), stopped},
	{"instance/stopped", when(40, func(v view) bool { return releasing(v) && len(v.live) > 0 }), stopped},
	{"instance/abandon", when(3, func(v view) bool { return len(v.live) > 0 }), abandon},
	{"instance/delete", when(5, func(v view) bool { return len(v.instances) > 0 }), deleteInstance},
	{"instance/delete", func(v view) int { return 4 * len(v.ended) }, finish},
	{"instance/deletecollection", when(1, func(v view) bool { return len(v.instances) > 0 }), deleteInstances},
	{"instance/unfinalize", when(1, func(v view) bool { return len(v.live) > 0 }), unfinalize},

	// Writes of metadata must not block other requests.
	{"instance/annotate", when(6, func(v view) bool { return len(v.live) > 0 }), annotateInstance},
	{"lease/annotate", when(6, leased), annotateLease},

	// Images.
	{"image/delete", always(1), deleteImage},

	// Reads are compared with writes before and after. They do not count as attempts.
	{"read", always(4), read},
}

func (w *worker) attempt(ctx context.Context, v view) {
	total := 0
	weights := make([]int, len(attempts))
	for i, a := range attempts {
		weights[i] = a.weight(v)
		total += weights[i]
	}
	n := rand.IntN(total)
	for i, a := range attempts {
		if n -= weights[i]; n < 0 {
			ctx, cancel := w.request(ctx)
			defer cancel()
			a.do(w, ctx, v)
			return
		}
	}
}

func pick[T any](items []T) T { return items[rand.IntN(len(items))] }

// pickInstance picks an instance, preferably one that matches.
func pickInstance(items []*instancev1alpha1.MacOSInstance, is func(*instancev1alpha1.MacOSInstance) bool) *instancev1alpha1.MacOSInstance {
	for range 4 {
		if i := pick(items); is(i) {
			return i
		}
	}
	return pick(items)
}

// Macs

// Leases

// Instances

// Images
