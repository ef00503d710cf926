package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"filippo.io/age"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/backup"
)

func newBackupCommand(clock clock.PassiveClock) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "backup",
		Short: "Back up the etcd of MacRack, encrypted",
		Long: `Backups are snapshots of etcd, encrypted with age (age-encryption.org) for public keys. Keep the private keys outside
of the cluster: only they can read a backup. A store is a folder, or a bucket of S3-compatible storage. For a bucket, set
the environment variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.`,
	}
	cmd.AddCommand(newBackupCreateCommand(clock), newBackupListCommand(), newBackupFetchCommand(), newBackupKeygenCommand())
	return cmd
}

// storeFlags select a store.
type storeFlags struct {
	location string
	s3       backup.S3
}

func (f *storeFlags) add(flags *pflag.FlagSet) {
	flags.StringVar(&f.location, "store", "", "Absolute path of a folder, or s3://bucket/prefix.")
	flags.StringVar(&f.s3.Endpoint, "s3-endpoint", "https://s3.amazonaws.com", "URL of the S3-compatible storage.")
	flags.StringVar(&f.s3.Region, "s3-region", "", "Region of the bucket. Default: as the storage reports it.")
	flags.StringVar(&f.s3.CAFile, "s3-cafile", "", "Authorities of the S3-compatible storage. Default: the public ones.")
}

func (f *storeFlags) open() (backup.Store, error) {
	if f.location == "" {
		return nil, errors.New("no store; set --store to a folder or to s3://bucket/prefix")
	}
	return backup.NewStore(f.location, f.s3)
}

type backupOptions struct {
	store      storeFlags
	etcd       backup.Etcd
	recipients []string
	keep       int
}

func newBackupCreateCommand(clock clock.PassiveClock) *cobra.Command {
	o := &backupOptions{}
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Write an encrypted snapshot of etcd to a store",
		Example: `  macrack-ledger backup create --store=/var/backups --recipient=age1... --etcd-servers=https://localhost:2379 \
    --etcd-cafile=ca.crt --etcd-certfile=tls.crt --etcd-keyfile=tls.key`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return o.run(cmd.Context(), clock, cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	o.store.add(flags)
	flags.StringSliceVar(&o.etcd.Servers, "etcd-servers", []string{"https://localhost:2379"}, "URLs of the members of etcd. The first one that answers makes the snapshot.")
	flags.StringVar(&o.etcd.CAFile, "etcd-cafile", "", "Authority of etcd.")
	flags.StringVar(&o.etcd.CertFile, "etcd-certfile", "", "Client certificate for etcd.")
	flags.StringVar(&o.etcd.KeyFile, "etcd-keyfile", "", "Key of the client certificate.")
	flags.StringSliceVar(&o.recipients, "recipient", nil, "Public keys of age. The private key of any of them can read the backup.")
	flags.IntVar(&o.keep, "keep", 0, "Number of backups to keep in the store; the oldest others are deleted. 0 keeps all.")
	return cmd
}

func (o *backupOptions) run(ctx context.Context, clock clock.PassiveClock, out io.Writer) error {
	if o.keep < 0 {
		return fmt.Errorf("--keep=%d is negative; use 0 to keep all backups", o.keep)
	}
	recipients, err := parseRecipients(o.recipients)
	if err != nil {
		return err
	}
	store, err := o.store.open()
	if err != nil {
		return err
	}
	name, err := backup.Create(ctx, o.etcd, store, recipients, clock)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s written\n", name)
	if o.keep == 0 {
		return nil
	}
	deleted, err := backup.Prune(ctx, store, o.keep, name)
	for _, name := range deleted {
		fmt.Fprintf(out, "%s deleted\n", name)
	}
	return err
}

func parseRecipients(keys []string) ([]age.Recipient, error) {
	if len(keys) == 0 {
		return nil, errors.New("no public key to encrypt the backup for; set --recipient, or make a key with macrack-ledger backup keygen")
	}
	recipients, err := age.ParseRecipients(strings.NewReader(strings.Join(keys, "\n")))
	if err != nil {
		return nil, fmt.Errorf("--recipient: %w; use the public keys that macrack-ledger backup keygen prints", err)
	}
	return recipients, nil
}

func newBackupListCommand() *cobra.Command {
	store := &storeFlags{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Print the backups in a store, the oldest first",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opened, err := store.open()
			if err != nil {
				return err
			}
			names, err := backup.List(cmd.Context(), opened)
			for _, name := range names {
				fmt.Fprintln(cmd.OutOrStdout(), name)
			}
			return err
		},
	}
	store.add(cmd.Flags())
	return cmd
}

type fetchOptions struct {
	store    storeFlags
	identity string
	output   string
}

func newBackupFetchCommand() *cobra.Command {
	o := &fetchOptions{}
	cmd := &cobra.Command{
		Use:   "fetch [NAME]",
		Short: "Decrypt a backup, by default the newest one, for etcdutl snapshot restore",
		Example: `  macrack-ledger backup fetch --store=/var/backups --identity=backup.key --output=backup.db
  etcdutl snapshot restore backup.db --data-dir=data --bump-revision=1000000000 --mark-compacted`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), strings.Join(args, ""), cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	o.store.add(flags)
	flags.StringVar(&o.identity, "identity", "", "File with the private key of a recipient.")
	flags.StringVarP(&o.output, "output", "o", "backup.db", "File to write. It must not exist, and appears only when complete.")
	return cmd
}

func (o *fetchOptions) run(ctx context.Context, name string, out io.Writer) error {
	identities, err := readIdentities(o.identity)
	if err != nil {
		return err
	}
	store, err := o.store.open()
	if err != nil {
		return err
	}
	if name == "" {
		names, err := backup.List(ctx, store)
		if err != nil {
			return err
		}
		if len(names) == 0 {
			return fmt.Errorf("there is no backup in %s; check --store", o.store.location)
		}
		name = names[len(names)-1]
	}
	if err := writeNew(o.output, func(w io.Writer) error { return backup.Fetch(ctx, store, name, identities, w) }); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s written from %s\n", o.output, name)
	return nil
}

func readIdentities(path string) ([]age.Identity, error) {
	if path == "" {
		return nil, errors.New("no private key; set --identity to the file that macrack-ledger backup keygen wrote")
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	identities, err := age.ParseIdentities(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w; use the file that macrack-ledger backup keygen wrote", path, err)
	}
	return identities, nil
}

// writeNew writes a file that only its owner can read. It never replaces a file.
func writeNew(path string, write func(io.Writer) error) error {
	temp, err := os.CreateTemp(filepath.Dir(path), ".partial-*")
	if err != nil {
		return err
	}
	defer os.Remove(temp.Name())
	defer temp.Close()
	if err := write(temp); err != nil {
		return err
	}
	if err := errors.Join(temp.Sync(), temp.Close()); err != nil {
		return err
	}
	if err := os.Link(temp.Name(), path); errors.Is(err, os.ErrExist) {
		return fmt.Errorf("%s exists; remove it or choose another name with --output", path)
	} else if err != nil {
		return err
	}
	return nil
}

func newBackupKeygenCommand() *cobra.Command {
	output := ""
	cmd := &cobra.Command{
		Use:   "keygen",
		Short: "Make a key for backups, and print its public part",
		Long: `Make a key for backups, and print its public part, which is the recipient of backups. The file has the private key: keep
it, and a copy of it, outside of the cluster. Without it, no backup can be read. Keys of age-keygen work as well.`,
		Example: `  macrack-ledger backup keygen --output=backup.key`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			identity, err := age.GenerateX25519Identity()
			if err != nil {
				return err
			}
			err = writeNew(output, func(w io.Writer) error {
				_, err := fmt.Fprintf(w, "# public key: %s\n%s\n", identity.Recipient(), identity)
				return err
			})
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), identity.Recipient())
			return nil
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "backup.key", "File of the private key. It must not exist.")
	return cmd
}
