package txn_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"macrack.io/macrack/pkg/registry/txn"
)

// planWith has nodes planned by plan, whatever it is at the time.
func planWith(plan *func(context.Context, *txn.Tx) error) map[schema.GroupResource]txn.Planner {
	return map[schema.GroupResource]txn.Planner{
		Nodes: func(ctx context.Context, tx *txn.Tx, _, _ runtime.Object) error { return (*plan)(ctx, tx) },
	}
}

func TestIndexKeys(t *testing.T) {
	endpoint, etcd := startEtcd(t, false)
	var plan func(context.Context, *txn.Tx) error
	s := startPlanned(t, endpoint, planWith(&plan))
	n := 0
	commit := func(p func(ctx context.Context, tx *txn.Tx) error) error {
		n++
		plan = p
		_, err := create(cluster, s.Nodes, &Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", n)}})
		return err
	}
	ids := []string{"a", "a/b", "a%2Fb", "..", ".", "../../leases/x", "a b", "ü", "\x00", "A", "/", "a/", "a:b"}
	if err := commit(func(ctx context.Context, tx *txn.Tx) error {
		for _, id := range ids {
			if err := tx.CreateKey("id", id, []byte(id)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	resp, err := etcd.Get(ctx, "/registry/macrack.io/index/id/", clientv3.WithPrefix())
	if err != nil || len(resp.Kvs) != len(ids) {
		t.Fatalf("%d keys, %v; want %d", len(resp.Kvs), err, len(ids))
	}
	for _, kv := range resp.Kvs {
		if strings.Count(string(kv.Key), "/") != 5 {
			t.Errorf("%s has an unescaped slash", kv.Key)
		}
	}
	read := func(ctx context.Context, tx *txn.Tx) error {
		for _, id := range ids {
			value, exists, err := tx.GetKey(ctx, "id", id)
			if err != nil || !exists || string(value) != id {
				t.Errorf("%q is %q, %v, %v", id, value, exists, err)
			}
		}
		_, exists, err := tx.GetKey(ctx, "other", "a")
		if err != nil || exists {
			t.Errorf("other a: %v, %v", exists, err)
		}
		return nil
	}
	if err := commit(read); err != nil {
		t.Error(err)
	}
	for name, p := range map[string]func(context.Context, *txn.Tx) error{
		"no id":           func(_ context.Context, tx *txn.Tx) error { return tx.CreateKey("id", "", nil) },
		"no kind":         func(_ context.Context, tx *txn.Tx) error { return tx.CreateKey("", "x", nil) },
		"path in a kind":  func(_ context.Context, tx *txn.Tx) error { return tx.CreateKey("../leases", "x", nil) },
		"put unread":      func(_ context.Context, tx *txn.Tx) error { return tx.PutKey("id", "x", nil) },
		"delete unread":   func(_ context.Context, tx *txn.Tx) error { return tx.DeleteKey("id", "x") },
		"error swallowed": func(_ context.Context, tx *txn.Tx) error { _ = tx.PutKey("id", "x", nil); return nil },
		"two writes": func(_ context.Context, tx *txn.Tx) error {
			return errors.Join(tx.CreateKey("id", "x", nil), tx.CreateKey("id", "x", nil))
		},
	} {
		before := revision(t, etcd)
		err := commit(p)
		t.Logf("%s: %v", name, err)
		if err == nil || revision(t, etcd) != before {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := commit(func(ctx context.Context, tx *txn.Tx) error {
		if _, exists, err := tx.GetKey(ctx, "id", "new"); err != nil || exists {
			return fmt.Errorf("exists %v: %w", exists, err)
		}
		if _, exists, err := tx.GetKey(ctx, "id", "a/b"); err != nil || !exists {
			return fmt.Errorf("exists %v: %w", exists, err)
		}
		if err := tx.PutKey("id", "new", []byte("1")); err != nil {
			return err
		}
		return tx.DeleteKey("id", "a/b")
	}); err != nil {
		t.Error(err)
	}
	if err := commit(func(ctx context.Context, tx *txn.Tx) error {
		value, exists, err := tx.GetKey(ctx, "id", "new")
		if string(value) != "1" || !exists || err != nil {
			t.Errorf("new is %q, %v, %v", value, exists, err)
		}
		if _, exists, err = tx.GetKey(ctx, "id", "a/b"); exists || err != nil {
			t.Errorf("a/b: %v, %v", exists, err)
		}
		clear(value) // is the planner's own
		return nil
	}); err != nil {
		t.Error(err)
	}
	if err := commit(func(ctx context.Context, tx *txn.Tx) error {
		value, _, err := tx.GetKey(ctx, "id", "new")
		if string(value) != "1" {
			t.Errorf("new is %q", value)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// TestIndexMistaken checks that a stale cache of the index neither refuses nor permits a write.
func TestIndexMistaken(t *testing.T) {
	etcd, servers := newLease(t, 1)
	s := servers[0]
	machine := func(name string) *Instance {
		i := instance(name, "lease")
		i.Machine = "m"
		return i
	}
	s.Backend.Mistake("machine", "m", "ghost")
	a := mustCreate(t, ctx, s.Instances, machine("a")).(*Instance)
	s.Backend.Mistake("machine", "m", "")
	if _, err := create(ctx, s.Instances, machine("b")); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), string(a.UID)) {
		t.Errorf("machine taken twice: %v, want a word of %s", err, a.UID)
	}
	s.Backend.Mistake("machine", "m", "ghost")
	if err := remove(ctx, s.Instances, "a"); err != nil {
		t.Error(err)
	}
	replay(t, etcd)
}

// That there is no key of a range is a thing to depend on, too.
func TestAnyKey(t *testing.T) {
	endpoint, etcd := startEtcd(t, false)
	var plan func(context.Context, *txn.Tx) error
	s := startPlanned(t, endpoint, planWith(&plan))
	n := 0
	commit := func(p func(ctx context.Context, tx *txn.Tx) error) error {
		n++
		plan = p
		_, err := create(cluster, s.Nodes, &Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", n)}})
		return err
	}
	use := func(id string) {
		t.Helper()
		if err := commit(func(_ context.Context, tx *txn.Tx) error { return tx.CreateKey("use", id, []byte(id)) }); err != nil {
			t.Fatal(err)
		}
	}
	inUse := errors.New("in use")
	planned := 0
	unused := func(ctx context.Context, tx *txn.Tx) error {
		planned++
		value, exists, err := tx.AnyKey(ctx, "use", "a/")
		if exists {
			return fmt.Errorf("%w by %s", inUse, value)
		}
		return err
	}
	use("a")
	use("b/1")
	use("ab/1")
	if err := commit(unused); err != nil || planned != 1 {
		t.Errorf("unused: %v, planned %d times", err, planned)
	}
	use("a/1")
	if err := commit(unused); !errors.Is(err, inUse) || !strings.Contains(err.Error(), "a/1") {
		t.Errorf("used: %v", err)
	}
	if _, err := etcd.Delete(ctx, "/registry/macrack.io/index/use/a%2F1"); err != nil {
		t.Fatal(err)
	}
	// It comes into use between the plan and the commit.
	planned = 0
	if err := commit(func(ctx context.Context, tx *txn.Tx) error {
		err := unused(ctx, tx)
		if planned == 1 {
			if _, err := etcd.Put(ctx, "/registry/macrack.io/index/use/a%2F2", "a/2"); err != nil {
				t.Error(err)
			}
		}
		return err
	}); !errors.Is(err, inUse) || planned != 2 {
		t.Errorf("used at once: %v, planned %d times", err, planned)
	}
	// The result for a range is not mistaken for the key at its start.
	if err := commit(func(ctx context.Context, tx *txn.Tx) error {
		if value, exists, err := tx.GetKey(ctx, "use", "a/"); exists || err != nil {
			t.Errorf("a/ is %q, %v", value, err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// Each server learns of the index keys that others write.
func TestIndexFollowed(t *testing.T) {
	_, servers := newLease(t, 2)
	lease := mustGet(t, cluster, servers[0].Leases, "lease").(*Lease)
	before := conflicts(t)
	for n := 1; n <= 10; n++ {
		if err := servers[n%2].Backend.Transact(ctx, func(ctx context.Context, tx *txn.Tx) error { return record(ctx, tx, "update", "lease", lease) }); err != nil {
			t.Fatal(err)
		}
		for _, s := range servers {
			for deadline := time.Now().Add(20 * time.Second); s.Backend.Recalls("chain", "lease") != fmt.Sprint(n); time.Sleep(time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("takes %q for record %d", s.Backend.Recalls("chain", "lease"), n)
				}
			}
		}
	}
	if got := conflicts(t) - before; got != 0 {
		t.Errorf("%v conflicts", got)
	}
}
