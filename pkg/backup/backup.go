// Package backup writes encrypted snapshots of etcd to a folder or to S3-compatible storage, and
// reads them. The writer has only the public keys of age, so it cannot read what it has written.
package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"

	"filippo.io/age"
	"k8s.io/utils/clock"
)

// namePattern matches the names of backups. Their order is the order of their times.
var namePattern = regexp.MustCompile(`^etcd-\d{8}T\d{6}Z-\d+\.db\.age$`)

const nameTime = "20060102T150405Z"

// Create writes an encrypted snapshot of etcd to a store, and returns its name: the time, and the
// revision that the snapshot has at least.
func Create(ctx context.Context, etcd Etcd, store Store, recipients []age.Recipient, clock clock.PassiveClock) (string, error) {
	if len(recipients) == 0 {
		return "", errors.New("no public key to encrypt the backup for; make a key with macrack-ledger backup keygen")
	}
	snapshot, revision, err := etcd.snapshot(ctx)
	if err != nil {
		return "", err
	}
	defer snapshot.Close()
	encrypted, err := age.EncryptReader(newVerifier(snapshot), recipients...)
	if err != nil {
		return "", err
	}
	name := fmt.Sprintf("etcd-%s-%d.db.age", clock.Now().UTC().Format(nameTime), revision)
	return name, store.Put(ctx, name, encrypted)
}

// List returns the names of the backups in a store, the oldest first.
func List(ctx context.Context, store Store) ([]string, error) {
	names, err := store.List(ctx)
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(name string) bool { return !namePattern.MatchString(name) })
	slices.Sort(names)
	return names, nil
}

// Prune deletes the oldest backups until keep are left, but never the named one. It returns the
// deleted names.
func Prune(ctx context.Context, store Store, keep int, except string) ([]string, error) {
	names, err := List(ctx, store)
	if err != nil || len(names) <= keep {
		return nil, err
	}
	var deleted []string
	for _, name := range names[:len(names)-keep] {
		if name == except {
			continue
		}
		if err := store.Delete(ctx, name); err != nil {
			return deleted, fmt.Errorf("deleting the old backup %s: %w", name, err)
		}
		deleted = append(deleted, name)
	}
	return deleted, nil
}

// Fetch writes the decrypted snapshot of a backup to w. It fails at the end if the snapshot is not
// complete, and w must then be discarded.
func Fetch(ctx context.Context, store Store, name string, identities []age.Identity, w io.Writer) error {
	encrypted, err := store.Open(ctx, name)
	if err != nil {
		return err
	}
	defer encrypted.Close()
	decrypted, err := age.Decrypt(encrypted, identities...)
	if noMatch := (*age.NoIdentityMatchError)(nil); errors.As(err, &noMatch) {
		return fmt.Errorf("backup %s is encrypted for other keys than the given one; use the private key of a recipient", name)
	} else if err != nil {
		return fmt.Errorf("backup %s: %w", name, err)
	}
	if _, err := io.Copy(w, newVerifier(decrypted)); err != nil {
		return fmt.Errorf("backup %s: %w", name, err)
	}
	return nil
}
