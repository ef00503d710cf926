package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"filippo.io/age"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/utils/clock"

	"macrack.io/macrack/pkg/backup"
)

func newSnapshotCommand(clock clock.PassiveClock) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "snapshot",
		Short: "Save, list and fetch encrypted snapshots of etcd",
		Long: `Snapshots of the etcd of MacRack, in a directory or in a bucket of an S3-compatible server. They are compressed by zstd
and encrypted by age. The cluster needs only the public keys of the recipients. The environment variables
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN have the credentials of the server.`,
	}
	cmd.AddCommand(newSaveCommand(clock), newListCommand(), newFetchCommand())
	return cmd
}

// storeOptions are the flags of the place of the snapshots.
type storeOptions struct {
	directory string
	s3        backup.S3Options
}

func (o *storeOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.directory, "directory", "", "Directory of the snapshots.")
	flags.StringVar(&o.s3.Bucket, "s3-bucket", "", "Bucket of the snapshots, instead of a directory.")
	flags.StringVar(&o.s3.Endpoint, "s3-endpoint", "", "URL of the S3-compatible server, such as https://s3.eu-central-1.amazonaws.com.")
	flags.StringVar(&o.s3.Prefix, "s3-prefix", "", "Folder in the bucket. Each cluster needs its own.")
	flags.StringVar(&o.s3.Region, "s3-region", "us-east-1", "Region of the bucket.")
	flags.StringVar(&o.s3.CAFile, "s3-cafile", "", "File of the certificate authority of the S3-compatible server. Default: those of the system.")
}

func (o *storeOptions) store() (backup.Store, error) {
	if (o.directory == "") == (o.s3.Bucket == "") {
		return nil, errors.New("one place of the snapshots is needed; use either --directory or --s3-bucket")
	}
	if o.directory != "" {
		return backup.Directory(o.directory), nil
	}
	return backup.NewS3(o.s3)
}

func newSaveCommand(clock clock.PassiveClock) *cobra.Command {
	var place storeOptions
	var recipients []string
	options := backup.SaveOptions{Clock: clock}
	cmd := &cobra.Command{
		Use:   "save",
		Short: "Save an encrypted snapshot, and delete the oldest ones",
		Long: `Save an encrypted snapshot of etcd after a check of its hash, and delete the oldest snapshots. The snapshot appears
only when it is complete. The exit code is 1 if the snapshot was saved, but etcd has lost data, the clock is wrong, or an
old snapshot cannot be deleted. In the first two cases, no snapshot is deleted.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if options.Keep < 0 {
				return fmt.Errorf("--keep is %d, and must be 0 or more; 0 keeps all snapshots", options.Keep)
			}
			if options.Recipients, err = age.ParseRecipients(strings.NewReader(strings.Join(recipients, "\n"))); err != nil {
				return fmt.Errorf("parsing --recipient: %w; use public keys of age-keygen, which begin with age1", err)
			}
			store, err := place.store()
			if err != nil {
				return err
			}
			return save(cmd.Context(), store, options, cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	place.addFlags(flags)
	flags.StringArrayVar(&recipients, "recipient", nil, "Public key of age that can decrypt the snapshot. Can be repeated.")
	flags.IntVar(&options.Keep, "keep", 72, "Number of snapshots to keep. 0 keeps all.")
	flags.StringSliceVar(&options.Etcd.Servers, "etcd-servers", nil, "URLs of the members of etcd. The first one that is up to date is used.")
	flags.StringVar(&options.Etcd.CAFile, "etcd-cafile", "", "File of the certificate authority of etcd.")
	flags.StringVar(&options.Etcd.CertFile, "etcd-certfile", "", "File of the client certificate.")
	flags.StringVar(&options.Etcd.KeyFile, "etcd-keyfile", "", "File of the key of the client certificate.")
	_ = cmd.MarkFlagRequired("etcd-servers")
	_ = cmd.MarkFlagRequired("recipient")
	return cmd
}

func save(ctx context.Context, store backup.Store, options backup.SaveOptions, out io.Writer) error {
	saved, deleted, err := backup.Save(ctx, store, options)
	for _, s := range deleted {
		fmt.Fprintf(out, "deleted %s\n", s.Name())
	}
	var finding backup.Finding
	if errors.As(err, &finding) {
		return verdict(finding.Error())
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "snapshot: saved=%s revision=%d deleted=%d\n", saved.Name(), saved.Revision, len(deleted))
	return nil
}

func newListCommand() *cobra.Command {
	var place storeOptions
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the snapshots, the newest first",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			store, err := place.store()
			if err != nil {
				return err
			}
			all, err := backup.List(cmd.Context(), store)
			if err != nil {
				return err
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			fmt.Fprintln(table, "NAME\tTIME\tREVISION")
			for _, s := range all {
				fmt.Fprintf(table, "%s\t%s\t%d\n", s.Name(), s.Time.Format(time.RFC3339), s.Revision)
			}
			return table.Flush()
		},
	}
	place.addFlags(cmd.Flags())
	return cmd
}

func newFetchCommand() *cobra.Command {
	var place storeOptions
	var identity, output string
	cmd := &cobra.Command{
		Use:   "fetch [NAME]",
		Short: "Decrypt a snapshot for etcdutl snapshot restore",
		Long: `Fetch a snapshot, by default the newest one, decrypt it, and verify its hash. The output is a file for
etcdutl snapshot restore. It appears only when it is complete.`,
		Example: `  macrack-ledger snapshot fetch --directory . --identity key.txt --output macrack.db
  age --decrypt key.txt.age | macrack-ledger snapshot fetch --directory . --identity - --output macrack.db`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			store, err := place.store()
			if err != nil {
				return err
			}
			identities, err := readIdentities(identity, cmd.InOrStdin())
			if err != nil {
				return fmt.Errorf("reading --identity: %w; use a file of age-keygen", err)
			}
			s, err := selectSnapshot(cmd.Context(), store, args)
			if err != nil {
				return err
			}
			err = writeFile(output, func(w io.Writer) error { return backup.Fetch(cmd.Context(), store, s, identities, w) })
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "snapshot: fetched=%s revision=%d output=%s\n", s.Name(), s.Revision, output)
			return nil
		},
	}
	flags := cmd.Flags()
	place.addFlags(flags)
	flags.StringVar(&identity, "identity", "", "File with the private key of a recipient; - is the standard input.")
	flags.StringVarP(&output, "output", "o", "", "File to write.")
	_ = cmd.MarkFlagRequired("identity")
	_ = cmd.MarkFlagRequired("output")
	return cmd
}

func readIdentities(path string, stdin io.Reader) ([]age.Identity, error) {
	if path == "-" {
		return age.ParseIdentities(stdin)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return age.ParseIdentities(file)
}

// selectSnapshot returns the named snapshot, or the newest one.
func selectSnapshot(ctx context.Context, store backup.Store, args []string) (backup.Snapshot, error) {
	if len(args) > 0 {
		s, ok := backup.Parse(args[0])
		if !ok {
			return s, fmt.Errorf("%q is not the name of a snapshot; use a name from macrack-ledger snapshot list", args[0])
		}
		return s, nil
	}
	all, err := backup.List(ctx, store)
	if err != nil {
		return backup.Snapshot{}, err
	}
	if len(all) == 0 {
		return backup.Snapshot{}, errors.New("no snapshot found; check --directory or --s3-bucket and --s3-prefix")
	}
	return all[0], nil
}
