package images

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"sync"

	"golang.org/x/sync/errgroup"

	"macrack.io/macrack/pkg/images/format"
	"macrack.io/macrack/pkg/images/ociclient"
)

// work is the work of a pull.
type work struct {
	store  *OCI
	client *ociclient.Client
	pull   *pull
	dir    string
	chunks []format.Chunk
	disk   file
	aux    file

	mu      sync.Mutex
	done    map[int]bool
	journal journal
	// journaled is the number of chunks in the journal on the disk.
	journaled int
	// syncErr is the error of the first Sync that failed. A later Sync may succeed although the
	// data is lost.
	syncErr error
}

// plan finds the missing chunks and returns the storage that they need.
func (w *work) plan() (needed int64) {
	for _, i := range w.journal.Chunks {
		if i >= 0 && i < len(w.chunks) {
			w.done[i] = true
		}
	}
	w.journaled = len(w.done)
	for i, chunk := range w.chunks {
		w.pull.total.Add(chunk.Blob.Size)
		if w.done[i] {
			w.pull.done.Add(chunk.Blob.Size)
		} else {
			needed += chunk.Data
		}
	}
	return needed
}

// run downloads the missing chunks and returns when all are durable.
func (w *work) run(ctx context.Context, layout *format.Layout) (err error) {
	if w.disk, err = w.openFile(diskName, layout.DiskSize); err != nil {
		return err
	}
	defer func() { _ = w.disk.Close() }() // the relevant data has been synced
	if w.aux, err = w.openFile(auxName, layout.Aux.Size); err != nil {
		return err
	}
	defer func() { _ = w.aux.Close() }()
	stop := w.keepJournal()
	err = w.fetchAll(ctx)
	return errors.Join(err, stop())
}

func (w *work) openFile(name string, size int64) (file, error) {
	open := w.store.open
	if open == nil {
		open = openFile
	}
	f, err := open(filepath.Join(w.dir, name))
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(size); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

func (w *work) fetchAll(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(cmp.Or(w.store.Parallel, 4))
	var missing []int // listed first, because done changes during the downloads
	for i := range w.chunks {
		if !w.done[i] {
			missing = append(missing, i)
		}
	}
	for _, i := range missing {
		if ctx.Err() != nil {
			break
		}
		chunk, target := w.chunks[i], w.disk
		if i == len(w.chunks)-1 {
			target = w.aux
		}
		group.Go(func() error {
			if err := w.fetch(ctx, chunk, target); err != nil {
				return err
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.done[i] = true
			return nil
		})
	}
	err := group.Wait()
	if cause := context.Cause(ctx); err != nil && cause != nil && errors.Is(err, context.Canceled) {
		return cause
	}
	return err
}
