// Package backup saves snapshots of etcd, encrypted to public keys, in a directory or a bucket, and
// reads them back. The private keys are needed only to read.
package backup

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"time"

	"filippo.io/age"
	"k8s.io/utils/clock"
)

// A Store has snapshots by name.
type Store interface {
	// List returns the names of all objects, in any order.
	List(ctx context.Context) ([]string, error)
	// Put stores the content. The object appears only if the content ends without an error.
	Put(ctx context.Context, name string, content io.Reader) error
	// Get returns the content of an object.
	Get(ctx context.Context, name string) (io.ReadCloser, error)
	// Delete deletes an object.
	Delete(ctx context.Context, name string) error
}

// A Snapshot is a stored snapshot of etcd.
type Snapshot struct {
	Time time.Time
	// Revision is a revision of etcd that the snapshot includes.
	Revision int64
}

const timeFormat = "20060102T150405Z"

// names is the format of Name. Other objects in a store are ignored, and never deleted.
var names = regexp.MustCompile(`^macrack-(\d{8}T\d{6}Z)-r(\d{1,18})\.db\.zst\.age$`)

// Name returns the name of the snapshot in a store. The suffixes are those of age and zstd, which
// can read the object too.
func (s Snapshot) Name() string {
	return fmt.Sprintf("macrack-%s-r%d.db.zst.age", s.Time.UTC().Format(timeFormat), s.Revision)
}

// Parse returns the snapshot of a name, and whether it is the name of one.
func Parse(name string) (Snapshot, bool) {
	match := names.FindStringSubmatch(name)
	if match == nil {
		return Snapshot{}, false
	}
	t, timeErr := time.Parse(timeFormat, match[1])
	revision, err := strconv.ParseInt(match[2], 10, 64)
	return Snapshot{Time: t, Revision: revision}, timeErr == nil && err == nil
}

// List returns the snapshots in a store, the newest first.
func List(ctx context.Context, store Store) ([]Snapshot, error) {
	objects, err := store.List(ctx)
	if err != nil {
		return nil, err
	}
	var all []Snapshot
	for _, name := range objects {
		if s, ok := Parse(name); ok {
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b Snapshot) int { return cmp.Compare(b.Name(), a.Name()) })
	return all, nil
}

// A Finding is the reason why Save has saved a snapshot, but has not deleted all of the oldest.
type Finding string

// Error implements error.
func (f Finding) Error() string { return string(f) }

// SaveOptions are the options of Save.
type SaveOptions struct {
	Etcd       Etcd
	Recipients []age.Recipient
	// Keep is the number of snapshots that stay; 0: all.
	Keep  int
	Clock clock.PassiveClock
}

// Save saves a snapshot of etcd, and then deletes the oldest ones. It deletes nothing, and returns
// a Finding, if the new snapshot may not replace the old ones: etcd has a lower revision than one
// of them, so it has lost data, or one of them has a later time. A loss stays a Finding after the
// new etcd has reached the revision of the old one, until the snapshots of either are moved away.
func Save(ctx context.Context, store Store, o SaveOptions) (saved Snapshot, deleted []Snapshot, err error) {
	// Before the snapshot, so that a wrong configuration costs etcd nothing.
	existing, err := List(ctx, store)
	if err != nil {
		return Snapshot{}, nil, err
	}
	source, err := o.Etcd.open(ctx)
	if err != nil {
		return Snapshot{}, nil, err
	}
	defer func() { _ = source.Close() }()
	saved = Snapshot{Time: o.Clock.Now().UTC().Truncate(time.Second), Revision: source.revision}
	if err := put(ctx, store, saved.Name(), source, o.Recipients); err != nil {
		return Snapshot{}, nil, fmt.Errorf("saving %s: %w", saved.Name(), err)
	}
	if err := compare(existing, saved); err != nil {
		return saved, nil, err
	}
	if o.Keep > 0 {
		if err := inOrder(existing); err != nil {
			return saved, nil, err
		}
	}
	deleted, err = prune(ctx, store, append([]Snapshot{saved}, existing...), o.Keep)
	return saved, deleted, err
}

// put encodes a snapshot into a store.
func put(ctx context.Context, store Store, name string, source io.Reader, recipients []age.Recipient) error {
	reader, writer := io.Pipe()
	go func() {
		err := encode(writer, source, recipients)
		if err != nil {
			// Never a bare io.ErrUnexpectedEOF, which minio-go takes for the end of the content.
			err = fmt.Errorf("reading the snapshot from etcd: %w; check the health of etcd, and try again", err)
		}
		writer.CloseWithError(err)
	}()
	defer func() { _ = reader.Close() }() // ends the encoder after an error of the store
	return store.Put(ctx, name, reader)
}

// compare returns a Finding if a snapshot is not the successor of the existing ones.
func compare(existing []Snapshot, saved Snapshot) error {
	for _, s := range existing {
		if s.Revision > saved.Revision {
			return Finding(fmt.Sprintf("saved %s, but etcd has lost data: its revision is %d, and %s has revision %d; "+
				"no snapshot was deleted; restore etcd from an older snapshot, or move the older snapshots away if the loss is intended",
				saved.Name(), saved.Revision, s.Name(), s.Revision))
		}
		if s.Time.After(saved.Time) {
			return Finding(fmt.Sprintf("saved %s, but %s is newer than the clock of this machine; "+
				"no snapshot was deleted; correct the clock, or move the newer snapshot away if its time is wrong", saved.Name(), s.Name()))
		}
	}
	return nil
}

// inOrder returns a Finding if a snapshot has a lower revision than an older one. The snapshots are
// in order, the newest first.
func inOrder(existing []Snapshot) error {
	for i := range max(len(existing)-1, 0) {
		if newer, older := existing[i], existing[i+1]; newer.Revision < older.Revision {
			return Finding(fmt.Sprintf("%s has a lower revision than %s: etcd lost data between them, or a clock was wrong; "+
				"no snapshot was deleted; move away the snapshots that are not of the current data", newer.Name(), older.Name()))
		}
	}
	return nil
}

// prune deletes all snapshots, which are in order, except the first ones. It returns a Finding if
// it cannot: the first one is saved, and another attempt would only save one more.
func prune(ctx context.Context, store Store, all []Snapshot, keep int) (deleted []Snapshot, err error) {
	if keep == 0 {
		return nil, nil
	}
	for _, s := range all[min(keep, len(all)):] {
		if err := store.Delete(ctx, s.Name()); err != nil {
			return deleted, Finding(fmt.Sprintf("saved %s, but cannot delete %s: %v; permit the deletion, or set --keep=0 and delete old snapshots by other means",
				all[0].Name(), s.Name(), err))
		}
		deleted = append(deleted, s)
	}
	return deleted, nil
}

// Fetch writes the decrypted snapshot, whose hash it has verified if it returns nil.
func Fetch(ctx context.Context, store Store, s Snapshot, identities []age.Identity, w io.Writer) error {
	object, err := store.Get(ctx, s.Name())
	if err != nil {
		return err
	}
	defer object.Close()
	err = decode(w, object, identities)
	var local *fs.PathError // of the file that is written
	if err == nil || errors.As(err, &local) || errors.Is(err, errIdentity) {
		return err
	}
	return fmt.Errorf("%s is damaged or was not read completely: %w; fetch it again, or fetch an older snapshot", s.Name(), err)
}
