package txn_test

import (
	"context"
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"macrack.io/macrack/pkg/registry/txn"
)

func TestKeys(t *testing.T) {
	endpoint, etcd := startEtcd(t, false)
	var plan func(context.Context, *txn.Tx) error
	s := startPlanned(t, endpoint, planWith(&plan))
	plan = func(_ context.Context, tx *txn.Tx) error {
		return errors.Join(tx.CreateKey("a", "x/1", []byte("1")), tx.CreateKey("a", "..", []byte("2")), tx.CreateKey("ab", "x", []byte("3")))
	}
	mustCreate(t, cluster, s.Nodes, &Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}})
	written := revision(t, etcd)
	keys, err := s.Backend.Keys(ctx, "a")
	if err != nil || len(keys) != 2 || string(keys["x/1"]) != "1" || string(keys[".."]) != "2" {
		t.Errorf("keys %q, %v", keys, err)
	}
	if value, rev, err := s.Backend.Key(ctx, "a", "x/1"); err != nil || string(value) != "1" || rev != written {
		t.Errorf("x/1 is %q at %d, %v", value, rev, err)
	}
	if value, rev, err := s.Backend.Key(ctx, "a", "x"); err != nil || value != nil || rev != 0 {
		t.Errorf("x is %q at %d, %v", value, rev, err)
	}
	if _, err := s.Backend.Keys(ctx, "a/"); err == nil {
		t.Error("keys of no kind")
	}
	if _, _, err := s.Backend.Key(ctx, "a", ""); err == nil {
		t.Error("key without an ID")
	}
	if _, err := txn.NewBackend(nil, nil).Keys(ctx, "a"); err == nil {
		t.Error("keys of an empty backend")
	}
}
