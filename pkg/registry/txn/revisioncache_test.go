package txn

import (
	"testing"

	"go.etcd.io/etcd/api/v3/mvccpb"
)

func TestRevisionCache(t *testing.T) {
	r := newRevisionCache()
	at := func(rev int64) *mvccpb.KeyValue { return &mvccpb.KeyValue{ModRevision: rev} }
	expect := func(what string, want int64, known bool) {
		t.Helper()
		last, ok := r.get("a")
		if ok != known || modRevision(last.kv) != want {
			t.Errorf("%s: at %d, %v", what, modRevision(last.kv), ok)
		}
	}
	r.observe("a", nil, 1)
	expect("never there", 0, false)
	r.observe("a", at(5), 7)
	expect("read", 5, true)
	r.observe("a", at(4), 6)
	expect("read before", 5, true)
	for rev, want := range map[int64]bool{0: true, 4: true, 5: false, 6: true, 7: false, 8: false} {
		if _, got := r.newerThan("a", rev); got != want {
			t.Errorf("newerThan %d: %v", rev, got)
		}
	}
	r.observe("a", at(8), 8)
	expect("written", 8, true)
	r.observe("a", nil, 9)
	expect("deleted", 0, true)
	r.observe("a", at(8), 8)
	expect("late news", 0, true)
	if _, newer := r.newerThan("a", 8); !newer {
		t.Error("a deletion is newer than the object")
	}
	if _, newer := r.newerThan("a", 0); newer {
		t.Error("a deletion is not newer than absence")
	}
}
