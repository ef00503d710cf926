package chaos

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	rackv1alpha1 "macrack.io/macrack/pkg/apis/rack/v1alpha1"
	"macrack.io/macrack/pkg/apis/scalar"
)

const (
	cacheName = "gems"
	// fullCache is the size of a file that fills the cache of a lease.
	fullCache = 65 << 20
)

// leaseCaches are the caches of the leases.
var leaseCaches = []rackv1alpha1.LeaseCache{{Name: cacheName, SizeLimit: scalar.MustParse("64Mi")}}

// cache returns the directory that the guests of a lease share.
func (w *world) cache(ctx context.Context) (string, error) {
	node, err := w.node(ctx)
	if err != nil {
		return "", err
	}
	if node.Status.LeaseRef == nil {
		return "", errors.New("the Mac is not leased")
	}
	return filepath.Join(w.mac.state(), "caches", string(node.Status.LeaseRef.UID), cacheName, "data"), nil
}

// caches checks that the content of a cache outlives instances, the agent and the runners, and that
// a cache that is full or has many files disturbs nothing else.
func caches(ctx context.Context, r *run) error {
	if _, err := r.start(ctx); err != nil {
		return err
	}
	dir, err := r.cache(ctx)
	if err != nil {
		return err
	}
	kept := filepath.Join(dir, "kept")
	if err := os.WriteFile(kept, []byte("of the tenant"), 0o600); err != nil {
		return err
	}
	for _, mode := range []string{endAgent, endBoth, endPower} {
		r.fault(mode+" while a guest uses a cache", func() error {
			if err := r.end(0, mode); err != nil {
				return err
			}
			if err := r.mac.agent.Start(); err != nil {
				return err
			}
			if err := r.clear(ctx); err != nil {
				return err
			}
			if _, err := r.start(ctx); err != nil {
				return err
			}
			_, err := os.Stat(kept)
			return errors.Join(err, r.settle(ctx))
		})
	}
	r.fault("a full cache", func() error { return r.overfull(ctx, dir, fillOneFile) })
	if r.CacheFiles > 0 {
		r.fault(fmt.Sprintf("a cache of %d files", r.CacheFiles), func() error { return r.overfull(ctx, dir, r.fillFiles) })
	}
	return r.clear(ctx)
}

// overfull fills the cache of an instance that runs, and checks that the instance is not disturbed,
// and that the next one starts with an empty cache.
func (r *run) overfull(ctx context.Context, dir string, fill func(dir string) error) error {
	before := r.pids(ctx)
	if err := fill(dir); err != nil {
		return err
	}
	if err := errors.Join(r.settle(ctx), r.same(ctx, before), r.clear(ctx)); err != nil {
		return err
	}
	if _, err := r.start(ctx); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		err = fmt.Errorf("the full cache still has %d entries", len(entries))
	}
	return errors.Join(err, r.settle(ctx))
}

func fillOneFile(dir string) error {
	return os.WriteFile(filepath.Join(dir, "large"), make([]byte, fullCache), 0o600)
}

// fillFiles makes the files as hard links, 10,000 in a directory: they are made quickly.
func (r *run) fillFiles(dir string) error {
	first := filepath.Join(dir, "first")
	if err := os.WriteFile(first, nil, 0o600); err != nil {
		return err
	}
	const directory = 10_000
	for n := 0; n <= r.CacheFiles; n++ {
		sub := filepath.Join(dir, fmt.Sprint(n/directory))
		if n%directory == 0 {
			if err := os.Mkdir(sub, 0o700); err != nil {
				return err
			}
		}
		// A file has at most 65,000 links on ext4.
		if n%50_000 == 0 {
			first = filepath.Join(sub, "first")
			if err := os.WriteFile(first, nil, 0o600); err != nil {
				return err
			}
		}
		if err := os.Link(first, filepath.Join(sub, fmt.Sprint(n))); err != nil {
			return err
		}
	}
	return nil
}
